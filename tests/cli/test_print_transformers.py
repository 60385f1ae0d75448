"""What ``tune estimate MODEL.toml`` prints, and the line that tells how to watch a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import refused, said
from tuner.cli.print_plan import advice
from tuner.decisions.plan import make_plan
from tuner.reporting.plan_text import monitoring_text
from tuner.sizing.transformers.formula import TransformerConfig
from tuner.sizing.transformers.gpu_memory import largest_batches, transformer_estimates
from tuner.trial import GB, MB, Device

ROOT = Path(__file__).parents[2]


def test_a_toml_file_is_estimated_in_three_precisions_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text("[model]\nmodel_embd = 384\nmodel_layer = 6\n[training]\nbatch_size = 24\nlr = 0.1\n")
    command = [sys.executable, str(ROOT / "scripts/estimate_memory.py"), str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert [line.split()[0] for line in run.stdout.splitlines()[1:4]] == ["float32", "amp", "half"]
    assert "parameters 30.12 M" in run.stdout
    assert "advice     float32 takes 9.03 GB without the context: high: reduce the batch" in run.stdout
    assert "largest float32 batch within 85% of a card, context included: 8 GB 16, 12 GB 25" in run.stdout
    assert "nvidia-smi -l 1 --query-gpu=memory.used,memory.total,memory.free --format=csv" in run.stdout


def test_options_alone_print_json_with_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys, "estimate", "--model-embd", "64", "--model-layer", "2", "--batch-size", "2", "--json")
    records = {record["name"]: record for record in json.loads(printed)}
    assert list(records) == ["float32", "amp", "half"]
    assert records["half"]["logits_gb"] == pytest.approx(3 * 2 * 512 * 50_257 * 2 / 2**30, abs=1e-4)


def test_a_missing_size_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "estimate", "--model-embd", "64", "--batch-size", "2")
    assert line == "error: model_layer is missing: give --model-layer, or a TOML file that has it"


def test_the_largest_batch_of_a_card_fits_and_one_more_does_not(gpu_16gb: Device) -> None:
    config = TransformerConfig(
        model_positions=512, model_embd=1024, model_layer=24, model_head=16, batch_size=1, seq_len=512
    )
    found = largest_batches(config, "float32")
    assert list(found) == [8, 12, 16, 24, 40, 80] and found[8] < found[80]

    def need(batch: int) -> float:
        return transformer_estimates(replace(config, batch_size=batch), gpu_16gb)[0][1].total_bytes / GB

    assert all(need(batch) <= 0.85 * gb < need(batch + 1) for gb, batch in found.items() if batch)


@pytest.mark.parametrize(
    ("gb", "text"), [(3.9, "reasonable"), (4, "moderate"), (8, "high"), (11.9, "high"), (12, "very high")]
)
def test_advice_comes_in_bands(gb: float, text: str) -> None:
    assert advice(gb).startswith(text)


def test_a_plan_on_a_gpu_tells_how_to_watch_it(gpu_16gb: Device) -> None:
    on_gpu, on_cpu = (
        make_plan([device], [1], packing="uniform", buffer_bytes=0)
        for device in (gpu_16gb, replace(gpu_16gb, kind="cpu"))
    )
    assert monitoring_text(on_gpu).startswith("watch      nvidia-smi -l 1 --query-gpu=memory.used")
    assert monitoring_text(on_cpu) == ""


def test_a_transformers_footprint_has_the_context_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.estimation.overheads._context_on", lambda device: (742 * MB, ""))
    here = Device("", "cuda", 0, "a GPU", 16 * GB, 16 * GB, cores=4, uuid="GPU-1")
    config = TransformerConfig(512, 384, 6, 6, batch_size=24, seq_len=512)
    assert {estimate.context_bytes for _, estimate in transformer_estimates(config, here)} == {742 * MB}
