"""Processes of their own on emulated cards: CUDA reads what a card is like when a process first uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def on_cards(
    sizes: Sequence[int] = (), names: Sequence[str] = (), state: Path | None = None, **variables: str
) -> dict[str, str]:
    """The environment of a process on cards of their own.

    Args:
        sizes: of the cards, in MiB; without any those of their models.
        names: of their models, H100 without any.
        state: the file of their accounts; whoever has the same one shares these cards.
        variables: others, which are set as well.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EMULATED_", "CUDA_"))}
    if state is None:
        handle, path = tempfile.mkstemp(prefix="emulated_gpus_")
        os.close(handle)
        state = Path(path)
    cards = {"EMULATED_GPUS": ",".join(map(str, sizes)), "EMULATED_GPU_NAME": ",".join(names)}
    return {**environment, **cards, "EMULATED_GPU_STATE": str(state), **variables}


def printed_on_cards(folder: Path, *command: str, **cards: Any) -> str:
    """What Python prints for a command in a new process in a folder, on cards as ``on_cards`` makes them."""
    done = subprocess.run(
        [sys.executable, *command], env=on_cards(**cards), capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
