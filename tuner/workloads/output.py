"""The output of a script or a command: the reports in it, and why it failed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import MissingMetric, WorkloadError, joined, one_line, option
from tuner.workloads.metrics_files import PLACES, Assembly, MetricsFiles, Row, number
from tuner.workloads.session import Session

if TYPE_CHECKING:
    import regex

TAIL_BYTES = 2**16  # of the output, which is looked through for a traceback
LAST_LINES = 20  # of the output, where it has no traceback
LONGEST_BAR = 2**14  # characters of a line that is written again and again, as a progress bar is
SHOWN = 200  # characters of a line in a trial's row
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # of a terminal, such as a colour
RANK = re.compile(r"^\[rank\d+\]: ", re.M)  # what torch.distributed puts before a line
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<said>\S.*)", re.M)
HEADING = re.compile(r"[\W_]*epoch[\W_]*(\d{1,9})(?:\s*(?:/|of)\s*\d+)?[\W_]*", re.I)  # a line such as "Epoch 1/5"
LOOK_SECONDS = 1.0  # between two looks into files
PATTERN_SECONDS = 1.0  # for one line
OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError")  # which only say that another process has failed


class Reports:
    """The reports in lines of output, and in files: lines of JSON, what matches a pattern, and rows of files."""

    def __init__(
        self,
        session: Session,
        pattern: regex.Pattern[str] | None = None,
        files: MetricsFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._metric = session.metric
        self._pattern = pattern
        self._files = files
        self._made = Assembly(session.metric, clock=clock)
        self._clock = clock
        self._next_look = 0.0
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._lines: dict[int, str] = {}  # those that were begun, by the descriptor of their stream
        self._broken = ""
        self._others: dict[str, None] = {}  # numbers that came without the metric
        self._told: set[str] = set(PLACES)  # what reports have had
        self._placed = False  # whether rows say where they belong, so that headings do not count

    def feed(self, text: str, *, last: bool = False, stream: int = 1) -> None:
        """Reports what the complete lines say, with a last one that was begun before, and new rows of files.

        Each stream has its own lines, as a progress bar on one may be open while a line of the other ends.
        """
        if os.getpid() != self._process:  # a child of the trial's, which may have a copy of a held lock
            return
        with self._lock:
            *lines, begun = (self._lines.get(stream, "") + text).split("\n")
            self._lines[stream] = begun[-LONGEST_BAR:] if "\r" in begun else begun
            for line in lines:
                self._read(line.strip())
            self._report(self._made.ended(last=last))
            if self._files and (last or self._clock() >= self._next_look):
                self._report(self._files.new(self._metric, last=last))
                self._next_look = self._clock() + LOOK_SECONDS

    def rest(self) -> None:
        """Reports what is left, also of a program that has failed."""
        self.feed("\n", stream=2)
        self.feed("\n", last=True)

    def end(self) -> None:
        """Reports what is left; raises ``WorkloadError`` if all that was reported is damaged."""
        self.rest()
        if self._session.reports:
            if lost := ", ".join(name for name in self._others if name not in self._told):
                print(
                    f"tuner: no report has {lost}: print it in the line of {self._metric}, or name the epoch in both"
                )
            return
        missing = self._files.missing(self._metric) if self._files else ""
        if self._others:
            printed = f"it reported {', '.join(self._others)}, but not {self._metric}"
            raise MissingMetric(joined(printed, missing))
        if self._broken:
            raise WorkloadError(f"a line of its output is not JSON, and none is a report: {self._broken:.80}")
        if missing:
            raise WorkloadError(missing)

    def _read(self, line: str) -> None:
        if line.startswith("{"):
            try:
                row = json.loads(line)
            except ValueError:
                self._broken = self._broken or line
            else:
                self._take(row)
                return
        if not self._placed and (heading := HEADING.fullmatch(line)):
            self._report(self._made.add({"epoch": int(heading[1])}))
        if self._pattern:
            self._match(self._pattern, line)

    def _match(self, pattern: regex.Pattern[str], line: str) -> None:
        """Reports the last match in a line."""
        try:
            matches = list(pattern.finditer(line, timeout=PATTERN_SECONDS))
        except TimeoutError:
            slow = f"takes over {PATTERN_SECONDS:.0f} s for a line of {len(line)} characters: make it simpler"
            raise WorkloadError(f"{option('metric_pattern', pattern.pattern)}: {slow}") from None
        if matches:
            named = matches[-1].groupdict() or {self._metric: matches[-1][1]}
            self._take({name: number(text) for name, text in named.items() if text is not None})

    def _take(self, row: Row) -> None:
        if not self._placed and row.keys() & {*PLACES}:
            self._placed = True
            self._report(self._made.add({}))  # no heading
        if self._metric not in row:
            self._others |= dict.fromkeys(name for name, value in row.items() if isinstance(value, (int, float)))
        self._report(self._made.add(row))

    def _report(self, rows: Iterator[Row]) -> None:
        for row in rows:
            epoch = row.pop("epoch", None)
            kept = {name: one for name, one in row.items() if isinstance(one, (int, float)) or name == self._metric}
            self._told.update(kept)
            self._session.report(kept, epoch if isinstance(epoch, int) else None)


class Output(io.TextIOWrapper):
    """This process's standard output or standard error, in which lines may be reports."""

    def __init__(self, reports: Reports, stream: int = 1) -> None:
        now, errors = (sys.stdout, "strict") if stream == 1 else (sys.stderr, "backslashreplace")
        file = io.FileIO(now.fileno(), "w", closefd=False)
        super().__init__(io.BufferedWriter(file), "utf-8", errors, line_buffering=True)
        self._reports, self._stream = reports, stream

    def write(self, text: str) -> int:
        """Writes text, and reports what its lines say."""
        super().write(text)
        self._reports.feed(text, stream=self._stream)
        return len(text)


def failure(code: object) -> WorkloadError:
    """The error of a script or a command that has ended with this exit code, with what it has printed of it."""
    how = f"it ended with exit code {code}"
    if isinstance(code, int) and code < 0:
        how = f"it was ended by {signal.Signals(-code).name}"
    log, text = _log()
    text = RANK.sub("", ESCAPE.sub("", text))
    matches = list(TRACEBACK.finditer(text))
    causes = [one for one in matches if not any(name in one["said"] for name in OF_LAUNCHERS)] or matches
    lines = [line for line in text.splitlines() if line.strip()]
    reason = one_line(causes[-1]["said"] if causes else lines[-1] if lines else "", SHOWN)
    error = WorkloadError(f"{how}: {reason} (logs/{log})" if reason else how)
    error.tuner_output = text[causes[-1].start() :] if causes else "\n".join(lines[-LAST_LINES:])  # type: ignore[attr-defined]
    # What tells whether memory ran out: see ``tuner.machine.caps``.
    error.__cause__ = (MemoryError if reason.startswith("MemoryError") else RuntimeError)(reason)
    return error


def last_lines(most: int) -> list[str]:
    """The last lines that this process's trial has printed, without empty ones; none if its output is not kept."""
    return [line for line in _log()[1].splitlines() if line.strip() and not line.startswith("$ ")][-most:]


def _log() -> tuple[str, str]:
    """The name of the file that this process's output goes to, and its end; empty if the output is not kept."""
    try:
        file = Path(os.readlink("/proc/self/fd/1"))
        if file.suffix != ".log":
            return "", ""
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return file.name, opened.read().decode(errors="replace")
    except OSError:
        return "", ""
