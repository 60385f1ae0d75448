"""A trial's own program: what it reports, how it ends, and its checkpoints."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import tuner
from tuner.errors import WorkloadError
from tuner.objective import Objective
from tuner.records.attempts import FIXED
from tuner.training import program_checkpoints
from tuner.training.endings import Diverged, Fit, Paused, Pruned, Stopped, phase_of
from tuner.training.program import run_program, warm_up_program
from tuner.training.program_checkpoints import ProgramCheckpoints, Progress
from tuner.trial import EpochReport, Question, Trial
from tuner.workloads.program import Function
from tuner.workloads.session import RESERVED_METRICS, State
from tuner.workloads.task import TrainingTask

TRIAL = Trial("t001", "train", "one", {"lr": 0.5}, seed=3)
FULL = "[Errno 28] disk full"
ACCURACY = Objective("accuracy", "maximize")


def events(function: Callable[..., Any], folder: Path | None = None, **asked: Any) -> list[EpochReport | Fit]:
    """What a trial of this function says."""
    store = ProgramCheckpoints(folder, TRIAL)
    return list(run_program(Function(function), TRIAL, "data", ACCURACY, store, **asked))


def rising(config: dict[str, Any]) -> None:
    """Three epochs, of which the second is the best."""
    for epoch, value in enumerate([0.1, 0.9, 0.3]):
        tuner.report(
            accuracy=value, epoch=np.int64(epoch), checkpoint={"epoch": epoch, "weight": torch.ones(2) * epoch}
        )


def test_the_best_report_counts_and_epochs_count_from_one(tmp_path: Path) -> None:
    said = events(rising, tmp_path)
    assert [report.epoch for report in said if isinstance(report, EpochReport)] == [0, 1, 2, 3]
    assert isinstance(said[-1], Fit)
    assert said[-1].metrics == {"accuracy": 0.9, "best_epoch": 2}
    assert said[-1].weights["epoch"] == 1
    assert sorted(path.name for path in (tmp_path / "t001").iterdir()) == ["2", "3"]  # the best and the last


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ([1, 2, 1, 2], [1, 2, 3, 4]),  # two trainings
        ([0, 0, 0, 1, 1], [1, 2, 3, 4, 5]),  # several reports of an epoch
        ([2, 4, None, 2, 4], [2, 4, 5, 6, 8]),
    ],
)
def test_the_epochs_of_an_attempt_increase(given: list[int | None], counted: list[int]) -> None:
    def train(config: dict[str, Any]) -> None:
        for number, epoch in enumerate(given):
            tuner.report(accuracy=number, epoch=epoch)

    said = [one.epoch for one in events(train) if isinstance(one, EpochReport)]
    assert said == [0, *counted]


def test_an_attempt_begins_at_the_epoch_of_its_checkpoint(tmp_path: Path) -> None:
    def train(config: dict[str, Any], epochs: list[int], checkpoint: Any = None) -> None:
        for number, epoch in enumerate(epochs):
            tuner.report(accuracy=number, epoch=epoch, checkpoint=checkpoint)

    def counted(*epochs: int, checkpoint: Any = None) -> list[int]:
        said = events(lambda config: train(config, [*epochs], checkpoint), tmp_path)
        return [one.epoch for one in said if isinstance(one, EpochReport) and not one.again][1:]

    assert counted(1, 2, 3, 1, checkpoint={"x": 1}) == [1, 2, 3, 4]
    assert counted(2, 3) == [5, 6]
    assert counted(1) == [4], "the epoch after the one that was the last of the first training"


def test_an_epoch_that_is_told_twice_has_the_metrics_of_both() -> None:
    def train(config: dict[str, Any]) -> None:
        for epoch in (1, 2):
            tuner.report(accuracy=epoch, epoch=epoch)
            tuner.report(accuracy=epoch, epoch=epoch, f1=epoch)
            tuner.report(accuracy=epoch, epoch=epoch)

    *_, last, fit = events(train)
    assert isinstance(last, EpochReport) and (last.epoch, last.metrics) == (2, {"accuracy": 2, "f1": 2})
    assert isinstance(fit, Fit) and fit.metrics == {"accuracy": 2, "f1": 2, "best_epoch": 2}


def test_a_retry_has_the_last_checkpoint_and_goes_on_counting(tmp_path: Path) -> None:
    events(rising, tmp_path)
    found: list[Any] = []

    def again(config: dict[str, Any]) -> None:
        state = tuner.checkpoint()
        found.append(state)
        tuner.report(accuracy=0.5)

    (_, *known, report, fit) = events(again, tmp_path)
    told = [(old.epoch, old.metrics["accuracy"]) for old in known if isinstance(old, EpochReport) and old.again]
    assert told == [(1, 0.1), (2, 0.9), (3, 0.3)], "as the study may have been killed before it wrote them down"
    assert found[0]["epoch"] == 2 and found[0]["weight"].tolist() == [2.0, 2.0]
    assert isinstance(report, EpochReport) and report.epoch == 4
    assert isinstance(fit, Fit) and fit.metrics["accuracy"] == 0.9 and fit.weights["epoch"] == 1


def test_a_folder_is_a_checkpoint(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "model.txt").write_text("weights")
        tuner.report(accuracy=1, checkpoint=tmp_path / "mine")
        kept = tuner.checkpoint()
        assert isinstance(kept, Path) and (kept / "model.txt").read_text() == "weights"

    (tmp_path / "checkpoints").mkdir()
    fit = events(train, tmp_path / "checkpoints")[-1]
    assert isinstance(fit, Fit) and bytes(fit.files["model.txt"].tolist()) == b"weights"


def test_the_data_the_returned_metrics_and_the_seed_are_the_trials() -> None:
    def train(config: dict[str, Any], data: str) -> dict[str, float]:
        return {"accuracy": len(data), "drawn": float(torch.rand(()))}

    first, second = (events(train)[-1] for _ in range(2))
    assert isinstance(first, Fit) and isinstance(second, Fit)
    assert first.metrics == second.metrics and first.metrics["accuracy"] == 4


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"loss": 1.0}, "was given loss, but not 'accuracy', which metric names"),
        ({"accuracy": "high"}, "accuracy is 'high': expected a number"),
        ({"accuracy": 1.0, "seed": 3.0}, "no metric can be called 'seed'"),
        ({"accuracy": torch.ones(2)}, "expected a number"),
        ({}, "was given nothing"),
    ],
)
def test_metrics_that_cannot_be_used_end_the_trial(metrics: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkloadError, match=text):
        events(lambda config: tuner.report(metrics))


def test_a_function_that_never_reports_is_told_how() -> None:
    with pytest.raises(WorkloadError, match=r"lambda ended without a report: call tuner.report\(accuracy="):
        events(lambda config: None)


def test_a_metric_that_is_never_finite_has_diverged() -> None:
    with pytest.raises(Diverged, match="accuracy was never a finite number"):
        events(lambda config: tuner.report(accuracy=float("nan")))


def test_what_the_function_raises_is_raised_in_the_phase_of_training() -> None:
    def train(config: dict[str, Any]) -> None:
        raise KeyError("hidden")

    with pytest.raises(KeyError, match="hidden") as caught:
        events(train)
    assert phase_of(caught.value) == "training"
    with pytest.raises(WorkloadError, match=r"sys.exit\(3\)"):
        events(lambda config: exit(3))


def test_a_stop_iteration_is_told_with_its_place() -> None:
    with pytest.raises(WorkloadError, match=r"lambda failed: StopIteration \(test_program.py, line \d+\)"):
        events(lambda config: next(iter([])))


def test_a_report_from_a_process_that_the_trial_has_started_is_refused(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tuner.report(accuracy=0.5)
        if not (pid := os.fork()):
            try:
                tuner.report(accuracy=1.0)
            except WorkloadError as error:
                (tmp_path / "said").write_text(str(error))
            os._exit(0)
        os.waitpid(pid, 0)

    assert len(events(train)) == 3
    assert "was started by the trial" in (tmp_path / "said").read_text()


def test_programs_of_two_studies_in_one_process_report_to_their_own() -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(2):
            tuner.report(accuracy=config["lr"])

    one, other = (
        run_program(
            Function(train), replace(TRIAL, config={"lr": lr}), None, ACCURACY, ProgramCheckpoints(None, TRIAL)
        )
        for lr in (0.1, 0.2)
    )
    said = [event.metrics["accuracy"] for pair in zip(one, other, strict=True) for event in pair if event.metrics]
    assert said == [0.1, 0.2] * 3


def test_what_a_function_returns_beside_metrics_does_not_matter() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        tuner.report(accuracy=0.5)
        return {"history": [1, 2]}

    fit = events(train)[-1]
    assert isinstance(fit, Fit) and fit.metrics["accuracy"] == 0.5


@pytest.mark.parametrize(("asked", "ending"), [("prune_asked", Pruned), ("stop_asked", Stopped)])
def test_a_report_ends_a_trial_that_is_to_end(asked: str, ending: type[Exception]) -> None:
    cleaned: list[bool] = []

    def train(config: dict[str, Any]) -> None:
        try:
            while True:
                with suppress(Exception):  # as careless programs do
                    tuner.report(accuracy=0.5)
        finally:
            cleaned.append(True)

    with pytest.raises(ending):
        events(train, **{asked: lambda: True})
    assert cleaned == [True]


@pytest.mark.parametrize(("asked", "ending"), [("prune_asked", Pruned), ("stop_asked", Stopped)])
def test_a_trial_that_has_done_all_its_epochs_is_completed(asked: str, ending: type[Exception]) -> None:
    trial, reports = replace(TRIAL, config={"epochs": 3}), list[int]()

    def told(function: Callable[..., Any], after: int) -> EpochReport | Question | Fit:
        """What a trial says in the end that is asked to end after so many reports."""
        reports.clear()
        late: dict[str, Any] = {asked: lambda: len(reports) >= after}
        said = run_program(Function(function), trial, "data", ACCURACY, ProgramCheckpoints(None, trial), **late)
        for last in said:
            reports.extend([1] * (isinstance(last, EpochReport) and last.epoch > 0))
        return last

    assert isinstance(told(rising, 3), Fit), "the last epoch was begun before it was asked"
    trial = replace(TRIAL, config={})
    assert isinstance(told(lambda config: {"accuracy": 0.5}, 1), Fit), "it has returned by itself"
    with pytest.raises(ending):
        told(rising, 2)


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [
        (torch.nn.Linear(1, 1), "checkpoint is a Linear: give model.state_dict()"),
        ({"model": torch.nn.Linear(1, 1)}, "checkpoint holds a Linear"),
        ("nowhere", "checkpoint 'nowhere' is not a folder"),
    ],
)
def test_a_checkpoint_that_cannot_be_kept_safely_is_refused(checkpoint: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=text):
        events(lambda config: tuner.report(accuracy=1, checkpoint=checkpoint), tmp_path)


def test_a_checkpoint_that_was_not_written_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, progress = ProgramCheckpoints(tmp_path, TRIAL), Progress(epoch=1)
    with monkeypatch.context() as patched:
        patched.setattr("tuner.training.program_checkpoints._write", Mock(side_effect=OSError(28, "disk full")))
        store.save({"weight": 1}, progress, is_best=True)
    assert "disk full" in store.faults[0]
    store.save({"weight": 2}, progress, is_best=False)
    assert store.best(progress) is None and store.last() == {"weight": 2}
    assert (store.faults, store.best_fault) == ((), "checkpoint not written: [Errno 28] disk full"), (
        "the best one is missed"
    )
    again = ProgramCheckpoints(tmp_path, TRIAL)
    assert again.restore().epoch == 1 and again.best_fault == store.best_fault, "by the next attempt, too"


def test_the_best_checkpoint_is_missed_until_another_report_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, full = program_checkpoints._write, [False, True, False]

    def write(folder: Path, content: State) -> None:
        if full.pop(0):
            raise OSError(28, "disk full")
        written(folder, content)

    monkeypatch.setattr(program_checkpoints, "_write", write)
    *_, missed = events(rising, tmp_path)
    assert isinstance(missed, Fit) and (missed.weights, missed.unkept) == (
        {},
        "checkpoint not written: [Errno 28] disk full",
    )
    *_, better = events(lambda config: tuner.report(accuracy=0.95), tmp_path)
    assert isinstance(better, Fit) and (better.weights, better.unkept) == ({}, "")


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    events(rising, tmp_path)
    (tmp_path / "t001" / "3" / "progress.json").write_text("{")
    store = ProgramCheckpoints(tmp_path, TRIAL)
    assert store.restore().epoch == 0
    assert store.last() is None
    assert "not used: it is damaged" in store.faults[0]


def test_a_trial_that_was_to_end_trains_no_further_in_its_next_attempt(tmp_path: Path) -> None:
    events(rising, tmp_path)
    with pytest.raises(Pruned, match="Pruned") as pruned:
        events(forbidden, tmp_path, prune_asked=lambda: True)
    assert pruned.value.metrics["accuracy"] == 0.9


def forbidden(config: dict[str, Any]) -> None:
    raise AssertionError("it trains on")


def test_a_member_that_was_killed_before_its_pause_trains_no_further(tmp_path: Path) -> None:
    events(rising, tmp_path)
    again = replace(TRIAL, until=3)
    training = run_program(Function(forbidden), again, "data", ACCURACY, ProgramCheckpoints(tmp_path, again))
    with pytest.raises(Paused, match="Paused") as paused:
        list(training)
    assert paused.value.metrics["accuracy"] == 0.3
    assert (tmp_path / "t001@1").is_dir()


def test_a_member_whose_sources_checkpoint_is_gone_begins_anew(tmp_path: Path) -> None:
    store = ProgramCheckpoints(tmp_path, replace(TRIAL, parent="t002@1", begun=2))
    assert store.restore().epoch == 0
    assert store.faults == ("checkpoint t002@1 is gone: training begins anew",)


def test_outside_of_a_trial_metrics_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tuner.report({"accuracy": 0.5}, epoch=2)
    assert capsys.readouterr().out == '{"accuracy": 0.5, "epoch": 2}\n'
    assert tuner.checkpoint() is None


def test_what_a_function_imports_in_its_body_is_loaded_before_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: dict[str, Any]) -> None:
        import colorsys  # noqa: F401  # nothing else imports it

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    warm_up_program("cpu", torch.get_num_threads(), [TrainingTask(Function(train), None)])
    assert "colorsys" in sys.modules


def test_no_metric_can_be_called_like_another_column() -> None:
    assert set(RESERVED_METRICS) == {*FIXED, "study", "best_epoch"}


def test_what_a_function_returns_beside_its_reports_is_kept() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        tuner.report(accuracy=0.5)
        return {"test_accuracy": np.float32(0.25), "history": [1, 2]}

    fit = events(train)[-1]
    assert isinstance(fit, Fit) and fit.metrics == {"accuracy": 0.5, "best_epoch": 1, "test_accuracy": 0.25}


def test_a_trial_has_a_folder_of_its_own_once_it_asks(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()

    def writes(config: dict[str, Any]) -> None:
        (tuner.trial_dir() / "mine").write_text("x")
        tuner.report(accuracy=1)

    events(rising, tmp_path / "checkpoints")
    assert not (tmp_path / "trials").exists()
    events(writes, tmp_path / "checkpoints")
    assert (tmp_path / "trials" / "t001" / "mine").read_text() == "x"
    assert tuner.trial_dir() == Path.cwd()


@pytest.mark.parametrize("folds", [[1.0, math.inf, -math.inf], [1e308] * 3, [0.5, math.nan]])
def test_a_mean_that_is_no_number_has_diverged_and_says_what_counts(folds: list[float]) -> None:
    def train(config: dict[str, Any]) -> None:
        for value in folds:
            tuner.report(accuracy=value)

    objective = replace(ACCURACY, score="mean:3")
    with pytest.raises(Diverged, match=r"^accuracy is no finite number by .*mean:3"):
        list(run_program(Function(train), TRIAL, None, objective, ProgramCheckpoints(None, TRIAL)))


def test_a_returned_value_after_infinite_folds_is_no_fault() -> None:
    def train(config: dict[str, Any]) -> dict[str, float]:
        for value in (math.inf, -math.inf, 0.3):
            tuner.report(accuracy=value)
        return {"accuracy": 0.2}

    assert events(train, notes=[])[-1].metrics["accuracy"] == 0.3  # type: ignore[union-attr]


def test_a_process_in_which_another_rank_still_runs_takes_no_further_trial() -> None:
    go_on = threading.Event()
    program = Function(lambda config: go_on.wait(60)).replaced(most_seconds=0.1)
    place = Mock(rank=1, threads=1, trial=TRIAL)
    *_, fit = run_program(program, TRIAL, None, ACCURACY, ProgramCheckpoints(None, TRIAL), place=place)
    go_on.set()
    assert isinstance(fit, Fit) and fit.left
