"""The memory of a data loader's workers is a part of their trial's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import tuner
from tuner.trial import GB

WORKERS, HELD = 4, GB // 4


class Holding(IterableDataset[int]):
    """A data set that takes memory in each of the loader's workers."""

    def __iter__(self) -> Any:
        held = torch.ones(HELD, dtype=torch.uint8)
        for _ in range(4):
            time.sleep(0.7)
            yield int(held[0])


def loads(config: dict[str, Any]) -> None:
    loader = DataLoader(Holding(), num_workers=config["workers"], batch_size=None)
    tuner.report(loss=sum(loader))


@pytest.mark.long
def test_the_workers_of_a_data_loader_count_towards_the_peak_of_their_trial(tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory_gb": 3, "device": "cpu", "max_workers": 1, "output": tmp_path / "out"}
    result = tuner.run(
        loads, config=[{"workers": 0}, {"workers": WORKERS}], metric="loss", direction="min", **options
    )
    alone, loading = (trial.peak_memory_gb or 0 for trial in sorted(result.trials, key=lambda trial: trial.trial_id))
    expected = alone + (WORKERS - 1) * HELD / GB
    assert loading == pytest.approx(expected, rel=0.1)
