"""The log of a study's decisions, which answers why a trial waited or what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.study.test_study import study


def test_a_studys_folder_says_what_was_decided_and_by_which_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path / "out", {"name": "a", "lr": 0.01}, {"name": "b", "lr": 0.02, "fault": 2}, max_workers=1)
    log = (tmp_path / "out" / "decisions.log").read_text()
    assert "2 waiting, 1 at once, bound by max_workers\n" in log
    assert "t001 starts attempt 1 on cpu with 0.10 GB (" in log
    assert "t001 ended attempt 1: completed, peak" in log
    assert "1 waiting for others of the study: no device has a free slot\n" in log
    assert "t001 starts" not in capsys.readouterr().err


def test_the_log_is_shown_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LOG", "debug")
    study(tmp_path / "out", {"name": "a", "lr": 0.01})
    assert "t001 starts attempt 1 on cpu with" in capsys.readouterr().err
