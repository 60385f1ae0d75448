from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from tests.support.toy import Toy
from tuner.records.study_record import PlanRecord, read_study
from tuner.study.auto_batch import SizedTrials
from tuner.study.needs import Estimates
from tuner.study.prepare import timed_as_before
from tuner.trial import MemoryEstimate, Request, Trial


def test_a_study_knows_how_long_the_trials_of_an_earlier_one_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, epochs: int) -> tuple[PlanRecord, str]:
        config = [{"fault": 4, "epochs": epochs}]  # a step sleeps for 0.02 s
        tuner.run(Toy(), config=config, auto_memory=True, in_process=True, output=tmp_path / name, report=False)
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("time "))
        return read_study(tmp_path / name).plan, line

    plan, line = run("first", 2)
    assert (plan.epoch_seconds, plan.seconds) == ({}, None)
    assert line.startswith("time       unknown until the first epochs; memory_estimation='measured' times")
    plan, line = run("second", 5)
    assert plan.epoch_seconds["t001"] >= 4 * 0.02
    assert plan.seconds == pytest.approx(5 * plan.epoch_seconds["t001"])
    assert " s an epoch, 5 epochs: " in line


def test_a_resumed_study_orders_its_trials_by_the_times_that_it_began_with() -> None:
    ids, estimate = ("t001", "t002"), MemoryEstimate("traced", epoch_seconds=4.0, step_seconds=0.5)
    requests = tuple(Request(Trial(name, "toy", name, {}, 0), estimate, 1) for name in ids)
    sized = SizedTrials(Estimates(requests, dict.fromkeys(ids, estimate)), None, [])

    def times(kept: dict[str, float]) -> list[tuple[float | None, float | None]]:
        found = timed_as_before(sized, kept).estimates
        assert [found.raw[name] for name in ids] == [request.estimate for request in found.requests]
        return [(request.estimate.epoch_seconds, request.estimate.step_seconds) for request in found.requests]

    assert times({"t001": 2.0}) == [(2.0, 0.25), (4.0, 0.5)], "the other one has come since"
    assert times({}) == [(None, None)] * 2, "nothing was known"


def test_a_study_whose_output_is_piped_says_between_epochs_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuner.reporting.progress.QUIET_LEAST", 0)
    monkeypatch.setattr("tuner.reporting.progress.QUIET_SHARE", 0)
    config = [{"name": "plain", "epochs": 4}]
    tuner.run(Toy(), config=config, in_process=True, output=tmp_path / "study", report=False)
    output = capsys.readouterr().out
    assert "0/1 done, 1 running (plain 2/4 " in output
    assert "\x1b" not in output and "\r" not in output
