"""Times one study run two ways in turn: by tuner, and by plain_ray_tune.py (Ray Tune and PyG's SAGEConv).

Each run is a whole process, from its start to its exit, with one CPU for each trial. Repeat k of both ways has seed
k - 1; RMSEs are means over the repeats.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import click

from tuner.workloads.lookup import find_workload

# Largest first: the plain way runs them in this order, and would else be left with the longest at the end.
ARCHITECTURES = [(128, 2), (64, 3), (64, 2), (32, 2)]
LEAST_RATIO = 6.0
MOST_DIFFERENCE = 0.01
WARM_UP = "import pandas, ray.tune, rich, torch, torch_geometric.nn"  # else the first run alone reads the disk
PLAIN = Path(__file__).with_name("plain_ray_tune.py")
OURS_NAME, PLAIN_NAME = "tuner", "Ray Tune + SAGEConv"


@dataclass(frozen=True)
class Run:
    """One run: its wall time, and the test RMSE of each configuration by name."""

    seconds: float
    test_rmse: dict[str, float]


def study(architectures: Sequence[tuple[int, int]], batch_size: int, epochs: int) -> list[dict[str, Any]]:
    """Configurations with every value spelled out, so that neither way has defaults of its own."""
    defaults = {key: known.default for key, known in find_workload("graphsage").hyperparameters.items()}
    given = {"batch_size": batch_size, "epochs": epochs}
    return [
        {"name": f"{hidden}x{layers}", **defaults, "hidden_dim": hidden, "num_layers": layers, **given}
        for hidden, layers in architectures
    ]


def run_ours(configurations: list[dict[str, Any]], data: str, seed: int, folder: Path) -> Run:
    config = folder / "study.yaml"
    config.write_text(json.dumps({"configurations": configurations}))  # JSON is YAML
    output = folder / "results"
    options = ["--config", config, "--auto-memory", "--device", "cpu", "--data", data, "--seed", seed]
    seconds = timed([sys.executable, "-m", "tuner", *options, "--output", output])
    with (output / "results.csv").open() as table:
        return Run(seconds, {row["name"]: float(row["test_rmse"]) for row in csv.DictReader(table)})


def run_plain(configurations: list[dict[str, Any]], data: str, seed: int, folder: Path) -> Run:
    config, output = folder / "study.json", folder / "results.json"
    config.write_text(json.dumps(configurations))
    options = ["--data", data, "--seed", seed, "--output", output, "--storage", folder / "ray_results"]
    seconds = timed([sys.executable, PLAIN, config, *options])
    return Run(seconds, {row["name"]: row["test_rmse"] for row in json.loads(output.read_text())})


def timed(command: Sequence[object]) -> float:
    """Wall seconds of a process that ends well; else its last words, and exit 1."""
    began = time.perf_counter()
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise click.ClickException(f"exit {done.returncode} of {' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return seconds


def report(ours: Sequence[Run], plain: Sequence[Run]) -> bool:
    """Prints the tables and the verdicts; true if both bars are met."""
    ratio = median(slow.seconds / fast.seconds for fast, slow in zip(ours, plain, strict=True))
    click.echo(f"\n{'way':<20} {'median s':>9}  wall s of each repeat")
    for way, runs in ((OURS_NAME, ours), (PLAIN_NAME, plain)):
        seconds = [run.seconds for run in runs]
        click.echo(f"{way:<20} {median(seconds):>9.1f}  {' '.join(f'{value:.1f}' for value in seconds)}")
    click.echo(f"{'ratio':<20} {ratio:>9.2f}")

    click.echo(f"\n{'test RMSE':<20} {OURS_NAME:>9} {'plain':>9} {'difference':>11}")
    largest = 0.0
    for name in ours[0].test_rmse:
        fast, slow = (mean(run.test_rmse[name] for run in runs) for runs in (ours, plain))
        largest = max(largest, abs(fast - slow))
        click.echo(f"{name:<20} {fast:>9.4f} {slow:>9.4f} {fast - slow:>+11.4f}")
    click.echo(f"{'largest':<20} {'':>9} {'':>9} {largest:>11.4f}\n")

    verdicts = [
        (ratio >= LEAST_RATIO, f"ratio {ratio:.2f}, at least {LEAST_RATIO:g}"),
        (largest <= MOST_DIFFERENCE, f"largest RMSE difference {largest:.4f}, at most {MOST_DIFFERENCE:g}"),
    ]
    for passed, text in verdicts:
        click.echo(f"{'PASS' if passed else 'FAIL'}  {text}")
    return all(passed for passed, _ in verdicts)


@click.command(help=__doc__)
@click.option("--data", default="synthetic", show_default=True, help="synthetic, ml-100k, or a folder.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each way, in turn.")
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=512, show_default=True)
@click.option("--quick", is_flag=True, help="One configuration and one epoch, to try the script.")
@click.pass_context
def main(ctx: click.Context, data: str, repeats: int, epochs: int, batch_size: int, quick: bool) -> None:
    configurations = study(ARCHITECTURES[:1] if quick else ARCHITECTURES, batch_size, 1 if quick else epochs)
    ways: dict[str, Callable[..., Run]] = {OURS_NAME: run_ours, PLAIN_NAME: run_plain}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    click.echo(
        f"{len(configurations)} configurations, {configurations[0]['epochs']} epochs, batch size {batch_size}, "
        f"{data}, {os.cpu_count()} cores"
    )
    timed([sys.executable, "-c", WARM_UP])
    for seed in range(repeats):
        for way, run in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                runs[way].append(run(configurations, data, seed, Path(folder)))
            click.echo(f"{way}: {runs[way][-1].seconds:.1f} s")
    ctx.exit(0 if report(runs[OURS_NAME], runs[PLAIN_NAME]) else 1)


if __name__ == "__main__":
    main()
