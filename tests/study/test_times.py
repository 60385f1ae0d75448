from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from tests.support.toy import Toy
from tuner.execution.in_process import InProcessExecutor
from tuner.records.study_record import PlanRecord, read_study


def test_a_study_knows_how_long_the_trials_of_an_earlier_one_took(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())

    def run(name: str, epochs: int) -> tuple[PlanRecord, str]:
        config = [{"fault": 4, "epochs": epochs}]  # a step sleeps for 0.02 s
        tuner.run(Toy(), config=config, auto_memory=True, output=tmp_path / name, report=False)
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("time "))
        return read_study(tmp_path / name).plan, line

    plan, line = run("first", 2)
    assert (plan.epoch_seconds, plan.seconds) == ({}, None)
    assert line.startswith("time       unknown until the first epochs; memory_estimation='measured' times")
    plan, line = run("second", 5)
    assert plan.epoch_seconds["toy"] >= 4 * 0.02
    assert plan.seconds == pytest.approx(5 * plan.epoch_seconds["toy"])
    assert " s an epoch, 5 epochs: " in line


def test_a_study_whose_output_is_piped_says_between_epochs_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())
    monkeypatch.setattr("tuner.reporting.progress.QUIET_LEAST", 0)
    monkeypatch.setattr("tuner.reporting.progress.QUIET_SHARE", 0)
    tuner.run(Toy(), config=[{"name": "plain", "epochs": 4}], output=tmp_path / "study", report=False)
    said = capsys.readouterr().out
    assert "0/1 done, 1 running (plain 2/4 " in said
    assert "\x1b" not in said and "\r" not in said
