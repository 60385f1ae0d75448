"""What ``Study.optimize`` of Optuna takes, with its meaning there."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, TrialState
from rpds import HashTrieMap

import tuner.optuna
from tuner.errors import InputError, WorkloadError
from tuner.study.objective_trials import ObjectiveTrials
from tuner.trial import Question
from tuner.workloads.optuna_objective import Call, OptunaObjective

CALL: dict[str, Any] = {
    **{"in_process": True, "device": "cpu", "gpu_memory_buffer_gb": 0, "report": False, "memory_gb": 2.0},
    "backoff": 0.0,
}


def line(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def test_without_n_trials_a_callback_that_stops_the_study_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, float | None]] = []

    def stop(study: optuna.Study, trial: FrozenTrial) -> None:
        seen.append((trial.number, trial.value))
        if len(study.trials) == 3:
            study.stop()

    study = optuna.create_study()
    result = tuner.optuna.optimize(study, line, callbacks=[stop], output=tmp_path / "out", **CALL)
    assert seen == [(trial.number, trial.value) for trial in study.trials] and len(seen) == 3
    assert sorted(row.name for row in result.trials) == ["trial-0", "trial-1", "trial-2"]
    assert "search: ended after 3 trials, as study.stop() was called" in capsys.readouterr().out
    more = tuner.optuna.optimize(study, line, n_trials=4, resume=tmp_path / "out", in_process=True)
    assert [row.trial_id for row in sorted(more.trials, key=lambda row: row.trial_id)][-1] == "t000004"


def test_optunas_callbacks_count_trials(tmp_path: Path) -> None:
    study = optuna.create_study()
    study.add_trial(optuna.create_trial(value=1.0))
    tuner.optuna.optimize(
        study, line, None, None, 1, (), [MaxTrialsCallback(3)], True, True, **{**CALL, "in_process": False}
    )
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3


def test_the_timeout_ends_no_trial_that_runs(tmp_path: Path) -> None:
    def slow(trial: Any) -> float:
        time.sleep(0.3)
        return line(trial)

    study = optuna.create_study()
    tuner.optuna.optimize(study, slow, timeout=0.1, output=tmp_path / "out", **CALL)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE]


def test_an_exception_that_catch_does_not_name_ends_the_study(tmp_path: Path) -> None:
    def fails(trial: Any) -> float:
        raise KeyError("first") if trial.number == 0 else ValueError("second")

    study = optuna.create_study()
    with pytest.raises(WorkloadError, match=r"^trial-1 failed, and catch does not name its ValueError: second$"):
        tuner.optuna.optimize(study, fails, 5, catch=KeyError, output=tmp_path / "out", **CALL)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 2
    assert len(tuner.optuna.optimize(study, fails, 3, output=tmp_path / "all", **CALL).trials) == 3


def test_an_objective_reads_its_study_and_may_stop_it(tmp_path: Path) -> None:
    def reads(trial: Any) -> float:
        study = trial.study
        if trial.number == 2:
            assert study.best_value == study.best_trial.value == 0.0 and study.best_params == {"x": 0}
            assert [known.number for known in study.get_trials(states=(TrialState.COMPLETE,))] == [0, 1]
            assert len(study.trials) == 3 and study.user_attrs == {"a": 1} and study.study_name == "mine"
            assert study.direction == optuna.study.StudyDirection.MINIMIZE and trial.system_attrs["grid_id"] > 0
            with pytest.raises(AttributeError, match=r"trial\.study\.tell is not available within a trial"):
                study.tell(0, 1.0)
            study.stop()
        return float(trial.suggest_int("x", 0, 9) if trial.number < 2 else 1)

    study = optuna.create_study(study_name="mine", sampler=optuna.samplers.GridSampler({"x": [0, 1, 2, 3]}, seed=3))
    study.set_user_attr("a", 1)
    study.enqueue_trial({"x": 0})
    result = tuner.optuna.optimize(study, reads, 9, output=tmp_path / "out", **CALL)
    assert [row.status for row in result.trials] == ["completed"] * 3


def test_a_trial_that_another_process_lost_is_tried_again_by_optunas_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        again = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=1)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{tmp_path}/a.db", heartbeat_interval=1, grace_period=1, heartbeat_stale_trial_callback=again
        )
    study = optuna.create_study(storage=storage)
    with pytest.warns(UserWarning, match="Heartbeat"):
        lost = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    storage.record_heartbeat(lost._trial_id)
    monkeypatch.setattr(storage, "_get_stale_trial_ids", lambda _: [lost._trial_id])
    trials = ObjectiveTrials(study, OptunaObjective(line))
    trials.begin(tmp_path, HashTrieMap())
    known: Any = trials.answer(Question("t001", Call("system_attrs")))
    assert known["failed_trial"] == 0
    assert trials.answer(Question("t001", Call("suggest_float", ("x", 0, 1)))) == lost.params["x"]
    trials.close()


@pytest.mark.long
@pytest.mark.ray
def test_trials_that_run_side_by_side_have_optunas_numbers(tmp_path: Path) -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 0.5})
    call = {**CALL, "in_process": False, "memory_gb": 1.0}
    result = tuner.optuna.optimize(study, line, 6, n_jobs=2, output=tmp_path / "out", **call)
    assert {row.name: row.config["x"] for row in result.trials} == {
        f"trial-{trial.number}": trial.params["x"] for trial in study.trials
    }
    assert {row.name: row.trial_id for row in result.trials} == {f"trial-{n}": f"t{n + 1:03d}" for n in range(6)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_jobs": 0}, "max_workers=0: .*at least 1|max_workers=0: .*equal to 1"),
        ({"n_jobs": 2, "max_workers": 2}, "n_jobs and max_workers were both given"),
        ({"catch": "ValueError"}, "catch='V': must be exception classes"),
        ({"callbacks": [3]}, "callbacks=3: must be functions of a study and a trial"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        tuner.optuna.optimize(optuna.create_study(), line, **given, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
