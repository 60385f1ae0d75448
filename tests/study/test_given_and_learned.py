"""Footprints of what cannot be traced: given, learned, or traced by what a function builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tuner
from tests.support.toy import Toy
from tuner.decisions.plan import budget_bytes
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.records.recorded_study import open_study
from tuner.records.study_record import UNKNOWN
from tuner.reporting.figures.machine import estimate_against_peak
from tuner.reporting.plan_text import plan_text
from tuner.spec.settings import Settings
from tuner.spec.stored_options import from_stored, functions_of, to_stored, with_own
from tuner.spec.study_spec import StudySpec
from tuner.study.needs import Needs
from tuner.study.planning import check_estimate, plan_requests
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import GB, MB, Config, Configuration, Device, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import Selection, TrainingTask

CPU = Device("", "cpu", 0, "a machine", 18 * GB, 16 * GB, cores=4)
SIZES = (1, 60, 20, 40)


def train(config: Config) -> dict[str, float]:
    kept = torch.ones(int(config["mb"]) * MB // 4)
    return {"loss": float(kept[0])}


def function() -> Function:
    made = Function(train)
    made.metric = "loss"
    return made


def trials(count: int = 3) -> list[Trial]:
    return [Trial(f"t{number}", "train", f"c{number}", {"mb": SIZES[number]}, 0) for number in range(count)]


def estimated(settings: Settings) -> Any:
    tasks = {"train": TrainingTask(function(), None)}
    return Needs(tasks, [CPU], settings).of(trials())


def build(config: Config) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    model = nn.Linear(int(config["mb"]), 1000, bias=False)
    return model, torch.optim.SGD(model.parameters()), lambda: model(torch.ones(1, int(config["mb"]))).sum()


def test_the_first_trials_of_a_function_share_the_device_equally() -> None:
    found = estimated(Settings(gpu_memory_buffer_gb=2))
    assert {request.estimate.method for request in found.requests} == {"learned"}
    assert {request.need_bytes for request in found.requests} == {budget_bytes(CPU, 2 * GB) // 3}
    alone = estimated(Settings(gpu_memory_buffer_gb=2, max_workers=1))
    assert alone.requests[0].need_bytes == 16 * GB


def test_the_plan_says_that_footprints_are_learned_given_or_traced() -> None:
    said = []
    for settings in (Settings(), Settings(memory_gb=2.5), Settings(estimate=build)):
        needs = Needs({"train": TrainingTask(function(), None)}, [CPU], settings)
        plan, served = plan_requests(needs, needs.of(trials()).requests)
        said.append(next(line for line in plan_text(plan, served, "").splitlines() if "footprint" in line))
    assert "footprint  not known yet: the first trials share the memory, " in said[0]
    assert said[0].endswith(" GB each; their peaks tell what others need")
    assert said[1].endswith("2.50 GB a trial, as given")
    assert "the largest (traced" in said[2]


def test_where_first_shares_follow_from_cores_the_plan_says_cores() -> None:
    two = replace(CPU, cores=2)
    needs = Needs({"train": TrainingTask(function(), None)}, [two], Settings())
    plan, served = plan_requests(needs, needs.of(trials()).requests)
    text = plan_text(plan, served, "")
    assert "bounded by CPU cores" in text and "fit by memory" not in text and "at most 2 run at once" in text


def test_what_a_function_builds_is_traced() -> None:
    found = estimated(Settings(estimate=build))
    sizes = [request.estimate.parameter_bytes for request in found.requests]
    assert sizes == [4 * 1000 * size for size in SIZES[:3]]


def test_what_cannot_be_traced_is_learned_and_the_reason_told() -> None:
    found = estimated(Settings(estimate=lambda config: 1 / 0))
    assert found.requests[0].estimate.method == "learned"
    assert "not traced: " in found.requests[0].estimate.note
    assert "division by zero" in found.requests[0].estimate.note


def test_the_advice_for_a_function_that_cannot_be_traced_can_be_followed() -> None:
    def depends_on_values(config: Config) -> tuple[nn.Module, None, Callable[[], torch.Tensor]]:
        model, x = nn.Linear(4, 1), torch.ones(3, 4)
        return model, None, lambda: model(x).sum() * x.long().flatten().bincount().sum()

    note = estimated(Settings(estimate=depends_on_values)).requests[0].estimate.note
    assert "give memory_gb, or leave estimate out" in note
    assert "measured" not in note


def test_a_function_gives_each_trial_its_own_memory() -> None:
    settings = Settings(memory_gb=lambda config: config["mb"] / 10)
    assert [request.need_bytes for request in estimated(settings).requests] == [int(s / 10 * GB) for s in SIZES[:3]]
    assert settings.packing_used == "per-trial"
    assert Settings(memory_gb=2).packing_used == "uniform"


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (lambda config: config["hidden"], "c0: memory_gb raised KeyError: 'hidden'"),
        (lambda config: "much", "c0: memory_gb returned 'much': must be a number of GB above 0"),
        (lambda config: -1, "c0: memory_gb returned -1: must be a number of GB above 0"),
        (lambda config: float("nan"), "c0: memory_gb returned nan: must be"),
    ],
)
def test_a_function_that_gives_no_memory_is_refused_with_the_configuration(memory: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimated(Settings(memory_gb=memory))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_gb": 0}, "memory_gb=0: must be a number of GB above 0"),
        ({"memory_gb": "much"}, "memory_gb='much': must be a number of GB"),
        ({"memory_gb": 2, "auto_memory": True}, "memory_gb and auto_memory were both given"),
        ({"memory_gb": 2, "model_memory_gb": 3.0}, "memory_gb and model_memory_gb were both given"),
        ({"memory_gb": 2, "estimate": build}, "memory_gb and estimate were both given"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**options).check()


def test_a_workload_is_traced_without_what_a_function_builds() -> None:
    with pytest.raises(InputError, match="estimate: has no effect on workload toy: its own step is traced"):
        check_estimate(Settings(estimate=build), [Toy()])
    check_estimate(Settings(), [Toy()])


def test_a_study_keeps_that_it_was_given_a_function_but_not_which() -> None:
    options = to_stored(Settings(memory_gb=lambda config: 2.0))
    assert functions_of(options) == ["memory_gb"]
    assert from_stored(options).memory_gb is None
    assert from_stored(to_stored(Settings(memory_gb=2.5))).memory_gb == 2.5


def test_an_option_that_is_gone_is_left_out_of_a_study_that_is_continued() -> None:
    stored, given = to_stored(Settings(seeds=3)), Settings(resume="study")
    kept, older = (replace(UNKNOWN, options=options) for options in (stored, stored | {"mps": "on"}))
    assert with_own(older, given) == with_own(kept, given)
    assert with_own(older, given).seeds == 3


def test_a_study_whose_memory_was_estimated_may_be_continued_with_memory_that_is_given() -> None:
    study = replace(UNKNOWN, options=to_stored(Settings(memory_estimation="measured")))
    given = with_own(study, Settings(resume="study", model_memory_gb=3.0))
    given.changed(resume=None).check()
    assert given.given_gb == 3.0
    assert with_own(study, Settings(resume="study", auto_memory=True)).memory_estimation == "measured"


def test_a_study_of_a_function_learns_as_it_runs_and_as_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(**options: Any) -> StudyResult:
        listed = [Configuration(f"c{size}", {"mb": size}) for size in SIZES]
        settings = Settings(device="cpu", report=False, max_workers=1, **options)
        return run_study(StudySpec([Selection(function(), lambda: None, listed)], settings), InProcessExecutor())

    result = run(output=str(tmp_path / "study"))
    assert [row.status for row in result.trials] == ["completed"] * len(SIZES)
    folder = tmp_path / "study"
    view = open_study(folder)
    said = capsys.readouterr().out.partition("estimates: ")[2].partition("\n")[0]
    assert view.rows[0].estimated_bytes is None and view.rows[-1].estimated_bytes
    assert said in estimate_against_peak(view).caption, "the terminal and the page count the same trials"
    assert [row.status for row in run(resume=str(folder)).trials] == ["completed"] * len(SIZES)


def test_a_study_that_is_resumed_is_planned_by_what_its_own_trials_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(**options: Any) -> StudyResult:
        listed = [Configuration(f"c{size}", {"mb": size}) for size in SIZES[:3]]
        settings = Settings(device="cpu", report=False, in_process=True, max_workers=1, **options)
        return run_study(StudySpec([Selection(function(), lambda: None, listed)], settings))

    before = run(output=str(tmp_path / "study"))
    first = min(row.limit_bytes or 0 for row in before.trials)
    assert "footprint  not known yet" in capsys.readouterr().out
    after = run(resume=str(tmp_path / "study"), seeds=2)
    footprint = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("footprint"))
    assert "(learned)" in footprint and "not known yet" not in footprint
    again = [row for row in after.trials if row.seed == 1]
    assert [row.status for row in again] == ["completed"] * 3
    shares = [(row.peak_bytes or 0, row.limit_bytes or 0) for row in again]
    assert all(peak <= limit < first for peak, limit in shares), f"{shares}, and first {first}"


def test_a_live_search_learns_the_footprints_of_a_function() -> None:
    def train(config: dict[str, Any]) -> None:
        tuner.report(loss=config["x"])

    space = {"x": {"uniform": [0, 1]}}
    options: dict[str, Any] = {"search": "optuna", "num_samples": 3, "metric": "loss", "direction": "min"}
    result = tuner.run(train, space=space, device="cpu", gpu_memory_buffer_gb=0, dry_run=True, **options)
    assert {estimate.method for estimate in result.estimates.values()} == {"learned"}
