"""TensorBoard: event files in the study's folder, a run for each trial, with its hyperparameters (HParams)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.integrations.trackers.adapter import Figures, Tracker, config_of, row_figures
from tuner.records.attempts import Attempt
from tuner.trial import Trial

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class TensorBoard(Tracker):
    """Writes event files into the folder ``tensorboard``, which TensorBoard shows."""

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
