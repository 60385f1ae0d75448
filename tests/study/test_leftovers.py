"""What studies leave behind, and what another user sees of them: ``scripts/benchmark leftovers --short``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.ray
def test_studies_leave_nothing_and_show_nothing_to_other_users() -> None:
    command = [sys.executable, "-m", "scripts.attacks.leftovers", "--short"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT)
    if ended.returncode == 69:
        pytest.skip(ended.stderr.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" nothing\n") == 3
