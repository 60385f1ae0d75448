"""The search for the largest batch whose footprint fits, for any source of footprints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tuner.errors import InputError, option
from tuner.trial import GB

MEMORY, TRAINING_SET, USERS_BOUND = "memory", "the training set", "max_batch_size"  # the names of bounds
Need = Callable[[int], int]  # from a batch's samples to its bytes


class DoesNotFit(InputError):
    """Not even the smallest batch fits."""

    def __init__(self, text: str, need_bytes: int, limit_bytes: int) -> None:
        """Takes the smallest batch's need and the limit."""
        super().__init__(text)
        self.need_bytes = need_bytes
        self.limit_bytes = limit_bytes


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, and the name of its bound.

    ``beyond_bytes`` is the memory with one more sample, or None if memory is not the bound.
    """

    batch_size: int
    need_bytes: int
    beyond_bytes: int | None
    stopped_by: str


def largest_batch(
    need: Need, limit_bytes: int, *, at_least: int = 1, at_most: int, bound: str, growth: int = 0
) -> LargestBatch:
    """The largest batch size that takes no more than ``limit_bytes``.

    A footprint is nearly linear in the batch, so a line through the interval's ends is a good guess. If a guess does
    not halve the interval, bisection follows. ``need`` must not decrease with the batch, and is called once per size.
    ``bound`` is the name of ``at_most``. A ``growth`` above 0 limits a tried size to this multiple of one that fits.

    Raises:
        DoesNotFit: a batch of ``at_least`` takes more.
    """
    need = cache(need)
    if need(at_least) > limit_bytes:
        raise DoesNotFit(does_not_fit(at_least, need(at_least), limit_bytes), need(at_least), limit_bytes)
    fits, beyond = at_least, at_least if growth else at_most
    while beyond < at_most and need(beyond) <= limit_bytes:
        fits, beyond = beyond, min(growth * beyond, at_most)
    if need(beyond) <= limit_bytes:
        return LargestBatch(beyond, need(beyond), None, bound)
    halve = False
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        guess = middle if halve else _on_the_line(need, fits, beyond, limit_bytes)
        before = beyond - fits
        fits, beyond = (guess, beyond) if need(guess) <= limit_bytes else (fits, guess)
        halve = beyond - fits > before // 2
    return LargestBatch(fits, need(fits), need(beyond), MEMORY)


def does_not_fit(batch: int, need_bytes: int, limit_bytes: int) -> str:
    """By how much a batch does not fit, in words."""
    short = need_bytes - limit_bytes
    return (
        f"a batch of {batch} takes {need_bytes / GB:.2f} GB, {short / GB:.2f} GB more than the "
        f"{limit_bytes / GB:.2f} GB that there are"
    )


def check_least(at_least: int, at_most: int, bound: str) -> None:
    """Raises ``InputError`` if the smallest batch is above the largest, which is ``bound``."""
    if at_least > at_most:
        raise InputError(f"{option('min_batch_size', at_least)} is above {at_most}, {bound}: lower it")


def _on_the_line(need: Need, fits: int, beyond: int, limit_bytes: int) -> int:
    """The size at which the line through both ends reaches the limit, strictly between them."""
    share = (limit_bytes - need(fits)) / (need(beyond) - need(fits))
    return min(max(fits + int(share * (beyond - fits)), fits + 1), beyond - 1)
