"""Real functions that need several times the memory that they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tuner.trial import GB

GIVEN_GB = 0.6
PIECE = 64 * 2**20


def takes(config: dict[str, Any]) -> None:
    """Takes so much memory, in one piece or little by little."""
    sizes = [config["size"]] if config["whole"] else [PIECE] * (config["size"] // PIECE)
    held = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    tuner.report(loss=len(held))


@pytest.mark.long
@pytest.mark.parametrize("whole", [1, 0], ids=["one piece", "little by little"])
@pytest.mark.parametrize("times", [2, 4, 8])
def test_a_function_that_needs_several_times_its_memory_completes(times: int, whole: int, tmp_path: Path) -> None:
    config = {"size": int((times * GIVEN_GB - 0.3) * GB), "whole": whole}
    options: dict[str, Any] = {"memory_gb": GIVEN_GB, "device": "cpu", "max_workers": 1, "backoff": 0}
    result = tuner.run(takes, config=[config], metric="loss", direction="min", output=tmp_path / "out", **options)
    (trial,) = (trial for trial in result.trials if trial.status == "completed")
    assert trial.attempts <= (2 if whole else 4)
    assert trial.peak_memory_gb and trial.peak_memory_gb > (times - 1) * GIVEN_GB
