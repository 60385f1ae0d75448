"""Puts together what lines or files say of one epoch or step, so that no report has its neighbour's values."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

Row = dict[str, object]

QUIET_SECONDS = 5.0  # so long a trial's first report waits for more, where its end does not show
BUFFERED_SECONDS = 120.0  # TensorBoard's writers keep values so long; no value is waited for longer
PLACES = ("epoch", "step")  # what says where a row belongs, in this order


@dataclass(eq=False)
class _Begun:
    """A report that may still grow."""

    place: float
    row: Row
    writer: str
    since: float  # when it last grew
    kept: Row  # the last values of earlier places
    past: set[str] = field(default_factory=set)  # the writers that have gone on to a later place


class Assembly:
    """Makes reports of rows: a value of the metric, and the other values of the same place, an epoch or a step.

    Rows without a place are reports by themselves, unless one with a place alone, such as "Epoch 3", came before. A
    report ends when it has all that came with the metric earlier, when those who write that have gone on to a later
    place, or when it has not grown for a while. What comes later is left out. With ``keeps`` a report also has the
    last values of earlier places, of what never comes with the metric.
    """

    def __init__(self, metric: str, *, keeps: bool = False) -> None:
        """Takes the metric that each report has."""
        self.keeps, self._metric = keeps, metric
        self._begun: list[_Begun] = []
        self._others: dict[float, Row] = {}  # what has no metric, by place
        self._kept: Row = {}
        self._beside: set[str] = set()  # what comes with the metric; empty before the first report
        self._last = -math.inf  # the place of the last report that has begun
        self._ended: set[float] = set()  # the places that were reported, without those of an earlier training
        self._heading: Row = {}  # the last row with a place alone
        self._reached: dict[str, float] = {}  # the last place of each writer
        self._writers: dict[str, str] = {}  # who writes a value

    def add(self, row: Row, writer: str = "", place: float | None = None) -> Iterator[Row]:
        """Takes a row, and yields the reports that have ended. One has an ``epoch`` only if it is known."""
        if place is None:
            if row.keys() <= {*PLACES}:
                self._heading = row
                return
            self._heading = {} if self._heading.keys() & row.keys() else self._heading
            row = {**self._heading, **row}
            place = place_of(row)
        begins = self._metric in row
        if place is None:
            yield from self.ended(last=begins)
            yield from [row] if begins else []
            return
        again = begins and place < self._last  # a second training of the same trial begins
        if begins or place > self._reached.get(writer, -math.inf):
            for begun in self._begun:
                begun.past |= {writer} if begins or begun.place != place else set()
            yield from self.ended(last=again)
        self._reached[writer] = place if begins else max(place, self._reached.get(writer, place))
        self._writers |= dict.fromkeys(row, writer)
        same = [begun for begun in self._begun if begun.place == place]
        if begins:
            if again:
                self._others = {other: said for other, said in self._others.items() if other <= place}
                self._ended.clear()
            self._last = place
            own = {**self._others.pop(place, {}), **row}
            for earlier in sorted(other for other in self._others if other < place):
                self._kept |= self._others.pop(earlier)
            self._begun.append(_Begun(place, own, writer, time.monotonic(), {**self._kept} if self.keeps else {}))
        elif same:
            same[-1].row |= row
            same[-1].since = time.monotonic()
        else:
            self._others.setdefault(place, {}).update(row)
            self._beside |= row.keys() if place in self._ended else set()  # the next reports wait for it

    def ended(self, *, last: bool = False) -> Iterator[Row]:
        """Yields the reports that have ended by now; all of them at the ``last`` call."""
        while self._begun:
            first, now = self._begun[0], time.monotonic()
            lacking = self._beside - first.row.keys()
            whole = self._beside and not lacking
            over = first.past.issuperset({first.writer, *(self._writers[name] for name in lacking)})
            wait = BUFFERED_SECONDS if lacking or self.keeps else QUIET_SECONDS
            if not (last or whole or over or now - first.since >= wait):
                return
            yield self._report(self._begun.pop(0))

    def _report(self, begun: _Begun) -> Row:
        self._beside |= begun.row.keys()
        kept = {name: value for name, value in begun.kept.items() if name not in {*self._beside, "epoch"}}
        row = {**kept, **begun.row}
        epoch = row.pop("epoch", None)
        if isinstance(epoch, (int, float)) and epoch % 1 == 0 and begun.place not in self._ended:  # else it was told
            row["epoch"] = int(epoch)
        self._ended.add(begun.place)
        return row


def place_of(row: Row) -> float | None:
    """The epoch or the step that a row names; None if it names none."""
    found = (row[name] for name in PLACES if isinstance(row.get(name), (int, float)))
    return next((place for place in found if abs(place) < math.inf), None)  # type: ignore[arg-type,return-value]
