"""Weights & Biases: a run for each trial, in the chosen project, grouped by the study."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ParameterError, one_line
from tuner.integrations.trackers.adapter import Figures, Tracker, config_of, row_figures, row_texts
from tuner.records.attempts import Attempt
from tuner.trial import SUCCESSFUL, Trial

if TYPE_CHECKING:
    import wandb

PROJECT = re.compile(r"(?:[^/\\#?%:\s]+/)?[^/\\#?%:]{1,128}")


class WandB(Tracker):
    """Writes with W&B's own client, which keeps unsent data under ``wandb/`` in the study's folder."""

    package = "wandb"

    def __init__(self, project: str) -> None:
        super().__init__("wandb")
        if not isinstance(project, str) or not PROJECT.fullmatch(project.strip()):
            rule = "give a project's name, or ENTITY/PROJECT, without any of / \\ # ? % :"
            raise ParameterError("wandb", project, rule)
        entity, _, self._project = project.strip().rpartition("/")
        self._entity = entity or None
        self._runs: dict[str, wandb.Run] = {}

    def connect(self) -> None:
        """Checks that there is a login, as W&B would otherwise ask for one during the study."""
        import wandb

        if wandb.setup().settings.mode in ("offline", "dryrun", "disabled"):
            return
        try:
            logged_in = wandb.login(prompt=False)
        except Exception as error:
            raise ParameterError("wandb", self._project, one_line(error, 300)) from error
        if not logged_in:
            remedy = "run wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline to send later"
            raise ParameterError("wandb", self._project, "W&B has no API key here", remedy)

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """Keeps what its runs say of the study."""
        self._group, self._study_id, self._folder = name, study_id, os.fspath(folder)

    def begin(self, trial: Trial) -> None:
        """Creates the trial's run or continues it."""
        import wandb

        self._runs[trial.trial_id] = wandb.init(
            entity=self._entity,
            project=self._project,
            group=self._group,
            id=f"{self._study_id}-{trial.trial_id}",
            name=f"{trial.trial_id} {trial.name}",
            config=config_of(trial),
            dir=self._folder,
            resume="allow",
            reinit="create_new",  # trials run in parallel
            # W&B's own statistics are of this process, not of the worker.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures; the epoch is W&B's step."""
        self._runs[trial_id].log(figures, step=epoch)

    def end(self, row: Attempt) -> None:
        """Adds the final figures and the status, and finishes the run."""
        run = self._runs.pop(row.trial_id)
        run.config.update(config_of(row), allow_val_change=True)
        run.summary.update({**row_figures(row), **row_texts(row)})
        run.finish(exit_code=0 if row.status in SUCCESSFUL else 1)
