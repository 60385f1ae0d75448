"""The short form of scripts/benchmark crash_study."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.attacks import crash_study

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_kill_before_within_or_after_a_write_loses_and_doubles_nothing() -> None:
    command = [sys.executable, "-m", "scripts.attacks.crash_study", "--every", "7"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert re.fullmatch(r"12 kills at \d+ writes: nothing lost, nothing doubled, results equal\n", run.stdout)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_harness_notices_a_trial_that_is_lost_or_doubled(tmp_path: Path) -> None:
    line = '{"trial_id": "t1", "status": "completed"}\n'
    (tmp_path / "attempts.jsonl").write_text(line * 2)
    with pytest.raises(crash_study.Difference, match="finished twice"):
        crash_study.check(tmp_path, ["t1"], {})
    with pytest.raises(crash_study.Difference, match=r"finished before the kill: \['t0', 't1'\]"):
        crash_study.check(tmp_path, ["t0", "t1"], {})
