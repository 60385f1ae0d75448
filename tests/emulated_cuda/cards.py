"""Processes of their own on emulated cards: CUDA reads what a card is like when a process first uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.estimation.calibration import Sample, record
from tuner.estimation.overheads import CONTEXT_BYTES, context_key


def on_cards(state: Path, sizes: Sequence[int] = (), names: Sequence[str] = (), **variables: str) -> dict[str, str]:
    """The environment of a process on cards of its own.

    Args:
        state: the file of the cards' accounts; whoever has the same one shares these cards.
        sizes: of the cards, in MiB; without any those of their models.
        names: of their models, H100 without any.
        variables: others, which are set as well.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EMULATED_", "CUDA_"))}
    if "XDG_CACHE_HOME" in variables and "EMULATED_CONTEXT_MB" not in variables and not names:
        know_context(Path(variables["XDG_CACHE_HOME"]))
    cards = {"EMULATED_GPUS": ",".join(map(str, sizes)), "EMULATED_GPU_NAME": ",".join(names)}
    return {**environment, **cards, "EMULATED_GPU_STATE": str(state), **variables}


def know_context(cache: Path) -> None:
    """Leaves in a user's cache what a study would find first in a process of its own, which takes seconds."""
    key = context_key("NVIDIA H100 80GB HBM3", "580.00.00")
    record(key, [Sample(0, 0, CONTEXT_BYTES["cuda"])], cache / "tuner", latest=True)


def printed_on_cards(folder: Path, *command: str, **cards: Any) -> str:
    """What Python prints for a command in a new process in a folder, on cards as ``on_cards`` makes them."""
    environment = on_cards(folder / "cards", **cards)
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
