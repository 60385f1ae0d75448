"""How much of a grid's training ASHA and TPE save on MovieLens-100K, and what that costs in RMSE.

For every seed three studies are run: a grid of 72 GraphSAGEs to the end, the same grid with ``--scheduler asha``, and
as many suggestions of Optuna's TPE from ranges around the grid, with ASHA, too. Each chooses by the validation RMSE;
the test RMSE of what it chose is compared. Epochs are those that were trained, by ``epochs.jsonl``.

The studies stay in ``--output``: run again, the script goes on with what is there.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import click

import tuner
from tuner.records.attempts import Line
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS, STUDY

GRID: Mapping[str, Any] = {
    "hidden_dim": [16, 32, 64],
    "lr": [0.003, 0.01, 0.03],
    "dropout": [0.1, 0.3],
    "weight_decay": [1e-4, 1e-3],
    "batch_size": [2048, 8192],
}
RANGES: Mapping[str, Any] = {
    "hidden_dim": {"logint": [16, 64]},
    "lr": {"loguniform": [0.003, 0.03]},
    "dropout": {"uniform": [0.1, 0.3]},
    "weight_decay": {"loguniform": [1e-4, 1e-3]},
    "batch_size": {"logint": [2048, 8192]},
}
SHORT = {
    "hidden_dim": [16],
    "lr": [0.003, 0.01, 0.03],
    "dropout": [0.1, 0.3],
    "weight_decay": [1e-4],
    "batch_size": [8192],
}
WITHIN_RMSE = 0.003
SHARE_OF_EPOCHS = 0.4


@dataclass(frozen=True)
class Found:
    """What one study chose: by the validation RMSE of completed trials, after so many epochs of training in all."""

    validation: float
    test: float
    epochs: int
    trials: int
    name: str


def studies(grid: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of each kind of study."""
    whole = {"search": "grid", "space": {key: {"choice": values} for key, values in grid.items()}}
    tpe = {"search": "optuna", "space": RANGES, "num_samples": prod(map(len, grid.values())), "scheduler": "asha"}
    return {"grid": whole, "asha": {**whole, "scheduler": "asha"}, "tpe": tpe}


def rows_of(folder: Path, options: Mapping[str, Any], common: Mapping[str, Any]) -> list[Line]:
    """The trials of a study, which is run or gone on with; one that is complete costs its planning."""
    begun = (folder / STUDY).exists()
    with (folder.parent / f"{folder.name}.log").open("a") as log, redirect_stdout(log):
        result = tuner.run(resume=str(folder)) if begun else tuner.run(output=str(folder), **options, **common)
    return result.rows


def found(rows: list[Line], folder: Path) -> Found:
    """What a study chose, and what that took."""
    best = min((row for row in rows if row["status"] == "completed"), key=lambda row: row["val_rmse"])
    epochs = sum(line.epoch > 0 for line in read_epochs(folder / EPOCHS))
    return Found(best["val_rmse"], best["test_rmse"], epochs, len(rows), best["name"])


def noise(grids: list[list[Line]]) -> tuple[float, int]:
    """The median standard deviation of a configuration's test RMSE over the seeds, and of how many configurations."""
    by_name: dict[str, list[float]] = {}
    for row in (row for rows in grids for row in rows if row["status"] == "completed"):
        by_name.setdefault(row["name"], []).append(row["test_rmse"])
    deviations = [statistics.stdev(values) for values in by_name.values() if len(values) > 1]
    return (statistics.median(deviations) if deviations else 0.0), len(deviations)


def report(results: dict[int, dict[str, Found]]) -> bool:
    """Prints a line for each study and the medians; returns whether ASHA holds what is asked of it."""
    click.echo(f"{'seed':<6}{'study':<7}{'trials':>6}{'epochs':>8}{'val':>9}{'test':>9}  chosen")
    for seed, kinds in results.items():
        for kind, one in kinds.items():
            line = (
                f"{seed:<6}{kind:<7}{one.trials:>6}{one.epochs:>8}{one.validation:>9.4f}{one.test:>9.4f}  {one.name}"
            )
            click.echo(line)
    holds = False
    for kind in ("asha", "tpe"):
        pairs = [(kinds[kind], kinds["grid"]) for kinds in results.values()]
        test = statistics.median(one.test - whole.test for one, whole in pairs)
        validation = statistics.median(one.validation - whole.validation for one, whole in pairs)
        share = statistics.median(one.epochs / whole.epochs for one, whole in pairs)
        within = test <= WITHIN_RMSE and share <= SHARE_OF_EPOCHS
        holds = holds or (kind == "asha" and within)
        click.echo(
            f"{kind}: test RMSE {test:+.4f}, validation RMSE {validation:+.4f} from the grid's best in {share:.0%} "
            f"of its epochs (medians of {len(pairs)} seeds): {'within' if within else 'NOT within'} {WITHIN_RMSE} in "
            f"{SHARE_OF_EPOCHS:.0%}"
        )
    return holds


@click.command(help=__doc__)
@click.option("--data", default="ml-100k", show_default=True, help="Where MovieLens-100K is.")
@click.option("--output", default="results/benchmark_search", show_default=True, help="Where the studies stay.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--epochs", default=12, show_default=True)
@click.option("--short", is_flag=True, help="Six small configurations: does it run?")
@click.pass_context
def main(ctx: click.Context, data: str, output: str, seeds: int, epochs: int, short: bool) -> None:
    results: dict[int, dict[str, Found]] = {}
    grids: list[list[Line]] = []
    for seed in range(seeds):
        common = {
            "data": data,
            "seed": seed,
            "split_seed": 0,
            "epochs": epochs,
            "threads": 1,
            "auto_memory": True,
            "gpu_memory_buffer_gb": 0.5,
            "report": False,
        }
        results[seed] = {}
        for kind, options in studies(SHORT if short else GRID).items():
            folder = Path(output) / f"seed-{seed}-{kind}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            click.echo(f"{folder} …", err=True)
            rows = rows_of(folder, options, common)
            results[seed][kind] = found(rows, folder)
            grids += [rows] if kind == "grid" else []
    holds = report(results)
    deviation, configurations = noise(grids)
    click.echo(
        f"seed noise: test RMSE ± {deviation:.4f}, the median standard deviation of {configurations} configurations"
    )
    ctx.exit(0 if holds or short else 1)


if __name__ == "__main__":
    main()
