"""The CUDA path of what is no study: Ray Tune's own loop, batch sizes, measured steps, another training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tests.emulated_cuda.tune_cards as tune_cards
from tests.emulated_cuda.cards import on_cards

pytestmark = pytest.mark.emulated


def printed(*command: str, **cards: object) -> str:
    """What Python prints with these arguments on cards of its own."""
    done = subprocess.run(
        [sys.executable, *command], env=on_cards(**cards), stdout=subprocess.PIPE, text=True, check=True, timeout=240
    )
    return done.stdout


def test_rays_trials_keep_to_their_card_and_their_share_and_run_again_with_more(tmp_path: Path) -> None:
    # CUDA would count the A100 first and NVML, as Ray does, the T4.
    cards = {"names": ["T4", "A100"], "sizes": [4000, 6000], "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    (last,) = printed(tune_cards.__file__, str(tmp_path), **cards).splitlines()[-1:]
    fits, grows = json.loads(last).values()
    assert [fits["attempts"], grows["attempts"]] == [1, 2]
    assert grows["gpu_fraction"] > 1.49 * fits["gpu_fraction"]
    assert 0.5 < fits["peak_memory_gb"] < 0.8 < grows["peak_memory_gb"]
    assert fits["cards"] == grows["cards"] == [0]
