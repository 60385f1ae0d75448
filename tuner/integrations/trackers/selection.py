"""Chooses trackers by the options of a study."""

from __future__ import annotations

from importlib.util import find_spec

from tuner.errors import InputError, not_installed, option
from tuner.integrations.trackers.base import Tracker
from tuner.integrations.trackers.threads import Trackers


def choose_trackers(tensorboard: bool, mlflow: str | None, wandb: str | None) -> Trackers:
    """The chosen trackers, not connected yet. A missing package, or a wrong URI or name, raises ``InputError``."""
    chosen: list[Tracker] = []
    if tensorboard:
        from tuner.integrations.trackers.tensorboard import TensorBoard

        _check_installed("tensorboard", "tensorboardX")
        chosen.append(TensorBoard())
    if mlflow is not None:
        from tuner.integrations.trackers.mlflow import MLflow, check_uri

        uri = check_uri(mlflow)
        _check_installed("mlflow", "mlflow")
        chosen.append(MLflow(uri))
    if wandb is not None:
        from tuner.integrations.trackers.wandb import WandB, check_project

        project = check_project(wandb)
        _check_installed("wandb", "wandb")
        chosen.append(WandB(project))
    return Trackers(chosen)


def _check_installed(extra: str, package: str) -> None:
    if find_spec(package) is None:
        raise InputError(f"{option(extra)}: {not_installed(package, extra=extra)}")
