"""A callback that connects transformers' Trainer to a study: ``from tuner.transformers import ReportCallback``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.api.inside_trial import checkpoint, report
from tuner.errors import not_installed
from tuner.workloads.session import Selected, current, select

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as missing:
    raise ImportError(not_installed("transformers")) from missing

STATE_FILE = "trainer_state.json"
NO_RESULTS = ("_runtime", "_per_second", "_preparation_time")  # ends of names


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each evaluation of ``Trainer.train``, with the checkpoint that is saved after it, if one is.

    Metrics have the names that ``Trainer`` logs, such as ``eval_loss``; metrics of several data sets form one report.
    With ``eval_strategy="no"`` evaluations after the training are reported in place of those in it. A report's epoch
    is the training's with ``eval_strategy="epoch"``, and the report's number otherwise.

    The report ends ``train`` with ``TrialEnd`` if the trial was pruned or the study ends. Outside of a trial the
    metrics are printed.
    """

    def __init__(self, metrics: Selected = None, *, checkpoint: bool = True) -> None:
        """Takes the names of logged metrics, or a mapping from the names to report; by default all are reported."""
        self._metrics = metrics
        self._checkpoint = checkpoint
        self._evaluated: dict[str, object] = {}  # not reported yet
        self._training = False

    @property
    def resume_from_checkpoint(self) -> str | None:
        """The folder to go on from, for ``Trainer.train(resume_from_checkpoint=…)``; None at a trial's beginning."""
        folder = checkpoint()
        return str(folder) if isinstance(folder, Path) and (folder / STATE_FILE).exists() else None

    def on_train_begin(self, args: Any, state: Any, control: object, **_: object) -> None:
        """Evaluations are part of the training from now on."""
        self._training = True

    def on_evaluate(self, args: Any, state: Any, control: object, metrics: dict[str, object], **_: object) -> None:
        """Keeps the metrics until it is known whether a checkpoint is saved; the untrained model's are left out."""
        if state.global_step == 0 or not (self._training or args.eval_strategy == "no"):
            return
        skipped = {name for name in metrics if name == "epoch" or name.endswith(NO_RESULTS)}
        self._evaluated |= {name: value for name, value in metrics.items() if name not in skipped}
        if not self._training:
            self._report(args, state)

    def on_save(self, args: Any, state: Any, control: object, **_: object) -> None:
        """Reports the evaluation with the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._report(args, state, folder if self._checkpoint and folder.is_dir() else None)

    def on_step_begin(self, args: Any, state: Any, control: object, **_: object) -> None:
        """Reports the evaluation, as no checkpoint was saved."""
        self._report(args, state)

    on_epoch_begin = on_epoch_end = on_step_begin

    def on_train_end(self, args: Any, state: Any, control: object, **_: object) -> None:
        """Reports the last evaluation, if no checkpoint was saved."""
        self._training = False
        self._report(args, state)
        if (session := current()) and not session.reports:
            needs = 'eval_strategy="epoch" and an eval_dataset'
            session.nothing = f"ReportCallback reports evaluations, and Trainer.train ran none: give it {needs}"

    def _report(self, args: Any, state: Any, folder: Path | None = None) -> None:
        if not self._evaluated:
            return
        numbers = select(self._evaluated, self._metrics)
        self._evaluated = {}
        if state.is_world_process_zero:
            epoch = round(state.epoch) if args.eval_strategy == "epoch" else None
            report(numbers, epoch=epoch, checkpoint=folder)
