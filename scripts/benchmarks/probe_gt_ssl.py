"""What pretraining is worth: a linear probe of a study's encoder, pretrained and as it was before.

The encoder is the study's with the lowest validation loss of pretraining, which no label has a part in. It is
pretrained anew from several seeds; for each, the probe's cross-validated accuracy (mean over ten partitions into
folds) is compared with that of the same initial weights, untrained. Beside them stands the same probe on simple
morphometrics: counts, lengths, extent. Intervals are Student's, of the paired differences over the seeds.

With --labels the probe learns from a few trees of each class, drawn at random many times, and is tested on all
others; all trees are pretrained on, without their labels. With --fine-tuned the encoder itself learns from the first
of these draws, too, with a linear layer on its readout. The draws are the same for every encoder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tuner.datasets.trees import TreeData, load_trees
from tuner.errors import InputError
from tuner.records.journal import read_attempts
from tuner.records.seed_statistics import interval_of
from tuner.records.study_record import read_study
from tuner.training.loop import Fit, fit
from tuner.trial import Trial
from tuner.workloads.gt_ssl.batches import Limits, batches
from tuner.workloads.gt_ssl.evaluation import READOUTS, Readout, embed, probe_accuracy, ridge
from tuner.workloads.gt_ssl.model import Encoder, GtSsl
from tuner.workloads.gt_ssl.workload import EVALUATION_TREES, GTSSL

PARTITIONS = 10
Trees = NDArray[np.int64]


@dataclass(frozen=True)
class Few:
    """How a probe of a few labels is done."""

    readout: Readout = "moments"
    labels: Sequence[int] = ()  # labelled trees of each class
    draws: int = 100  # of these trees
    fine_tuned: int = 0  # draws from which an encoder is trained, too
    epochs: int = 20  # of that
    lr: float | None = None  # of that; None takes the configuration's


# For each number of labelled trees a class, the mean accuracy over the draws, by what was done.
Found = Mapping[int, Mapping[str, float]]


def accuracy(x: Tensor, data: TreeData) -> float:
    """The probe's accuracy in percent, over ten partitions into folds."""
    found = [probe_accuracy(x, data.label, seed) for seed in range(PARTITIONS)]
    return 100 * mean(float(share) for share in found if share is not None)


def drawn(label: NDArray[np.integer], count: int, draw: int) -> Trees:
    """So many trees of each class, the same for the same draw."""
    random = np.random.default_rng([count, draw])
    classes = [np.flatnonzero(label == one) for one in np.unique(label)]
    return np.sort(np.concatenate([random.choice(trees, count, replace=False) for trees in classes]))


def few_accuracy(x: Tensor, label: NDArray[np.integer], trees: Trees) -> float:
    """Accuracy in percent on the other trees of the probe that learns from these."""
    others, truth = np.setdiff1d(np.arange(len(label)), trees), torch.from_numpy(label.astype(np.int64))
    targets = 2 * F.one_hot(truth).double() - 1
    predicted = ridge(x[trees].double(), targets[trees], x[others].double()).argmax(1)
    return 100 * float((predicted == truth[others]).double().mean())


def few_accuracies(x: Tensor, data: TreeData, few: Few) -> dict[int, float]:
    """The same, the mean over the draws, by number of labels."""
    return {
        count: mean(few_accuracy(x, data.label, drawn(data.label, count, draw)) for draw in range(few.draws))
        for count in few.labels
    }


def fine_tuned_accuracy(encoder: Encoder, data: TreeData, config: Mapping[str, Any], trees: Trees, few: Few) -> float:
    """Accuracy in percent on the other trees of an encoder that learns from these, end to end.

    On its readout, made to have mean 0 and variance 1 by what it was at first, is a linear layer that begins at 0.
    """
    encoder, readout = deepcopy(encoder), READOUTS[few.readout]
    with torch.inference_mode():
        before = embed(encoder, data, EVALUATION_TREES, few.readout)
    center, scale = before.mean(0).clone(), before.std(0).clamp(min=1e-6).clone()
    head = nn.Linear(len(center), len(data.classes))
    for weight in head.parameters():
        nn.init.zeros_(weight)
    optimizer = torch.optim.Adam(
        [*encoder.parameters(), *head.parameters()], lr=few.lr or config["lr"], weight_decay=config["weight_decay"]
    )
    random, label = np.random.default_rng(0), torch.from_numpy(data.label.astype(np.int64))
    limits = Limits(int(config["batch_size"]), sys.maxsize, 0, 0)
    for _ in range(few.epochs):
        order = random.permutation(trees).tolist()
        for place, batch in enumerate(batches(data, order, limits, random)):
            chosen = order[place * limits.trees :][: limits.trees]
            rows = readout(encoder.embed(batch), batch.batch)
            optimizer.zero_grad()
            F.cross_entropy(head((rows - center) / scale), label[chosen]).backward()
            optimizer.step()
    others = np.setdiff1d(np.arange(len(data)), trees)
    with torch.inference_mode():
        predicted = head((embed(encoder, data, EVALUATION_TREES, few.readout)[others] - center) / scale).argmax(1)
    return 100 * float((predicted == label[others]).double().mean())


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


def pretrained(data: TreeData, config: dict[str, Any], seed: int, *, held_out: bool) -> tuple[GtSsl, GtSsl, Fit]:
    """The model as it begins, the model pretrained, and how that went; without ``held_out`` on all trees."""
    workload = GTSSL()
    torch.manual_seed(seed)
    model = workload.build_model(config, data)
    used = data if held_out else workload.all_data(data)
    last = None if held_out else int(config["epochs"])
    *_, result = fit(workload, Trial("t", workload.name, "probe", config, seed), used, "cpu", last_epoch=last)
    assert isinstance(result, Fit)
    return model, workload.restore_model(config, result.weights), result


def one_seed(data: TreeData, config: dict[str, Any], readout: Readout, seed: int) -> tuple[float, float, float]:
    """Accuracy of the untrained encoder, of the pretrained one, and the latter's validation loss."""
    torch.set_num_threads(1)
    before, after, result = pretrained(data, config, seed, held_out=True)
    return probe(before, data, readout), probe(after, data, readout), result.metrics["val_loss"]


def few_of_seed(data: TreeData, config: dict[str, Any], few: Few, seed: int) -> Found:
    """Accuracies of the two encoders, and of both trained from each number of labels."""
    torch.set_num_threads(1)
    before, after, _ = pretrained(data, config, seed, held_out=False)
    found: dict[int, dict[str, float]] = {count: {} for count in few.labels}
    for name, model in {"untrained": before, "pretrained": after}.items():
        with torch.inference_mode():
            x = embed(model.encoder, data, EVALUATION_TREES, few.readout)
        for count, value in few_accuracies(x, data, few).items():
            found[count][name] = value
            sets = [drawn(data.label, count, few.fine_tuned * seed + draw) for draw in range(few.fine_tuned)]
            tuned = [fine_tuned_accuracy(model.encoder, data, config, trees, few) for trees in sets]
            frozen = [few_accuracy(x, data.label, trees) for trees in sets]
            if sets:
                found[count] |= {f"{name}, fine-tuned": mean(tuned), f"{name}, same draws": mean(frozen)}
    return found


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


def shown(differences: Sequence[float]) -> str:
    """Mean and 95 % confidence interval."""
    found = interval_of(differences)
    half = found.half_width or 0.0
    return f"{found.mean:+.1f} points, 95 % interval {found.mean - half:+.1f} to {found.mean + half:+.1f}"


def print_few(found: Sequence[Found], trees: TreeData, few: Few) -> None:
    """Means over the seeds, and what one encoder is ahead of another by."""
    simple = few_accuracies(morphometrics(trees), trees, few)
    for count in few.labels:
        names = list(found[0][count])
        values = {name: [of_seed[count][name] for of_seed in found] for name in names}
        click.echo(f"{count} labelled trees a class; morphometrics {simple[count]:.1f}%")
        for name in names:
            click.echo(f"  {name:<24} {mean(values[name]):.1f}%")
        pairs = [("pretrained", "untrained"), ("pretrained, fine-tuned", "untrained, fine-tuned")]
        pairs += [(f"{name}, fine-tuned", f"{name}, same draws") for name in ("untrained", "pretrained")]
        for one, other in ((one, other) for one, other in pairs if one in values):
            differences = [a - b for a, b in zip(values[one], values[other], strict=True)]
            click.echo(f"  ({one}) - ({other}): {shown(differences)}")
        click.echo(f"  pretrained - morphometrics: {shown([a - simple[count] for a in values['pretrained']])}")


@click.command(help=__doc__)
@click.argument("study", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", required=True, help="The study's data: synthetic, or the folder of SWC files.")
@click.option("--seeds", type=click.IntRange(2, 10), default=5, show_default=True, help="Of pretraining.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Seeds at once.")
@click.option(
    "--readout", type=click.Choice(["moments", "sum"]), default="moments", show_default=True, help="Of nodes."
)
@click.option("--labels", type=click.IntRange(2), multiple=True, help="Labelled trees a class; may be given again.")
@click.option("--draws", type=click.IntRange(1), default=100, show_default=True, help="Of labelled trees.")
@click.option("--fine-tuned", type=click.IntRange(0), default=0, show_default=True, help="Draws to fine-tune on.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Of fine-tuning; by default the study's.")
def main(
    study: Path,
    data: str,
    seeds: int,
    processes: int,
    readout: Readout,
    labels: tuple[int, ...],
    draws: int,
    fine_tuned: int,
    lr: float | None,
) -> None:
    try:
        record, (name, config) = read_study(study), best_configuration(study)
        level, skip_bad = config.get("label_level", 1), (record.options or {}).get("skip_bad", False)
        trees = load_trees(data, seed=record.data_seed, skip_bad=skip_bad, label_level=level)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    if probe_accuracy(morphometrics(trees), trees.label, 0) is None:
        raise click.UsageError(f"--data {data}: fewer than two labels have two trees, and a probe needs them")
    click.echo(f"{trees.name}: {len(trees)} trees, labels {', '.join(trees.classes)}; encoder {name}, {seeds} seeds")
    if fine_tuned and not labels:
        raise click.UsageError(f"--fine-tuned {fine_tuned}: give --labels, too")
    if labels and (fewest := int(np.bincount(trees.label).min())) <= max(labels):
        raise click.UsageError(f"--labels {max(labels)}: a class has {fewest} trees: leave some to test on")
    few, of_each = Few(readout, labels, draws, fine_tuned, lr=lr), range(seeds)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        if labels:
            given = ([value] * seeds for value in (trees, config, few))
            return print_few(list(pool.map(few_of_seed, *given, of_each)), trees, few)
        found = list(pool.map(one_seed, [trees] * seeds, [config] * seeds, [readout] * seeds, of_each))
    click.echo(f"{'seed':>4} {'val_loss':>9} {'untrained':>10} {'pretrained':>11} {'difference':>11}")
    for seed, (before, after, loss) in enumerate(found):
        click.echo(f"{seed:>4} {loss:>9.4f} {before:>9.1f}% {after:>10.1f}% {after - before:>+11.1f}")
    click.echo(f"pretrained - untrained: {shown([after - before for before, after, _ in found])}")
    click.echo(f"morphometrics: {accuracy(morphometrics(trees), trees):.1f}%")


if __name__ == "__main__":
    main()
