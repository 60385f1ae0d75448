"""The reports of trials after their epochs, in ``epochs.jsonl``: for learning curves, and for resumed studies.

Each line is written at once and not synced to the disk. Without the file, curves are missing, and a resumed study's
pruner and search know the ends of trials alone.
"""

import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import model_validator

from tuner.machine.safe_files import not_following
from tuner.records.checking import (
    Metric,
    Moment,
    Shown,
    Size,
    TrialId,
    Whole,
    in_bytes,
    in_json,
    readable_lines,
    recorded,
)
from tuner.trial import EpochReport, Placement

MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLine:
    """The report of a trial after an epoch."""

    trial_id: TrialId
    attempt: Whole  # the number of the trial's attempt, from 1
    epoch: Whole  # counts from 1; 0 for the beginning of training
    at: Moment  # the time in unix seconds
    metrics: Mapping[str, Metric]  # by name; None for a metric that was no number
    memory_bytes: Size | None = None  # the peak of its process on its device so far; None if unknown
    host_peak_bytes: Size | None = None  # beside a GPU, its peak in its host's RAM so far; None if unknown
    order: Whole | None = None  # among all that happened in the study; None in those of earlier versions
    device: Shown | None = None  # where the attempt runs; None in those of earlier versions
    limit_bytes: Size | None = None  # the memory that is reserved for it there

    @model_validator(mode="before")
    @classmethod
    def _older(cls, values: object) -> object:
        names = {"memory_gb": "memory_bytes", "host_peak_gb": "host_peak_bytes"}
        return in_bytes(values, names) if isinstance(values, dict) else values


NAMES = tuple(field.name for field in fields(EpochLine))  # asdict copies each value, and takes ten times as long


class EpochLog:
    """Appends to ``epochs.jsonl``. It raises no error."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Writes nothing yet. The lines of an existing file are kept."""
        self._path, self._clock = path, clock
        self._file: io.FileIO | None = None
        self._is_cut = False  # whether the last line is incomplete

    def add(
        self, report: EpochReport, attempt: int, order: int | None = None, placement: Placement | None = None
    ) -> None:
        """Writes the report of a trial's attempt at once; if that fails, it is lost."""
        line = EpochLine(
            trial_id=report.trial_id,
            attempt=attempt,
            epoch=report.epoch,
            at=round(self._clock(), 3),
            metrics=recorded(report.metrics),
            memory_bytes=report.memory_bytes,
            host_peak_bytes=report.host_peak_bytes,
            order=order,
            device=placement.label if placement else None,
            limit_bytes=placement.limit_bytes if placement else None,
        )
        values = {name: getattr(line, name) for name in NAMES}
        text = json.dumps({**values, "metrics": in_json(line.metrics)}).encode() + b"\n"
        with suppress(OSError):
            if self._file is None or not os.fstat(self._file.fileno()).st_nlink:  # a trial may have removed it
                self.close()
                self._file = self._opened()
            text = b"\n" * self._is_cut + text
            self._is_cut = self._file.write(text) != len(text)

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _opened(self) -> io.FileIO:
        file = open(self._path, "a+b", buffering=0, opener=not_following)  # noqa: SIM115
        if size := file.seek(0, os.SEEK_END):  # a kill may have left an incomplete line
            file.seek(size - 1)
            self._is_cut = file.read(1) != b"\n"
        return file


def read_epochs(path: Path) -> list[EpochLine]:
    """The lines of ``epochs.jsonl`` in order, without damaged ones; empty if the file cannot be read."""
    return readable_lines(EpochLine, path, MOST_BYTES)


def histories(lines: Iterable[EpochLine]) -> dict[str, dict[int, EpochLine]]:
    """The last line of each epoch, by trial id and epoch.

    A new attempt resumes from a checkpoint or starts over. Lines of later epochs from before that are dropped.
    """
    by_trial: dict[str, dict[int, EpochLine]] = {}
    attempts: dict[str, int] = {}
    for line in lines:
        by_epoch = by_trial.setdefault(line.trial_id, {})
        if attempts.get(line.trial_id) != line.attempt:
            attempts[line.trial_id] = line.attempt
            by_trial[line.trial_id] = by_epoch = {
                epoch: kept for epoch, kept in by_epoch.items() if epoch <= line.epoch
            }
        if line.metrics:
            by_epoch[line.epoch] = line
    return by_trial


def seconds_per_epoch(lines: Iterable[EpochLine]) -> dict[str, float]:
    """How long an epoch of each trial's last attempt took on average, by trial id; only where one has ended."""
    ends: dict[str, tuple[EpochLine, EpochLine]] = {}
    for line in lines:
        first, _ = ends.get(line.trial_id, (line, line))
        # A study that was killed begins its attempt again under the same number, with a line without metrics.
        goes_on = first.attempt == line.attempt and line.metrics
        ends[line.trial_id] = (first if goes_on else line), line
    return {
        trial_id: max(0.0, last.at - first.at) / (last.epoch - first.epoch)
        for trial_id, (first, last) in ends.items()
        if last.epoch > first.epoch
    }
