"""What other programs and other studies leave of the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.trial import Device


@dataclass(frozen=True)
class Bounds:
    """What may be placed now."""

    rooms: Mapping[Device, int]  # the bytes of each device; a device that is missing has no bound
    most: int | None = None  # the number of trials; None for no bound
    ram_bytes: int | None = None  # of this machine's RAM beside its GPUs; None for no bound
