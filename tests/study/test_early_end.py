"""Studies that end before all of their trials have run, and go on later."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
import tuner.optuna
from tests.support.commands import said
from tuner.decisions.events import Concluded, Reported
from tuner.errors import DevicesLost
from tuner.execution.in_process import InProcessExecutor
from tuner.trial import EpochReport

OPTIONS: dict[str, Any] = {"metric": "loss", "direction": "minimize", "in_process": True, "report": False}


def train(config: dict[str, float]) -> None:
    tuner.report(loss=config["lr"])


def fails(config: dict[str, float]) -> None:
    raise ValueError(f"no data for {config['lr']}")


def objective(trial: optuna.Trial) -> float:
    raise ValueError("no data")


def configs(count: int) -> list[dict[str, float]]:
    return [{"lr": 1.0 + number} for number in range(count)]


def test_trials_that_never_began_are_counted_and_what_cannot_succeed_is_not_to_be_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def red(config: dict[str, float]) -> None:
        raise ValueError("\x1b[31mno data")

    tuner.run(red, config=configs(30), output=tmp_path / "out", **OPTIONS)
    printed = capsys.readouterr().out
    assert "27 of 30 trials never started" in printed and "before it started" not in printed
    assert "continue with" not in printed and "no trial has succeeded: mend the error first" in printed
    assert f"resume='{tmp_path / 'out'}'" in printed.replace("\n", "")
    texts = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.suffix in (".csv", ".log", ".jsonl")]
    assert any(b"[31mno data" in text for text in texts) and not any(b"\x1b" in text for text in texts)


def test_a_study_that_fails_alike_ends_and_goes_on_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tuner.run(fails, config=configs(6), output=tmp_path / "out", **OPTIONS)
    assert [row.status for row in result.trials].count("failed") == 3
    assert capsys.readouterr().out.count("the study ends: the first 3 trials have failed alike") == 1
    again = tuner.run(fails, resume=tmp_path / "out", fail_fast=0, max_failures=1, report=False)
    assert [row.status for row in again.trials] == ["failed"] * 6


def test_a_wrong_metric_ends_a_study_after_its_first_trial(tmp_path: Path) -> None:
    result = tuner.run(train, config=configs(5), output=tmp_path / "out", **{**OPTIONS, "metric": "acc"})
    assert sorted(row.status for row in result.trials) == ["failed", *["interrupted"] * 4]
    assert "tuner.report was given loss, but not 'acc'" in result.trials[0].error


def test_a_study_ends_at_its_target_and_its_callbacks_hear_of_it(tmp_path: Path) -> None:
    heard: list[object] = []
    result = tuner.run(
        train, config=configs(5), target=1.0, callbacks=[heard.append], output=tmp_path / "out", **OPTIONS
    )
    assert [row.status for row in result.trials] == ["completed", *["interrupted"] * 4]
    assert result.trials[1].error == "the study ended (loss is 1, and the target was 1) before it started"
    assert [type(event) for event in heard if isinstance(event, (Reported, Concluded))][-1] is Concluded


def test_a_command_that_fails_fast_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "space.yaml").write_text("lr: {uniform: [0, 1]}\n")
    monkeypatch.chdir(tmp_path)
    words = f"{__name__}:train --space space.yaml --num-samples 9 --metric acc --direction min --in-process"
    printed = said(capsys, *words.split(), "--no-report", code=1)
    assert "the study ends: no trial can succeed: tuner.report was given loss, but not 'acc'" in printed


def test_errors_of_several_options_come_together() -> None:
    with pytest.raises(tuner.InputError, match=r"epochs=-1: must be at least 1; seeds=0: must be at least 1"):
        tuner.run(train, seeds=0, epochs=-1)
    with pytest.raises(tuner.InputError, match=r"give metric, .* compared by, and direction, whether"):
        tuner.run(train, config=configs(1))


def test_a_study_of_optuna_goes_on_though_its_trials_fail_alike(tmp_path: Path) -> None:
    study = optuna.create_study()
    options: dict[str, Any] = {"in_process": True, "report": False, "output": tmp_path / "out"}
    result = tuner.optuna.optimize(study, objective, n_trials=5, **options)
    assert [row.status for row in result.trials] == ["failed"] * 5
    again = tuner.optuna.optimize(
        study, objective, n_trials=5, fail_fast=2, **{**options, "output": tmp_path / "two"}
    )
    assert [row.status for row in again.trials] == ["failed"] * 2


def test_a_study_whose_cluster_is_gone_says_what_became_of_each_trial_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: dict[str, float]) -> None:
        for epoch in range(20):
            tuner.report(loss=config["lr"] + epoch)

    def poll(executor: InProcessExecutor, seconds: float) -> Any:
        events = real(executor, seconds)
        heard.extend(event for event, _ in events if isinstance(event, EpochReport) and event.metrics)
        if len(heard) > 10:
            raise DevicesLost("Ray's head does not answer")
        return events

    heard, real = list[EpochReport](), InProcessExecutor.poll
    monkeypatch.setattr(InProcessExecutor, "poll", poll)
    with pytest.raises(DevicesLost, match="Ray's head does not answer"):
        tuner.run(train, config=configs(2), output=tmp_path / "out", **OPTIONS)
    printed = capsys.readouterr().out.replace("\n", "")
    assert "continue with" in printed and f"resume='{tmp_path / 'out'}'" in printed
    with (tmp_path / "out" / "results.csv").open() as file:
        began, waited = csv.DictReader(file)
    assert (began["status"], began["epochs"]) == ("interrupted", "10")
    assert began["error"] == "the study ended (Ray's head does not answer) while it ran"
    assert waited["error"].endswith("before it started")
