"""TensorBoard: event files in the study's folder, a run for each trial, with its hyperparameters (HParams)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tuner.integrations.trackers.base import Figures, TrackedStudy, TrackedTrial, row_config, row_figures
from tuner.records.attempts import Attempt
from tuner.trial import SUCCESSFUL

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FOLDER = "tensorboard"
HPARAMS = ".hparams"  # the suffix of the file with a trial's hyperparameters and final figures


class _Protobuf(Protocol):
    """A message of Protocol Buffers."""

    def SerializeToString(self) -> bytes: ...


class TensorBoard:
    """Writes event files; ``tensorboard --logdir DIR/tensorboard`` shows them."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._writers: dict[str, SummaryWriter] = {}

    def connect(self) -> None:
        """Nothing to do: its package comes with Ray Tune, and its files are in the study's folder."""

    def open(self, study: TrackedStudy) -> None:
        """Sets the folder."""
        self._folder = study.folder / FOLDER

    def begin(self, tracked: TrackedTrial) -> None:
        """Starts a new event file, which discards the later epochs of earlier files."""
        from tensorboardX import SummaryWriter

        if before := self._writers.pop(tracked.trial.trial_id, None):
            before.close()
        folder = self._folder / _folder_name(tracked)
        purge = tracked.epoch + 1 if folder.exists() else None
        # Files are named by the second, and a file of the same name would be overwritten.
        suffix = f".{tracked.epoch:06d}"
        self._writers[tracked.trial.trial_id] = SummaryWriter(
            str(folder), purge_step=purge, flush_secs=5, filename_suffix=suffix
        )

    def log(self, trial_id: str, epoch: int, figures: Figures) -> None:
        """Adds an epoch's figures."""
        for name, value in figures.items():
            self._writers[trial_id].add_scalar(name, value, epoch)

    def end(self, row: Attempt) -> None:
        """Writes hyperparameters and final figures into a separate file, which replaces an earlier one."""
        from tensorboardX import SummaryWriter

        writer = self._writers.pop(row.trial_id)
        writer.close()
        folder = Path(writer.logdir)
        for earlier in folder.glob(f"*{HPARAMS}"):
            earlier.unlink()
        with SummaryWriter(str(folder), filename_suffix=HPARAMS) as summary:
            for each in _session(row):
                summary.file_writer.add_summary(each)
            for name, value in row_figures(row).items():
                summary.add_scalar(name, value, row.epochs)

    def close(self) -> None:
        """Closes the files of trials that have not ended."""
        for writer in self._writers.values():
            writer.close()


def _folder_name(tracked: TrackedTrial) -> str:
    plain = re.sub(r"[^\w.=+-]+", "_", tracked.trial.name)
    return f"{tracked.trial.trial_id}-{plain}"


def _session(row: Attempt) -> list[object]:
    """The two messages that HParams reads: the hyperparameters and the status.

    TensorBoard derives the experiment, a list of all trials' hyperparameters, from them.
    """
    from tensorboardX.proto.api_pb2 import Status
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

    start = SessionStartInfo()
    for key, value in row_config(row).items():
        if isinstance(value, str):
            start.hparams[key].string_value = value
        else:
            start.hparams[key].number_value = value
    status = "STATUS_SUCCESS" if row.status in SUCCESSFUL else "STATUS_FAILURE"
    end = SessionEndInfo(status=Status.Value(status))
    return [
        _summary("_hparams_/session_start_info", HParamsPluginData(session_start_info=start, version=0)),
        _summary("_hparams_/session_end_info", HParamsPluginData(session_end_info=end, version=0)),
    ]


def _summary(tag: str, content: _Protobuf) -> object:
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
