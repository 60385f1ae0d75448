"""Several objectives against ``study.optimize`` of Optuna: hypervolumes by the same sampler and seeds, on the CPU.

``zdt1`` is of Zitzler, Deb and Thiele (2000); ``digits`` is the error of an MLP against its parameters.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import optuna
from optuna._hypervolume import compute_hypervolume

import tuner

Values = tuple[float, float]
NUMBERS = [f"x{place}" for place in range(6)]


def zdt1(config: Mapping[str, float]) -> Values:
    """Both values of the problem."""
    g = 1 + 9 * sum(config[name] for name in NUMBERS[1:]) / (len(NUMBERS) - 1)
    return config["x0"], g * (1 - math.sqrt(config["x0"] / g))


def digits(config: Mapping[str, Any]) -> Values:
    """The error of an MLP on scikit-learn's digits, and a hundred-thousandth of its parameters."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = (images / 16).float()
    model = nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))
    optimizer = torch.optim.Adam(model.parameters(), config["lr"])
    for _ in range(5):
        for part in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    error = (model(images[1200:]).argmax(1) != labels[1200:]).float().mean().item()
    return error, sum(parameter.numel() for parameter in model.parameters()) / 1e5


PROBLEMS: dict[str, tuple[Callable[[Mapping[str, Any]], Values], dict[str, Any], Values]] = {
    "zdt1": (zdt1, {name: {"uniform": [0.0, 1.0]} for name in NUMBERS}, (1.1, 11.0)),
    "digits": (digits, {"hidden": {"logint": [4, 512]}, "lr": {"loguniform": [1e-4, 1e-1]}}, (1.0, 0.4)),
}


def hypervolume(values: Sequence[Sequence[float]], reference: Values) -> float:
    """What these values dominate up to the reference point."""
    return float(compute_hypervolume(np.array(values), np.array(reference)))


def with_tuner(name: str, sampler: str, seed: int, trials: int, workers: int) -> float:
    """The hypervolume of a study of tuner's."""
    problem, space, reference = PROBLEMS[name]

    def train(config: dict[str, Any]) -> None:
        first, second = problem(config)
        tuner.report(first=first, second=second)

    with tempfile.TemporaryDirectory() as folder:
        result = tuner.run(
            train, space=space, search=sampler, num_samples=trials, seed=seed, metric=["first", "second"],
            direction=["minimize"] * 2, memory_gb=1, max_workers=workers, report=False, output=Path(folder) / "out",
        )  # fmt: skip
    return hypervolume([(row.metrics["first"], row.metrics["second"]) for row in result.trials], reference)


def with_optuna(name: str, sampler: str, seed: int, trials: int) -> float:
    """The hypervolume of ``study.optimize`` with tuner's options of the sampler."""
    from tuner.search.domains import suggested
    from tuner.search.optuna_names import make_sampler
    from tuner.search.spaces import parse_space

    problem, space, reference = PROBLEMS[name]
    parsed = parse_space(space, None, name)
    study = optuna.create_study(directions=["minimize"] * 2, sampler=make_sampler(sampler, (), seed))
    study.optimize(lambda trial: problem(suggested(trial, parsed)), n_trials=trials)
    return hypervolume([trial.values for trial in study.trials], reference)


@click.command(help=__doc__)
@click.argument("problem", type=click.Choice(list(PROBLEMS)))
@click.option("--sampler", default="tpe", show_default=True)
@click.option("--seeds", default=5, show_default=True)
@click.option("--trials", default=60, show_default=True)
def main(problem: str, sampler: str, seeds: int, trials: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[float]] = {"one at a time": [], "two": [], "optuna": []}
    for seed in range(seeds):
        found["one at a time"].append(with_tuner(problem, sampler, seed, trials, 1))
        found["two"].append(with_tuner(problem, sampler, seed, trials, 2))
        found["optuna"].append(with_optuna(problem, sampler, seed, trials))
        click.echo(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in found.items()))
    alone = max(abs(a / b - 1) for a, b in zip(found["one at a time"], found["optuna"], strict=True))
    two = ", ".join(f"{name} {statistics.median(values):.4f}" for name, values in found.items())
    click.echo(f"one at a time at most {alone:.2%} from Optuna; medians of {seeds} seeds: {two}")


if __name__ == "__main__":
    main()
