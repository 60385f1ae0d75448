from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from tests.support.attempts import attempt
from tests.support.toy import Toy
from tuner.decisions.capacity import TrialLimits
from tuner.decisions.events import Planned, Reported
from tuner.decisions.policies import Engine, replay
from tuner.decisions.retry import Retrying, RetryPolicy
from tuner.decisions.state import State
from tuner.errors import InputError
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLog, read_epochs
from tuner.records.journal import Journal, read_attempts
from tuner.records.study_record import PlanRecord, StudyRecord
from tuner.spec.settings import Settings
from tuner.spec.stored_options import resumed, to_stored
from tuner.study.resume import check_same, description, events_of
from tuner.trial import (
    GB,
    Configuration,
    Device,
    EpochReport,
    History,
    MemoryEstimate,
    Outcome,
    Phase,
    Placement,
    Request,
    Trial,
)
from tuner.workloads.pickling import fingerprint
from tuner.workloads.task import TrainingTask

TRIALS = [Trial("t1", "toy", "a", {"lr": 0.1}, seed=0), Trial("t2", "toy", "b", {"lr": 0.2}, seed=0)]


def row(trial_id: str, status: str, attempts: int = 1, **others: Any) -> Attempt:
    return attempt(trial_id=trial_id, status=status, attempts=attempts, **{"limit_gb": 2.0, **others})


def doubled(trial: Trial, phase: Phase) -> Mapping[str, Any]:
    key = "evaluation_parts" if phase == "evaluation" else "accumulation"
    return {**trial.config, key: 2 * trial.config.get(key, 1)}


def tasks(name: str = "toy", data: Any = None) -> dict[str, TrainingTask]:
    return {name: TrainingTask(Toy(), data)}


def left(*rows: Attempt, whole_gb: int = 8, ram_gb: int = 99, **policy: Any) -> list[Request]:
    trials = [Trial(name, "toy", name, {"batch_size": 8}, seed=0) for name in ("t1", "t2")]
    requests = [Request(trial, MemoryEstimate("given"), 2 * GB, host_bytes=GB) for trial in trials]
    retrying = Retrying(RetryPolicy(**policy), doubled)
    engine = Engine(State(TrialLimits(whole_gb * GB, ram_gb * GB)), [retrying])
    engine.take(Planned(tuple(requests), {}))
    replay(engine, retrying, events_of(rows, (), {trial.trial_id: trial for trial in trials}))
    return engine.state.left


def test_the_same_data_have_the_same_fingerprint_and_others_another() -> None:
    data = {"x": np.arange(1000.0), "name": "n"}
    assert fingerprint(data) == fingerprint({"x": np.arange(1000.0), "name": "n"})
    assert fingerprint(data) != fingerprint({"x": np.arange(1000.0) + 1e-9, "name": "n"})


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.arange(6).reshape(2, 3)[:, ::2] + 1},
        {"x": np.zeros((2, 2), dtype=np.int32)},
        {"x": np.zeros(4, dtype=np.int64)},
        {"x": np.array(["a", 0], dtype=object)},
        {"x": np.zeros((2, 2), dtype=np.int64), "names": ["b"]},
    ],
    ids=["values that are strided", "type", "shape", "objects", "lists"],
)
def test_type_shape_order_and_plain_values_count_for_the_fingerprint(other: dict[str, Any]) -> None:
    assert fingerprint(other) != fingerprint({"x": np.zeros((2, 2), dtype=np.int64)})


def test_data_that_hold_themselves_have_a_fingerprint() -> None:
    trees: list[dict[str, Any]] = [{"x": np.arange(number)} for number in (2, 2, 3)]
    for tree in trees:
        tree["root"] = tree
    assert fingerprint(trees[0]) == fingerprint(trees[1]) != fingerprint(trees[2])


def test_how_data_lie_in_memory_does_not_count_for_the_fingerprint() -> None:
    table, text = np.arange(12.0).reshape(3, 4), "".join(["a", "b"])
    assert fingerprint([table[:, ::2], text, text]) == fingerprint([table[:, ::2].copy(), "ab", "".join("ab")])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tasks": tasks("other")}, "resume='out': its workload is 'toy', not 'other'"),
        ({"settings": Settings(seed=1)}, "resume='out': its seed is 0, not 1"),
        ({"tasks": tasks(data=[np.zeros(3)])}, "resume='out': its data are different"),
        ({"trials": TRIALS[:1]}, "resume='out': its configurations are different"),
    ],
)
def test_another_study_is_refused(changed: dict[str, Any], message: str) -> None:
    same: dict[str, Any] = {"tasks": tasks(), "trials": TRIALS, "settings": Settings()}
    study = description(**same)
    check_same(study, description(**same), "out")
    with pytest.raises(InputError, match=message):
        check_same(study, description(**{**same, **changed}), "out")


def test_finished_trials_are_kept_and_the_others_run() -> None:
    finished = ("completed", "pruned", "diverged", "failed")
    for status in finished:
        assert [request.trial.trial_id for request in left(row("t1", status))] == ["t2"]
    assert [request.trial.trial_id for request in left()] == ["t1", "t2"]


def test_an_interrupted_trial_runs_as_it_would_have() -> None:
    first, _ = left(row("t1", "interrupted"))
    assert (first.trial.attempt, first.need_bytes, first.history) == (2, 2 * GB, History())
    first, _ = left(row("t1", "interrupted", attempts=0))
    assert first.trial.attempt == 1


def test_a_trial_that_ran_out_goes_on_with_more() -> None:
    rows = [row("t1", "out_of_memory"), row("t1", "out_of_memory", 2, limit_gb=3.0), row("t1", "interrupted", 3)]
    first, _ = left(*rows)
    assert (first.trial.attempt, first.need_bytes, first.history) == (4, int(4.5 * GB), History(out_of_memory=2))
    assert left(*rows, max_attempts=3)[0].need_bytes == 8 * GB, "it is the last"
    whole = row("t1", "out_of_memory", 2, limit_gb=8.0)
    assert len(left(rows[0], whole, max_attempts=2)) == 1


def test_a_stalled_trial_runs_once_more() -> None:
    first, _ = left(row("t1", "stalled"))
    assert (first.trial.attempt, first.need_bytes, first.history) == (2, 2 * GB, History(stalls=1))
    again = row("t1", "stalled", 2)
    assert [request.trial.trial_id for request in left(row("t1", "stalled"), again, max_failures=9)] == ["t2"]


def test_a_trial_that_was_given_up_runs_again_where_it_is_given_more_now() -> None:
    row_of = row("t1", "out_of_memory", limit_gb=1.0)
    assert left(row_of, on_oom="fail")[0].trial.attempt == 2
    assert left(row_of, on_oom="fail")[0].need_bytes == 2 * GB
    assert [request.trial.trial_id for request in left(row("t1", "out_of_memory"), on_oom="fail")] == ["t2"]


def test_a_trial_that_ran_out_of_ram_goes_on_with_more_of_that() -> None:
    short = row("t1", "out_of_memory", short_of="RAM", limit_gb=2.0, limit_ram_gb=4.0, peak_ram_gb=3.5)
    first, second = left(short)
    assert (first.need_bytes, first.host_bytes, first.history) == (2 * GB, 6 * GB, History(out_of_memory=1))
    assert second.host_bytes == GB, "it did not run out"
    assert [request.trial.trial_id for request in left(short, ram_gb=4)] == ["t2"], "it had all that there is"


def test_a_trial_whose_evaluation_ran_out_goes_on_in_smaller_chunks() -> None:
    whole = row("t1", "out_of_memory", limit_gb=8.0, phase="evaluation")
    again = replace(whole, attempts=2, config={"evaluation_parts": 2})
    assert left(whole, on_oom="accumulate")[0].trial.config == {"batch_size": 8, "evaluation_parts": 2}
    assert left(whole, again, on_oom="accumulate")[0].trial.config == {"batch_size": 8, "evaluation_parts": 4}


def test_a_trial_that_accumulated_goes_on_doing_so() -> None:
    whole = row("t1", "out_of_memory", limit_gb=8.0)
    first, _ = left(whole, on_oom="accumulate")
    assert first.trial.config["accumulation"] == 2
    first, _ = left(whole, replace(whole, attempts=2, config={"accumulation": 2}), on_oom="accumulate")
    assert first.trial.config["accumulation"] == 4


def test_a_line_counts_as_it_was_and_not_as_it_would_be_now() -> None:
    rows = [row("t1", "out_of_memory", limit_gb=limit, attempts=n) for n, limit in ((1, 1.0), (2, 1.5))]
    first = left(*rows, whole_gb=1, on_oom="accumulate")[0]
    assert first.trial.config["accumulation"] == 2


def test_the_size_that_was_expected_of_a_trial_is_read_to_the_byte(tmp_path: Path) -> None:
    estimate = MemoryEstimate("static", context_bytes=2 * GB + 12_345)
    placement = Placement(TRIALS[0], estimate, Device("", "cpu", 0, "", 8 * GB, 8 * GB, 1), 0.3, 2 * GB + 12_345, 1)
    with closing(Journal(tmp_path / "attempts.jsonl")) as journal:
        journal.append(Attempt.of(Outcome(TRIALS[0], "completed", placement, peak_bytes=GB + 1), estimate))
    rows, _ = read_attempts(tmp_path / "attempts.jsonl")
    (ended,) = events_of(rows, (), {"t1": TRIALS[0]})
    assert ended.estimated_bytes == ended.result.limit_bytes == 2 * GB + 12_345
    assert ended.result.peak_bytes == GB + 1
    assert rows[0].to_line()["estimated_memory_gb"] == 2.0


def test_metrics_that_are_not_finite_are_told_as_they_were(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "epochs.jsonl")
    log.add(EpochReport("t1", 1, 3, {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 0.5}), 1)
    log.close()
    (told,) = events_of((), read_epochs(tmp_path / "epochs.jsonl"), {"t1": TRIALS[0]})
    assert isinstance(told, Reported)
    assert repr(told.report.metrics) == "{'a': inf, 'b': -inf, 'c': nan, 'd': 0.5}"


def continued(stored: dict[str, Any], threads: int | None = None, **given: Any) -> Settings:
    study = StudyRecord(workload="graphsage", options=stored, plan=PlanRecord(threads=threads))
    return resumed(study, Settings(resume="out", **given))


def test_a_study_keeps_its_options_but_those_that_are_given_though_they_are_the_defaults() -> None:
    stored = {"mode": "full", "calibration": False, "time_limit": "1h", "output": "out", "gone": 1}
    assert continued(stored, threads=2, max_workers=1).changes() == {
        "mode": "full",
        "max_workers": 1,
        "threads": 2,
        "resume": "out",
        "calibration": False,
    }  # a limit of time is only ever one run's
    assert continued(stored, mode="quick", calibration=True).changes() == {"resume": "out"}


def test_data_given_anew_for_one_workload_leave_the_others_theirs() -> None:
    stored = {"data": {"a": "x", "b": "y"}}
    assert continued(stored, data={"b": "z"}).data == {"a": "x", "b": "z"}
    assert continued(stored, data="w").data == "w"


def test_a_study_of_a_notebook_is_gone_on_with_in_the_notebook() -> None:
    with pytest.raises(InputError, match=r"was started by f\(\): call that again with resume='out'"):
        resumed(StudyRecord(workload="graphsage", command="f()"), Settings(resume="out"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of one trial, as far as it takes to be gone on with."""
    about = {"workload": "graphsage", "seed": 0, "options": to_stored(Settings()), "configurations": [{"name": "a"}]}
    (tmp_path / "study.json").write_text(json.dumps(about))
    (tmp_path / "attempts.jsonl").touch()
    return tmp_path


def test_another_folder_beside_resume_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="output and resume were both given: a resumed study stays in its"):
        tuner.run(resume=str(folder), output=str(folder / "new"))


def test_that_another_run_writes_there_is_told_before_any_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = pytest.raises(InputError, match="another run is writing there: wait for it or end it")
    with closing(Journal(folder / "attempts.jsonl")), refused:
        tuner.run(resume=str(folder))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("own", "asked", "message"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "a has no b"),
        ({"a": 1, "b": 2}, {"a": 1}, "a has b, which these lack"),
        ({"a": 1}, {"a": "x" * 99}, f"in a a is 1, not 'x{'x' * 58}"),
    ],
)
def test_how_configurations_differ_is_told_in_a_few_words(own: Any, asked: Any, message: str) -> None:
    before, now = (StudyRecord(workload="w", configurations=[Configuration("a", one)]) for one in (own, asked))
    with pytest.raises(InputError, match=rf"its configurations are different \({message}\);"):
        check_same(before, now, "out")
