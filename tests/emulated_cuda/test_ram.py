"""A GPU's trials take the machine's RAM, too. What is copied to an emulated card is RAM as well: here nothing."""

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

TRIALS, AT_ONCE = 8, 3
HELD_MB = 700  # beside the 220 that a worker has, less than the guess for a trial, and more than a third of the RAM


def train(config: dict[str, int]) -> None:
    held = bytearray(b"x") * (HELD_MB * MB)
    tuner.report(loss=config["number"] / len(held))


def main(folder: str) -> None:
    """A study on a card with room for all of its trials, of a machine with cores for all and RAM for three."""
    ram, budget = devices.ram_device(), int(3.6 * GB)
    devices.ram_device = lambda: replace(ram, total_bytes=16 * GB, free_bytes=2 * GB + budget)
    devices.available_cores = lambda *_: TRIALS
    devices.idle_cores = lambda: None
    space = {"number": {"choice": list(range(1, TRIALS + 1))}}
    options = {"metric": "loss", "direction": "minimize", "memory_gb": 0.6, "packing": "per-trial"}
    tuner.run(train, space=space, device="cuda", output=folder, **options)


def test_no_more_trials_run_at_once_than_the_ram_has_room_for(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    said = printed_on_cards(tmp_path, __file__, str(study.folder), names=["A100"], XDG_CACHE_HOME=str(tmp_path))
    assert f"workers    {AT_ONCE}, 1 thread each; bounded by RAM" in said
    assert len(study.finished) == TRIALS
    assert {line["attempts"] for line in study.attempts} == {1}
    starts = [line["started_at"] for line in study.attempts]
    running = [sum(line["started_at"] <= now < line["ended_at"] for line in study.attempts) for now in starts]
    assert max(running) == AT_ONCE
    assert all(HELD_MB < 1024 * line["peak_ram_gb"] < HELD_MB + 400 for line in study.attempts)
    assert all(line["peak_memory_gb"] < 0.6 for line in study.attempts)


if __name__ == "__main__":
    main(*sys.argv[1:])
