"""Sixteen cores on a small card with a large context, whose driver lists no processes, as in many containers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tuner
from tests.emulated_cuda.cards import printed_on_cards
from tests.emulated_cuda.studies import Study
from tuner.machine import devices
from tuner.trial import GB, MB

pytestmark = pytest.mark.emulated

CONTEXT_MB, TRIALS = 1100, 5


def train(config: dict[str, int]) -> None:
    import torch

    model = torch.nn.Linear(256, 256 + config["width"], device="cuda")
    torch.autograd.backward(model(torch.ones(64, 256, device="cuda")).sum())
    tuner.report(loss=config["width"])


def main(folder: str) -> None:
    ram = devices.ram_device()
    devices.ram_device = lambda: replace(ram, total_bytes=100 * GB, free_bytes=90 * GB)
    devices.available_cores = lambda *_: 16
    devices.idle_cores = lambda: None
    space = {"width": {"choice": list(range(TRIALS))}}
    tuner.run(train, space=space, metric="loss", direction="minimize", device="cuda", output=folder, max_workers=16)


def test_no_trial_of_a_function_fails_for_the_context_and_none_is_counted_twice(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    cards = {
        "sizes": [8 * 1024],
        "EMULATED_CONTEXT_MB": str(CONTEXT_MB),
        "EMULATED_NO_PROCESSES": "1",
        "known": False,
    }
    said = printed_on_cards(tmp_path, __file__, str(study.folder), **cards, XDG_CACHE_HOME=str(tmp_path))
    assert "the first trials share the memory, 1.50 GB each" in said
    assert len(study.finished) == len(study.attempts) == TRIALS
    for line in study.attempts:
        assert CONTEXT_MB * MB / GB < line["peak_memory_gb"] < line["limit_gb"]
        assert line["peak_memory_gb"] < 1.2 * CONTEXT_MB * MB / GB


if __name__ == "__main__":
    main(*sys.argv[1:])
