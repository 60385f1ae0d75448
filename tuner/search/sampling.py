"""Configurations drawn at random from a space: the same seed, the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tuner.errors import InputError
from tuner.search.domains import Space, size

PATIENCE = 1000  # so many draws in a row may be of no use


def draw(
    space: Space, number: int, seed: int, source: str, usable: Callable[[Mapping[str, Any]], str] = lambda _: ""
) -> list[dict[str, Any]]:
    """So many different values from a space.

    Args:
        space: what to draw from.
        number: how many.
        seed: of the draws.
        source: what error messages call the space.
        usable: says why values do not go together; empty if they do. Those that do not are drawn again.

    Raises:
        InputError: the space has not so many.
    """
    if number > size(space):
        raise InputError(f"--num-samples {number}: {source} has {size(space):g}: give at most so many")
    random = Random(seed)
    drawn: list[dict[str, Any]] = []
    in_vain, reason = 0, ""
    while len(drawn) < number:
        values = {key: domain.sample(random) for key, domain in space.items()}
        reason = "all were drawn already" if values in drawn else usable(values)
        in_vain = in_vain + 1 if reason else 0
        if in_vain == PATIENCE:
            raise InputError(
                f"--num-samples {number}: {source} gave {len(drawn)} that can be used, and then none in {PATIENCE} "
                f"draws, the last as {reason}"
            )
        if not reason:
            drawn.append(values)
    return drawn
