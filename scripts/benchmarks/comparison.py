"""Times one study in five ways in turn: plain PyG scripts by Ray Tune, Optuna and tuner, and tuner's own GraphSAGE.

The script (plain_sage.py) trains GraphSAGE on an ``edge_index`` or on a CSR matrix. Its function on the CSR matrix is
tuned by Ray Tune, by Optuna with two threads, and by tuner, which shows the orchestrator's own part. At last tuner
trains its own GraphSAGE. Each run is a whole process, from its start to its exit, with one core for each trial.
Repeat k of all ways has seed k - 1; RMSEs are means over the repeats.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import click

from scripts.benchmarks.verdicts import print_verdicts
from tuner.workloads.lookup import find_workload

# Largest first: Ray Tune and Optuna keep this order, and would else be left with the longest at the end.
ARCHITECTURES = [(128, 2), (64, 3), (64, 2), (32, 2)]
MOST_DIFFERENCE = 0.01
MOST_OF_THE_BEST = 1.1  # of the fastest other orchestrator's time
WARM_UP = "import optuna, pandas, ray.tune, rich, torch, torch_geometric.nn"  # else the first run reads the disk
OURS = "tuner, its GraphSAGE"
EDGES, BY_RAY, BY_OPTUNA, BY_TUNER = "Ray Tune, edge_index", "Ray Tune, CSR", "Optuna, CSR", "tuner, CSR"
PLAIN: Mapping[str, list[str]] = {
    EDGES: ["--by", "ray-tune"],
    BY_RAY: ["--by", "ray-tune", "--csr"],
    BY_OPTUNA: ["--by", "optuna", "--csr"],
    BY_TUNER: ["--by", "tuner", "--csr"],
}


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


def run_plain(way: str, configurations: list[dict[str, Any]], data: str, seed: int, folder: Path) -> Run:
    config, output = folder / "study.json", folder / "results.json"
    config.write_text(json.dumps(configurations))
    options = [*PLAIN[way], "--data", data, "--seed", seed, "--output", output, "--folder", folder]
    seconds = timed([sys.executable, "-m", "scripts.benchmarks.plain_sage", config, *options])
    return Run(seconds, json.loads(output.read_text()))


def run_way(way: str, configurations: list[dict[str, Any]], data: str, seed: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        if way == OURS:
            return run_ours(configurations, data, seed, Path(folder))
        return run_plain(way, configurations, data, seed, Path(folder))


def timed(command: Sequence[object], **where: Any) -> float:
    """Wall seconds of a process that ends well; else its last words, and exit 1. ``where`` goes to ``run``."""
    began = time.perf_counter()
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **where)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise click.ClickException(f"exit {done.returncode} of {' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return seconds


def report(runs: Mapping[str, Sequence[Run]]) -> bool:
    """Prints the table and the verdicts; true if all bars are met."""
    seconds = {way: median(run.seconds for run in done) for way, done in runs.items()}
    names = list(runs[OURS][0].test_rmse)
    found = {way: [mean(run.test_rmse[name] for run in done) for name in names] for way, done in runs.items()}
    click.echo(f"\n{'way':<22} {'median s':>8}  test RMSE of {', '.join(names)}")
    for way in runs:
        click.echo(f"{way:<22} {seconds[way]:>8.1f}  {' '.join(f'{value:.4f}' for value in found[way])}")
    click.echo("")

    spread = max(max(values) - min(values) for values in zip(*found.values(), strict=True))
    best = min(seconds[BY_RAY], seconds[BY_OPTUNA])
    share, part = seconds[OURS] / seconds[BY_RAY], seconds[BY_TUNER] / best
    verdicts = [
        (spread <= MOST_DIFFERENCE, f"RMSEs of a configuration differ by {spread:.4f}, at most {MOST_DIFFERENCE:g}"),
        (share <= 1, f"{OURS}: {share:.2f} of the time of {BY_RAY}, at most 1"),
        (part <= MOST_OF_THE_BEST, f"{BY_TUNER}: {part:.2f} of the best other's time, at most {MOST_OF_THE_BEST}"),
    ]
    return print_verdicts(verdicts)


@click.command(help=__doc__)
@click.option("--data", default="synthetic", show_default=True, help="synthetic, ml-100k, or a folder.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each way, in turn.")
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=512, show_default=True)
@click.option("--quick", is_flag=True, help="One configuration and one epoch, to try the script.")
@click.pass_context
def main(ctx: click.Context, data: str, repeats: int, epochs: int, batch_size: int, quick: bool) -> None:
    configurations = study(ARCHITECTURES[:1] if quick else ARCHITECTURES, batch_size, 1 if quick else epochs)
    runs: dict[str, list[Run]] = {way: [] for way in (*PLAIN, OURS)}
    click.echo(
        f"{len(configurations)} configurations, {configurations[0]['epochs']} epochs, batch size {batch_size}, "
        f"{data}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    timed([sys.executable, "-c", WARM_UP])
    for seed in range(repeats):
        for way, done in runs.items():
            done.append(run_way(way, configurations, data, seed))
            click.echo(f"{way}: {done[-1].seconds:.1f} s")
    ctx.exit(0 if report(runs) else 1)


if __name__ == "__main__":
    main()
