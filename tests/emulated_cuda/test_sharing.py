"""An emulated card that several studies share, or a study and another program."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import tests.emulated_cuda.sharing as sharing
from tests.emulated_cuda.cards import on_cards
from tests.emulated_cuda.studies import Line, Study, ended

pytestmark = pytest.mark.emulated

CARD = {"sizes": [3000]}


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    environment = on_cards(
        folder / "cards", XDG_CACHE_HOME=str(folder), HELD=str(folder / "held"), PYTHONUNBUFFERED="1", **CARD
    )
    command = [sys.executable, sharing.__file__, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What a process has printed up to the first line with this word; all of it without one."""
    said = ""
    assert process.stdout is not None
    while word not in said and (line := process.stdout.readline()):
        said += line
    return said


def at_once_gb(lines: list[Line]) -> float:
    """The most that was given at once to trials of all studies."""
    starts = [line["started_at"] for line in lines]
    running = [[line for line in lines if line["started_at"] <= now < line["ended_at"]] for now in starts]
    return max(sum(line["limit_gb"] for line in together) for together in running)


def test_two_studies_never_promise_more_than_the_card_has(tmp_path: Path) -> None:
    studies = [Study(tmp_path / name) for name in ("one", "two")]
    processes = [start(tmp_path, "study", study.folder, 4, 300, 3) for study in studies]
    for process in processes:
        ended(process)
    lines = [line for study in studies for line in study.attempts]
    assert [line["status"] for line in lines] == ["completed"] * 8
    assert at_once_gb(lines) <= 3000 / 1024
    first, second = ({line["started_at"] for line in study.attempts} for study in studies)
    assert min(second) < max(first) and min(first) < max(second), "both run at the same time"


def test_trials_that_keep_no_core_busy_are_more_than_the_cores(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    said = ended(start(tmp_path, "meet", study.folder))
    assert "at most 1 run at once" in said and "up to 2, if that proves faster" in said, said
    assert "cuda:0: 2 trials at once do" in said, said
    first, second = study.attempts
    assert first["status"] == second["status"] == "completed"
    assert second["started_at"] < first["ended_at"]


def test_what_another_program_takes_after_the_plan_costs_time_alone(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    process = start(tmp_path, "study", study.folder, 6, 300, 3)
    while not (study.folder / "study.json").exists():  # the plan is made
        time.sleep(0.05)
    hog = start(tmp_path, "hog", 2450, tmp_path / "released")
    said = read_until(process, f"process {hog.pid}")  # a trial waits for the memory
    (tmp_path / "released").touch()
    ended(process)
    ended(hog)
    lines = study.attempts
    assert {line["trial_id"] for line in lines if line["status"] == "completed"} == {f"t00{n}" for n in range(1, 7)}
    assert {line["limit_gb"] for line in lines} == {900 / 1024}, "no share has grown"
    assert all(line["lost"] == "memory" for line in lines if line["status"] == "out_of_memory")
    assert f"process {hog.pid}" in said, said


def test_a_trial_whose_memory_another_program_takes_has_the_same_share_again(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    process = start(tmp_path, "study", study.folder, 2, 300, 12)
    while not (tmp_path / "held").exists():  # a trial has half of its memory
        time.sleep(0.05)
    # 66 MiB may be left of a worker's first step.
    hog = start(tmp_path, "hog", 3000 - 2 * 716 - 50, tmp_path / "released")
    read_until(process, "the attempt does not count")
    (tmp_path / "released").touch()
    ended(process)
    ended(hog)
    starved = [line for line in study.attempts if line["status"] == "out_of_memory"]
    assert starved and all(line["lost"] == "memory" for line in starved)
    assert "the attempt does not count" in starved[0]["error"]
    assert [line["limit_gb"] for line in study.finished.values()] == [900 / 1024] * 2
