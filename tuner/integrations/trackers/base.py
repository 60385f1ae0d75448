"""What a tracker is, and what it is told of a trial: the figures of the CSV, under the CSV's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.records.epochs import MEMORY, Line
from tuner.records.rows import BEFORE_METRICS, JOURNAL_ONLY, Row
from tuner.trial import GB, EpochReport, Trial

Figures = dict[str, float]
EPOCH = "epoch/"  # before the name of what is told after each epoch: the plain name is the CSV's figure
TAKEN = "memory/taken_gb"
SHARE = "memory/share_gb"
TEXTS = ("workload", "name", "status", "device", "error")


@dataclass(frozen=True)
class Study:
    """The study whose trials are told of.

    Attributes:
        name: of its folder.
        study_id: the same wherever the folder is, and another for any other study.
        folder: where it is.
    """

    name: str
    study_id: str
    folder: Path


@dataclass(frozen=True)
class Run:
    """A trial as one of its attempts begins; all of its attempts are one run.

    Attributes:
        trial: the attempt.
        device: where it runs.
        epoch: the last epoch that it does not train again; 0 for a new one.
        earlier: the figures of those epochs, as far as they are known.
    """

    trial: Trial
    device: str
    epoch: int
    earlier: Mapping[int, Figures]

    @property
    def name(self) -> str:
        """What people call it: trial id and configuration."""
        return f"{self.trial.trial_id} {self.trial.name}"

    @property
    def hyperparameters(self) -> dict[str, int | float | str]:
        """Its configuration and its seed."""
        return {**self.trial.config, "seed": self.trial.seed}


class Tracker(Protocol):
    """Takes what happens in a study. Whatever it raises, but for ``connect``, costs the tracker and not the study."""

    name: str

    def connect(self) -> None:
        """Makes sure that it can be used, before anything is written.

        Raises:
            InputError: it cannot; why, and what to do.
        """

    def open(self, study: Study) -> None:
        """The study begins, or goes on."""

    def begin(self, run: Run) -> None:
        """An attempt has begun: makes the trial's run, or goes on with it."""

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """An epoch has ended."""

    def end(self, row: Row) -> None:
        """A trial has ended; ``row`` is its row in the CSV."""

    def close(self) -> None:
        """The study has ended: sends what is left."""


def epoch_figures(report: EpochReport, share_bytes: int) -> Figures:
    """What is told after an epoch: its metrics as ``epochs.jsonl`` has them, and memory against the trial's share.

    Args:
        report: of the epoch.
        share_bytes: what is set aside for the trial.
    """
    metrics = {EPOCH + name: round(float(value), 6) for name, value in report.metrics.items() if math.isfinite(value)}
    taken = {} if report.memory_bytes is None else {TAKEN: round(report.memory_bytes / GB, 4)}
    return {**metrics, **taken, SHARE: round(share_bytes / GB, 4)}


def line_figures(line: Line) -> Figures:
    """The same of a line of ``epochs.jsonl``, which does not say what the share was."""
    named = {**{EPOCH + name: value for name, value in line["metrics"].items()}, TAKEN: line.get(MEMORY)}
    return {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}


def row_figures(row: Row) -> Figures:
    """The numbers of a row of the CSV but for the configuration: metrics, epochs, seconds, shares and memory."""
    others = {*BEFORE_METRICS, *JOURNAL_ONLY, *TEXTS} - {"attempts"}
    own = {key: value for key, value in row.items() if key not in others and not key.startswith("config/")}
    return {key: float(value) for key, value in own.items() if isinstance(value, (int, float))}


def row_texts(row: Row) -> dict[str, str]:
    """Its texts: what was trained, where, and how it ended."""
    return {key: str(row[key]) for key in TEXTS if row.get(key)}


def row_config(row: Row) -> dict[str, int | float | str]:
    """Its configuration, as it was at the last, and its seed."""
    config = {key.removeprefix("config/"): value for key, value in row.items() if key.startswith("config/")}
    return {**config, "seed": row["seed"]}
