"""What only Python can give: objects as workloads and searches, and configurations without a file."""

from __future__ import annotations

import json
import pickletools
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tuner
from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.records.study_record import StudyRecord, read_study
from tuner.spec.listed import choose
from tuner.spec.settings import Settings
from tuner.spec.spelling import program
from tuner.spec.stored_options import CALL, needs_objects, resumed
from tuner.workloads.lookup import specs_of, texts_of

HERE: dict[str, Any] = {
    "device": "cpu",
    "model_memory_gb": 0.1,
    "gpu_memory_buffer_gb": 0,
    "report": False,
    "in_process": True,
}
LISTED = [{"name": "slow", "lr": 0.01}, {"name": "fast", "lr": 0.1}]
OF_AN_OBJECT = (
    "its workload sized was passed as an object whose class is not in a module or that has attributes of its own"
)


class Sized(Toy):
    """A toy with a state, which no text finds again."""

    def __init__(self, size: int = 1) -> None:
        self.size = size


@pytest.fixture(autouse=True)
def _in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_study_of_an_object_keeps_its_options_and_needs_the_object_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = tuner.run(Sized(), config=LISTED, limit=1, epochs=2, output="out", **HERE)
    assert "Again: tuner.load_best('out', workload=…)" in capsys.readouterr().out
    study = read_study(Path("out"))
    assert study.options
    assert (study.options["workload"], study.options["config"], study.command) == (["sized"], LISTED, CALL)
    assert needs_objects(study)
    again = tuner.run(Sized(), resume="out", seeds=2)
    assert [(row["name"], row["seed"], row["epochs"]) for row in sorted(again.rows, key=lambda row: row["seed"])] == [
        ("slow", 0, 2),
        ("slow", 1, 2),
    ]
    assert again.best_model()(torch.zeros(3, 1)).shape == result.best_model()(torch.zeros(3, 1)).shape == (3, 1)
    assert again.best["name"] == "slow"
    with pytest.raises(InputError, match=r"its workload sized must be given again, .* with resume='out' in place of"):
        tuner.run(resume="out")
    with pytest.raises(InputError, match="its workload is 'sized', not 'graphsage'"):
        tuner.run("graphsage", resume="out")
    with pytest.raises(InputError, match=r"its configurations are different \(in slow epochs is 2, not 3\)"):
        tuner.run(Sized(), resume="out", seeds=2, epochs=3)
    with pytest.raises(InputError, match=r"its configurations are different \(it has 1, not 2\)"):
        tuner.run(Sized(), resume="out", seeds=2, config=[*LISTED], limit=2)


def test_of_several_workloads_only_the_object_is_given_again() -> None:
    listed = [{"workload": "sized", "lr": 0.1}, {"workload": "toy", "lr": 0.1}]
    tuner.run([Sized(), "tests.support.toy:Toy"], config=listed, output="out", **HERE)
    again = tuner.run(Sized(), resume="out", seeds=2)
    assert [(row["workload"], row["status"]) for row in again.rows] == [
        *[("sized", "completed")] * 2,
        *[("toy", "completed")] * 2,
    ]
    with pytest.raises(InputError, match="its workload sized must be given again"):
        tuner.run("tests.support.toy:Toy", resume="out")


def test_a_trial_of_an_object_is_trained_again_with_the_object_or_its_class() -> None:
    tuner.run(Sized(), config=LISTED, output="out", threads=1, **HERE)
    with pytest.raises(InputError, match=rf"study='out': {OF_AN_OBJECT}: .*tuner.train\('out', workload=…\)"):
        tuner.train("out")
    with pytest.raises(InputError, match=rf"{OF_AN_OBJECT}: .*tuner.load_best\('out', workload=…\)"):
        tuner.load_best("out")
    assert tuner.train("out", workload=Sized(), device="cpu", output="again").differences == {}
    assert (
        tuner.train("out", workload=Sized, trial="slow", epochs=1, device="cpu", output="short").differences is None
    )
    assert tuner.load_best("again", Sized()).weight.shape == (1, 1)


def test_a_study_of_a_list_is_gone_on_with_and_trained_again_by_commands(capsys: pytest.CaptureFixture[str]) -> None:
    tuner.run(Toy, config={"defaults": {"epochs": 2}, "grid": {"lr": (0.01, 0.1)}}, output="out", **HERE)
    assert f"Again: {program()} train --from out --trial t002" in capsys.readouterr().out
    assert json.loads(Path("out/study.json").read_text())["options"]["config"]["grid"] == {"lr": [0.01, 0.1]}
    assert [row["seed"] for row in tuner.run(resume="out", seeds=2).rows].count(1) == 2
    assert tuner.train("out", trial="t002", device="cpu", output="again").differences == {}


@pytest.mark.parametrize(
    "config",
    [
        [{"lr": 0.1, "epochs": 2}, {"lr": 0.2, "epochs": 2}],
        {"configurations": [{"lr": np.float64(0.1)}, {"lr": 0.2, "epochs": np.int64(2)}], "defaults": {"epochs": 2}},
        {"grid": {"lr": np.array([0.1, 0.2])}, "defaults": {"epochs": 2, "workload": "tests.support.toy:Toy"}},
    ],
)
def test_configurations_are_read_as_those_of_a_file(config: Any) -> None:
    found = chosen(config).configurations
    assert [(configuration.values["lr"], configuration.values["epochs"]) for configuration in found] == [
        (0.1, 2),
        (0.2, 2),
    ]


def chosen(config: Any) -> Any:
    (choice,), label = choose(Settings(workload=Toy, config=config), 0)
    assert label == "config"
    return choice


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "config: the list of configurations is empty"),
        (3, "config: expected a file's path, a list of mappings, or a mapping as a file holds one, not 3"),
        ([3], r"config: expected a file's path, .* not \[3\]"),
        ({"lr": 0.1}, "config: expected one of 'configurations', 'grid' and 'space', .* got lr"),
        ([{"lr": Toy}], "lr = Toy is not a number"),
        ([{"rl": 1}], "config: rl=1: unknown key 'rl'"),
        ({"space": {"lr": 1}}, "config: it has a 'space', which is searched"),
    ],
)
def test_configurations_that_cannot_be_used_are_refused(config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(config)


def test_a_search_that_was_an_object_is_given_again() -> None:
    study = StudyRecord(workload="toy", classes={"toy": "tests.support.toy:Toy"}, options={"search": "TPESampler"})
    assert needs_objects(study)
    assert not needs_objects(replace(study, options={"search": "optuna"}))
    with pytest.raises(InputError, match="resume='out': its search TPESampler must be given again, as only Python"):
        resumed(study, Settings(resume="out"))
    given = type("TPESampler", (), {})()
    assert resumed(study, Settings(resume="out", search=given)).search is given


def test_everything_that_must_be_given_again_is_named_at_once() -> None:
    objects = {"search": "TPESampler", "data": {"python object": "dict"}}
    study = StudyRecord(workload="train", classes={"train": None}, programs=["train"], options=objects)
    rule = "its function train, search TPESampler and data must be given again, as only Python can give them"
    with pytest.raises(InputError, match=f"{rule}: make the same call, with resume='out' in place of output$"):
        resumed(study, Settings(resume="out"))


def test_a_study_of_a_sampler_keeps_its_options() -> None:
    samplers = pytest.importorskip("optuna").samplers
    space = {"lr": {"uniform": [0.01, 0.1]}}
    tuner.run(Toy(), space=space, search=samplers.TPESampler(seed=1), num_samples=2, output="out", **HERE)
    assert (read_study(Path("out")).options or {})["search"] == "TPESampler"
    result = tuner.run(search=samplers.TPESampler(seed=2), num_samples=3, resume="out")
    assert [row["status"] for row in result.rows] == ["completed"] * 3
    with pytest.raises(InputError, match=r"search=TPESampler: it is a class: give an object, such as TPESampler\(\)"):
        tuner.run(Toy, space=space, search=samplers.TPESampler, num_samples=2, **HERE)


def test_the_first_argument_of_every_function_may_be_the_workload() -> None:
    ((name, guess),) = tuner.estimate(Sized(), device="cpu")
    assert (name, guess.method) == ("default", "traced")
    found = tuner.plan(Toy, config=LISTED, device="cpu", model_memory_gb=0.1, gpu_memory_buffer_gb=0)
    assert [request.trial.name for request in found.requests] == ["slow", "fast"]
    with pytest.raises(InputError, match="workload toy: it has no batch"):
        tuner.optimize(Toy(), gpu_memory=8)
    with pytest.raises(InputError, match="two workloads were given"):
        tuner.estimate(Toy, workload="graphsage")
    with pytest.raises(InputError, match="a workload is named by workload='graphsage'"):
        tuner.estimate("graphsage")


def test_a_snapshot_of_one_configuration_is_written_to_a_new_file() -> None:
    tuner.estimate(Toy(), device="cuda", snapshot="toy.pickle")
    with Path("toy.pickle").open("rb") as file:
        assert any(value == "device_traces" for _, value, _ in pickletools.genops(file))
    with pytest.raises(InputError, match=r"snapshot='toy\.pickle': already exists: give another name"):
        tuner.estimate(Toy(), device="cuda", snapshot="toy.pickle")
    with pytest.raises(InputError, match="snapshot has no effect on a transformer"):
        tuner.estimate(model_embd=64, model_layer=1, batch_size=1, snapshot="other.pickle")
    with pytest.raises(InputError, match="is of one configuration, not of 2: choose it with only='NAME'"):
        tuner.estimate(Toy(), config=LISTED, device="cuda", snapshot="other.pickle")
    assert not Path("other.pickle").exists()


def test_a_result_does_where_a_folder_is_expected() -> None:
    result = tuner.run(Sized(), config=LISTED, limit=1, epochs=1, output="out", **HERE)
    assert tuner.results(result).name.tolist() == ["slow"]
    assert [row["status"] for row in tuner.run(Sized(), resume=result, seeds=2).rows] == ["completed"] * 2  # type: ignore[arg-type]
    dry = tuner.run(Sized(), config=LISTED, dry_run=True, **HERE)
    with pytest.raises(InputError, match=r"^a dry run has no folder$"):
        tuner.results(dry)


def test_a_result_knows_what_won(capsys: pytest.CaptureFixture[str]) -> None:
    result = tuner.run(Toy, config={"grid": {"lr": [0.01, 0.1]}}, seeds=2, output="out", **HERE)
    best = result.best
    assert result.best_config == {"lr": 0.1, "weight_decay": 0.0, "epochs": 3, "fault": 0}
    assert (result.best_value, result.best_config["lr"]) == (best["val_loss"], best["config/lr"])
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("name")).split()[-2:] == ["verdict", "lr"]
    assert lines[-1].startswith(
        f"best single trial: lr=0.1 (seed {best['seed']}), val_loss {result.best_value:.4f} with"
    )
    tuner.run(Toy, config={"grid": {"lr": [0.01, 0.1], "epochs": [1, 2]}}, output="one", **HERE)
    assert re.search(r"\nbest: val_loss \d\.\d+ with lr=0\.1, epochs=2\. Again: .*\n$", capsys.readouterr().out)


def test_a_result_without_a_completed_trial_says_so() -> None:
    result = tuner.run(Toy(), config=[{"fault": 2}], output="out", **HERE)
    with pytest.raises(
        InputError, match=r"^best: no trial of this table has reported val_loss; see its column error$"
    ):
        result.best  # noqa: B018
    with pytest.raises(InputError, match=r"^best_value: no trial has reported val_loss; see its column error"):
        result.best_value  # noqa: B018
    assert repr(result) == "StudyResult('out': 1 out_of_memory)"


def test_a_result_is_shown_in_a_line_and_as_a_table() -> None:
    result = tuner.run(Toy, config=LISTED, overrides=["epochs=1"], output="out", **HERE)
    assert repr(result) == f"StudyResult('out': 2 completed; best: val_loss {result.best_value:.4f} with lr=0.1)"
    assert '<table id="trials"' in unescape(str(result._repr_html_()))
    assert result.to_frame().attrs == {"folder": "out", "metric": "val_loss", "direction": "minimize"}
    planned = tuner.run(Toy, config=LISTED, dry_run=True, **HERE)
    assert (repr(planned), planned._repr_html_()) == ("StudyResult(dry run of 2 trials)", None)
    with pytest.raises(InputError, match="best: a dry run has no results"):
        _ = planned.best
    two = tuner.run([Toy, "tests.support.toy:Batched"], overrides=["epochs=1"], output="two", **HERE)
    assert re.fullmatch(
        r"StudyResult\('two': 2 completed; best of toy: val_loss .*; best of batched: .*\)", repr(two)
    )
    with pytest.raises(InputError, match=r"best_config: the study is of toy and batched: use to_frame\(\)"):
        _ = two.best_config
    with pytest.raises(InputError, match=r"best_model: the study is of toy and batched: use to_frame\(\)"):
        two.best_model()
    assert '<table id="trials"' in unescape(str(two._repr_html_()))


def test_what_no_text_finds_again_has_its_name() -> None:
    assert texts_of([Sized(), Toy, "graphsage"]) == ["sized", "tests.support.toy:Toy", "graphsage"]
    assert specs_of([Sized(), Toy]) is None
    with pytest.raises(InputError, match="unknown workload 3"):
        texts_of(3)  # type: ignore[arg-type]


def test_a_trainable_is_wrapped_once() -> None:
    def trainable(config: dict[str, Any]) -> None: ...

    once = tuner.memory_aware(trainable, estimate=0.1, device="cpu", gpu_memory_buffer_gb=0)
    with pytest.raises(InputError, match="trainable trainable: it is memory-aware already: wrap it once"):
        tuner.memory_aware(once, estimate=0.1)
