"""What a study leaves: a journal of attempts, a CSV with a row for each configuration, and the best weights.

results/<time>-<workload>-<mode>/
    attempts.jsonl    one line an attempt, the moment it ends: the truth
    results.csv       one row a configuration, rewritten as a whole
    study.json        command, versions, seed, devices, plan
    best.pt           the best trial's weights and configuration
    tracebacks.log    the full text of errors, if there were any
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import ExecutionError, InputError
from tuner.trial import GB, MemoryEstimate, Outcome

ATTEMPTS = "attempts.jsonl"
RESULTS = "results.csv"
STUDY = "study.json"
BEST = "best.pt"
TRACEBACKS = "tracebacks.log"

BEFORE_METRICS = ("trial_id", "workload", "name", "seed", "status", "attempts")
AFTER_METRICS = (
    "epochs",
    "duration_s",
    "device",
    "gpu_fraction",
    "estimated_memory_gb",
    "peak_memory_gb",
    "error",
)
CSV_SECONDS = 1.0  # at most so often is the table rewritten while trials end; the journal has every line at once
Row = dict[str, Any]


class StudyFolder:
    """Writes a study's folder; everything in it can be read at any moment."""

    def __init__(self, path: Path, metric: str, *, new: bool = False) -> None:
        """Makes the folder.

        Args:
            path: the folder; its parents are made too.
            metric: the metric that decides which trial is best; smaller is better.
            new: raise FileExistsError if it exists.

        Raises:
            InputError: the folder exists and holds files, or cannot be written.
        """
        self.path = path
        self._metric = metric
        self._rows: dict[str, Row] = {}
        self._best: float = math.inf
        self._written = 0.0
        try:
            path.mkdir(parents=True, exist_ok=not new)
            if any(path.iterdir()):
                raise InputError(f"--output {path}: the folder is not empty; give a new one")
            self._journal = (path / ATTEMPTS).open("a", encoding="utf-8")
        except OSError as error:
            if new and isinstance(error, FileExistsError):
                raise
            raise InputError(f"--output {path}: cannot be written: {error.strerror}") from error

    def record(self, outcome: Outcome, estimate: MemoryEstimate, weights: Callable[[], bytes]) -> None:
        """Keeps how an attempt ended: the weights if it is the best so far, then its line, then the table.

        The weights come first so that a finished trial never lacks them. If they cannot be had or written, the trial
        is recorded all the same, and its row says so.

        Raises:
            ExecutionError: the disk is full, or the folder can no longer be written.
        """
        row = to_row(outcome, estimate)
        with self._writing():
            if row["status"] == "completed" and row[self._metric] < self._best:
                try:
                    _replace(self.path / BEST, weights())
                    self._best = row[self._metric]
                except Exception as error:  # whatever it is, the result itself is not lost for it
                    row["error"] = f"weights not kept: {' '.join(str(error).split())[:200]}"
            if outcome.traceback:
                with (self.path / TRACEBACKS).open("a", encoding="utf-8") as log:
                    log.write(f"== {outcome.trial.trial_id} {outcome.trial.name}\n{outcome.traceback}\n")
            self._journal.write(json.dumps(row) + "\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())
            self._rows[outcome.trial.trial_id] = row
            if time.monotonic() - self._written > CSV_SECONDS:
                self._write_csv()

    def describe(self, study: Mapping[str, Any]) -> None:
        """Writes ``study.json``.

        Raises:
            ExecutionError: it cannot be written.
        """
        with self._writing():
            _replace(self.path / STUDY, (json.dumps(study, indent=2) + "\n").encode())

    def rows(self) -> list[Row]:
        """One row for each configuration that has ended, in the order of the configurations."""
        return [self._rows[trial_id] for trial_id in sorted(self._rows)]

    def close(self) -> None:
        """Writes the table a last time and closes the journal.

        Raises:
            ExecutionError: the disk is full, or the folder can no longer be written.
        """
        with self._writing(), closing(self._journal):
            self._write_csv()

    def _write_csv(self) -> None:
        _replace(self.path / RESULTS, to_csv(self.rows()).encode())
        self._written = time.monotonic()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExecutionError(f"{self.path} can no longer be written: {error.strerror}") from error


def to_row(outcome: Outcome, estimate: MemoryEstimate) -> Row:
    """An attempt in the words of the CSV; seconds, GB of 2**30 bytes, and None where nothing is known."""
    trial, placement = outcome.trial, outcome.placement
    return {
        "trial_id": trial.trial_id,
        "workload": trial.workload,
        "name": trial.name,
        "seed": trial.seed,
        "status": outcome.status,
        "attempts": trial.attempt if placement else trial.attempt - 1,
        **{name: round(value, 6) if math.isfinite(value) else None for name, value in outcome.metrics.items()},
        "epochs": outcome.epochs,
        "duration_s": round(outcome.seconds, 3),
        "device": placement.device.label if placement else None,
        # Rounded down: seven shares of 0.142857 fit on a device, seven of 0.1429 do not.
        "gpu_fraction": math.floor(placement.fraction * 1e6) / 1e6 if placement else None,
        "estimated_memory_gb": round(estimate.total_bytes / GB, 4),
        "peak_memory_gb": None if outcome.peak_bytes is None else round(outcome.peak_bytes / GB, 4),
        "error": outcome.error,
        **{f"config/{key}": value for key, value in trial.config.items()},
    }


def columns(rows: Iterable[Row]) -> list[str]:
    """The CSV's columns in their order: fixed ones, metrics, fixed ones, then the configuration's keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    config = [key for key in keys if key.startswith("config/")]
    metrics = [key for key in keys if key not in (*BEFORE_METRICS, *AFTER_METRICS, *config)]
    return [*BEFORE_METRICS, *metrics, *AFTER_METRICS, *config]


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV text; a value that is missing or None is left blank."""
    return write_rows(rows, columns(rows))


def write_rows(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """Any rows as CSV text, with these columns or those of the first row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names or list(rows[0]), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Writes a file as a whole: readers see the old content or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
