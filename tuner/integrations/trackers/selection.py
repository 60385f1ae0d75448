"""Chooses trackers by the options of a study."""

from __future__ import annotations

from importlib.util import find_spec

from tuner.errors import InputError, not_installed, option
from tuner.integrations.trackers.adapter import Tracker, Trackers


def choose_trackers(tensorboard: bool, mlflow: str | None, wandb: str | None) -> Trackers:
    """The chosen trackers, not connected yet. A missing package, or a wrong URI or name, raises ``InputError``."""
    chosen: list[Tracker] = []
    if tensorboard:
        from tuner.integrations.trackers.tensorboard import TensorBoard

        chosen.append(TensorBoard())
    if mlflow is not None:
        from tuner.integrations.trackers.mlflow import MLflow

        chosen.append(MLflow(mlflow))
    if wandb is not None:
        from tuner.integrations.trackers.wandb import WandB

        chosen.append(WandB(wandb))
    for tracker in chosen:
        if find_spec(tracker.package) is None:
            raise InputError(f"{option(tracker.name)}: {not_installed(tracker.package, extra=tracker.name)}")
    return Trackers(chosen)
