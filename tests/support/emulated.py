"""Runs Python on PyTorch's CUDA build on emulated cards, which ``scripts/emulated_gpu`` builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = Path(os.environ.get("EMULATED_GPU_DIR", "not built"))
needs_card = pytest.mark.skipif(not (BUILT / "env.sh").is_file(), reason="no emulated card: scripts/emulated_gpu")


def on_card(folder: Path, *command: str, sizes_mib: str = "81559") -> str:
    """What a Python command prints in a new process that sees these cards; ``folder`` is the test's own."""
    own = {"EMULATED_GPUS": sizes_mib, "EMULATED_GPU_STATE": str(folder / "cards")}
    script = f'. {BUILT}/env.sh && export PYTHONPATH={ROOT}:$PYTHONPATH && exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, *command],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
