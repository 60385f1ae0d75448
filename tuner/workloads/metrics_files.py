"""The metrics in files of a program: CSV, lines of JSON, TensorBoard's event files; and reports made of rows."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import WorkloadError, option
from tuner.machine.safe_files import regular

Row = dict[str, object]

QUIET_SECONDS = 5.0  # how long a trial's first report waits for further values, if its end is not known
BUFFERED_SECONDS = 120.0  # how long TensorBoard's writers buffer values; no report waits longer
PLACES = ("epoch", "step")  # what says where a row belongs, in this order

MOST_BYTES = 2**26  # of a file, which is read again as it grows
KINDS = "expected a name that ends with .csv or .jsonl, or TensorBoard's event files or their folder"

Piece = tuple[float, Row, str, int | None]  # when it was written or its place, its writer, and an event's step


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

    def __init__(self, metric: str, *, keeps: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the metric that each report has."""
        self.keeps, self._metric, self._clock = keeps, metric, clock
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
                self._others = {other: earlier for other, earlier in self._others.items() if other <= place}
                self._ended.clear()
            self._last = place
            values = {**self._others.pop(place, {}), **row}
            for earlier in sorted(other for other in self._others if other < place):
                self._kept |= self._others.pop(earlier)
            self._begun.append(_Begun(place, values, writer, self._clock(), {**self._kept} if self.keeps else {}))
        elif same:
            same[-1].row |= row
            same[-1].since = self._clock()
        else:
            self._others.setdefault(place, {}).update(row)
            self._beside |= row.keys() if place in self._ended else set()  # the next reports wait for it

    def ended(self, *, last: bool = False) -> Iterator[Row]:
        """Yields the reports that have ended by now; all of them at the ``last`` call."""
        while self._begun:
            first, now = self._begun[0], self._clock()
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
    places = (row[name] for name in PLACES if isinstance(row.get(name), (int, float)))
    return next((place for place in places if abs(place) < math.inf), None)  # type: ignore[arg-type,return-value]


if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


class MetricsFiles:
    """The files below a trial's folder that match a pattern such as ``logs/**/metrics.csv``."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._earlier: set[Path] = set()  # files of an earlier attempt, which this one may write anew
        self._read: dict[Path, int] = {}  # how many rows of each were read
        self._names: dict[str, dict[str, None]] = {}  # the values' names of each file
        self._events: dict[Path, EventFileLoader] = {}
        self._reports: Assembly | None = None
        for _ in self.new(""):  # of an earlier attempt
            pass
        self._earlier = set(self._read)
        self._reports = None

    def new(self, metric: str, *, last: bool = False) -> Iterator[Row]:
        """The reports that have ended since the last call: numbers and texts, by name. The ``last`` may lack its end.

        Raises ``WorkloadError`` for a file that cannot be read.
        """
        made = self._reports = self._reports or Assembly(metric)
        pieces: list[Piece] = []
        for path in self._files():
            pieces += self._scalars(path, metric) if "tfevents" in path.name else self._rows(path, last=last)
        made.keeps = bool(self._events)
        if len({writer for _, _, writer, _ in pieces}) > 1:  # as they were written
            pieces.sort(key=itemgetter(0))
        for _, row, writer, step in pieces:
            self._names.setdefault(writer, {}).update(dict.fromkeys(row))
            yield from made.add(row, writer, step)
        yield from made.ended(last=last)

    def missing(self, metric: str) -> str:
        """Why nothing was reported: no file was there, or what those that were read have in place of the metric."""
        if not (self._read or self._events):
            return f"no file matches {self._pattern} in {self._folder}"
        return "; ".join(
            f"{path.relative_to(self._folder)} has {', '.join(self._names.get(str(path), ())) or 'no value'}, "
            f"but not {metric}"
            for path in [*self._read, *self._events]
        )

    def _rows(self, path: Path, *, last: bool) -> list[Piece]:
        try:
            text = regular(path, MOST_BYTES).read_text(errors="replace")
        except FileNotFoundError:  # it is written anew
            return []
        except OSError as error:
            raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
        complete = (text if last else text[: text.rfind("\n") + 1]).split("\n")
        rows = _table(complete) if path.suffix == ".csv" else _lines(complete)
        read = self._read.get(path, 0)
        if path in self._earlier and len(rows) < read:
            self._earlier.remove(path)
            read = 0
        self._read[path] = max(read, len(rows))
        return [(place_of(row) or 0.0, row, str(path), None) for row in rows[read:]]

    def _files(self) -> Iterator[Path]:
        whole = self._folder.resolve()
        for path in sorted(self._folder.glob(self._pattern)):
            if not path.resolve().is_relative_to(whole):
                continue
            if path.is_dir():
                yield from sorted(path.rglob("*tfevents*"))
            elif path.suffix in (".csv", ".jsonl") or "tfevents" in path.name:
                yield path
            else:
                raise WorkloadError(
                    f"{option('metrics_file', self._pattern)}: {path.name} has no known format: {KINDS}"
                )

    def _scalars(self, path: Path, metric: str) -> Iterator[Piece]:
        """What was added to an event file: each value with its time, its step, and its writer.

        A tag's name is its own, or with its folder's, as ``val/loss``, if that is how the metric is called.
        """
        try:
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
            from tensorboard.util.tensor_util import make_ndarray
        except ImportError as error:
            raise WorkloadError(
                f"{path.name}: event files are read by tensorboard: pip install tensorboard"
            ) from error

        if path not in self._events:
            self._events[path] = EventFileLoader(str(regular(path)))
        for event in self._events[path].Load():
            for value in event.summary.value:
                array, longer = make_ndarray(value.tensor), f"{path.parent.name}/{value.tag}"
                if array.size == 1 and array.dtype.kind in "fiu":
                    name = longer if longer == metric else value.tag
                    yield event.wall_time, {name: array.item()}, str(path), event.step


def number(text: str) -> object:
    """A number in a text; the text itself if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _table(lines: list[str]) -> list[Row]:
    rows = csv.DictReader(lines, restkey="")
    return [
        {name.strip(): number(text) for name, text in row.items() if name and isinstance(text, str) and text}
        for row in rows
    ]


def _lines(lines: list[str]) -> list[Row]:
    rows = []
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except ValueError:
            raise WorkloadError(f"a line of the metrics file is not JSON: {line:.80}") from None
        rows.append(row if isinstance(row, dict) else {})
    return rows
