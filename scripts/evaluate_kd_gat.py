"""How well attacks on a CAN bus are told: F1 of teachers, of students without and with one, and of simple rules.

Recordings are split by time, and nothing is chosen on the test. Both stages are trained: the classifier (GAT) learns
from attacks, the autoencoder (VGAE) from normal traffic alone. There are four tests:

    plain            IDs are known: the rule 'an ID unseen in attack-free traffic' is enough, so this proves nothing
    masked           IDs are hidden
    masked, no KIND  and a kind of attack is in no training or validation graph, and alone in the test

Beside them stand that rule and logistic regressions of a graph: on the mean of its nodes' features, all that is there
but the structure; and on their maxima and the graph's size as well. Bars, of means over seeds, where IDs are hidden:
a teacher is above the rule and the logistic regression on means (of the classifier where kinds are known, of the
autoencoder where one is held out), and its student that learns from it is at most 2 points below it. Exit code 1 if
one is missed. Where the stronger regression is above the teacher, a note says so.
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
from statistics import mean, stdev
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tuner.datasets.can import CanData, load_can
from tuner.execution.worker import to_bytes
from tuner.search.configurations import configurations
from tuner.training.loop import Fit, fit
from tuner.training.step import evaluate
from tuner.trial import Trial
from tuner.workloads.kd_gat.graphs import tested, usable
from tuner.workloads.kd_gat.workload import KDGAT
from tuner.workloads.protocols import finish_of

POINTS = 0.02
MODELS = ("teacher", "student", "taught student")
STAGES = ("classifier", "autoencoder")


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
    """All four, or more where there are more kinds of attack."""
    return [
        Test("plain", 1),
        Test("masked", 0),
        *(Test(f"masked, no {kind}", 0, kind) for kind in data.attacks[1:]),
    ]


def train(data: CanData, seed: int, path: Path, values: Mapping[str, Any]) -> Fit:
    """Trains one configuration; its weights are in the file then, and its test in the metrics."""
    workload = KDGAT()
    plain = {"batch_size": 32, "optimize_batch_size": 0, "gradient_checkpointing": 0}
    (configuration,) = configurations([{**plain, **values}], workload.schema, finish=finish_of(workload))
    workload.check([configuration], data)
    trial = Trial("t001", workload.name, path.stem, configuration.values, seed)
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


def retested(data: CanData, values: Mapping[str, Any], weights: Mapping[str, Any], held_out: str) -> float:
    """F1 of an autoencoder where the test has only this kind of attack: it has seen none in training anyway."""
    workload = KDGAT()
    (asked,) = configurations([{**values, "held_out": held_out}], workload.schema, finish=finish_of(workload))
    model = workload.build_model(asked.values, data)
    model.load_state_dict(dict(weights))
    return evaluate(workload, model, data, "test")["test_f1"]


def one_seed(
    source: str, tests: Sequence[Test], seed: int, epochs: Mapping[str, int]
) -> dict[tuple[str, str, str], float]:
    """F1 by test, stage and model, and that of students with a curriculum."""
    torch.set_num_threads(1)
    data, found = load_can(source), dict[tuple[str, str, str], float]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for use_id in (1, 0):
            values = {"stage": "autoencoder", "use_id": use_id, "epochs": epochs["autoencoder"]}
            for model, result in family(data, seed, folder, values).items():
                role = {"role": "teacher"} if model == "teacher" else {}
                taught = {"use_kd": 1} if model == "taught student" else {}
                for test in (each for each in tests if each.use_id == use_id):
                    own = {**values, **role, **taught}
                    found[test.name, "autoencoder", model] = retested(data, own, result.weights, test.held_out)
            for test in (each for each in tests if each.use_id == use_id):
                values = {"stage": "classifier", "epochs": epochs["classifier"], **test.task()}
                for model, result in family(data, seed, folder, values).items():
                    found[test.name, "classifier", model] = result.metrics["test_f1"]
                if not test.held_out:
                    hard = {**values, "curriculum": 1, "scorer_path": str(folder / "autoencoder.pt")}
                    result = train(data, seed, folder / "curriculum.pt", hard)
                    found[test.name, "classifier", "student, curriculum"] = result.metrics["test_f1"]
    return found


def rule(data: CanData, test: Test) -> float:
    """F1 of: an attack is where an ID is that attack-free traffic does not have. Hidden IDs tell nothing."""
    graphs = tested(data, stage="classifier", held_out=test.held_out)
    unseen = np.zeros(len(data), np.int64)
    if test.use_id:
        np.maximum.at(unseen, np.repeat(np.arange(len(data)), np.diff(data.first)), data.ids == 0)
    return float(f1_score(data.label[graphs], unseen[graphs], zero_division=0))


def logistic(data: CanData, test: Test, x: NDArray[np.floating]) -> float:
    """F1 of a logistic regression on (G, F) of a graph, standardised."""
    trained = usable(data, data.train, stage="classifier", held_out=test.held_out)
    graphs = tested(data, stage="classifier", held_out=test.held_out)
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


def missed(test: Test, found: Mapping[tuple[str, str], Sequence[float]], baselines: Mapping[str, float]) -> list[str]:
    """The bars that a test has missed, in words; nothing is asked of the plain one."""
    if test.use_id:
        return []
    stage = "autoencoder" if test.held_out else "classifier"
    teacher, taught = mean(found[stage, "teacher"]), mean(found[stage, "taught student"])
    faults = [
        f"{test.name}: the {stage}'s teacher has {teacher:.4f}, {name} {baselines[name]:.4f}"
        for name in ("rule", "logistic, means")
        if teacher <= baselines[name]
    ]
    if taught < teacher - POINTS:
        faults.append(f"{test.name}: the {stage}'s taught student has {taught:.4f}, its teacher {teacher:.4f}")
    return faults


def stronger(
    test: Test, found: Mapping[tuple[str, str], Sequence[float]], baselines: Mapping[str, float]
) -> list[str]:
    """Teachers that the regression with maxima and sizes is above, in words."""
    name = "logistic, maxima and sizes too"
    means_of = {stage: mean(found[stage, "teacher"]) for stage in STAGES}
    return [
        f"{test.name}: {name}, has {baselines[name]:.4f}, the {stage}'s teacher {value:.4f}"
        for stage, value in means_of.items()
        if value < baselines[name]
    ]


def figure(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


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
    began, graphs = time.monotonic(), load_can(data)
    tests = main_tests(graphs)
    asked = {"classifier": epochs, "autoencoder": autoencoder_epochs}
    print(f"{KDGAT().describe(graphs)}; {seeds} seeds, {epochs} and {autoencoder_epochs} epochs\n")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one_seed, *zip(*[(data, tests, seed, asked) for seed in range(seeds)], strict=True)))
    faults, notes = [], []
    for test in tests:
        values = {key[1:]: [each[key] for each in found] for key in found[0] if key[0] == test.name}
        baselines = {
            "rule": rule(graphs, test),
            "logistic, means": logistic(graphs, test, means(graphs, test)),
            "logistic, maxima and sizes too": logistic(graphs, test, with_sizes(graphs, test)),
        }
        print(f"{test.name}: F1 of the class of attacks")
        for (stage, model), each in values.items():
            print(f"  {stage:<12} {model:<32} {figure(each)}")
        for name, value in baselines.items():
            print(f"  {'baseline':<12} {name:<32} {value:.4f}")
        faults += missed(test, values, baselines)
        notes += stronger(test, values, baselines)
    print("".join(f"\nnote: {note}" for note in notes))
    print("\n" + ("\n".join(faults) or "every bar is met") + f"; {time.monotonic() - began:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
