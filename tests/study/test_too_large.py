"""One configuration for which no device has room costs the others nothing, if the user says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.study.test_study import journal, study
from tuner.errors import InputError
from tuner.study.result import StudyResult

SMALL, HUGE = {"name": "small", "lr": 0.01}, {"name": "huge", "lr": 0.02}
NO_ROOM = "not run: needs 3.00 GB, and no device has more than 1.00 GB for it"


def run(folder: Path, *listed: dict[str, Any], skip: bool = True, **settings: Any) -> StudyResult:
    given = {"memory_gb": lambda config: 3 if config["lr"] == 0.02 else 0.1, "device_memory_gb": 1, **settings}
    defaults = {"model_memory_gb": None, "max_workers": 1}  # of the helper, which gives another one
    return study(folder, *listed, skip_too_large=skip, **defaults, **given)


def test_the_rest_runs_and_what_is_too_large_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "out", HUGE, SMALL)
    rows = {row.name: row for row in result.trials}
    assert (rows["small"].status, rows["huge"].status, rows["huge"].error) == ("completed", "too_large", NO_ROOM)
    assert (rows["huge"].attempts, result.exit_code) == (0, 0)
    assert f"left out   huge: {NO_ROOM}" in capsys.readouterr().out


def test_without_the_option_the_message_names_it_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^huge: .*lower memory_gb, run the others with skip_too_large=True, or"):
        run(tmp_path / "out", HUGE, SMALL, skip=False)
    with pytest.raises(InputError, match=r"^huge: a trial needs 3\.00 GB, but .* lower memory_gb, or use a larger"):
        run(tmp_path / "out", HUGE)
    assert not (tmp_path / "out").exists()


def test_a_study_that_is_resumed_with_more_memory_runs_it(tmp_path: Path) -> None:
    run(tmp_path / "out", HUGE, SMALL)
    run(tmp_path / "out", HUGE, SMALL, output=None, resume=str(tmp_path / "out"), device_memory_gb=4)
    assert [(line["name"], line["status"]) for line in journal(tmp_path / "out")] == [
        ("huge", "too_large"),
        ("small", "completed"),
        ("huge", "completed"),
    ]


def test_a_plan_says_what_would_be_left_out() -> None:
    listed = [{"name": "small", "hidden_dim": 32}, {"name": "huge", "hidden_dim": 64}]
    found = tuner.plan(
        config=listed,
        memory_gb=lambda config: config["hidden_dim"] / 40,
        gpus=1,
        device_memory_gb=3,
        skip_too_large=True,
    )
    assert [request.trial.name for request in found.requests] == ["small"]
    assert found.left_out == ["left out   huge: not run: needs 1.60 GB, and no device has more than 1.00 GB for it"]
