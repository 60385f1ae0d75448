"""A study that maximises x is one that minimises -x, and what is maximised or minimised is never guessed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
import torch
from torch import nn

import tuner
from tests.study.test_searching import Stopping
from tests.support.commands import refused
from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.objective import DirectionWord, Objective
from tuner.records.study_record import read_study
from tuner.workloads.base import Split
from tuner.workloads.lookup import find_workload
from tuner.workloads.objectives import SCORES, is_score, objective_of

HERE: dict[str, Any] = {"device": "cpu", "model_memory_gb": 0.1, "gpu_memory_buffer_gb": 0, "max_workers": 1}
SIGN = re.compile(r"(?<![\w.])[+-](?=\d)")
SPACE = {"lr": {"loguniform": [0.01, 3]}, "weight_decay": {"choice": [0.0, 0.1, 0.3]}}


class Down(Toy):
    """Its metric is of either sign, and best in the middle of a training whose learning rate is high."""

    name: ClassVar[str] = "toy"
    metric: ClassVar[str] = "val_x"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"x": super().evaluate(model, data, split)["loss"] - 0.3}


class Up(Down):
    """The same, negated."""

    name: ClassVar[str] = "toy"
    direction: DirectionWord | None = "max"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"x": -super().evaluate(model, data, split)["x"]}


class Accurate(Toy):
    """It does not say whether more or less of its metric is better."""

    name: ClassVar[str] = "accurate"
    metric: ClassVar[str] = "val_accuracy"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        loss = super().evaluate(model, data, split)["loss"]
        return {"accuracy": 1 - loss, "loss": loss}


@pytest.fixture(autouse=True)
def _in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())


def ranks(folder: str) -> dict[str, Any]:
    """What everything that ranks the trials of a study says, with the signs of the metric left out."""
    direction = read_study(Path(folder)).objectives["toy"].direction
    sign = 1 if direction == "minimize" else -1
    table, compared = tuner.results(folder), tuner.compare(folder)
    page = (Path(folder) / "report.html").read_text()
    return {
        "rows": table[["name", "seed", "status", "epochs", "best_epoch", "config/lr"]].to_csv(),
        "values": (sign * table.val_x).round(6).tolist(),
        "means": compared[["name", "completed", "half_width", "verdict"]].to_csv(),
        "differences": (sign * compared.difference).round(6).astype(str).tolist(),
        "weights": torch.load(f"{folder}/best.pt", weights_only=True)["name"],
        "page": re.findall(r'<tr data-trial="(.*?)">|class="name">(.*?)<', page),
        "captions": [
            SIGN.sub("", each) for each in re.findall(r"<figcaption>(.*?)</figcaption>", page) if "val_x" in each
        ],
    }


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The configurations in the order in which lines and tables name them, and the lines on the best of them."""
    text = capsys.readouterr().out
    return [*re.findall(r"\w+-\d+(?= )", text), *re.findall(r"^(?:best|advice).*val_x", SIGN.sub("", text), re.M)]


@pytest.mark.usefixtures("writes_pages")
@pytest.mark.parametrize(
    ("search", "scheduler", "seeds", "seed"),
    [("random", "fifo", 2, 0), ("random", "median", 1, 1), ("optuna", "asha", 1, 0)],
)
def test_maximised_x_ranks_as_minimised_minus_x_does(
    search: str, scheduler: str, seeds: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for workload in (Down, Up):
        folder = workload.__name__.lower()
        result = tuner.run(
            workload, search=search, space=SPACE, num_samples=12, scheduler=scheduler, seeds=seeds, seed=seed,
            epochs=9, output=folder, **HERE,
        )  # fmt: skip
        found.append({**ranks(folder), "printed": printed(capsys), "best": result.best["name"]})
    assert found[0] == found[1]
    assert len(found[0]["printed"]) > 12
    statuses = set(result.to_frame().status)
    assert statuses == ({"completed"} if scheduler == "fifo" else {"completed", "pruned"}), "else nothing is compared"


@pytest.mark.usefixtures("writes_pages")
def test_a_resumed_search_that_maximises_suggests_and_prunes_as_one_that_minimises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for workload in (Down, Up):
        folder = workload.__name__.lower()
        asked: dict[str, Any] = {"search": "optuna", "space": SPACE, "num_samples": 16, "scheduler": "asha"}
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("tuner.study.study.make_executor", lambda _: Stopping())
            tuner.run(workload, **asked, epochs=9, output=folder, **HERE)
        tuner.run(workload, resume=folder)
        again = tuner.train(folder, device="cpu", output=f"{folder}-again")
        found.append({**ranks(folder), "trained": (again.metrics["best_epoch"], again.differences)})
    assert found[0] == found[1]
    assert "pruned" in found[0]["rows"]


def test_an_exported_study_has_the_direction_and_the_same_best_trial() -> None:
    best = []
    for workload in (Down, Up):
        folder = workload.__name__.lower()
        tuner.run(workload, config=[{"lr": lr} for lr in (0.01, 0.3, 3.0)], output=folder, **HERE)
        tuner.export(folder, optuna="sqlite:///studies.db")
        best.append(optuna.load_study(study_name=folder, storage="sqlite:///studies.db"))
    assert [each.direction.name for each in best] == ["MINIMIZE", "MAXIMIZE"]
    assert best[0].best_params == best[1].best_params
    assert best[0].best_value == -best[1].best_value


def test_the_best_epoch_of_an_accuracy_is_the_one_with_the_most(tmp_path: Path) -> None:
    listed = [{"name": "slow", "lr": 0.001}, {"name": "good", "lr": 0.3}, {"name": "fair", "lr": 0.03}]
    result = tuner.run(Accurate, config=listed, direction="max", output="out", **HERE)
    assert [row.name for row in result.trials] == ["good", "fair", "slow"]
    assert result.best["val_accuracy"] == result.to_frame().val_accuracy.max()
    assert torch.load("out/best.pt", weights_only=True)["name"] == "good"
    study = read_study(tmp_path / "out")
    assert (study.metrics, study.directions) == ({"accurate": "val_accuracy"}, {"accurate": "maximize"})
    assert study.options is not None and study.options["direction"] == ["maximize"]


def test_the_metric_that_is_asked_for_replaces_the_workloads_own_and_its_direction() -> None:
    result = tuner.run(Up, metric="val_x", config=[{}], output="same", **HERE)
    assert result.objectives == {"toy": Objective("val_x", "maximize")}
    result = tuner.run(Accurate, metric="val_loss", config=[{"lr": 0.01}, {"lr": 0.3}], output="other", **HERE)
    assert result.objectives == {"accurate": Objective("val_loss", "minimize")}
    assert result.trials[0].metrics["val_loss"] == result.to_frame().val_loss.min()


def test_a_metric_that_evaluate_does_not_return_fails_the_trial() -> None:
    result = tuner.run(Toy, metric="val_gain", config=[{}], output="out", **HERE)
    assert "evaluate returned loss, but not 'gain', which metric 'val_gain' needs" in result.trials[0].error


@pytest.mark.parametrize("word", sorted(SCORES))
def test_a_score_is_refused_without_a_direction_and_nothing_is_written(word: str, tmp_path: Path) -> None:
    workload = type("Scored", (Accurate,), {"metric": f"val_macro_{word.upper()}@10"})
    remedy = "Give direction='maximize' or direction='minimize', or write direction = 'maximize' in its class"
    with pytest.raises(InputError, match=rf"^scored: is more of '{workload.metric}' better, or less\? {remedy}$"):
        tuner.run(workload, output="out", **HERE)
    assert not (tmp_path / "out").exists()
    assert objective_of(workload(), directions=["minimize"]).direction == "minimize"


def test_a_word_counts_between_underscores_only() -> None:
    assert all(map(is_score, ("val_recall@10", "val_Acc", "val_f1_macro", "val_map@0.5_box")))
    assert not any(map(is_score, ("val_loss", "val_accident_rate", "val_error@map", "val_scores")))


def test_a_direction_of_the_class_is_none_of_another_metric() -> None:
    with pytest.raises(
        InputError, match=r"is more of 'val_accuracy' better, or less\? Give direction='maximize' or "
    ):
        objective_of(Up(), ["val_accuracy"])
    assert objective_of(Up(), ["val_accuracy"], ["minimize"]) == Objective("val_accuracy", "minimize")


BAD = {
    "direction='upwards': must be 'minimize' or 'maximize'": {"direction": "upwards"},
    "mode='max': .* give direction='maximize'": {"mode": "max"},
    "mode='min': .* give direction='minimize'": {"mode": "min"},
    "metric='accuracy': expected 'val_' and a metric's name": {"metric": "accuracy", "direction": "max"},
    "direction='maximize': takes one workload, not toy and accurate": {
        "workload": [Down, Accurate],
        "direction": "maximize",
    },
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_objective_is_refused_in_a_line(message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{message}[^\n]*$"):
        tuner.run(**{"workload": Down, "output": "out", **HERE, **BAD[message]})
    assert not (tmp_path / "out").exists()


def test_the_command_line_refuses_them_in_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--direction" in refused(capsys, "run", "--direction", "upwards")
    assert "--mode max" in (line := refused(capsys, "run", "--mode", "max"))
    assert "--direction maximize" in line


def test_a_class_with_another_word_for_its_direction_is_refused() -> None:
    workload = type("Odd", (Toy,), {"direction": "upwards"})
    with pytest.raises(InputError, match=r"direction is 'upwards': expected 'minimize' or 'maximize'$"):
        find_workload(workload)


def test_a_study_is_not_resumed_with_another_direction() -> None:
    tuner.run(Down, config=[{}], output="out", **HERE)
    with pytest.raises(InputError, match="its direction is 'minimize', not 'maximize'; start a new study for that"):
        tuner.run(Down, resume="out", direction="maximize")


def test_studies_of_other_directions_side_by_side_are_told() -> None:
    tuner.run(Down, config=[{}], output="down", **HERE)
    tuner.run(Up, config=[{}], output="up", **HERE)
    with pytest.warns(UserWarning, match="toy: these studies had other metrics .* ranked by val_x, minimized$"):
        tuner.results(["down", "up"])


def test_a_table_is_compared_by_a_score_only_with_its_direction() -> None:
    table = tuner.run(Accurate, direction="max", config=[{"lr": 0.01}, {"lr": 0.3}], output="out", **HERE).to_frame()
    table["workload"] = "elsewhere"
    with pytest.raises(InputError, match=r"metric='val_accuracy': is a higher or a lower value better\?: give"):
        tuner.compare(table, "val_accuracy")
    most = tuner.compare(table, "val_accuracy", "max")["mean"].tolist()
    assert most == sorted(most, reverse=True) == tuner.compare("out", "test_accuracy")["mean"].tolist()
