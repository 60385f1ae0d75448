"""Chooses trackers by the options of a study; TensorBoard is one of them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError, not_installed, option
from tuner.integrations.trackers.adapter import Figures, Tracker, Trackers, config_of, row_figures
from tuner.integrations.trackers.mlflow import MLflow
from tuner.integrations.trackers.wandb import WandB
from tuner.records.attempts import Attempt
from tuner.trial import Trial

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class TensorBoard(Tracker):
    """Writes event files into the study's folder, a run for each trial, with its hyperparameters (HParams)."""

    package = "tensorboardX"

    def __init__(self) -> None:
        super().__init__("tensorboard")
        self._writers: dict[str, SummaryWriter] = {}

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """Sets the folder."""
        self._folder = folder / "tensorboard"

    def begin(self, trial: Trial) -> None:
        """Starts an event file. Files are named by the second, so that of a resumed trial also has a number."""
        from tensorboardX import SummaryWriter

        plain = re.sub(r"[^\w.=+-]+", "_", trial.name)
        folder = self._folder / f"{trial.trial_id}-{plain}"
        suffix = f".{len(list(folder.glob('*')))}"
        self._writers[trial.trial_id] = SummaryWriter(str(folder), flush_secs=5, filename_suffix=suffix)

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures."""
        for name, value in figures.items():
            self._writers[trial_id].add_scalar(name, value, epoch)

    def end(self, row: Attempt) -> None:
        """Adds hyperparameters and final figures, unless the trial will continue when the study is resumed."""
        with self._writers.pop(row.trial_id) as writer:
            if row.status != "interrupted":
                config = config_of(row)
                writer.add_hparams(config, row_figures(row), name=".", global_step=row.epochs)


def choose_trackers(tensorboard: bool, mlflow: str | None, wandb: str | None) -> Trackers:
    """The chosen trackers, not connected yet. A missing package, or a wrong URI or name, raises ``InputError``."""
    chosen: list[Tracker] = [TensorBoard()] if tensorboard else []
    chosen += [MLflow(mlflow)] if mlflow is not None else []
    chosen += [WandB(wandb)] if wandb is not None else []
    for tracker in chosen:
        if find_spec(tracker.package) is None:
            raise InputError(f"{option(tracker.name)}: {not_installed(tracker.package, extra=tracker.name)}")
    return Trackers(chosen)
