"""The closed formula for transformers, against the traced step of the model that it is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tuner
from scripts.benchmarks.gpt_model import training_step
from tuner.errors import InputError
from tuner.estimation.tracing.tracer import trace_step
from tuner.sizing.transformers.formula import PRECISIONS, Precision, TransformerConfig, footprint, parameter_count

# The guide's models.
SMALL = TransformerConfig(512, 384, 6, 6, batch_size=24, seq_len=512)
MEDIUM = TransformerConfig(512, 768, 12, 12, batch_size=8, seq_len=512)
LARGE = TransformerConfig(512, 1024, 24, 16, batch_size=4, seq_len=512)

# Each has its peak at another moment, for another reason.
SHAPES = {
    "loss": TransformerConfig(64, 64, 2, 2, 8, 60, vocabulary=3000),
    "head": TransformerConfig(64, 128, 1, 2, 1, 16, vocabulary=3000, tied=False),
    "backward": TransformerConfig(128, 64, 4, 4, 8, 100, vocabulary=200),
    "scores": TransformerConfig(256, 64, 2, 4, 2, 256, vocabulary=100, attention="explicit"),
    "checkpointing": TransformerConfig(128, 128, 6, 2, 8, 128, vocabulary=1500, checkpointing=True),
    "scores again": TransformerConfig(
        256, 64, 3, 4, 2, 250, vocabulary=100, attention="explicit", checkpointing=True
    ),
    "embedding": TransformerConfig(64, 256, 3, 4, 1, 32, vocabulary=2000),
}


def traced_bytes(config: TransformerConfig, precision: Precision, kind: str) -> int:
    return trace_step(lambda: training_step(config, precision, kind), device_kind=kind).peak_bytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_formula_agrees_with_the_trace(shape: str, precision: Precision) -> None:
    config = SHAPES[shape]
    assert footprint(config, precision, "cpu").total_bytes == pytest.approx(
        traced_bytes(config, precision, "cpu"), rel=0.03
    )


@pytest.mark.parametrize("shape", ["loss", "scores", "scores again"])
def test_the_formula_agrees_with_the_trace_for_a_gpu(shape: str) -> None:
    config = SHAPES[shape]
    assert footprint(config, "amp", "cuda").total_bytes == pytest.approx(
        traced_bytes(config, "amp", "cuda"), rel=0.03
    )


def test_autocast_computes_a_softmax_in_float32_on_a_gpu_only() -> None:
    config = SHAPES["scores"]
    assert footprint(config, "amp", "cuda").activation_bytes > 1.3 * footprint(config, "amp", "cpu").activation_bytes


@pytest.mark.parametrize(("config", "millions"), [(SMALL, 30.12), (MEDIUM, 123.94), (LARGE, 354.03)])
def test_parameters_of_the_guides_models(config: TransformerConfig, millions: float) -> None:
    assert round(parameter_count(config) / 1e6, 2) == millions


def test_the_model_has_the_parameters_that_are_counted() -> None:
    for config in SHAPES.values():
        model, _, _ = training_step(config, "float32")
        assert sum(p.numel() for p in model.parameters()) == parameter_count(config)


def test_the_parts_add_up_to_the_total() -> None:
    found = tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512)
    total, count = found.pop("total_estimated_gb"), found.pop("model_parameters")
    assert count == 30_117_120
    assert total == pytest.approx(sum(found.values()))
    assert found["logits_gb"] == pytest.approx(3 * 24 * 512 * 50_257 * 4 / 2**30)


def test_without_activations_and_optimizer_there_are_weights_gradients_and_tokens() -> None:
    found = tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512, 2, False, False)
    assert (found["activations_gb"], found["logits_gb"], found["optimizer_state_gb"]) == (0, 0, 0)
    assert found["gradients_gb"] == found["model_weights_gb"] == pytest.approx(2 * 30_117_120 / 2**30)


def test_checkpointing_takes_less_where_blocks_are_the_peak() -> None:
    config = replace(SHAPES["backward"], model_layer=8)
    kept, again = (
        footprint(replace(config, checkpointing=checkpointing), "float32").total_bytes
        for checkpointing in (False, True)
    )
    assert again < kept / 2


def test_a_dtype_of_three_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="dtype_bytes 3: give 4 for float32, or 2"):
        tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512, 3)


def test_mixed_precision_keeps_weights_of_four_bytes() -> None:
    with pytest.raises(InputError, match="dtype_bytes 2 with mixed_precision"):
        tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512, 2, mixed_precision=True)
