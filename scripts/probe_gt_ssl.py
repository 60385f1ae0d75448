"""What pretraining is worth: a linear probe of a study's encoder, pretrained and as it was before.

The encoder is the study's with the lowest validation loss of pretraining, which no label has a part in. It is
pretrained anew from several seeds; for each, the probe's cross-validated accuracy (mean over ten partitions into
folds) is compared with that of the same initial weights, untrained. Beside them stands the same probe on simple
morphometrics: counts, lengths, extent. The interval is Student's, of the paired differences over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from tuner.datasets.trees import TreeData, load_trees
from tuner.records.journal import read_attempts
from tuner.records.study_record import read_study
from tuner.training.loop import Fit, fit
from tuner.trial import Trial
from tuner.workloads.gt_ssl.evaluation import Readout, embed, probe_accuracy
from tuner.workloads.gt_ssl.model import GtSsl
from tuner.workloads.gt_ssl.sizes import EVALUATION_TREES
from tuner.workloads.gt_ssl.workload import GTSSL

PARTITIONS = 10
# Student's t at 97.5 % for 2 to 10 seeds (1 to 9 degrees of freedom).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def accuracy(x: Tensor, data: TreeData) -> float:
    """The probe's accuracy in percent, over ten partitions into folds."""
    found = [probe_accuracy(x, data.label, seed) for seed in range(PARTITIONS)]
    return 100 * mean(float(each) for each in found if each is not None)


def morphometrics(data: TreeData) -> Tensor:
    """(T, 14): counts of nodes, leaves, branch points and the root's children; edge lengths; extent; reach."""
    return torch.tensor(np.array([_measures(data, tree) for tree in range(len(data))]))


def _measures(data: TreeData, tree: int) -> list[float]:
    rows = slice(data.first[tree], data.first[tree + 1])
    position, parent, features = data.position[rows], data.parent[rows], data.features[rows]
    edges = np.linalg.norm(position[1:] - position[parent[1:]], axis=1)
    children = np.bincount(parent[1:], minlength=len(parent))
    counts = [len(parent), (children == 0).sum(), (children > 1).sum(), children[0]]
    lengths = [edges.sum(), edges.mean(), edges.std(), edges.max()]
    reach = [np.linalg.norm(position, axis=1).max(), features[:, 3].mean(), features[:, 2].max()]
    return [float(value) for value in (*counts, *lengths, *np.ptp(position, axis=0), *reach)]


def one_seed(data: TreeData, config: dict[str, Any], readout: Readout, seed: int) -> tuple[float, float, float]:
    """Accuracy of the untrained encoder, of the pretrained one, and the latter's validation loss."""
    torch.set_num_threads(1)
    workload = GTSSL()
    torch.manual_seed(seed)
    model = workload.build_model(config, data)
    before = probe(model, data, readout)
    *_, result = fit(workload, Trial("t", workload.name, "probe", config, seed), data, "cpu")
    assert isinstance(result, Fit)
    return before, probe(workload.restore_model(config, result.weights), data, readout), result.metrics["val_loss"]


def probe(model: GtSsl, data: TreeData, readout: Readout) -> float:
    with torch.inference_mode():
        return accuracy(embed(model.encoder, data, EVALUATION_TREES, readout), data)


def best_configuration(study: Path) -> tuple[str, dict[str, Any]]:
    """Name and configuration of a study's lowest validation loss."""
    rows = [
        row
        for row in read_attempts(study / "attempts.jsonl")[0]
        if row.status == "completed" and row.workload == GTSSL.name
    ]
    if not rows:
        raise click.UsageError(f"{study}: no trial of gt-ssl is completed")
    best = min(rows, key=lambda row: row.number("val_loss"))
    return best.name, dict(best.config)


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % confidence interval."""
    middle = mean(differences)
    half = STUDENT[len(differences) - 2] * stdev(differences) / math.sqrt(len(differences))
    return middle, middle - half, middle + half


@click.command(help=__doc__)
@click.argument("study", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", required=True, help="The study's data: synthetic, or the folder of SWC files.")
@click.option("--seeds", type=click.IntRange(2, 10), default=5, show_default=True, help="Of pretraining.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Seeds at once.")
@click.option(
    "--readout", type=click.Choice(["moments", "sum"]), default="moments", show_default=True, help="Of nodes."
)
def main(study: Path, data: str, seeds: int, processes: int, readout: Readout) -> None:
    options = read_study(study).options or {}
    name, config = best_configuration(study)
    trees = load_trees(data, seed=options.get("seed", 0), skip_bad=options.get("skip_bad", False))
    click.echo(f"{trees.name}: {len(trees)} trees, labels {', '.join(trees.classes)}; encoder {name}, {seeds} seeds")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one_seed, [trees] * seeds, [config] * seeds, [readout] * seeds, range(seeds)))
    click.echo(f"{'seed':>4} {'val_loss':>9} {'untrained':>10} {'pretrained':>11} {'difference':>11}")
    for seed, (before, after, loss) in enumerate(found):
        click.echo(f"{seed:>4} {loss:>9.4f} {before:>9.1f}% {after:>10.1f}% {after - before:>+11.1f}")
    middle, low, high = interval([after - before for before, after, _ in found])
    click.echo(f"pretrained - untrained: {middle:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}")
    click.echo(f"morphometrics: {accuracy(morphometrics(trees), trees):.1f}%")


if __name__ == "__main__":
    main()
