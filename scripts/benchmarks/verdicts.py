"""What a benchmark was held to."""

from __future__ import annotations

from collections.abc import Sequence


def print_verdicts(found: Sequence[tuple[bool, str]]) -> bool:
    """Prints which bars are met, and returns whether all are."""
    for met, text in found:
        print(f"{'PASS' if met else 'FAIL'}  {text}")
    return all(met for met, _ in found)
