"""How soon a study starts and ends: whole processes, beside the import of torch, Optuna and Ray Tune.

Each row is the median of some runs, all rows in turn. The quick study was run before, so its estimates are known.
The others are a function's trials, two at a time: 32 that end at once, 32 with 50 reports each, and 32 that train
with torch for 0.2 s each, as they do beside it in Optuna's threads and by Ray Tune. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import click

from scripts.benchmarks.comparison import timed
from scripts.benchmarks.verdicts import print_verdicts

ROOT = Path(__file__).parents[2]
TRAINING = """
import time
def work(seconds):
    import torch
    torch.set_num_threads(1)
    model, until = torch.nn.Linear(64, 64), time.monotonic() + seconds
    while time.monotonic() < until:
        model(torch.ones(64, 64)).sum().backward()
"""
TUNER = """
import sys, tuner
def train(config):
    for _ in range(int(sys.argv[1])):
        tuner.report(loss=config["x"])
if __name__ == "__main__":
    options = {"num_samples": 32, "metric": "loss", "direction": "minimize", "max_workers": 2, "report": False}
    tuner.run(train, space={"x": {"uniform": [0, 1]}}, **options)
"""
OPTUNA = """
import optuna
from training import work
def train(trial):
    x = trial.suggest_float("x", 0, 1)
    work(0.2)
    return x
optuna.create_study().optimize(train, n_trials=32, n_jobs=2)
"""
RAY_TUNE = """
import ray
from ray import tune
from training import work
def train(config):
    work(0.2)
    tune.report({"loss": config["x"]})
ray.init("local", num_cpus=2, include_dashboard=False)
tune.Tuner(train, param_space={"x": tune.uniform(0, 1)}, tune_config=tune.TuneConfig(num_samples=32)).fit()
"""
TRAINED = TUNER.replace("def train(config):", "from training import work\ndef train(config):\n    work(0.2)")
PROGRAMS = {"training": TRAINING, "tuned": TUNER, "trained": TRAINED, "optuned": OPTUNA, "ray_tuned": RAY_TUNE}
TORCH, PYG, QUICK, ENDED, REPORTED, WAITED = "torch", "torch and PyG", "quick", "at once", "50 reports", "0.2 s"
ROWS: Mapping[str, tuple[str, ...]] = {
    TORCH: ("-c", "import torch"),
    PYG: ("-c", "import torch, torch_geometric"),
    QUICK: ("-m", "tuner", "--mode", "quick", "--device", "cpu"),
    ENDED: ("tuned.py", "1"),
    REPORTED: ("tuned.py", "50"),
    WAITED: ("trained.py", "1"),
    "0.2 s by Optuna": ("optuned.py",),
    "0.2 s by Ray Tune": ("ray_tuned.py",),
}
BARS = ((QUICK, PYG, 2.2), (ENDED, TORCH, 3.0), (REPORTED, ENDED, 1.1), (WAITED, "0.2 s by Optuna", 1.6))


@click.command(help=__doc__)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Runs of each row, in turn.")
@click.option("--rows", default=",".join(ROWS), help="Some of them, separated by commas.")
@click.pass_context
def main(ctx: click.Context, repeats: int, rows: str) -> None:
    chosen = [row for row in ROWS if row in rows.split(",")]
    taken: dict[str, list[float]] = {row: [] for row in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for name, program in PROGRAMS.items():
            Path(folder, f"{name}.py").write_text(program)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{folder}/cache"}
        for number in range(repeats + 1):  # the first one reads the disk, and estimates
            for row in chosen:
                seconds = timed([sys.executable, *ROWS[row]], cwd=folder, env=environment)
                taken[row] += [seconds] * (number > 0)
    click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median seconds of {repeats} runs")
    for row, values in taken.items():
        click.echo(f"{row:<18} {median(values):6.2f}   {min(values):.2f} to {max(values):.2f}")
    ratios = [(a, b, most, median(taken[a]) / median(taken[b])) for a, b, most in BARS if {a, b} <= {*chosen}]
    verdicts = [(ratio <= most, f"{a}: {ratio:.2f} times {b}, at most {most:g}") for a, b, most, ratio in ratios]
    ctx.exit(0 if print_verdicts(verdicts) else 1)


if __name__ == "__main__":
    main()
