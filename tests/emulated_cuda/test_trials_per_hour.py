"""``scripts/benchmark trials_per_hour`` on an emulated card whose context is that of an H200."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.emulated_cuda.cards import on_cards

pytestmark = pytest.mark.emulated
SMALL = ("--workers", "2", "--trials", "2", "--epochs", "1", "--steps", "1")


def measured(folder: Path, minutes: float, *ways: str) -> dict[str, Any]:
    """What a command of so many minutes leaves in a folder."""
    card: dict[str, Any] = {"EMULATED_GPU": os.environ["EMULATED_GPU"], "EMULATED_CONTEXT_MB": "742"}
    environment = on_cards(folder / "cards", XDG_CACHE_HOME=str(folder), **card)
    command = [sys.executable, "-m", "scripts.gpu.trials_per_hour", "--output", str(folder), "--ways", *ways]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--minutes", str(minutes), *SMALL], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 60 * minutes + 30, "it ends by itself"
    found: dict[str, Any] = json.loads((folder / "trials_per_hour.json").read_text())
    return found


def test_no_attempt_is_lost_to_a_large_context_and_a_second_command_goes_on(tmp_path: Path) -> None:
    first = measured(tmp_path, 4, "ours")
    assert (first["context_mb"], len(first["steps"])) == (742, 1)
    assert abs(first["steps"][0]["error"]) < 0.05
    done = [cell for cell in first["cells"] if cell["state"] == "measured"]
    assert first["cells"][0] in done
    assert [(cell["lost"], cell["ran_out"]) for cell in done] == [(0, 0)] * len(done)
    second = measured(tmp_path, 2, "ours", "ray-tune")
    assert second["steps"] == first["steps"] and all(cell in second["cells"] for cell in done)
    assert [cell["cell"]["way"] for cell in second["cells"]][:2] == ["ours", "ray-tune"]
    assert "| graphsage-64x2 | tuner | 2 |" in (tmp_path / "trials_per_hour.md").read_text()
