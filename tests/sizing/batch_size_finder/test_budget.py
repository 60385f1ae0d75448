"""The budget's text."""

from __future__ import annotations

from dataclasses import replace

from tuner import MemoryBudget
from tuner.trial import MB


def budget() -> MemoryBudget:
    return MemoryBudget(
        total_bytes=16_000 * MB,
        free_bytes=600 * MB,
        limit_bytes=11_200 * MB,
        need_bytes=11_199 * MB,
        context_bytes=500 * MB,
        parameter_bytes=10 * MB,
        embedding_bytes=5 * MB,
        optimizer_bytes=20 * MB,
        gradient_bytes=10 * MB,
        teacher_bytes=0,
        available_bytes=10_000 * MB,
        activation_bytes=50 * MB,
        per_sample_bytes=3146,
        fragmentation=0.1,
        batch_size=2048,
        mode="measured",
        stopped_by="memory",
    )


def test_the_text_is_one_line_in_mb() -> None:
    assert str(budget()) == (
        "MemoryBudget(total=16000MB static=545.0MB [params=10.0 embed=5.0 opt=20.0 grad=10.0 teacher=0.0] "
        "activation=50.0MB per_graph=0.003MB available=10000.0MB batch_size=2048 mode=measured)"
    )


def test_free_memory_that_was_the_limit_is_told_with_who_knows_of_the_rest() -> None:
    told = str(replace(budget(), stopped_by="free memory"))
    assert told.endswith(
        "mode=measured free=600MB: other programs, or this one's other tensors, hold the rest (`tuner doctor` names "
        "programs on a GPU))"
    )


def test_what_is_static_is_the_context_and_all_that_lives_as_long_as_the_training() -> None:
    assert (budget().model_bytes, budget().static_bytes) == (45 * MB, 545 * MB)
