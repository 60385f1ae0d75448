"""Errors in one line, whatever is in the names that they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tuner
from tuner.errors import InputError
from tuner.training.program_checkpoints import ProgramCheckpoints, Progress
from tuner.trial import Trial


@pytest.mark.parametrize(
    "given",
    [{"config": [{"a\nb": 1}]}, {"space": {"a\nb": {"choice": [1]}}}, {"space": {"a\nb": {"chois": [1]}}}],
    ids=["configuration", "space", "no domain"],
)
def test_a_key_of_two_lines_is_refused_in_one(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\\nb") as told:
        tuner.run(
            lambda config: None, metric="loss", direction="min", in_process=True, output=tmp_path / "out", **given
        )
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_checkpoint_for_which_no_space_is_left_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramCheckpoints(tmp_path, Trial("t001", "train", "one", {}, seed=0))
    monkeypatch.setattr("tuner.training.program_checkpoints.STATE", "/dev/full")
    store.save({"weight": torch.ones(100_000)}, Progress(), is_best=True)
    assert store.faults == ("checkpoint not written: [Errno 28] No space left on device",)
