"""Processes of their own on emulated cards: CUDA reads what a card is like when a process first uses it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.estimation.calibration import Sample, record
from tuner.estimation.overheads import CONTEXT_BYTES, context_key
from tuner.trial import MB


def on_cards(
    state: Path, sizes: Sequence[int] = (), names: Sequence[str] = (), *, known: bool = True, **variables: str
) -> dict[str, str]:
    """The environment of a process on cards of its own.

    Args:
        state: the file of the cards' accounts; whoever has the same one shares these cards.
        sizes: of the cards, in MiB; without any those of their models.
        names: of their models, H100 without any.
        known: whether a study finds their contexts in its user's cache, where there is one of its own.
        variables: others, which are set as well.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EMULATED_", "CUDA_"))}
    if known and "XDG_CACHE_HOME" in variables:
        context_mb = int(variables.get("EMULATED_CONTEXT_MB", CONTEXT_BYTES["cuda"] // MB))
        know_contexts(Path(variables["XDG_CACHE_HOME"]), names or ["H100"], context_mb)
    cards = {"EMULATED_GPUS": ",".join(map(str, sizes)), "EMULATED_GPU_NAME": ",".join(names)}
    return {**environment, **cards, "EMULATED_GPU_STATE": str(state), **variables}


def know_contexts(cache: Path, names: Sequence[str], context_mb: int) -> None:
    """Leaves in a user's cache what a study would find first in processes of its own, which takes seconds."""
    models = dict(
        re.findall(r'{"(\w+)", "([^"]+)"', Path(__file__).with_name("card").joinpath("cards.h").read_text())
    )
    for name in names:
        record(context_key(models[name], "580.00.00"), [Sample(0, 0, context_mb * MB)], cache / "tuner", latest=True)


def printed_on_cards(folder: Path, *command: str, **cards: Any) -> str:
    """What Python prints for a command in a new process in a folder, on cards as ``on_cards`` makes them."""
    environment = on_cards(folder / "cards", **cards)
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
