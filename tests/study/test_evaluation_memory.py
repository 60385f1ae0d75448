"""Trials of which only the evaluation runs out of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.emulated_cuda.cards import printed_on_cards
from tests.support.toy import Batched
from tuner.execution.in_process import InProcessExecutor
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.study import run_study
from tuner.workloads.base import Split
from tuner.workloads.task import Selection

FEW = 4  # the parts in which an evaluation fits


class Wide(Batched):
    """Its evaluation fits in four parts or more."""

    name = "wide"

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return self.evaluate_in_parts(model, data, split, 1)

    def evaluate_in_parts(self, model: nn.Module, data: Any, split: Split, parts: int) -> dict[str, float]:
        if parts < FEW:
            raise MemoryError(f"{parts} parts")
        return super().evaluate(model, data, split)


def attempts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def test_an_evaluation_that_ran_out_is_tried_again_in_smaller_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = configurations([{"name": "a", "batch_size": 8, "epochs": 1}], Batched.hyperparameters)
    whole = {"model_memory_gb": 0.5, "device_memory_gb": 0.5, "gpu_memory_buffer_gb": 0, "caps": False}
    options = Settings(output=str(tmp_path), device="cpu", on_oom="accumulate", backoff=0, report=False, **whole)
    selection = Selection(Wide(), lambda: None, listed)
    result = run_study(StudySpec([selection], options, label="test", command="a test"), InProcessExecutor())
    assert [row["status"] for row in result.rows] == ["completed"]
    rows = attempts(tmp_path)
    assert [(row["phase"], row.get("config/evaluation_parts")) for row in rows] == [
        ("evaluation", None),
        ("evaluation", 2),
        ("", 4),
    ]
    assert not any("config/accumulation" in row for row in rows)
    assert "in chunks of an evaluation of 1/4" in capsys.readouterr().out


@pytest.mark.emulated
def test_on_a_card_that_the_evaluation_alone_does_not_fit_its_chunks_do(tmp_path: Path) -> None:
    """Training reserves 140 MiB, a whole evaluation 178 at least, and beside the context the card has 160."""
    (tmp_path / "wide.yaml").write_text("configurations: [{name: wide, hidden_dim: 256, num_layers: 4, epochs: 2}]")
    options = ["--auto-memory", "--no-calibration", "--gpu-memory-buffer-gb", "0", "--on-oom", "accumulate"]
    study = ["run", "--config", "wide.yaml", "--device", "cuda", "--output", "out", "--backoff", "0", *options]
    printed_on_cards(tmp_path, "-m", "tuner", *study, sizes=(660,))
    first, second = attempts(tmp_path / "out")
    assert (first["status"], first["phase"]) == ("out_of_memory", "evaluation")
    assert (second["status"], second["config/evaluation_parts"]) == ("completed", 2)
    assert "config/accumulation" not in second
