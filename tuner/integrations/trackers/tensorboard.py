"""TensorBoard: event files in the study's folder, a run for each trial, with its hyperparameters (HParams)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.integrations.trackers.adapter import Figures, TrackedTrial, Tracker, row_figures
from tuner.records.attempts import Attempt
from tuner.trial import SUCCESSFUL

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

HPARAMS = ".hparams"  # the suffix of the file with a trial's hyperparameters and final figures


class TensorBoard(Tracker):
    """Writes event files; ``tensorboard --logdir DIR/tensorboard`` shows them."""

    package = "tensorboardX"

    def __init__(self) -> None:
        super().__init__("tensorboard")
        self._writers: dict[str, SummaryWriter] = {}

    def open(self, name: str, study_id: str, folder: Path) -> None:
        """Sets the folder."""
        self._folder = folder / "tensorboard"

    def begin(self, tracked: TrackedTrial) -> None:
        """Starts a new event file, which discards the later epochs of earlier files."""
        from tensorboardX import SummaryWriter

        trial = tracked.trial
        if before := self._writers.pop(trial.trial_id, None):
            before.close()
        plain = re.sub(r"[^\w.=+-]+", "_", trial.name)
        folder = self._folder / f"{trial.trial_id}-{plain}"
        purge = tracked.epoch + 1 if folder.exists() else None
        # Files are named by the second, and a file of the same name would be overwritten.
        suffix = f".{tracked.epoch:06d}"
        writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=5, filename_suffix=suffix)
        self._writers[trial.trial_id] = writer

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures."""
        for name, value in figures.items():
            self._writers[trial_id].add_scalar(name, value, epoch)

    def end(self, row: Attempt) -> None:
        """Writes hyperparameters and final figures into a file of their own, which replaces an earlier one."""
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.api_pb2 import Status
        from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
        from tensorboardX.summary import hparams

        writer = self._writers.pop(row.trial_id)
        writer.close()
        folder = Path(writer.logdir)
        for earlier in folder.glob(f"*{HPARAMS}"):
            earlier.unlink()
        # TensorBoard derives the list of all trials' hyperparameters, ``experiment``, from the other two.
        _experiment, started, ended = hparams({**row.config, "seed": row.seed}, {})
        if row.status not in SUCCESSFUL:
            data = ended.value[0].metadata.plugin_data
            failed = HParamsPluginData.FromString(data.content)
            failed.session_end_info.status = Status.Value("STATUS_FAILURE")
            data.content = failed.SerializeToString()
        with SummaryWriter(str(folder), filename_suffix=HPARAMS) as summary:
            summary.file_writer.add_summary(started)
            summary.file_writer.add_summary(ended)
            for name, value in row_figures(row).items():
                summary.add_scalar(name, value, row.epochs)
