"""What trials said after their epochs: a line each in ``epochs.jsonl``, for curves, and no part of the results.

Lines are kept back for up to a second and not waited for until the disk has them. A file that is damaged or not there
costs curves, and nothing else.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter

from tuner.records.checking import Amount, Metric, TrialId, Whole, checked_json
from tuner.trial import GB, EpochReport

FLUSH_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLine:
    """What a trial said after an epoch."""

    trial_id: TrialId
    attempt: Whole  # of the trial, from 1
    epoch: Whole  # counts from 1; 0 as training begins
    at: Amount  # when, in unix seconds
    metrics: Mapping[str, Metric]  # by name; None where one was no finite number
    # the most that its process had taken from its device by then, where that is known
    memory_gb: Amount | None = None


class EpochLog:
    """Adds to ``epochs.jsonl``; nothing that goes wrong with it is raised."""

    def __init__(self, path: Path) -> None:
        """Begins with nothing to write; the file is made with its first line.

        Args:
            path: the file; what is there already is kept.
        """
        self._path = path
        self._lines: list[str] = []
        self._flushed = time.monotonic()
        self._mended = False

    def add(self, report: EpochReport, attempt: int) -> None:
        """Keeps what a trial said in one of its attempts."""
        line = {
            "trial_id": report.trial_id,
            "attempt": attempt,
            "epoch": report.epoch,
            "at": round(time.time(), 3),
            "metrics": {
                name: round(float(value), 6) if math.isfinite(value) else None
                for name, value in report.metrics.items()
            },
        }
        if report.memory_bytes is not None:
            line["memory_gb"] = round(report.memory_bytes / GB, 4)
        self._lines.append(json.dumps(line))
        if time.monotonic() >= self._flushed + FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the lines that are kept back; if that fails they are lost."""
        self._flushed = time.monotonic()
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        with suppress(OSError), self._path.open("a+b") as file:
            if not self._mended and _ends_within_a_line(file):
                text = "\n" + text
            self._mended = True
            file.write(text.encode())


def read_epochs(path: Path) -> list[EpochLine]:
    """The lines of a study's ``epochs.jsonl`` in order, without damaged ones; none if it cannot be read."""
    lines = []
    with suppress(OSError):
        for text in path.read_bytes().splitlines():
            with suppress(ValueError):
                lines.append(checked_json(_adapter(), text))
    return lines


def histories(lines: Iterable[EpochLine]) -> dict[str, dict[int, EpochLine]]:
    """By trial and epoch what was said last, without epochs that a later attempt has begun before.

    An attempt goes on where a checkpoint was kept, or begins anew, and what came after that no longer counts.
    """
    found: dict[str, dict[int, EpochLine]] = {}
    attempts: dict[str, int] = {}
    for line in lines:
        own = found.setdefault(line.trial_id, {})
        if attempts.get(line.trial_id) != line.attempt:
            attempts[line.trial_id] = line.attempt
            found[line.trial_id] = own = {epoch: kept for epoch, kept in own.items() if epoch <= line.epoch}
        if line.metrics:
            own[line.epoch] = line
    return found


def _ends_within_a_line(file: BinaryIO) -> bool:
    """Whether a kill has left half a line, which must not take the next one with it."""
    if file.seek(0, 2) == 0:
        return False
    file.seek(-1, 2)
    return file.read(1) != b"\n"


@cache
def _adapter() -> TypeAdapter[EpochLine]:
    return TypeAdapter(EpochLine)
