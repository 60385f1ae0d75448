from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.toy import Toy
from tuner.decisions.plan import Plan
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.records.epochs import read_epochs
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import GB, Config, EpochReport, Outcome
from tuner.workloads.base import Workload
from tuner.workloads.task import Selection, Tasks


class Interrupted(InProcessExecutor):
    """A user presses Ctrl-C, twice, as the second trial reports its first epoch."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        events = super().poll(timeout_seconds)
        event = events[0][0]
        if isinstance(event, EpochReport) and event.trial_id == "t002" and event.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        return events


class LateInterrupt(InProcessExecutor):
    """A user presses Ctrl-C while the second trial's weights are on their way."""

    def poll(self, timeout_seconds: float) -> list[Any]:
        ((event, weights),) = super().poll(timeout_seconds)

        def fetch() -> bytes:
            os.kill(os.getpid(), signal.SIGINT)
            return weights()

        late = isinstance(event, Outcome) and event.trial.trial_id == "t002"
        return [(event, fetch if late else weights)]


def study(
    folder: Path,
    *listed: dict[str, Any],
    executor: type = InProcessExecutor,
    workload: Workload | None = None,
    **settings: Any,
) -> StudyResult:
    defaults: dict[str, Any] = {} if settings.get("auto_memory") else {"model_memory_gb": 0.1}
    return run_study(
        StudySpec(
            [Selection(workload or Toy(), lambda: None, configurations(listed, Toy.hyperparameters))],
            Settings(
                **{
                    "output": str(folder),
                    "device": "cpu",
                    "gpu_memory_buffer_gb": 0,
                    "report": False,
                    **defaults,
                    **settings,
                }
            ),
            label="test",
            command="a test",
            shows_end=True,
        ),
        executor(),
    )


def test_rows_come_back_best_first_and_as_a_frame(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "slow", "lr": 0.001}, {"name": "fast"})
    assert [row["name"] for row in result.rows] == ["fast", "slow"]
    assert result.exit_code == 0
    assert list(result.to_frame().columns)[:6] == ["trial_id", "workload", "name", "seed", "status", "attempts"]
    assert json.loads((tmp_path / "out" / "study.json").read_text())["plan"]["workers"] >= 1


def test_a_trial_that_fails_leaves_its_reason_and_the_others_alone(tmp_path: Path) -> None:
    listed = [{"name": str(fault), "fault": fault} for fault in range(4)]
    result = study(tmp_path / "out", *listed)
    assert {row["name"]: row["status"] for row in result.rows} == {
        "0": "completed",
        "1": "failed",
        "2": "out_of_memory",
        "3": "diverged",
    }
    errors = {row["name"]: row["error"] for row in result.rows}
    assert re.fullmatch(r"first step: loss failed: ValueError: no such thing \(toy.py, line \d+\)", errors["1"])
    assert result.exit_code == 1
    assert "in loss" in (tmp_path / "out" / "tracebacks.log").read_text()


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def test_an_interrupt_keeps_what_is_finished_and_names_what_is_not(tmp_path: Path) -> None:
    listed = [{"name": name} for name in "abcd"]
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *listed, executor=Interrupted, max_workers=2, threads=1)
    rows = journal(tmp_path / "out")
    assert [(row["name"], row["status"], row["attempts"], row["epochs"]) for row in rows] == [
        ("a", "completed", 1, 3),
        ("b", "interrupted", 1, 1),
        ("c", "interrupted", 1, 0),
        ("d", "interrupted", 0, 0),
    ]
    assert rows[1]["val_loss"] > 0, "what it had reached is kept"
    assert len((tmp_path / "out" / "results.csv").read_text().splitlines()) == 5


def test_a_line_says_when_its_attempt_was_placed_and_when_it_ended(tmp_path: Path) -> None:
    before = time.time()
    study(tmp_path / "out", {"name": "a", "fault": 2}, {"name": "b"}, device_memory_gb=0.2, max_workers=1)
    rows = journal(tmp_path / "out")
    times = [
        row[key] for row in sorted(rows, key=lambda row: row["started_at"]) for key in ("started_at", "ended_at")
    ]
    assert len(times) == 6
    assert before - 0.001 <= times[0]
    assert times == sorted(times)
    assert "started_at" not in (tmp_path / "out" / "results.csv").read_text()


def test_what_trials_say_after_an_epoch_is_kept_with_the_attempt_also_when_a_study_is_gone_on_with(
    tmp_path: Path,
) -> None:
    listed = interrupted(tmp_path / "out")
    study(tmp_path / "out", *listed, resume=str(tmp_path / "out"), output=None, max_workers=1)
    lines = read_epochs(tmp_path / "out" / "epochs.jsonl")
    told = [(line.trial_id, line.attempt, line.epoch) for line in lines]
    assert told[:6] == [
        ("t001", 1, 0),
        ("t001", 1, 1),
        ("t001", 1, 2),
        ("t001", 1, 3),
        ("t002", 1, 0),
        ("t002", 1, 1),
    ]
    assert ("t002", 2, 3) in told
    assert lines[1].metrics["val_loss"] > 0


def test_an_interrupt_while_a_result_is_written_does_not_lose_it(tmp_path: Path) -> None:
    listed = [{"name": name, "lr": lr} for name, lr in (("a", 0.001), ("b", 0.1), ("c", 0.1))]
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", *listed, executor=LateInterrupt, max_workers=1)
    assert [(row["name"], row["status"]) for row in journal(tmp_path / "out")] == [
        ("a", "completed"),
        ("b", "completed"),
        ("c", "interrupted"),
    ]
    assert torch.load(tmp_path / "out" / "best.pt", weights_only=True)["name"] == "b"


class Stuck(Toy):
    """Its model is never built; a user presses Ctrl-C meanwhile."""

    def build_model(self, config: Config, data: Any) -> nn.Module:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)


def test_an_interrupt_while_the_study_is_planned_ends_it_at_once(tmp_path: Path) -> None:
    closed: list[Any] = []

    class Closing(InProcessExecutor):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", {"name": "a"}, executor=Closing, workload=Stuck(), auto_memory=True)
    assert (len(closed), list(tmp_path.iterdir())) == (1, [])


def test_an_interrupt_while_ray_begins_to_start_waits_until_it_can_be_closed(tmp_path: Path) -> None:
    done: list[str] = []

    class Starting(InProcessExecutor):
        def prepare(self, *given: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            done.append("prepared")

        def close(self) -> None:
            done.append("closed")

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", {"name": "a"}, {"name": "b"}, executor=Starting, auto_memory=True)
    assert (done, list(tmp_path.iterdir())) == (["prepared", "closed"], [])


def test_signals_do_again_what_they_did_before_a_study(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    study(tmp_path / "out", {"name": "a"})
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_texts_with_brackets_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path / "out", {"name": "[bold]a[/x]", "fault": 2}, max_attempts=1)
    printed = capsys.readouterr().out
    assert printed.count("[bold]a[/x]") >= 2
    assert printed.count("[enforce fail]") == 2


def test_epochs_replace_every_configurations_own(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "a"}, {"name": "b", "epochs": 9}, epochs=2)
    assert [row["epochs"] for row in result.rows] == [2, 2]
    with pytest.raises(InputError, match="epochs=101: must be at most 100"):
        study(tmp_path / "more", {}, epochs=101)


def test_what_trials_took_corrects_the_next_studys_estimates(tmp_path: Path) -> None:
    listed = [{"name": str(epochs), "epochs": epochs} for epochs in range(1, 7)]
    first = study(tmp_path / "first", *listed, auto_memory=True)
    second = study(tmp_path / "second", *listed, auto_memory=True)
    apart = study(tmp_path / "apart", *listed, auto_memory=True, calibration=False)

    def error(result: StudyResult) -> float:
        return max(abs(row["estimated_memory_gb"] / row["peak_memory_gb"] - 1) for row in result.rows)

    assert error(second) < 0.2
    assert error(second) < error(first)
    assert apart.plan.footprint_bytes == first.plan.footprint_bytes != second.plan.footprint_bytes


def test_a_trial_that_runs_out_of_memory_has_a_line_for_each_attempt_and_one_row(tmp_path: Path) -> None:
    result = study(tmp_path / "out", {"name": "a", "fault": 2}, {"name": "b"}, device_memory_gb=0.2)
    lines = [row for row in journal(tmp_path / "out") if row["name"] == "a"]
    assert [(row["attempts"], row["status"], round(row["limit_bytes"] / GB, 3)) for row in lines] == [
        (1, "out_of_memory", 0.1),
        (2, "out_of_memory", 0.2),  # this process holds more than 0.1 · 1.5: at least what was reached
    ]
    assert [(row["name"], row["status"], row["attempts"]) for row in result.rows] == [
        ("b", "completed", 1),
        ("a", "out_of_memory", 2),
    ]


def test_other_errors_are_tried_again_as_often_as_asked(tmp_path: Path) -> None:
    assert study(tmp_path / "once", {"fault": 1}).rows[0]["attempts"] == 1
    assert study(tmp_path / "thrice", {"fault": 1}, max_failures=2).rows[0]["attempts"] == 3


def interrupted(folder: Path) -> list[dict[str, Any]]:
    listed = [{"name": name, "lr": lr} for name, lr in zip("abcd", (0.1, 0.01, 0.001, 0.2), strict=True)]
    with pytest.raises(KeyboardInterrupt):
        study(folder, *listed, executor=Interrupted, max_workers=1)
    return listed


def test_a_trial_goes_on_at_the_epoch_that_it_had_reached_when_its_study_ended(tmp_path: Path) -> None:
    listed = interrupted(tmp_path / "out")
    study(tmp_path / "out", *listed, resume=str(tmp_path / "out"), output=None, max_workers=1)
    lines = [line for line in read_epochs(tmp_path / "out" / "epochs.jsonl") if line.trial_id == "t002"]
    assert [(line.attempt, line.epoch) for line in lines] == [(1, 0), (1, 1), (2, 1), (2, 2), (2, 3)]


def test_a_row_says_that_an_ending_study_could_not_write_its_trials_checkpoint(tmp_path: Path) -> None:
    class Full(Interrupted):
        def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
            super().open(tasks, plan, checkpoints)
            assert checkpoints
            (checkpoints / "t002.pt.partial").mkdir()

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", {"name": "a"}, {"name": "b"}, executor=Full, max_workers=1)
    row = journal(tmp_path / "out")[1]
    assert row["error"] == "interrupted while it ran; checkpoint not written: Is a directory"
    assert row["peak_bytes"] > 0


def test_a_study_whose_trials_cannot_be_asked_for_checkpoints_ends_in_order_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unwritable(Interrupted):
        def open(self, tasks: Tasks, plan: Plan, checkpoints: Path | None) -> None:
            super().open(tasks, plan, checkpoints)
            assert checkpoints
            shutil.rmtree(checkpoints)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "out", {"name": "a"}, {"name": "b"}, executor=Unwritable, max_workers=1)
    assert [row["status"] for row in journal(tmp_path / "out")] == ["completed", "interrupted"]
    said = capsys.readouterr().out
    assert "cannot be asked for checkpoints: " in said
    assert "continue with: " in said


def test_a_resumed_study_ends_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    listed = interrupted(tmp_path / "out")
    before = journal(tmp_path / "out")
    result = study(tmp_path / "out", *listed, resume=str(tmp_path / "out"), output=None, max_workers=1)
    alone = study(tmp_path / "alone", *listed, max_workers=1)
    same = ("name", "status", "epochs", "val_loss", "test_loss", "train_loss", "best_epoch")
    assert [[row[key] for key in same] for row in result.rows] == [[row[key] for key in same] for row in alone.rows]
    assert journal(tmp_path / "out")[: len(before)] == before
    assert [row["name"] for row in journal(tmp_path / "out") if row["status"] == "completed"] == list("abcd")


@pytest.mark.parametrize("memory_gb", [None, 0.05])
def test_a_study_of_which_nothing_is_left_runs_nothing_and_needs_no_room(
    tmp_path: Path, memory_gb: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path / "out", {"name": "a"})
    before = journal(tmp_path / "out")
    room = {"output": None, "device_memory_gb": memory_gb}
    result = study(tmp_path / "out", {"name": "a"}, resume=str(tmp_path / "out"), **room)
    assert "no trials are left to run" in capsys.readouterr().out
    assert ([row["name"] for row in result.rows], journal(tmp_path / "out")) == (["a"], before)


@pytest.mark.parametrize(
    ("listed", "settings", "message"),
    [
        ([{"name": "z"}], {}, "its configurations are different"),
        (None, {"seed": 5}, "its seed is 0, not 5"),
        (None, {"resume": "nowhere"}, "resume='nowhere': there is no such folder"),
    ],
)
def test_a_study_of_something_else_is_not_gone_on_with(
    tmp_path: Path, listed: list[dict[str, Any]] | None, settings: dict[str, Any], message: str
) -> None:
    given = interrupted(tmp_path / "out")
    before = (tmp_path / "out" / "attempts.jsonl").read_bytes()
    with pytest.raises(InputError, match=message):
        study(tmp_path, *(listed or given), output=None, **{"resume": str(tmp_path / "out"), **settings})
    assert (tmp_path / "out" / "attempts.jsonl").read_bytes() == before


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = study(tmp_path / "out", {"name": "a"}, dry_run=True)
    assert (result.rows, result.folder) == ([], None)
    assert list(tmp_path.iterdir()) == []
    assert "0.10 GB a trial, as given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_memory_gb": 0}, "model_memory_gb=0: must be more than 0"),
        ({"model_memory_gb": float("nan")}, "model_memory_gb=nan"),
        ({"device_memory_gb": 1e300}, r"device_memory_gb=1e\+300: must be at most 1000000"),
        ({"device_memory_gb": float("inf")}, "device_memory_gb=inf: must be a finite number"),
        ({"retry_growth": float("inf")}, "retry_growth=inf"),
        ({"gpu_memory_buffer_gb": -1}, "gpu_memory_buffer_gb=-1: must be at least 0"),
        ({"max_workers": 0}, "max_workers=0: must be at least 1"),
        ({"threads": 0}, "threads=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"seed": -1}, "seed=-1"),
        ({"auto_memory": True, "model_memory_gb": 2.0}, "leave one of them out"),
        ({"device_memory_gb": 0}, "device_memory_gb=0: must be more than 0"),
        ({"retry_growth": 1}, "retry_growth=1: must be more than 1"),
        ({"backoff": -1}, "backoff=-1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"packing": "dense"}, "packing='dense': must be 'uniform' or 'per-trial'"),
        ({"on_oom": "cry"}, "on_oom='cry': must be 'grow', 'accumulate' or 'fail'"),
        ({"output": "a", "resume": "b"}, "output and resume were both given"),
        ({"memory_estimation": "traced", "model_memory_gb": 2.0}, "has no effect with model_memory_gb"),
        ({"output": str(Path(__file__).parent)}, "the folder is not empty"),
        ({"output": f"{__file__}/out"}, "cannot be written: .*test_study.py is not a folder"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings).check()


def test_the_plan_type_carries_the_workers(tmp_path: Path) -> None:
    plan = study(tmp_path / "out", {"name": "a"}, dry_run=True, max_workers=1).plan
    assert isinstance(plan, Plan)
    assert plan.workers == 1
