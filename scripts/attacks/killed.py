"""What is killed: studies of a function, a script and an Optuna objective. Each epoch leaves lines in a file."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import tuner
from tuner.records.weights import load_best
from tuner.values import encode

EPOCHS, SECONDS = 4, 0.03
STUDY, TRAININGS, SAID = "study", "trainings", "said.json"  # in a try's folder
KINDS: dict[str, Any] = {"choice": ["a", True, None]}
SPACE: dict[str, Any] = {
    **{"x": {"uniform": [0, 1]}, "kind": KINDS, "layers": {"choice": [[8], [8, 4]]}},
    "n": {"int": [1, 8], "if": {"kind": True}},
}
STEPS = {"x": {"uniform": [0, 1], "step": 0.25}, "kind": KINDS}
MB = {"x": {"uniform": [0, 1]}, "mb": {"choice": [1, 400, 700]}}  # a first share is enough for 1 alone
FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "gpu_memory_buffer_gb": 0, "memory_gb": 2, "report": False}
FIXED |= {"metric": "score", "direction": "minimize", "seed": 3, "num_samples": 12, "space": SPACE}
MEMORY = ("estimated_bytes", "peak_bytes", "peak_ram_bytes", "limit_bytes", "limit_ram_bytes", "estimated_memory_gb")
MEMORY += ("peak_memory_gb", "peak_ram_gb")
AGAIN = ("in_process", "report", "estimate")  # what a study does not keep
HERE: dict[str, Any] = {"in_process": True}
CHILD: dict[str, Any] = {"max_workers": 1, "num_samples": 6, "backoff": 0.1}
RAY = {**CHILD, "max_workers": 2, "num_samples": 10}
FEW = {"search_options": {"population_size": 4}}
ASHA = {"scheduler": "asha", "scheduler_options": {"reduction_factor": 2}}
PBT = {"scheduler": "pbt", "scheduler_options": {"interval": 1, "epochs": EPOCHS, "quantile": 0.5}, "num_samples": 8}


def parameters(config: dict[str, Any]) -> Any:
    """What is known of a trial before it runs."""
    import torch

    model = torch.nn.Linear(10, sum(config["layers"]))
    return model, None, lambda: model(torch.ones(2, 10)).sum()


CASES: dict[str, dict[str, Any]] = {
    "grid": {**HERE, "search": "grid", "space": {**STEPS, "n": {"int": [1, 2]}}, "num_samples": None},
    "random": {**HERE, "search": "random"},
    "qmc": {**HERE, "search": "qmc"},
    "tpe": {**HERE, "search": "tpe", "search_options": {"n_startup_trials": 4}},
    "cmaes": {**HERE, "search": "cmaes"},
    "nsgaii": {**HERE, "search": "nsgaii", **FEW},
    "nsgaiii": {**HERE, "search": "nsgaiii", **FEW},
    "bruteforce": {**HERE, "search": "bruteforce", "space": STEPS},
    "asha": {**HERE, "search": "random", **ASHA},
    "tpe, asha": {**HERE, "search": "tpe", "search_options": {"n_startup_trials": 4}, **ASHA},
    "pbt": {**HERE, "search": "random", **PBT},
    "seeds": {**HERE, "search": "random", "seeds": 2, "num_samples": 6},
    "constraints": {
        **{
            **HERE,
            "search": "tpe",
            "search_options": {"n_startup_trials": 4},
            "estimate": parameters,
            "memory_gb": None,
        },
        "constraints": ("size <= 0.6", "parameters <= 100"),
    },
    "two objectives": {**HERE, "search": "nsgaii", **FEW, "metric": ("score", "size"), "direction": ("min", "max")},
    "script": {**CHILD, "search": "tpe", "space": STEPS, "workload": f"script {__file__} {{x}} {{kind}}"},
    "too little memory": {**CHILD, "search": "random", "space": MB, "memory_gb": 0.3, "device_memory_gb": 0.9},
    "Optuna study": {**CHILD, "trials": 6},
    "Ray, tpe": {**RAY, "search": "tpe"},
    "Ray, asha": {**RAY, "search": "random", **ASHA},
    "Ray, pbt": {**RAY, "search": "random", **PBT},
}
APART = tuple(name for name, case in CASES.items() if "max_workers" in case)  # they need processes of their own
CHANGES = ("Optuna study", *(name for name in APART if name.startswith("Ray")))  # what is tried depends on time


def losses(config: dict[str, Any], noise: float, before: float = 4.0) -> list[float]:
    """The score after each further epoch: it has the memory of all epochs before it."""
    off = (config["x"] - 0.3) ** 2 + 0.1 * (config.get("kind") == "a") + config.get("n", 0) / 100
    return [before := before / 2 + off + noise / 10 for _ in range(EPOCHS)]


def note(trial_id: str, epoch: int, what: str) -> None:
    """Leaves a line that no kill can cut."""
    file = os.open(os.environ["TRAININGS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{trial_id} {epoch} {what}\n".encode())
    os.close(file)


def train(config: dict[str, Any]) -> None:
    """Goes on behind its checkpoint."""
    trial_id, noise, _held = tuner.trial_dir().name, random.random(), bytes(config.get("mb", 0) << 20)
    state: Any = tuner.checkpoint() or {"epoch": 0, "score": 4.0}
    for epoch in range(state["epoch"] + 1, EPOCHS + 1):
        note(trial_id, epoch, "begins")
        time.sleep(SECONDS)
        state = {"epoch": epoch, "score": losses(config, noise, state["score"])[0]}
        note(trial_id, epoch, "ends")
        tuner.report(score=state["score"], size=config["x"], epoch=epoch, checkpoint=state)


def objective(trial: Any) -> float:
    """The same for Optuna, without checkpoints."""
    from optuna import TrialPruned

    config = {"x": trial.suggest_float("x", 0, 1), "kind": trial.suggest_categorical("kind", KINDS["choice"])}
    trial_id, scores = tuner.trial_dir().name, losses(config, 0.0)
    for epoch, score in enumerate(scores, 1):
        note(trial_id, epoch, "begins")
        time.sleep(SECONDS)
        note(trial_id, epoch, "ends")
        trial.report(score, epoch)
        if trial.should_prune():
            raise TrialPruned
    return scores[-1]


def study(case: str) -> None:
    """Begins a study in the current folder, or goes on with it, and says what came of it."""
    given = {**FIXED, **CASES[case]}
    where: dict[str, Any] = {"resume" if Path(STUDY, "study.json").exists() else "output": STUDY}
    if "trials" in given:
        _optimize(given, where)
        return
    kept = {name: value for name, value in given.items() if "output" in where or name in AGAIN}
    workload = given.get("workload", train)
    result = tuner.run(workload, **{name: value for name, value in kept.items() if name != "workload"}, **where)
    best = {**load_best(STUDY)} if workload is train else {}
    said = [encode(result.best_config), result.best_value, best, [row.trial_id for row in result.best_trials]]
    Path(SAID).write_text(json.dumps(said))


def _optimize(given: dict[str, Any], where: dict[str, Any]) -> None:
    import optuna

    import tuner.optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    how = {"pruner": optuna.pruners.SuccessiveHalvingPruner(), "sampler": optuna.samplers.TPESampler(seed=0)}
    asked = optuna.create_study(storage="sqlite:///optuna.db", study_name="killed", load_if_exists=True, **how)
    options = {name: given[name] for name in ("device", "threads", "memory_gb", "report", "max_workers", "backoff")}
    tuner.optuna.optimize(asked, objective, given["trials"], gpu_memory_buffer_gb=0, **options, **where)


if __name__ == "__main__":
    kind = {"True": True, "None": None}.get(sys.argv[2], sys.argv[2])
    train({"x": float(sys.argv[1]), "kind": kind})
