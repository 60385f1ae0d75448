"""Whatever names, shows or keeps the best trial of a study means the same one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tests.study.test_study import study
from tests.support.toy import Toy
from tuner.decisions.events import Reported, Started
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.study.result import StudyResult

Config = dict[str, Any]
WHO = {"who": {"choice": ["a", "b"]}}


def run(train: Any, folder: Path, **options: Any) -> StudyResult:
    given = {"metric": "acc", "direction": "max", "in_process": True, "report": False, "output": folder}
    return tuner.run(train, **{**given, "space": WHO, **options})


def of_seeds(config: Config) -> None:
    value = {"a": (0.8, 0.81), "b": (0.95, 0.1)}[config["who"]][torch.initial_seed() % 2]
    tuner.report(acc=value, checkpoint={"who": config["who"]})


def test_with_seeds_all_name_the_best_seed_of_the_best_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(of_seeds, tmp_path / "out", seeds=2, keep="best")
    frame, best = result.to_frame(), result.trials[0]
    assert (best.config["who"], best.seed, result.best_value) == ("a", 1, 0.81)
    assert result.best_config == {"who": "a"} and result.best_model() == {"who": "a"}
    assert [row.trial_id for row in result.best_trials] == [frame.best.trial_id] == [best.trial_id]
    assert tuner.results(tmp_path / "out").trial_id[0] == best.trial_id
    assert "best single trial: who=a (seed 1), acc 0.8100" in capsys.readouterr().out


def test_further_seeds_can_make_a_trial_the_best_whose_weights_are_gone_which_is_told(tmp_path: Path) -> None:
    def train(config: Config) -> None:
        value = {"a": (0.9, 0.1), "b": (0.8, 0.7)}[config["who"]][torch.initial_seed() % 2]
        tuner.report(acc=value, checkpoint={"who": config["who"]})

    assert run(train, tmp_path / "out").best_model() == {"who": "a"}
    result = tuner.run(train, resume=tmp_path / "out", seeds=2, in_process=True, report=False)
    assert (result.best_config, result.best_value) == ({"who": "b"}, 0.8)
    told = r"has the weights of who=b \(seed 1\): those of the best trial, who=b \(seed 0\), were not kept"
    with pytest.warns(UserWarning, match=told):
        assert result.best_model() == {"who": "b"}


def interrupted(train: Any, folder: Path, reports: int, **options: Any) -> None:
    """Ends a study as Ctrl-C does, after so many reports."""
    left = [reports]

    def hear(event: object) -> None:
        left[0] -= isinstance(event, Reported) and bool(event.report.metrics)
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(train, folder, callbacks=[hear], **options)


def falls(config: Config) -> None:
    start = {"a": 0.5, "b": 0.7}[config["who"]]
    for epoch in range(4):
        tuner.report(acc=start - epoch / 10, checkpoint={"who": config["who"], "epoch": epoch + 1})


def test_a_study_that_ends_before_a_trial_completes_has_a_best_with_its_status_and_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(falls, tmp_path / "out", 3, space={"who": {"choice": ["b"]}})
    told = capsys.readouterr().out
    assert "best: who=b, acc 0.7000 (interrupted)" in told and "interrupted  0.7000" in told
    frame = tuner.results(tmp_path / "out")
    assert (frame.status[0], frame.acc[0], frame.best_epoch[0]) == ("interrupted", 0.7, 1)
    assert tuner.load_best(tmp_path / "out") == {"who": "b", "epoch": 1}


def test_what_a_trial_reported_is_not_forgotten_where_it_does_not_start_again(tmp_path: Path) -> None:
    interrupted(falls, tmp_path / "out", 2, space={"who": {"choice": ["b"]}})

    def hear(event: object) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner.run(falls, resume=tmp_path / "out", in_process=True, report=False, callbacks=[hear])
    assert tuner.results(tmp_path / "out").acc.tolist() == [0.7]
    assert tuner.load_best(tmp_path / "out") == {"who": "b", "epoch": 1}
    result = tuner.run(falls, resume=tmp_path / "out", in_process=True, report=False)
    assert (result.trials[0].status, result.best_value, result.best_model()["epoch"]) == ("completed", 0.7, 1)


def test_a_completed_trial_is_the_best_though_another_one_reported_more(tmp_path: Path) -> None:
    interrupted(falls, tmp_path / "out", 6)  # a completes, then b reports
    frame = tuner.results(tmp_path / "out")
    assert frame.status.tolist() == ["completed", "interrupted"]
    assert tuner.load_best(tmp_path / "out")["who"] == "a"


def test_the_weights_of_a_workloads_unfinished_trial_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    left = [3]

    def hear(event: object) -> None:
        left[0] -= isinstance(event, Reported)
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        often: Any = partial(InProcessExecutor, checkpoint_seconds=0.0)
        study(tmp_path / "out", {"name": "a", "epochs": 4}, executor=often, callbacks=[hear])
    assert isinstance(tuner.load_best(tmp_path / "out", Toy()), torch.nn.Module)


def test_where_no_trial_has_reported_there_is_no_best(tmp_path: Path) -> None:
    def fails(config: Config) -> None:
        raise ValueError("Boom")

    result = run(fails, tmp_path / "out", fail_fast=3)
    with pytest.raises(InputError, match="no trial has reported acc; see its column error"):
        result.best_value  # noqa: B018
    assert result.best_trials == []
