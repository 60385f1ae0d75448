"""A callback that connects Lightning's Trainer to a study: ``from tuner.lightning import ReportCallback``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.api.inside_trial import checkpoint, report
from tuner.errors import WorkloadError, not_installed
from tuner.workloads.session import Selected, current, select

try:
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ModuleNotFoundError as missing:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError:
        raise ImportError(not_installed("lightning")) from missing

FILE = "lightning.ckpt"


class ReportCallback(Callback):  # type: ignore[misc]
    """Reports what was logged after each validation of ``Trainer.fit``, with a checkpoint.

    A validation at the end of an epoch is reported when the epoch has ended, so that what ``training_step`` logs for
    the epoch is in the same report. If ``Trainer`` validates within epochs, too, a report's epoch is its number.

    The report ends ``fit`` with ``TrialEnd`` if the trial was pruned or the study ends. Outside of a trial it is
    printed, and no checkpoint is saved.
    """

    def __init__(self, metrics: Selected = None, *, checkpoint: bool = True) -> None:
        """Takes the names of logged metrics, or a mapping from the names to report; by default all are reported."""
        self._metrics = metrics
        self._checkpoint = checkpoint
        self._epoch_validated = False

    @property
    def ckpt_path(self) -> Path | None:
        """The checkpoint to go on from, for ``Trainer.fit(…, ckpt_path=…)``; None at a trial's beginning."""
        folder = checkpoint()
        return _safe(folder / FILE) if isinstance(folder, Path) and (folder / FILE).exists() else None

    def on_validation_end(self, trainer: Any, pl_module: object) -> None:
        """Reports, unless the epoch ends as well."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if trainer.is_last_batch:
            self._epoch_validated = True
        else:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: object) -> None:
        """Reports the validation at the epoch's end."""
        if self._epoch_validated:
            self._epoch_validated = False
            self._report(trainer)

    def on_train_end(self, trainer: Any, pl_module: object) -> None:
        """Says why there is nothing to report, if that is so."""
        if (session := current()) and not session.reports:
            needs = "a validation_step and validation data"
            session.nothing = f"ReportCallback reports validations, and Trainer.fit ran none: give it {needs}"

    def _report(self, trainer: Any) -> None:
        numbers = select(trainer.callback_metrics, self._metrics)
        # Epochs count from 1, also if the first one is not validated.
        epoch = trainer.current_epoch + 1 if _once_per_epoch(trainer) else None
        if not self._checkpoint or current() is None:
            if trainer.is_global_zero:
                report(numbers, epoch=epoch)
            return
        with TemporaryDirectory(prefix="tuner-") as folder:
            trainer.save_checkpoint(Path(folder) / FILE)
            if trainer.is_global_zero:  # which alone has written it
                _safe(Path(folder) / FILE)
            report(numbers, epoch=epoch, checkpoint=folder)


def _safe(path: Path) -> Path:
    """The path; raises ``WorkloadError`` if the file could run code when it is loaded, as Lightning lets it."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    if unsafe := get_unsafe_globals_in_checkpoint(path):
        raise WorkloadError(
            f"ReportCallback: the checkpoint holds {unsafe[0]}: expected tensors and plain values: leave it out by "
            "save_hyperparameters(ignore=[…]), or choose ReportCallback(checkpoint=False)"
        )
    return path


def _once_per_epoch(trainer: Any) -> bool:
    """Whether validations are at ends of epochs alone."""
    batches = trainer.val_check_batch or 0  # None if they are timed
    return trainer.check_val_every_n_epoch is not None and bool(batches >= trainer.num_training_batches)
