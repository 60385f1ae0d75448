"""How well attacks on a CAN bus are told: F1 of teachers, of students without and with one, and of simple rules.

Recordings are split by time, and nothing is chosen on the test. Both stages are trained: the classifier (GAT) learns
from attacks, the autoencoder (VGAE) from normal traffic alone. There are four tests:

    plain            IDs are known: the rule 'an ID unseen in attack-free traffic' is enough, so this proves nothing
    masked           IDs are hidden
    masked, no KIND  and a kind of attack is in no training or validation graph, and alone in the test

Where IDs are hidden, there are also students whose readout has maxima and sizes beside means, without and with the
autoencoder's score of the graph as another input, and both teachers together: an attack is what either says.

Beside them stand that rule; logistic regressions of a graph, on the mean of its nodes' features, all that is there
but the structure, and on their maxima and the graph's size as well; and the range of these in normal training graphs,
outside of which is an attack. The last needs no attack to learn from, as the autoencoder.

Bars, of means over seeds, where IDs are hidden: a teacher is above the rule and the logistic regression on means (of
the classifier where kinds are known, of the autoencoder where one is held out), and its student that learns from it
is at most 2 points below it. Exit code 1 if one is missed, 2 if the data cannot be used. Where the other baselines
are above a teacher, a note says so. The end says what finds a kind of attack that was held out, and what does not; no
bar asks it of classifiers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.nn import global_max_pool

from tuner.datasets.can import CanData, load_can
from tuner.errors import InputError
from tuner.execution.worker import to_bytes
from tuner.records.seed_statistics import interval_of
from tuner.search.configurations import configurations
from tuner.training.loop import Fit, fit
from tuner.training.step import evaluate
from tuner.trial import Configuration, Trial
from tuner.workloads.kd_gat.batches import collate, graphs_of, usable
from tuner.workloads.kd_gat.evaluation import anomalies, attack_metrics
from tuner.workloads.kd_gat.model import Distilled
from tuner.workloads.kd_gat.networks import GAT, edges_of, graph_mean
from tuner.workloads.kd_gat.workload import KDGAT
from tuner.workloads.protocols import finish_of

POINTS = 0.02
MODELS = ("teacher", "student", "taught student")
STAGES = ("classifier", "autoencoder")
FOUND = 0.5  # a model that finds a smaller share of the attacks of a kind does not find it
LOGISTIC, RANGE = "logistic, maxima and sizes too", "range of normal traffic"
Metrics = Mapping[str, float]  # of a model on a test: f1, recall and auroc, where there is a score
Key = tuple[str, str, str]  # of a test's name, a stage and a model
Found = Mapping[tuple[str, str], Sequence[Metrics]]  # of a test, by stage and model: of each seed


@dataclass(frozen=True)
class Test:
    """What is known of IDs and attacks in training."""

    name: str
    use_id: int
    held_out: str = ""

    def task(self) -> dict[str, Any]:
        """As a configuration says it."""
        return {"use_id": self.use_id, "held_out": self.held_out}


def main_tests(data: CanData) -> list[Test]:
    """All four, or more where there are more kinds of attack; a single kind cannot be held out of training."""
    kinds = data.attacks[1:] if len(data.attacks) > 2 else ()
    return [Test("plain", 1), Test("masked", 0), *(Test(f"masked, no {kind}", 0, kind) for kind in kinds)]


class WideGAT(GAT):
    """A GAT whose output sees of every layer the mean and the maximum over a graph's nodes, and the graph's size.

    With ``scores`` (G,) of all graphs, that of the graph, too. Sizes (the logarithms of nodes and edges) and scores
    have mean 0 and variance 1 over the graphs ``among``, those that it learns from.
    """

    beside: Tensor

    def __init__(self, data: CanData, among: NDArray[np.int64], scores: Tensor | None, **sizes: Any) -> None:
        super().__init__(len(data.identifiers) + 1, **sizes)
        columns = [torch.from_numpy(np.diff(first)).log() for first in (data.first, data.first_edge)]
        beside = torch.stack([*columns, *([] if scores is None else [scores])], dim=1).float()
        known = beside[among]
        beside = (beside - known.mean(0)) / known.std(0).clamp(min=1e-6)
        self.register_buffer("beside", beside, persistent=False)
        self.output = torch.nn.Linear(2 * self.output.in_features + beside.shape[1], 2)

    def forward(self, batch: Batch) -> Tensor:
        """As a GAT's."""
        h, edges, read = self.input(batch), edges_of(batch), [self.beside[batch.graph]]
        for layer in self.layers:
            h = layer(h, *edges)
            read += [graph_mean(h, batch), global_max_pool(h, batch.batch, batch.num_graphs)]
        logits: Tensor = self.output(torch.cat(read, dim=1))
        return logits


class WideKDGAT(KDGAT):
    """KD-GAT whose students are ``WideGAT``."""

    name = KDGAT.name

    def __init__(self, scores: Tensor | None = None) -> None:
        self.scores = scores

    def build_model(self, config: Mapping[str, Any], data: CanData) -> Distilled:
        sizes = {key: int(config[key]) for key in ("hidden_channels", "num_layers", "heads")}
        among = usable(data, data.train, stage="classifier", held_out=config["held_out"])
        dropout, use_id = float(config["dropout"]), bool(config["use_id"])
        return Distilled(WideGAT(data, among, self.scores, dropout=dropout, use_id=use_id, **sizes), config)


def finished(values: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration."""
    workload = KDGAT()
    plain = {"batch_size": 32, "optimize_batch_size": 0, "gradient_checkpointing": 0}
    (configuration,) = configurations([{**plain, **values}], workload.schema, finish=finish_of(workload))
    return dict(configuration.values)


def train(data: CanData, seed: int, path: Path, values: Mapping[str, Any], workload: KDGAT | None = None) -> Fit:
    """Trains one configuration; its weights are in the file then, and its test in the metrics."""
    workload = workload or KDGAT()
    trial = Trial("t001", workload.name, path.stem, finished(values), seed)
    workload.check([Configuration(trial.name, trial.config)], data)
    *_, result = fit(workload, trial, data, "cpu")
    assert isinstance(result, Fit)
    path.write_bytes(to_bytes(trial, result))
    return result


def family(data: CanData, seed: int, folder: Path, values: Mapping[str, Any]) -> dict[str, Fit]:
    """A teacher, a student without it, and one that learns from it."""
    teacher = train(data, seed, folder / f"{values['stage']}.pt", {**values, "role": "teacher"})
    alone = train(data, seed, folder / "alone.pt", values)
    path = str(folder / f"{values['stage']}.pt")
    taught = train(data, seed, folder / "taught.pt", {**values, "use_kd": 1, "teacher_path": path})
    return dict(zip(MODELS, (teacher, alone, taught), strict=True))


def restored(data: CanData, values: Mapping[str, Any], result: Fit) -> Distilled:
    """A trained model, in evaluation mode, as that of a configuration."""
    model = KDGAT().build_model({**finished(values), "use_kd": 0}, data)
    model.load_state_dict({key: value for key, value in result.weights.items() if "projection" not in key})
    return model.eval()


def told(metrics: Mapping[str, float]) -> Metrics:
    """What is compared of a test's metrics."""
    return {key: metrics[f"test_{key}"] for key in ("f1", "recall", "auroc")}


@torch.no_grad()
def either(data: CanData, classifier: Distilled, autoencoder: Distilled) -> Metrics:
    """Of two models together, on the classifier's test: an attack is what one of them takes for one."""
    graphs = graphs_of(data, "test", stage="classifier", held_out=classifier.held_out)
    batch = collate(data, graphs)
    score, bar = anomalies(autoencoder, data, graphs)
    found = attack_metrics(classifier.student(batch).argmax(1) | (score > bar), batch.y)
    return {key: found[key] for key in ("f1", "recall")}


def one_seed(source: str, tests: Sequence[Test], seed: int, epochs: Mapping[str, int]) -> dict[Key, Metrics]:
    """What each model comes to in each test; an autoencoder has seen no attack anyway, so it is trained once."""
    torch.set_num_threads(1)
    data, found = load_can(source), dict[Key, Metrics]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for use_id in (1, 0):
            values = {"stage": "autoencoder", "use_id": use_id, "epochs": epochs["autoencoder"]}
            autoencoders = family(data, seed, folder, values)
            normal = restored(data, {**values, "role": "teacher"}, autoencoders["teacher"])
            with torch.no_grad():
                scores = anomalies(normal, data, np.arange(len(data)))[0].log()
            for test in (each for each in tests if each.use_id == use_id):
                for model, result in autoencoders.items():
                    role = {"role": "teacher"} if model == "teacher" else {}
                    own = restored(data, {**values, **role, "held_out": test.held_out}, result)
                    found[test.name, "autoencoder", model] = told(evaluate(KDGAT(), own, data, "test"))
                found |= classifiers(data, seed, folder, test, epochs["classifier"], normal, scores)
    return found


def classifiers(
    data: CanData, seed: int, folder: Path, test: Test, epochs: int, normal: Distilled, scores: Tensor
) -> dict[Key, Metrics]:
    """What classifiers come to in a test; ``normal`` is the autoencoder's teacher, and all graphs have its scores."""
    values = {"stage": "classifier", "epochs": epochs, **test.task()}
    trained = family(data, seed, folder, values)
    found = {(test.name, "classifier", model): told(result.metrics) for model, result in trained.items()}
    if not test.held_out:
        hard = {**values, "curriculum": 1, "scorer_path": str(folder / "autoencoder.pt")}
        result = train(data, seed, folder / "curriculum.pt", hard)
        found[test.name, "classifier", "student, curriculum"] = told(result.metrics)
    if not test.use_id:
        for beside, given in {"": None, ", score": scores}.items():
            result = train(data, seed, folder / "wide.pt", values, WideKDGAT(given))
            found[test.name, "classifier", f"student, maxima, sizes{beside}"] = told(result.metrics)
        teacher = restored(data, {**values, "role": "teacher"}, trained["teacher"])
        found[test.name, "either", "teachers"] = either(data, teacher, normal)
    return found


def checked(source: str) -> CanData:
    """The data, with which classifiers can be trained for all tests; raises ``InputError`` for others."""
    data = load_can(source)
    for test in main_tests(data):
        KDGAT().check([Configuration(test.name, finished({"stage": "classifier", **test.task()}))], data)
    return data


def rule(data: CanData, test: Test) -> float:
    """F1 of: an attack is where an ID is that attack-free traffic does not have. Hidden IDs tell nothing."""
    graphs = graphs_of(data, "test", stage="classifier", held_out=test.held_out)
    unseen = np.zeros(len(data), np.int64)
    if test.use_id:
        np.maximum.at(unseen, np.repeat(np.arange(len(data)), np.diff(data.first)), data.ids == 0)
    return float(f1_score(data.label[graphs], unseen[graphs], zero_division=0))


def logistic(data: CanData, test: Test, x: NDArray[np.floating]) -> float:
    """F1 of a logistic regression on (G, F) of a graph, standardised."""
    trained = usable(data, data.train, stage="classifier", held_out=test.held_out)
    graphs = graphs_of(data, "test", stage="classifier", held_out=test.held_out)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(x[trained], data.label[trained])
    return float(f1_score(data.label[graphs], model.predict(x[graphs]), zero_division=0))


def means(data: CanData, test: Test) -> NDArray[np.floating]:
    """(G, F): means over a graph's nodes of their features, and where IDs are known, of which ID they are."""
    sizes = np.diff(data.first)
    values = [np.add.reduceat(data.features, data.first[:-1]) / sizes[:, None]]
    if test.use_id:
        graph = np.repeat(np.arange(len(data)), sizes)
        counts = np.zeros((len(data), len(data.identifiers) + 1))
        np.add.at(counts, (graph, data.ids), 1)
        values.append(counts / sizes[:, None])
    return np.concatenate(values, axis=1)


def with_sizes(data: CanData, test: Test) -> NDArray[np.floating]:
    """(G, F): the same, maxima of the features, and how many nodes and edges there are."""
    top = np.maximum.reduceat(data.features, data.first[:-1])
    sizes = np.stack([np.diff(data.first), np.diff(data.first_edge)], axis=1)
    return np.concatenate([means(data, test), top, sizes], axis=1)


def normal_range(data: CanData, x: NDArray[np.floating], test: Test) -> float:
    """F1 of: an attack has a value (G, F) further outside of the normal training graphs' range than is usual.

    Usual is twice the furthest of the normal validation graphs, in ranges: the test's are later still, as for the
    autoencoder.
    """
    trained, later = (usable(data, part, stage="autoencoder") for part in (data.train, data.validation))
    graphs = graphs_of(data, "test", stage="classifier", held_out=test.held_out)
    low, high = x[trained].min(0), x[trained].max(0)
    outside = np.maximum((x - high) / np.maximum(high - low, 1e-9), (low - x) / np.maximum(high - low, 1e-9)).max(1)
    return float(f1_score(data.label[graphs], outside[graphs] > 2 * max(0.0, outside[later].max()), zero_division=0))


def missed(test: Test, found: Found, baselines: Mapping[str, float]) -> tuple[int, list[str]]:
    """How many bars a test has, and those that it has missed, in words; nothing is asked of the plain one."""
    if test.use_id:
        return 0, []
    stage, below = "autoencoder" if test.held_out else "classifier", ("rule", "logistic, means")
    teacher, taught = (mean_of(found[stage, model], "f1") for model in ("teacher", "taught student"))
    faults = [
        f"{test.name}: the {stage}'s teacher has {teacher:.4f}, {name} {baselines[name]:.4f}"
        for name in below
        if teacher <= baselines[name]
    ]
    if taught < teacher - POINTS:
        faults.append(f"{test.name}: the {stage}'s taught student has {taught:.4f}, its teacher {teacher:.4f}")
    return len(below) + 1, faults


def unseen(test: Test, found: Found) -> list[str]:
    """What finds the kind of attack that a test holds out, and what does not, in words."""
    recalls = {key: mean_of(values, "recall") for key, values in found.items()}
    shares = {f"{model} ({stage}) {recall:.0%}": recall for (stage, model), recall in recalls.items()}
    sides = {"found by": [each for each, share in shares.items() if share >= FOUND]}
    sides["not found by"] = [each for each in shares if each not in sides["found by"]]
    return [f"{test.held_out}, held out, is {side} {', '.join(each) or 'none'}" for side, each in sides.items()]


def finds(found: Found, stage: str) -> bool:
    """Whether a model of a stage finds the attacks of a test."""
    return any(mean_of(values, "recall") >= FOUND for (each, _), values in found.items() if each == stage)


def stronger(test: Test, found: Found, baselines: Mapping[str, float]) -> list[str]:
    """Teachers that a baseline on which no bar is is above, in words."""
    means_of = {stage: mean_of(found[stage, "teacher"], "f1") for stage in STAGES}
    return [
        f"{test.name}: {name} has {baselines[name]:.4f}, the {stage}'s teacher {value:.4f}"
        for name in (LOGISTIC, RANGE)
        for stage, value in means_of.items()
        if value < baselines[name]
    ]


def mean_of(values: Sequence[Metrics], metric: str) -> float:
    return mean(each[metric] for each in values)


def figure(values: Sequence[float]) -> str:
    """Mean and half of the 95 % interval."""
    found = interval_of(values)
    return f"{found.mean:.4f}" + ("" if found.half_width is None else f" ± {found.half_width:.4f}")


@click.command(help=__doc__.partition("\n")[0])
@click.option("--data", required=True, help="A folder of recordings, or 'synthetic'.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--epochs", default=10, show_default=True, type=click.IntRange(1), help="Of a classifier.")
@click.option(
    "--autoencoder-epochs", default=15, show_default=True, type=click.IntRange(1), help="Of an autoencoder."
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1), help="Seeds at a time.")
def main(data: str, seeds: int, epochs: int, autoencoder_epochs: int, processes: int) -> None:
    """Trains, prints the tables, judges."""
    began = time.monotonic()
    try:
        graphs = checked(data)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    tests = main_tests(graphs)
    asked = {"classifier": epochs, "autoencoder": autoencoder_epochs}
    print(f"{KDGAT().describe(graphs)}; {seeds} seeds, {epochs} and {autoencoder_epochs} epochs\n")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one_seed, *zip(*[(data, tests, seed, asked) for seed in range(seeds)], strict=True)))
    bars, faults, notes, held_out = 0, list[str](), list[str](), list[str]()
    finding = dict.fromkeys(STAGES, 0)
    for test in tests:
        values = {key[1:]: [each[key] for each in found] for key in found[0] if key[0] == test.name}
        wide = with_sizes(graphs, test)
        baselines = {
            "rule": rule(graphs, test),
            "logistic, means": logistic(graphs, test, means(graphs, test)),
            LOGISTIC: logistic(graphs, test, wide),
            RANGE: normal_range(graphs, wide, test),
        }
        print(f"{test.name}: F1 of the class of attacks, and the area under the ROC curve")
        for (stage, model), each in values.items():
            area = figure([one["auroc"] for one in each]) if "auroc" in each[0] else ""
            print(f"  {stage:<12} {model:<32} {figure([one['f1'] for one in each]):<17} {area}".rstrip())
        for name, value in baselines.items():
            print(f"  {'baseline':<12} {name:<32} {value:.4f}")
        asked, failed = missed(test, values, baselines)
        bars, faults, notes = bars + asked, faults + failed, notes + stronger(test, values, baselines)
        if test.held_out:
            held_out += unseen(test, values)
            finding = {stage: count + finds(values, stage) for stage, count in finding.items()}
    print("".join(f"\n{line}" for line in held_out))
    print("".join(f"\nnote: {note}" for note in notes) + "".join(f"\nmissed: {fault}" for fault in faults))
    kinds = len(tests) - 2
    told_apart = ", ".join(f"{stage}s find {count}" for stage, count in finding.items())
    print(
        f"\n{len(faults)} of {bars} bars are missed; of {kinds} kinds of attack held out, {told_apart}; "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
