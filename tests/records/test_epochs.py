from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.records.epochs import EpochLine, EpochLog, read_epochs, seconds_per_epoch
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Placement, Trial


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epochs.jsonl"


def test_lines_come_back_as_they_were_and_what_is_no_number_as_nothing(path: Path) -> None:
    log = EpochLog(path)
    log.add(EpochReport("t001", 0, 9, {}), 1)
    log.add(EpochReport("t001", 1, 9, {"val_loss": 0.5, "train_loss": math.nan}), 1)
    log.close()
    first, second = read_epochs(path)
    assert (first.epoch, first.metrics) == (0, {})
    assert (second.trial_id, second.attempt, second.metrics) == (
        "t001",
        1,
        {"val_loss": 0.5, "train_loss": None},
    )
    assert second.at >= first.at > 0


def test_a_line_says_where_an_attempt_runs_and_what_is_reserved_for_it(path: Path) -> None:
    cpu = Device("", "cpu", 0, "a CPU", GB, GB, cores=1)
    trial = Trial("t001", "toy", "a", {}, 0)
    log = EpochLog(path)
    log.add(EpochReport("t001", 0, 9), 1, 1, Placement(trial, MemoryEstimate("given"), cpu, 0.5, 7, 1))
    log.close()
    (line,) = read_epochs(path)
    assert (line.device, line.limit_bytes) == ("cpu", 7)


def test_each_line_is_written_at_once_and_none_is_empty(path: Path) -> None:
    for attempt in (1, 2):  # the second is of a study that is resumed
        log = EpochLog(path)
        for epoch in (0, 1):
            log.add(EpochReport("t001", epoch, 9, {}), attempt)
            assert [line.epoch for line in read_epochs(path)][-1] == epoch
        log.close()
    assert len(path.read_text().splitlines()) == 4
    path.unlink()
    log.add(EpochReport("t001", 2, 9, {}), 2)
    assert [line.epoch for line in read_epochs(path)] == [2], "a trial has removed the file"
    log.close()


def test_half_a_line_that_a_kill_has_left_is_left_out_and_takes_no_other_with_it(path: Path) -> None:
    path.write_text('{"trial_id": "t0')
    for epoch in (1, 2):
        log = EpochLog(path)
        log.add(EpochReport("t001", epoch, 9, {}), 1)
        log.close()
    assert [line.epoch for line in read_epochs(path)] == [1, 2]


def test_a_file_that_cannot_be_written_or_read_costs_nothing_but_its_lines(path: Path) -> None:
    path.mkdir()
    log = EpochLog(path)
    log.add(EpochReport("t001", 1, 9, {}), 1)
    log.close()
    assert read_epochs(path) == []


@pytest.mark.parametrize(
    "text", ["null", "[]", '{"trial_id": 1}', '{"trial_id": "t", "attempt": 1, "epoch": 1}', "\xff"]
)
def test_lines_that_are_something_else_are_left_out(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="latin-1")
    assert read_epochs(path) == []


def test_an_epoch_takes_the_mean_of_the_last_attempts() -> None:
    def begun(trial_id: str, attempt: int, epoch: int, at: float) -> EpochLine:
        return EpochLine(trial_id=trial_id, attempt=attempt, epoch=epoch, at=at, metrics={})

    def ended(*of: Any) -> EpochLine:
        return replace(begun(*of), metrics={"val_loss": 1.0})

    lines = [
        begun("a", 1, 0, 0),
        begun("b", 1, 0, 0),
        ended("a", 1, 2, 90),
        begun("a", 2, 2, 100),
        ended("a", 2, 4, 106),
    ]
    assert seconds_per_epoch(lines) == {"a": 3.0}, "b has not ended any"
    assert seconds_per_epoch([begun("a", 1, 0, 9), ended("a", 1, 1, 8)]) == {"a": 0.0}, "the clock was set back"
    killed = [begun("a", 1, 0, 0), ended("a", 1, 1, 5), begun("a", 1, 0, 900), ended("a", 1, 2, 904)]
    assert seconds_per_epoch(killed) == {"a": 2.0}, "a killed study's attempt begins again under its number"
