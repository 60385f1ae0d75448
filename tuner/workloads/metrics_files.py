"""The metrics in files that a script or a command writes: CSV, lines of JSON, TensorBoard's event files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import WorkloadError, option
from tuner.machine.regular_files import regular

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

MOST_BYTES = 2**26  # of a file, which is read again as it grows
KINDS = "expected a name that ends with .csv or .jsonl, or TensorBoard's event files or their folder"

Row = dict[str, object]


class MetricsFiles:
    """The files below a trial's folder that match a pattern such as ``logs/**/metrics.csv``."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._earlier: set[Path] = set()  # files of an earlier attempt, which this one may write anew
        self._read: dict[Path, int] = {}  # how many rows of each were read
        self._events: dict[Path, EventFileLoader] = {}
        self._latest: Row = {}  # what those had, by tag
        for _ in self.new(""):  # of an earlier attempt
            pass
        self._earlier = set(self._read)

    def new(self, metric: str, *, last: bool = False) -> Iterator[Row]:
        """The rows that were written since the last call: numbers and texts, by name. The ``last`` may lack its end.

        Raises ``WorkloadError`` for a file that cannot be read.
        """
        for path in self._files():
            if "tfevents" in path.name:
                yield from self._scalars(path, metric)
                continue
            try:
                text = regular(path, MOST_BYTES).read_text(errors="replace")
            except FileNotFoundError:  # it is written anew
                continue
            except OSError as error:
                raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
            complete = (text if last else text[: text.rfind("\n") + 1]).split("\n")
            rows = _table(complete) if path.suffix == ".csv" else _lines(complete)
            known = self._read.get(path, 0)
            if path in self._earlier and len(rows) < known:
                self._earlier.remove(path)
                known = 0
            self._read[path] = max(known, len(rows))
            yield from rows[known:]

    def missing(self) -> str:
        """That no file was there, if that is so."""
        if self._read or self._events:
            return ""
        return f"no file matches {self._pattern} in {self._folder}"

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

    def _scalars(self, path: Path, metric: str) -> Iterator[Row]:
        """What an event file has at each value of the metric, with the latest values of the other tags."""
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
                found = make_ndarray(value.tensor)
                if found.size == 1 and found.dtype.kind in "fiu":
                    self._latest[value.tag] = found.item()
                    if value.tag == metric:
                        yield dict(self._latest)


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
