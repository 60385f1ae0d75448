"""The interface of a tracker, and the figures of a trial that it gets, with the CSV's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.records.attempts import AFTER_METRICS, Attempt
from tuner.records.epochs import EpochLine
from tuner.trial import GB, ConfigValue, EpochReport, Trial

Figures = dict[str, float]
EPOCH = "epoch/"  # the prefix of figures after an epoch; the plain name is the CSV's final figure
TAKEN = "memory/taken_gb"
SHARE = "memory/share_gb"
TEXTS = ("workload", "name", "status", "device", "error")


@dataclass(frozen=True)
class TrackedStudy:
    """A study, named after its folder. Its id stays the same if the folder is moved."""

    name: str
    study_id: str
    folder: Path


@dataclass(frozen=True)
class TrackedTrial:
    """A trial at the start of an attempt. All attempts of a trial are one run of the tracker."""

    trial: Trial
    device: str
    epoch: int  # the last epoch that is not trained again; 0 for a new trial
    earlier: Mapping[int, Figures]  # the figures of the epochs up to that one

    @property
    def name(self) -> str:
        """The name of its run: trial id and configuration."""
        return f"{self.trial.trial_id} {self.trial.name}"

    @property
    def hyperparameters(self) -> dict[str, ConfigValue]:
        """Its configuration and its seed."""
        return {**self.trial.config, "seed": self.trial.seed}


class Tracker(Protocol):
    """Receives what happens in a study. An error ends the tracker and not the study, except in ``connect``."""

    name: str

    def connect(self) -> None:
        """Checks that it can be used, before anything is written; raises ``InputError`` if not."""

    def open(self, study: TrackedStudy) -> None:
        """The study begins or is resumed."""

    def begin(self, tracked: TrackedTrial) -> None:
        """An attempt has begun: creates the trial's run or continues it."""

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """An epoch has ended."""

    def end(self, row: Attempt) -> None:
        """A trial has ended; ``row`` is its row in the CSV."""

    def close(self) -> None:
        """The study has ended: sends the rest."""


def epoch_figures(report: EpochReport, share_bytes: int) -> Figures:
    """An epoch's metrics as in ``epochs.jsonl``, and the trial's memory against its share."""
    metrics = {EPOCH + name: round(float(value), 6) for name, value in report.metrics.items() if math.isfinite(value)}
    taken = {} if report.memory_bytes is None else {TAKEN: round(report.memory_bytes / GB, 4)}
    return {**metrics, **taken, SHARE: round(share_bytes / GB, 4)}


def line_figures(line: EpochLine) -> Figures:
    """The same from a line of ``epochs.jsonl``, which does not have the share."""
    named = {**{EPOCH + name: value for name, value in line.metrics.items()}, TAKEN: line.memory_gb}
    return {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}


def row_figures(row: Attempt) -> Figures:
    """The numbers in a row of the CSV without the configuration: metrics, epochs, seconds, shares and memory."""
    names = ("attempts", *row.metrics, *AFTER_METRICS)
    return {name: float(value) for name in names if isinstance(value := row.value(name), (int, float))}


def row_texts(row: Attempt) -> dict[str, str]:
    """The texts in a row: workload, name, status, device and error."""
    return {key: str(value) for key in TEXTS if (value := row.value(key))}


def row_config(row: Attempt) -> dict[str, ConfigValue]:
    """The final configuration in a row, and its seed."""
    return {**row.config, "seed": row.seed}
