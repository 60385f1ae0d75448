"""A transformer's sizes from TOML files and options, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from tuner.errors import InputError
from tuner.sizing.transformers.gpu_memory import transformer_config

TABLES = """
learning_rate = 1e-4
[model]
model-embd = 384
model_layer = 6
model_positions = 512
[training]
batch_size = 24
mixed_precision = true
[data]
seq_len = "not ours"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "model.toml"
    path.write_text(text)
    return str(path)


def test_sizes_under_model_and_training_and_what_is_left_out(tmp_path: Path) -> None:
    config = transformer_config(written(tmp_path, TABLES), {})
    assert (config.model_embd, config.model_layer, config.batch_size) == (384, 6, 24)
    assert (config.model_head, config.seq_len, config.mixed_precision) == (6, 512, True)


def test_sizes_at_the_top_level_and_options_that_win(tmp_path: Path) -> None:
    path = written(tmp_path, "model_embd = 128\nmodel_layer = 2\nbatch_size = 4\ncheckpointing = true\n")
    config = transformer_config(path, {"batch_size": 8, "seq_len": 64, "model_layer": None, "checkpointing": False})
    assert (config.batch_size, config.model_layer, config.checkpointing) == (8, 2, False)
    assert (config.model_positions, config.model_head) == (64, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_embd = '384'", r"model\.toml: model_embd '384': give a whole number"),
        ("model_embd = true", "model_embd True: give a whole number"),
        ("mixed_precision = 1", "mixed_precision 1: give true or false"),
        ("model_embd = 64\nbatch_size = 1", "model_layer is missing: give model_layer, or"),
        ("lr = 1", "no size is in it: write model_embd, model_layer, batch_size"),
        ("model_embd = 64\n[model]\nmodel_embd = 32", "model_embd 32: occurs twice"),
        ("model_embd = ", "not TOML: Invalid value"),
        ("model_embd = " + "[" * 3000, "not TOML: maximum recursion depth exceeded"),
        (
            "model_embd = 6\nmodel_head = 4\nmodel_layer = 1\nbatch_size = 1",
            r"model\.toml: model_head 4 does not divide",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        transformer_config(written(tmp_path, text), {})
    assert "\n" not in str(caught.value)


def test_a_key_that_is_nearly_one_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text("model_embd = 64\nmodel_type = 'gpt'\nmixed_precison = true\n")
    with pytest.raises(InputError, match="unknown key 'mixed_precison': did you mean mixed_precision"):
        transformer_config(str(path), {})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file or directory: give a TOML file"):
        transformer_config(str(tmp_path / "none.toml"), {})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"model_embd": 100}, "model_embd 100 has no whole number of heads of 64: give model_head"),
        ({"model_head": 5}, "model_head 5 does not divide model_embd 64"),
        ({"model_positions": 8, "seq_len": 9}, "seq_len 9 is more than model_positions 8"),
        ({"batch_size": 0}, "batch_size 0: give a whole number from 1 on"),
        ({"model_embd": 0}, "model_embd 0: give a whole number from 1 on"),
        ({"attention": "flash"}, "attention 'flash': choose sdpa or explicit"),
    ],
)
def test_sizes_of_which_there_is_no_model_are_refused(sizes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        transformer_config(None, {"model_embd": 64, "model_layer": 1, "batch_size": 1, **sizes})


def test_an_estimate_of_a_transformer_has_three_precisions_and_needs_no_gpu() -> None:
    found = dict(tuner.estimate(model_embd=768, model_layer=12, batch_size=8))
    assert list(found) == ["float32", "amp", "half"]
    assert found["float32"].parameter_bytes == 4 * 123_944_448
    assert {estimate.method for estimate in found.values()} == {"formula"}
    assert found["amp"].total_bytes < found["float32"].total_bytes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mode": "full"}, "mode has no effect on a transformer"),
        ({"overrides": ("a=1",)}, "overrides has no effect"),
        ({"step": lambda: None}, "step has no effect"),
    ],
)
def test_a_transformer_and_a_study_at_once_are_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tuner.estimate(model_embd=64, model_layer=1, batch_size=1, **more)  # type: ignore[arg-type]
