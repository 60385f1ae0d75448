"""The short form of scripts/benchmark attack."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tuner
from scripts.attacks import kills
from scripts.attacks.crash_study import Difference
from tuner.errors import InputError

ROOT = Path(__file__).parents[2]
KINDS = "raises,mute-error,exits-3-at-once,segfault,prints-escapes,reports-nan,10000-metrics,closes-all,over-the-cap"
PLACES = "tmpdir-missing,256-files,broken-pipe"


def attack(*words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "scripts.attacks.attack", *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    assert "100.00 % answered" in run.stdout
    return run.stdout


@pytest.mark.long
def test_damaged_files_are_answered_in_a_line() -> None:
    assert "   100       0" in attack("fuzz", "--seed", "7", "--tries", "100", "--jobs", "4")


@pytest.mark.slow
def test_many_damaged_files_are_answered_in_a_line() -> None:
    attack("undamaged", "fuzz", "--seed", "8", "--tries", "300")


@pytest.mark.slow
def test_kills_at_random_moments_lose_change_and_double_nothing() -> None:
    assert "all                                           4       0" in attack("kills", "--only", "3,9,10,16")


def test_the_harness_notices_what_is_trained_again_changed_or_twice_there(tmp_path: Path) -> None:
    journal, trainings = tmp_path / "study/attempts.jsonl", tmp_path / "trainings"
    journal.parent.mkdir()
    journal.write_text('{"trial_id": "t1", "status": "completed"}\n')
    trainings.write_text("t1 1 begins\n")
    kept = kills.check_kept(tmp_path, {}, Counter())
    trainings.write_text("t1 1 begins\n" * 2)
    with pytest.raises(Difference, match="trained again after its end: t1"):
        kills.check_kept(tmp_path, *kept)
    journal.write_text('{"trial_id": "t1", "status": "completed"}\n' * 2)
    with pytest.raises(Difference, match="a trial has ended twice"):
        kills.check_kept(tmp_path, *kept)
    journal.write_text('{"trial_id": "t1", "status": "failed"}\n')
    with pytest.raises(Difference, match=r"attempts.jsonl was .*completed.* and is .*failed"):
        kills.check_kept(tmp_path, *kept)


@pytest.mark.long
def test_bad_trials_leave_good_ones_alone() -> None:
    assert "     9       0" in attack("trials", "--way", "child", "--only", KINDS)


@pytest.mark.long
def test_a_study_runs_where_clusters_run_it() -> None:
    assert "     3       0" in attack("environments", "--way", "child", "--only", PLACES)


def test_a_try_that_is_not_answered_is_counted_and_can_be_repeated(tmp_path: Path) -> None:
    code = "from scripts.attacks.tally import Tally; from scripts.attacks.answers import Answer; t = Tally(3)\n"
    code += (
        "t.take('fuzz', 'data', 5, Answer(1, 0.1, '', 'Traceback (most recent call last):').faults(), 'tune plan')\n"
    )
    code += "print(t.share)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "0.0\n" and "scripts/benchmark attack fuzz --seed 3 --only 5" in run.stderr
    assert "failed: data: a traceback; a line in stderr that is neither note nor error" in run.stderr


@pytest.mark.ray  # so that no Ray of other tests is used
def test_without_a_folder_for_rays_sockets_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.execution.cluster.session_bases", lambda: [])
    with pytest.raises(InputError, match="no folder for Ray's sockets can be written: set RAY_TMPDIR"):
        tuner.run(limit=2, device="cpu", model_memory_gb=0.5, max_workers=2, output=tmp_path / "out")
    assert not list(tmp_path.iterdir())
