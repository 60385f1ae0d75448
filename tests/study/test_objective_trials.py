"""Trials of the user's own Optuna study."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from threading import Event
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import tuner
import tuner.optuna
from tests.support.attempts import attempt
from tuner.errors import InputError
from tuner.records.journal import read_attempts
from tuner.records.study_record import read_study
from tuner.study.objective_trials import ObjectiveTrials
from tuner.study.past_trial import how_to_repeat
from tuner.trial import Question
from tuner.workloads.optuna_objective import Call, OptunaObjective

CALL: dict[str, Any] = {
    **{"in_process": True, "device": "cpu", "gpu_memory_buffer_gb": 0, "report": False, "memory_gb": 2.0},
    "backoff": 0.0,
}
SCRIPT = """
import os, sys, time, optuna, tuner.optuna
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    if trial.number == 2 and not os.path.exists("killed"):
        open("killed", "w").close()
        time.sleep(60)
    return x
if __name__ == "__main__":
    study = optuna.load_study(study_name="mine", storage="sqlite:///mine.db")
    options = dict(max_workers=1, memory_gb=1.0, gpu_memory_buffer_gb=0, device="cpu", report=False)
    where = {"resume": "out"} if os.path.exists("out") else {"output": "out", **options}
    tuner.optuna.optimize(study, objective, 4, **where)
"""


def conditional(trial: Any) -> float:
    """A space that is defined as it runs."""
    kind = trial.suggest_categorical("kind", ["line", "square"])
    x = trial.suggest_float("x", -2, 2)
    scale = trial.suggest_int("scale", 1, 3) if kind == "square" else 1
    assert trial.params["x"] == x and trial.number >= 0
    trial.set_user_attr("double", 2 * x)
    for step in range(3):
        trial.report(x + step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(scale * x**2 if kind == "square" else abs(x))


def test_a_study_is_as_optuna_would_leave_it(tmp_path: Path) -> None:
    ours, theirs = (optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1)) for _ in range(2))
    theirs.optimize(conditional, n_trials=16)
    result = tuner.optuna.optimize(ours, conditional, 16, output=tmp_path / "out", **CALL)
    assert [(trial.params, trial.state, trial.value) for trial in ours.trials] == [
        (trial.params, trial.state, trial.value) for trial in theirs.trials
    ]
    assert [trial.intermediate_values for trial in ours.trials] == [
        trial.intermediate_values for trial in theirs.trials
    ]
    assert ours.trials[0].user_attrs["double"] == theirs.trials[0].user_attrs["double"]
    assert result.best_value == pytest.approx(theirs.best_value, abs=1e-6)
    assert result.folder is not None
    assert read_study(result.folder).scales == {"x": "linear", "scale": "linear"}, "known when the trials have ended"
    again = how_to_repeat(read_study(result.folder), result.trials[0], result.folder)
    assert eval(again, {"conditional": conditional, "optuna": optuna}) == pytest.approx(ours.best_value)  # noqa: S307
    assert {TrialState.PRUNED, TrialState.COMPLETE} == {trial.state for trial in ours.trials}
    errors = {row.error for row in result.trials if row.status == "pruned"}
    assert errors <= {f"the objective pruned it after {done}" for done in ("1 epoch", "2 epochs", "3 epochs")}


def test_a_trial_that_ran_out_of_memory_is_the_same_trial_of_the_study(tmp_path: Path) -> None:
    seen: list[float] = []

    def hungry(trial: Any) -> float:
        seen.append(trial.suggest_float("x", 0, 1))
        trial.report(1.0, 0)
        if len(seen) == 2:
            raise MemoryError
        return seen[-1]

    study = optuna.create_study(direction="maximize")
    result = tuner.optuna.optimize(study, hungry, 3, output=tmp_path / "out", **CALL)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    assert seen[1] == seen[2] == study.trials[1].value
    assert {row.trial_id: row.attempts for row in result.trials} == {"t001": 1, "t002": 2, "t003": 1}


def test_a_trial_has_its_heartbeat_from_its_first_question_to_its_end_also_between_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/a.db", heartbeat_interval=1)
    beats, enough = [], Event()

    def record(number: int) -> None:
        beats.append(number)
        if len(beats) > 1:
            enough.set()

    monkeypatch.setattr(storage, "record_heartbeat", record)
    trials = ObjectiveTrials(optuna.create_study(storage=storage), OptunaObjective(conditional))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Heartbeat")
        assert trials.answer(Question("t001", Call("number"))) == 0
    assert enough.wait(60)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "heartbeat")
    trials.close()
    thread.join(60)
    assert not thread.is_alive() and set(beats) == {1}


def test_several_directions_and_failures_are_told(tmp_path: Path) -> None:
    def two(trial: Any) -> tuple[float, float] | float:
        x = trial.suggest_float("x", 0, 1)
        return (x, 1 - x) if trial.number else x

    study = optuna.create_study(directions=["minimize", "maximize"])
    result = tuner.optuna.optimize(study, two, 3, output=tmp_path / "out", **CALL)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    assert "two returned 1 values: expected 2" in next(row.error for row in result.trials if row.status == "failed")
    assert len(study.best_trials) >= 1
    with pytest.raises(InputError, match="must be an optuna"):
        tuner.optuna.optimize("study", two, 3, **CALL)


def test_infinite_values_are_told_and_kept_as_what_they_are(tmp_path: Path) -> None:
    def penalised(trial: Any) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        return (math.inf, x) if trial.number == 0 else (x, -math.inf) if trial.number == 1 else (x, math.nan)

    study = optuna.create_study(directions=["minimize", "minimize"])
    result = tuner.optuna.optimize(study, penalised, 3, output=tmp_path / "out", **CALL)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert (study.trials[0].values[0], study.trials[1].values[1]) == (math.inf, -math.inf)
    assert result.folder is not None and {row.name for row in result.best_trials} == {
        f"trial-{trial.number}" for trial in study.best_trials
    }
    rows = {row.trial_id: row.metrics for row in read_attempts(result.folder / "attempts.jsonl")[0]}
    assert (rows["t001"]["value_0"], rows["t002"]["value_1"]) == (math.inf, -math.inf)
    assert "Infinity" not in (result.folder / "attempts.jsonl").read_text()
    frame = tuner.results(result.folder).set_index("trial_id")
    assert (frame["value_0"]["t001"], frame["value_1"]["t002"]) == (math.inf, -math.inf)
    tuner.export(result.folder, optuna=f"sqlite:///{tmp_path}/a.db", study_name="mine")
    exported = optuna.load_study(study_name="mine", storage=f"sqlite:///{tmp_path}/a.db").trials
    assert [trial.values for trial in exported][:2] == [trial.values for trial in study.trials][:2]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_an_infinitely_good_value_is_the_best_as_in_optuna_and_an_infinitely_bad_one_is_not(
    direction: str, value: float, tmp_path: Path
) -> None:
    def objective(trial: Any) -> float:
        found = value if trial.suggest_int("x", trial.number, trial.number) == 1 else float(trial.number)
        tuner.report(value=found, checkpoint={"number": trial.number})
        return found

    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler())
    result = tuner.optuna.optimize(study, objective, 4, output=tmp_path / "out", **{**CALL, "report": True})
    assert (result.best_config, result.best_value) == (study.best_params, study.best_value)
    assert result.best_model() == {"number": study.best_trial.number}
    assert {row.status for row in result.trials} == {"completed"}
    bad = (value > 0) == (direction == "minimize")
    assert [row.name for row in result.trials].index("trial-1") == (3 if bad else 0)


@pytest.mark.parametrize("by_sampler", [False, True])
def test_a_trial_that_breaks_the_studys_constraints_is_not_the_best(by_sampler: bool, tmp_path: Path) -> None:
    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_user_attr("c", (least - x,))
        if not by_sampler:
            trial.set_constraint("0", least - x)
        tuner.report(value=x, checkpoint={"x": x})
        return float(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = (lambda trial: trial.user_attrs["c"]) if by_sampler else None
        sampler = optuna.samplers.TPESampler(seed=1, constraints_func=function)
    study, least = optuna.create_study(sampler=sampler), 0.5
    result = tuner.optuna.optimize(study, objective, 6, output=tmp_path / "out", **CALL)
    assert result.best_config == result.best_model() == study.best_params
    assert {row.status for row in result.trials} == {"completed", "infeasible"}
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    study, least = optuna.create_study(sampler=sampler), 2
    result = tuner.optuna.optimize(study, objective, 2, output=tmp_path / "none", **CALL)
    why = r"no trial (of this table )?meets the constraints: constraint 0 is 1\.\d+, not <= 0 \(trial-\d\)$"
    for asked in (lambda: result.best_config, result.best_model, lambda: result.best):
        with pytest.raises(InputError, match=why):
            asked()


def test_a_study_that_was_killed_goes_on_with_the_trial_that_it_had_begun(tmp_path: Path) -> None:
    optuna.create_study(study_name="mine", storage=f"sqlite:///{tmp_path}/mine.db")
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(tuner.__file__).parents[1])}
    first = subprocess.Popen([sys.executable, "mine.py"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    while not (tmp_path / "killed").exists() and time.monotonic() - began < 60:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    study = optuna.load_study(study_name="mine", storage=f"sqlite:///{tmp_path}/mine.db")
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert len(tuner.results(tmp_path / "out")) == 4
    limits = {row.limit_gb for row in read_attempts(tmp_path / "out" / "attempts.jsonl")[0]}
    assert limits == {1.0}  # resumed with its own options


def test_more_trials_are_added_to_a_study_that_is_resumed(tmp_path: Path) -> None:
    study = optuna.create_study()
    tuner.optuna.optimize(study, conditional, 2, output=tmp_path / "out", **CALL)
    result = tuner.optuna.optimize(study, conditional, 4, resume=tmp_path / "out")
    assert sorted(row.name for row in result.trials) == ["trial-0", "trial-1", "trial-2", "trial-3"]
    assert len(study.trials) == 4


def test_a_study_that_lacks_the_trials_of_a_folder_does_not_go_on_with_it(tmp_path: Path) -> None:
    study, out = optuna.create_study(), tmp_path / "out"
    tuner.optuna.optimize(study, conditional, 2, output=out, **CALL)
    before = {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    for other in (optuna.create_study(study_name="b"), optuna.create_study(directions=["minimize", "maximize"])):
        with pytest.raises(InputError, match=r"is another one, and lacks its trial-[01]: load its own from an"):
            tuner.optuna.optimize(other, conditional, 4, resume=out)
        assert not other.trials and before == {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    other.add_trials([optuna.create_trial(values=[1.0, 2.0])] * 2)
    with pytest.raises(InputError, match="is another one"):
        tuner.optuna.optimize(other, conditional, 4, resume=out)


def test_a_folder_that_an_earlier_version_has_mixed_goes_on_with_the_larger_study(tmp_path: Path) -> None:
    study, other, out = optuna.create_study(), optuna.create_study(), tmp_path / "out"
    tuner.optuna.optimize(study, conditional, 2, output=out, **CALL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tuner.optuna.check_has_trials", lambda *_: None)
        tuner.optuna.optimize(other, conditional, 3, resume=out)
    with pytest.raises(InputError, match="lacks its trial-1: "):
        tuner.optuna.optimize(other, conditional, 4, resume=out)
    result = tuner.optuna.optimize(study, conditional, 4, resume=out)
    assert sorted(row.name for row in result.trials) == ["trial-0", "trial-0", "trial-1", "trial-2"]


def test_a_sampler_with_a_seed_does_not_repeat_the_trials_of_a_study_that_is_resumed(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/mine.db"
    for number, where in ((2, {"output": tmp_path / "out", **CALL}), (4, {"resume": tmp_path / "out"})):
        sampler = optuna.samplers.TPESampler(seed=0)
        study = optuna.create_study(study_name="mine", storage=storage, sampler=sampler, load_if_exists=True)
        tuner.optuna.optimize(study, lambda trial: trial.suggest_float("x", 0, 1), number, **where)
    assert len({trial.params["x"] for trial in study.trials}) == 4


@pytest.mark.parametrize("first", ["trial", "tuner"])
def test_an_objective_reports_to_optunas_pruner_and_keeps_its_model_in_either_order(
    first: str, tmp_path: Path
) -> None:
    def model(trial: Any) -> float:
        value = trial.suggest_float("x", 0, 1)
        for epoch in (1, 2):
            if first == "trial":
                trial.report(value + epoch, epoch)
            tuner.report(value=value + epoch, epoch=epoch, checkpoint={"x": value + epoch})
            if first == "tuner":
                trial.report(value + epoch, epoch)
        return float(value + 2)

    study = optuna.create_study(direction="maximize")
    result = tuner.optuna.optimize(study, model, 3, output=tmp_path / "out", **CALL)
    assert result.best_model() == {"x": study.best_value}
    assert all(len(trial.intermediate_values) == 2 for trial in study.trials)
    assert [row.epochs for row in result.trials] == [2, 2, 2]


def test_what_was_recorded_before_a_kill_is_told_to_the_study(tmp_path: Path) -> None:
    def told(state: str, metrics: dict[str, Any]) -> TrialState:
        study = optuna.create_study()
        before = ObjectiveTrials(study, objective)
        before.begin(tmp_path, {})
        before.answer(Question("t001", Call("suggest_float", ("x", 0, 1))))
        ObjectiveTrials(study, objective, study_id=before.id).begin(
            tmp_path, {"t001": attempt(status=state, **metrics)}
        )
        (trial,) = study.trials
        assert trial.value == metrics.get("value")
        return trial.state

    objective = OptunaObjective(conditional)
    assert told("completed", {"value": 0.25}) is TrialState.COMPLETE
    assert told("diverged", {"value": math.inf}) is told("infeasible", {"value": 0.5}) is TrialState.COMPLETE
    assert told("diverged", {}) is told("failed", {}) is TrialState.FAIL


def test_a_trial_says_whose_it_is_from_its_first_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill at that moment would leave a trial that nobody goes on with."""
    study = optuna.create_study()
    study.enqueue_trial({"x": 1})
    made, storage = [], study._storage
    create = storage.create_new_trial

    def creating(*given: Any) -> int:
        number = create(*given)
        made.append(storage.get_trial(number).system_attrs)
        return number

    monkeypatch.setattr(storage, "create_new_trial", creating)
    trials = ObjectiveTrials(study, OptunaObjective(conditional))
    trials.begin(tmp_path, {})
    asked = [trials.answer(Question(name, Call("suggest_float", ("x", 0, 2)))) for name in ("t001", "t002")]
    assert asked[0] == 1 and made == [{"tuner": f"{trials.id}/t002"}]
    assert [trial.system_attrs["tuner"] for trial in study.trials] == [f"{trials.id}/t001", f"{trials.id}/t002"]
    assert not any(trial.user_attrs for trial in study.trials), "those are the user's"
    again = ObjectiveTrials(study, OptunaObjective(conditional), study_id=trials.id)
    again.begin(tmp_path / "moved", {})
    assert again.answer(Question("t002", Call("number"))) == 1


def test_a_trial_that_an_earlier_version_left_unfinished_is_found_by_its_folder(tmp_path: Path) -> None:
    study = optuna.create_study()
    study.ask(), study.ask().set_user_attr("tuner", f"{tmp_path}/t001")
    trials = ObjectiveTrials(study, OptunaObjective(conditional))
    trials.begin(tmp_path, {})
    assert trials.answer(Question("t001", Call("number"))) == 1


@pytest.mark.parametrize("number", [0, -3])
def test_no_trials_are_no_mistake_and_leave_no_folder(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study()
    result = tuner.optuna.optimize(study, conditional, number, **CALL)
    assert (len(result.trials), result.folder, study.trials, list(tmp_path.iterdir())) == (0, None, [], [])
    with pytest.raises(InputError, match=r"best_config: a call that ran nothing \(n_trials=0 or timeout=0\) has no"):
        print(result.best_config)
    assert repr(result) == "StudyResult(nothing was run)"


@pytest.mark.parametrize("number", [0, -3])
def test_no_more_trials_give_the_result_of_the_folder(number: int, tmp_path: Path) -> None:
    study, out = optuna.create_study(), tmp_path / "out"
    first = tuner.optuna.optimize(study, conditional, 3, output=out, **CALL)
    before = {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    again = tuner.optuna.optimize(study, conditional, number, resume=out)
    assert (again.best_config, again.best_value, again.rows) == (first.best_config, first.best_value, first.rows)
    assert repr(again) == repr(first) and again.folder == first.folder and len(study.trials) == 3
    assert before == {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    with pytest.raises(InputError, match="its workload is 'conditional', not 'unlike'"):
        tuner.optuna.optimize(study, unlike, number, resume=out)


def unlike(trial: Any) -> float:
    """Another objective."""
    return 0.0


def test_trials_of_a_study_that_is_resumed_count(tmp_path: Path) -> None:
    study, out = optuna.create_study(), tmp_path / "out"
    tuner.optuna.optimize(study, conditional, 3, output=out, **CALL)
    for number, said in (
        (2, "has 3, and they count, too: give 5 for 2 more, or 0 for none"),
        (1000, "at most 999"),
    ):
        with pytest.raises(InputError, match=f"n_trials={number}: .*{said}"):
            tuner.optuna.optimize(study, conditional, number, resume=out)


def test_parameters_keep_their_types_in_rows(tmp_path: Path) -> None:
    def chosen(trial: Any) -> float:
        given = [trial.suggest_categorical(name, [value]) for name, value in (("a", True), ("b", None), ("c", "1"))]
        return float(given == [True, None, "1"])

    result = tuner.optuna.optimize(optuna.create_study(), chosen, 1, output=tmp_path / "out", **CALL)
    assert result.folder is not None
    for row in (*result.trials, *read_attempts(result.folder / "attempts.jsonl")[0]):
        assert (row.config["a"], row.config["b"], row.config["c"]) == (True, None, "1")
        again = how_to_repeat(read_study(result.folder), row, result.folder)
        assert eval(again, {"chosen": chosen, "optuna": optuna}) == 1.0  # noqa: S307
