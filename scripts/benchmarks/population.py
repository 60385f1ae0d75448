"""Population-based training against Ray Tune's own: the best final score of both with the same budget, by seed.

Both begin with the same values, and members are to train equally long. Ray trains some more, as a member may take
over a checkpoint from before its own; so the epochs are printed, too.

``toy`` is Ray's example pbt_function, whose best learning rate changes as it is trained; ``digits`` is a small CNN.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

import tuner
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS
from tuner.search.drawing import draws
from tuner.search.spaces import parse_space

State = dict[str, Any]
LEARNING_RATES = {"toy": (1e-4, 2e-2), "digits": (1e-3, 1.0)}


def toy(config: State, state: State | None, seed: int) -> Iterator[tuple[float, State]]:
    """The best rate grows with the accuracy, up to 100, and a rate that is far from it loses accuracy."""
    state = state or {"step": 0, "score": 0.0}
    draw = random.Random(f"{seed}/{config['lr']}/{state['step']}")
    for step in range(state["step"], 100):
        best, score = min(0.01, max(0.001, 0.01 * state["score"] / 100)), state["score"]
        off = max(best, config["lr"]) / min(best, config["lr"])
        score += draw.random() / off if off < 3 else -(off - 3) * draw.random()
        state = {"step": step + 1, "score": max(0.0, score + 2 * draw.gauss(0, 1))}
        yield state["score"], state


def digits(config: State, state: State | None, seed: int) -> Iterator[tuple[float, State]]:
    """Trains a small CNN by SGD on half of scikit-learn's digits, and is scored on the others."""
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    torch.manual_seed(seed + (state["step"] if state else 0))
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = (images / 16).float().reshape(-1, 1, 8, 8)
    parts = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)]
    model = nn.Sequential(*parts)
    if state:
        model.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=config["momentum"])
    for step in range(state["step"] if state else 0, 20):
        for part in torch.randperm(900).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            score = (model(images[900:]).argmax(1) == labels[900:]).float().mean().item()
        yield score, {"step": step + 1, "score": score, "model": model.state_dict()}


PROBLEMS: dict[str, tuple[Callable[..., Iterator[tuple[float, State]]], int, int]] = {
    "toy": (toy, 100, 10),
    "digits": (digits, 20, 4),
}


def space_of(name: str) -> dict[str, Any]:
    """The space of a problem, as tuner takes it."""
    low, high = LEARNING_RATES[name]
    return {"lr": {"loguniform": [low, high]}} | ({"momentum": {"uniform": [0.0, 0.99]}} if name == "digits" else {})


def with_tuner(name: str, seed: int, members: int, folder: Path) -> tuple[float, int]:
    """The best final score of tuner's population, and its epochs."""
    problem, epochs, interval = PROBLEMS[name]

    def train(config: State) -> None:
        for score, now in problem(config, tuner.checkpoint(), seed):
            tuner.report(score=score, checkpoint=now)

    pbt = {"scheduler": "pbt", "scheduler_options": {"interval": interval, "epochs": epochs}}
    common = {"metric": "score", "direction": "maximize", "memory_gb": 2, "max_workers": 4, "report": False}
    result = tuner.run(train, space=space_of(name), num_samples=members, seed=seed, output=folder, **pbt, **common)
    assert all(row.status == "completed" for row in result.trials)
    lines = [line for line in read_epochs(folder / EPOCHS) if line.metrics]
    last = {line.trial_id: line.metrics["score"] or 0.0 for line in lines}
    return max(last.values()), len(lines)


def with_ray(name: str, seed: int, members: int, folder: Path) -> tuple[float, int]:
    """The best final score of Ray Tune's population, and its epochs."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.search import BasicVariantGenerator

    problem, _, interval = PROBLEMS[name]

    def train(config: State) -> None:
        checkpoint, state = tune.get_checkpoint(), None
        if checkpoint:
            with checkpoint.as_directory() as path:
                state = torch.load(Path(path) / "state.pt", weights_only=True)
        for score, now in problem(config, state, seed):
            with tempfile.TemporaryDirectory() as path:
                torch.save(now, Path(path) / "state.pt")
                with (folder / "epochs").open("a") as file:
                    file.write(".")
                tune.report({"score": score}, checkpoint=tune.Checkpoint.from_directory(path))

    random.seed(seed)
    low, high = LEARNING_RATES[name]
    space: State = {"lr": tune.loguniform(low, high)}
    space |= {"momentum": tune.uniform(0.0, 0.99)} if name == "digits" else {}
    pbt = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=interval, hyperparam_mutations=space
    )
    first = list(islice(draws(parse_space(space_of(name), None, name), seed), members))
    config = tune.TuneConfig(
        metric="score",
        mode="max",
        num_samples=members,
        scheduler=pbt,
        search_alg=BasicVariantGenerator(points_to_evaluate=first),
        reuse_actors=True,
    )
    found = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.5}),
        param_space=space,
        tune_config=config,
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    ).fit()
    return max(result.metrics["score"] for result in found), len((folder / "epochs").read_text())


@click.command(help=__doc__)
@click.argument("problem", type=click.Choice(list(PROBLEMS)))
@click.option("--seeds", default=5, show_default=True)
@click.option("--members", default=8, show_default=True)
def main(problem: str, seeds: int, members: int) -> None:
    import ray

    found: dict[str, list[tuple[float, int]]] = {"tuner": [], "Ray Tune": []}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            found["tuner"].append(with_tuner(problem, seed, members, Path(folder) / "tuner"))
        with tempfile.TemporaryDirectory() as folder:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
            found["Ray Tune"].append(with_ray(problem, seed, members, Path(folder)))
            ray.shutdown()
        scores = [f"{name} {values[-1][0]:.4f} after {values[-1][1]} epochs" for name, values in found.items()]
        click.echo(f"seed {seed}: {', '.join(scores)}")
    medians = [f"{name} {statistics.median(score for score, _ in values):.4f}" for name, values in found.items()]
    click.echo(f"medians of {seeds} seeds on the CPU: {', '.join(medians)}")


if __name__ == "__main__":
    main()
