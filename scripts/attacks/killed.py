"""What is killed: a function, a script of it, and an Optuna study."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tuner

EPOCHS = 3
MB = (1, 400, 700)  # held by a trial; a first share is enough for 1, and a whole device for all


def train(config: dict[str, float]) -> None:
    """Goes on behind its checkpoint; a score follows from the configuration and the epoch."""
    _held, before = bytes(int(config["mb"]) << 20), tuner.checkpoint()
    done = int((Path(before) / "epoch").read_text()) if before else 0
    for epoch in range(done + 1, EPOCHS + 1):
        time.sleep(0.1)
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "epoch").write_text(f"{epoch}")
            tuner.report(score=config["x"] / epoch, epoch=epoch, checkpoint=place)


def objective(trial: Any) -> float:
    """The same for Optuna, without checkpoints."""
    from optuna import TrialPruned

    x, _held = float(trial.suggest_float("x", 0, 1)), bytes(trial.suggest_categorical("mb", MB) << 20)
    for epoch in range(1, EPOCHS + 1):
        time.sleep(0.1)
        trial.report(x / epoch, epoch)
        if trial.should_prune():
            raise TrialPruned
    return x / EPOCHS


def optimize(scheduler: str, trials: int, **options: object) -> None:
    """Begins an Optuna study in this folder, or goes on with it."""
    import optuna

    import tuner.optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    named = {"fifo": "NopPruner", "asha": "SuccessiveHalvingPruner", "median": "MedianPruner"}
    how = {"pruner": getattr(optuna.pruners, named[scheduler])(), "sampler": optuna.samplers.TPESampler(seed=0)}
    study = optuna.create_study(storage="sqlite:///optuna.db", study_name="killed", load_if_exists=True, **how)
    where = "resume" if Path("study/study.json").exists() else "output"
    tuner.optuna.optimize(study, objective, trials, **options, **{where: "study"})


if __name__ == "__main__":
    train({"x": float(sys.argv[1]), "mb": float(sys.argv[2])})
