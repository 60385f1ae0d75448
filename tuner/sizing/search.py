"""The largest batch whose footprint fits, however the footprint is known: by formula, by tracing or by measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tuner.errors import InputError, option
from tuner.trial import GB

# What bounds are called: the memory, a batch that has all samples, and the user's own bound.
MEMORY, TRAINING_SET, USERS_BOUND = "memory", "the training set", "max_batch_size"
Need = Callable[[int], int]  # bytes that a batch of so many samples takes


class DoesNotFit(InputError):
    """Not even the smallest batch fits: what it takes, and what there is."""

    def __init__(self, text: str, need_bytes: int, limit_bytes: int) -> None:
        """Says what is missing."""
        super().__init__(text)
        self.need_bytes = need_bytes
        self.limit_bytes = limit_bytes


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, and what keeps it from being larger: "memory", or what the bound is called.

    ``beyond_bytes`` is what one sample more would take; None where the batch is bounded otherwise.
    """

    batch_size: int
    need_bytes: int
    beyond_bytes: int | None
    stopped_by: str


def largest_batch(
    need: Need, limit_bytes: int, *, at_least: int = 1, at_most: int, bound: str, growth: int = 0
) -> LargestBatch:
    """The largest batch size that takes no more than ``limit_bytes``.

    A footprint is nearly linear in the batch, so a line through the ends of the interval that is left is a good
    guess; the interval is halved where that guess does not get on. Each size is asked for once.

    Args:
        need: the footprint in bytes; it must not fall as the batch grows.
        limit_bytes: what there is.
        at_least: the smallest batch of interest.
        at_most: the largest.
        bound: what ``at_most`` is called, such as "the training set".
        growth: where it is not 0, a size is asked for only if a batch so many times smaller fits.

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
    """Refuses a smallest batch above the largest that there can be, which ``bound`` names.

    Raises:
        InputError: it is.
    """
    if at_least > at_most:
        raise InputError(f"{option('min_batch_size', at_least)} is above {at_most}, {bound}: lower it")


def _on_the_line(need: Need, fits: int, beyond: int, limit_bytes: int) -> int:
    """Where the line through both ends meets the limit; strictly between them."""
    share = (limit_bytes - need(fits)) / (need(beyond) - need(fits))
    return min(max(fits + int(share * (beyond - fits)), fits + 1), beyond - 1)
