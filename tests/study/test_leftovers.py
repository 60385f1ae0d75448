"""What studies leave behind, and what another user can see of them: the short form of ``scripts/leftovers``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/leftovers.py"


@pytest.mark.long
@pytest.mark.ray
def test_studies_leave_nothing_and_show_nothing_to_other_users() -> None:
    ended = subprocess.run([sys.executable, str(SCRIPT), "--short"], capture_output=True, text=True, timeout=500)
    if ended.returncode == 69:
        pytest.skip(ended.stderr.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" nothing\n") == 3
