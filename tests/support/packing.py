"""What a packer starts, for tests that need no loop."""

from __future__ import annotations

from tuner.decisions.packer import Packer
from tuner.trial import Placement


def start_all(packer: Packer) -> list[Placement]:
    """Starts the trials that fit now."""
    placed: list[Placement] = []
    while found := packer.next():
        packer.start(found[1])
        placed.append(found[1])
    return placed
