"""A worker and then the study itself are killed on an emulated card, and the study is resumed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.emulated_cuda.studies import Line, Study, ended, resume, rows, start
from tests.support.processes import runs

pytestmark = pytest.mark.emulated

TRIALS = 4


@dataclass(frozen=True)
class Crashed:
    """A study that was killed and resumed, its journal when it was killed, and what it said then."""

    study: Study
    before: str
    said: str

    @property
    def lost(self) -> list[Line]:
        return [line for line in self.study.attempts if line["lost"] == "worker"]


def until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, f"not after two minutes: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    study = Study(tmp_path_factory.mktemp("crashed") / "study")
    cards = {"sizes": [6000]}
    options = ("--mode", "architecture", "--limit", str(TRIALS), "--auto-memory", "--epochs", "25")
    process = start(study, *options, **cards)
    epochs = study.folder / "epochs.jsonl"
    until(lambda: epochs.exists() and '"epoch": 2' in epochs.read_text(), "a second epoch")
    os.kill(next(iter(study.contexts())), signal.SIGKILL)
    until(
        lambda: study.finished and len(study.contexts()) > 2,
        "a trial completed and another worker",
    )
    process.kill()
    process.communicate()
    workers = [*study.contexts()]
    until(lambda: not any(map(runs, workers)), "the workers of a killed study end")
    before = (study.folder / "attempts.jsonl").read_text()
    return Crashed(study, before[: before.rfind("\n") + 1], ended(resume(study, **cards)))


def test_the_trial_of_a_killed_worker_is_tried_again(crashed: Crashed) -> None:
    (lost,) = crashed.lost
    assert crashed.study.finished[lost["name"]]["attempts"] > lost["attempts"]


def test_a_resumed_study_keeps_every_row_and_completes_the_rest(crashed: Crashed) -> None:
    journal = (crashed.study.folder / "attempts.jsonl").read_text()
    assert crashed.before
    assert journal.startswith(crashed.before)
    assert len(crashed.study.finished) == TRIALS
    assert crashed.before.count('"completed"') < TRIALS, "something was left to do"


def test_the_memory_of_killed_processes_is_free_again(crashed: Crashed) -> None:
    assert "5.9 GB in all, 2.0 GB buffer, 5.9 GB free" in rows(crashed.said, "cuda:0")
