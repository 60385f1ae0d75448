"""Lines through measured batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tuner.sizing.batch_size_finder.measuring import Line, measure_line


def measured(peak: Callable[[int], int], **options: int) -> tuple[Line, list[int]]:
    ran: list[int] = []

    def run(size: int) -> int:
        ran.append(size)
        return peak(size)

    settings = {"model_bytes": 100, "room_bytes": 10**9, "first": 1, "most": 4096, **options}
    return measure_line(run, **settings), ran


def test_a_line_takes_few_batches() -> None:
    line, ran = measured(lambda size: 150 + 50 * size)
    assert ran == [1, 2, 4]
    assert line.at(1000) == 50_150


def test_samples_that_gradients_hide_are_seen_in_larger_batches() -> None:
    line, ran = measured(lambda size: max(10_000, 50 * size), model_bytes=3000)
    assert max(ran) > 400
    assert line.at(4096) == 50 * 4096


def test_no_batch_is_run_that_should_not_fit() -> None:
    peaks = []
    measured(lambda size: peaks.append(150 + 500 * size**2) or peaks[-1], room_bytes=40_000)
    assert max(peaks) <= 40_000


def test_memory_that_runs_out_ends_it() -> None:
    def peak(size: int) -> int:
        if size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 150 + size

    assert measured(peak)[0].at_most == 4


def test_another_error_is_raised() -> None:
    def peak(size: int) -> int:
        if size > 1:
            raise ValueError("no")
        return 150

    with pytest.raises(ValueError, match="no"):
        measured(peak)


def test_all_samples_that_were_given_are_in_a_batch_of_their_own_number() -> None:
    assert 48 in measured(lambda size: 150 + 50 * size, count=48)[1]


def test_a_smaller_batch_takes_no_more_than_a_larger_one() -> None:
    line = Line({0: 100, 1: 5000, 2: 5000, 4: 8000})
    assert [line.at(size) for size in (1, 2, 3, 4, 6)] == [5000, 5000, 6500, 8000, 11_000]
