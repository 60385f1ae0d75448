"""scripts/try_every_way notices what does not hold of a study, on a made-up journal."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
Lines = list[dict[str, Any]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return runpy.run_path(str(SCRIPTS / "try_every_way.py"))


def journal() -> Lines:
    """Ten trials, two at a time; the first one runs out of memory and is completed with more."""
    base = {"status": "completed", "attempts": 1, "peak_memory_gb": 0.5, "acc": 0.9}
    lines = [
        {"trial_id": f"t{n}", "started_at": n // 2, "ended_at": n // 2 + 0.9, "limit_gb": 1 - 0.05 * (n > 7), **base}
        for n in range(10)
    ]
    again = {**lines[0], "attempts": 2, "limit_gb": 2.0, "peak_memory_gb": 1.2, "started_at": 8, "ended_at": 9}
    lines[0] = {**lines[0], "status": "out_of_memory", "acc": None}
    return [*lines, again]


def found(script: dict[str, Any], lines: Lines, memory: str = "learned", before: int = 6) -> list[str]:
    said: list[str] = script["check"](script["Found"](lines, lines[:before], 2.0, memory, "acc"))
    return said


def test_a_study_of_which_all_holds(script: dict[str, Any]) -> None:
    assert found(script, journal()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: lines.pop(), "finished:"),
        (lambda lines: lines.append(lines[3]), "finished:"),
        (lambda lines: [line.update(ended_at=line["started_at"]) for line in lines], "no two trials"),
        (lambda lines: lines[4].update(limit_gb=1.2), "2.20 GB were given at once"),
        (lambda lines: [line.update(peak_memory_gb=0.1) for line in lines], "the device has room for all"),
        (lambda lines: lines[0].update(status="failed"), "no trial was completed by a retry"),
        (lambda lines: lines[-1].update(limit_gb=1.0), "no trial was completed by a retry"),
        (lambda lines: [line.update(limit_gb=1.0) for line in lines[1:-1]], "no trial was placed by an estimate"),
        (lambda lines: [line.update(acc=0.1) for line in lines], "nothing has been learned"),
    ],
)
def test_each_property_that_does_not_hold_is_named(
    script: dict[str, Any], change: Callable[[Lines], object], fault: str
) -> None:
    lines = journal()
    change(lines)
    assert any(said.startswith(fault) for said in found(script, lines))


def test_a_kill_that_came_too_late_and_footprints_from_nowhere_are_named(script: dict[str, Any]) -> None:
    assert any("still to run" in said for said in found(script, journal(), before=11))
    assert any("learned or traced" in said for said in found(script, journal(), memory=""))


def test_a_line_that_is_lost_is_noticed(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"metrics": {"a": "acc"}, "plan": {"budgets": [2**31]}}))
    (tmp_path / "attempts.jsonl").write_text('{"trial_id": "t2"}\n')
    with pytest.raises(Exception, match="lost or changed lines"):
        script["read"](tmp_path, ['{"trial_id": "t1"}\n'])
