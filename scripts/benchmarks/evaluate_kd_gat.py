"""How well attacks on a CAN bus are told: F1 of teachers, of students without and with one, and of simple rules.

Recordings are split by time, and nothing is chosen on the test. Both stages are trained: the classifier (GAT) learns
from attacks, the autoencoder (VGAE) from normal traffic alone. There are four tests:

    plain            IDs are known: the rule 'an ID unseen in attack-free traffic' is enough, so this proves nothing
    masked           IDs are hidden
    masked, no KIND  and a kind of attack is in no training or validation graph, and alone in the test

Beside them stand that rule; a logistic regression on the means of a graph's features, which are all that is there but
the structure; and the range of means, maxima and sizes in normal training graphs, outside of which is an attack. The
range needs no attack to learn from, as the autoencoder does not.

Bars, of means over seeds, where IDs are hidden: a teacher is above the rule and the logistic regression on means (of
the classifier where kinds are known, of the autoencoder where one is held out), and its student that learns from it
is at most 2 points below it. Exit code 1 if one is missed, 2 if the data cannot be used. The end says what finds a
kind of attack that was held out, and what does not; no bar asks it of classifiers.
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

from tuner.datasets.can import CanData, load_can
from tuner.errors import InputError
from tuner.execution.weights import to_bytes
from tuner.records.seed_statistics import interval_of
from tuner.search.configurations import configurations
from tuner.training.loop import Fit, fit
from tuner.training.step import evaluate
from tuner.trial import Configuration, Trial
from tuner.workloads.kd_gat.graphs import graphs_of, usable
from tuner.workloads.kd_gat.model import Distilled
from tuner.workloads.kd_gat.workload import KDGAT
from tuner.workloads.protocols import finish_of

POINTS = 0.02
MODELS = ("teacher", "student", "taught student")
STAGES = ("classifier", "autoencoder")
FOUND = 0.5  # a model that finds a smaller share of the attacks of a kind does not find it
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


def finished(values: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration."""
    workload = KDGAT()
    plain = {"batch_size": 32, "optimize_batch_size": 0, "gradient_checkpointing": 0}
    (configuration,) = configurations([{**plain, **values}], workload.schema, finish=finish_of(workload))
    return dict(configuration.values)


def train(data: CanData, seed: int, path: Path, values: Mapping[str, Any]) -> Fit:
    """Trains one configuration; its weights are in the file then, and its test in the metrics."""
    workload = KDGAT()
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


def one_seed(source: str, tests: Sequence[Test], seed: int, epochs: Mapping[str, int]) -> dict[Key, Metrics]:
    """What each model comes to in each test; an autoencoder has seen no attack anyway, so it is trained once."""
    torch.set_num_threads(1)
    data, found = load_can(source), dict[Key, Metrics]()
    with tempfile.TemporaryDirectory() as name:
        for use_id in (1, 0):
            values = {"stage": "autoencoder", "use_id": use_id, "epochs": epochs["autoencoder"]}
            autoencoders = family(data, seed, Path(name), values)
            for test in (test for test in tests if test.use_id == use_id):
                for model, result in autoencoders.items():
                    role = {"role": "teacher"} if model == "teacher" else {}
                    own = restored(data, {**values, **role, "held_out": test.held_out}, result)
                    found[test.name, "autoencoder", model] = told(evaluate(KDGAT(), own, data, "test"))
                classifier = {"stage": "classifier", "epochs": epochs["classifier"], **test.task()}
                for model, result in family(data, seed, Path(name), classifier).items():
                    found[test.name, "classifier", model] = told(result.metrics)
    return found


def checked(source: str) -> CanData:
    """The data, with which classifiers can be trained for all tests; raises ``InputError`` for others."""
    data = load_can(source)
    for test in main_tests(data):
        KDGAT().check([Configuration(test.name, finished({"stage": "classifier", **test.task()}))], data)
    return data


def f1(data: CanData, graphs: NDArray[np.integer], found: NDArray[np.generic]) -> float:
    """The F1 score of what was found in each graph."""
    from sklearn.metrics import f1_score  # here: it takes a second to import

    return float(f1_score(data.label[graphs], found, zero_division=0))


def rule(data: CanData, test: Test) -> float:
    """F1 of: an attack is where an ID is that attack-free traffic does not have. Hidden IDs tell nothing."""
    graphs = graphs_of(data, "test", stage="classifier", held_out=test.held_out)
    unseen = np.zeros(len(data), np.int64)
    if test.use_id:
        np.maximum.at(unseen, np.repeat(np.arange(len(data)), np.diff(data.first)), data.ids == 0)
    return f1(data, graphs, unseen[graphs])


def logistic(data: CanData, test: Test, x: NDArray[np.floating]) -> float:
    """F1 of a logistic regression on (G, F) of a graph, standardised."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    trained = usable(data, data.train, stage="classifier", held_out=test.held_out)
    graphs = graphs_of(data, "test", stage="classifier", held_out=test.held_out)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(x[trained], data.label[trained])
    return f1(data, graphs, model.predict(x[graphs]))


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
    return f1(data, graphs, outside[graphs] > 2 * max(0.0, outside[later].max()))


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
    sides = {"found by": [model for model, share in shares.items() if share >= FOUND]}
    sides["not found by"] = [model for model in shares if model not in sides["found by"]]
    return [f"{test.held_out}, held out, is {side} {', '.join(models) or 'none'}" for side, models in sides.items()]


def finds(found: Found, stage: str) -> bool:
    """Whether a model of a stage finds the attacks of a test."""
    return any(mean_of(values, "recall") >= FOUND for (of, _), values in found.items() if of == stage)


def mean_of(values: Sequence[Metrics], metric: str) -> float:
    return mean(metrics[metric] for metrics in values)


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
    bars, faults, held_out = 0, list[str](), list[str]()
    finding = dict.fromkeys(STAGES, 0)
    for test in tests:
        values = {key[1:]: [of_seed[key] for of_seed in found] for key in found[0] if key[0] == test.name}
        baselines = {
            "rule": rule(graphs, test),
            "logistic, means": logistic(graphs, test, means(graphs, test)),
            "range of normal traffic": normal_range(graphs, with_sizes(graphs, test), test),
        }
        print(f"{test.name}: F1 of the class of attacks, and the area under the ROC curve")
        for (stage, model), of_seeds in values.items():
            score, area = (figure([metrics[key] for metrics in of_seeds]) for key in ("f1", "auroc"))
            print(f"  {stage:<12} {model:<32} {score:<17} {area}")
        for name, value in baselines.items():
            print(f"  {'baseline':<12} {name:<32} {value:.4f}")
        number, failed = missed(test, values, baselines)
        bars, faults = bars + number, faults + failed
        if test.held_out:
            held_out += unseen(test, values)
            finding = {stage: count + finds(values, stage) for stage, count in finding.items()}
    print("".join(f"\n{line}" for line in held_out))
    print("".join(f"\nmissed: {fault}" for fault in faults))
    kinds = len(tests) - 2
    told_apart = ", ".join(f"{stage}s find {count}" for stage, count in finding.items())
    print(
        f"\n{len(faults)} of {bars} bars are missed; of {kinds} kinds of attack held out, {told_apart}; "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
