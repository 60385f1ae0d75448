"""The search for the largest batch that fits."""

from __future__ import annotations

import pytest

from tuner.sizing.choices import DoesNotFit, largest_batch
from tuner.trial import GB


@pytest.mark.parametrize("limit", [1_000, 1_009, 1_010, 123_456, 9_999_999])
def test_the_largest_batch_fits_and_one_more_does_not(limit: int) -> None:
    found = largest_batch(lambda batch: 990 + 10 * batch, limit, at_most=10**9, bound="the data")
    assert found.need_bytes <= limit < found.beyond_bytes == found.need_bytes + 10
    assert (found.batch_size, found.stopped_by) == ((limit - 990) // 10, "memory")


def test_a_bound_that_fits_is_named() -> None:
    found = largest_batch(lambda batch: batch, GB, at_most=128, bound="max_batch_size")
    assert (found.batch_size, found.beyond_bytes, found.stopped_by) == (128, None, "max_batch_size")


@pytest.mark.parametrize("need", [lambda b: b**3, lambda b: b // 512 * 512 * 4096, lambda b: max(b, 10**6)])
def test_footprints_that_are_no_lines_are_searched_too(need) -> None:
    asked: list[int] = []

    def counted(batch: int) -> int:
        asked.append(batch)
        return need(batch)

    found = largest_batch(counted, 10**9 + 1, at_most=10**10, bound="the data")
    assert need(found.batch_size) <= 10**9 + 1 < need(found.batch_size + 1)
    assert len(asked) == len(set(asked)) <= 70


def test_a_line_takes_a_handful_of_evaluations() -> None:
    asked: list[int] = []

    def need(batch: int) -> int:
        asked.append(batch)
        return 500_000_000 + 1_234 * batch

    largest_batch(need, 8 * GB, at_most=10**8, bound="the data")
    assert len(asked) <= 6


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(DoesNotFit, match=r"a batch of 1 takes 3\.00 GB, 1\.00 GB more than the 2\.00 GB") as raised:
        largest_batch(lambda batch: 3 * GB * batch, 2 * GB, at_most=8, bound="the data")
    assert (raised.value.need_bytes, raised.value.limit_bytes) == (3 * GB, 2 * GB)
