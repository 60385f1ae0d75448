"""Chooses trackers by the options of a study."""

from importlib.util import find_spec

from tuner.errors import InputError, not_installed, option
from tuner.integrations.trackers.adapter import Tracker, Trackers
from tuner.integrations.trackers.mlflow import MLflow
from tuner.integrations.trackers.tensorboard import TensorBoard
from tuner.integrations.trackers.wandb import WandB


def choose_trackers(tensorboard: bool, mlflow: str | None, wandb: str | None) -> Trackers:
    """The chosen trackers, not connected yet. A missing package, or a wrong URI or name, raises ``InputError``."""
    chosen: list[Tracker] = [TensorBoard()] if tensorboard else []
    chosen += [MLflow(mlflow)] if mlflow is not None else []
    chosen += [WandB(wandb)] if wandb is not None else []
    for tracker in chosen:
        if find_spec(tracker.package) is None:
            raise InputError(f"{option(tracker.name)}: {not_installed(tracker.package, extra=tracker.name)}")
    return Trackers(chosen)
