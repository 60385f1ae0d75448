"""The metrics in files that a script or a command writes: CSV, lines of JSON, TensorBoard's event files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import WorkloadError, option
from tuner.machine.safe_files import regular
from tuner.workloads.assembly import Assembly, Row, place_of

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

MOST_BYTES = 2**26  # of a file, which is read again as it grows
KINDS = "expected a name that ends with .csv or .jsonl, or TensorBoard's event files or their folder"

Piece = tuple[float, Row, str, int | None]  # when it was written or its place, its writer, and an event's step


class MetricsFiles:
    """The files below a trial's folder that match a pattern such as ``logs/**/metrics.csv``."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._earlier: set[Path] = set()  # files of an earlier attempt, which this one may write anew
        self._read: dict[Path, int] = {}  # how many rows of each were read
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
        found: list[Piece] = []
        for path in self._files():
            found += self._scalars(path, metric) if "tfevents" in path.name else self._rows(path, last=last)
        made.keeps = bool(self._events)
        if len({writer for _, _, writer, _ in found}) > 1:  # as they were written
            found.sort(key=itemgetter(0))
        for _, row, writer, step in found:
            yield from made.add(row, writer, step)
        yield from made.ended(last=last)

    def missing(self) -> str:
        """That no file was there, if that is so."""
        if self._read or self._events:
            return ""
        return f"no file matches {self._pattern} in {self._folder}"

    def _rows(self, path: Path, *, last: bool) -> list[Piece]:
        try:
            text = regular(path, MOST_BYTES).read_text(errors="replace")
        except FileNotFoundError:  # it is written anew
            return []
        except OSError as error:
            raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
        complete = (text if last else text[: text.rfind("\n") + 1]).split("\n")
        rows = _table(complete) if path.suffix == ".csv" else _lines(complete)
        known = self._read.get(path, 0)
        if path in self._earlier and len(rows) < known:
            self._earlier.remove(path)
            known = 0
        self._read[path] = max(known, len(rows))
        return [(place_of(row) or 0.0, row, str(path), None) for row in rows[known:]]

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
                found, longer = make_ndarray(value.tensor), f"{path.parent.name}/{value.tag}"
                if found.size == 1 and found.dtype.kind in "fiu":
                    name = longer if longer == metric else value.tag
                    yield event.wall_time, {name: found.item()}, str(path), event.step


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
        {name: number(text) for name, text in row.items() if name and isinstance(text, str) and text} for row in rows
    ]


def _lines(lines: list[str]) -> list[Row]:
    rows = []
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except ValueError:
            raise WorkloadError(f"a line of the metrics file is no JSON: {line:.80}") from None
        rows.append(row if isinstance(row, dict) else {})
    return rows
