"""What becomes of a trial whose process has ended without a result."""

from __future__ import annotations

import time
from typing import Any

from tuner.machine.caps import near_cap
from tuner.trial import EpochReport, Outcome, Placement, Status


def lost_outcome(
    placement: Placement, report: EpochReport | None, started: float, status: Status, error: str, **known: Any
) -> Outcome:
    """The outcome of a trial whose process cannot report any more, after its last report; ``known`` are more fields.

    ``started`` is by the monotonic clock.
    """
    return Outcome(
        placement.trial,
        status,
        placement,
        epochs=report.epoch if report else 0,
        seconds=time.monotonic() - started,
        error=error,
        phase="training" if report else "start",
        reusable=False,
        **known,
    )


def at_cap(placement: Placement, report: EpochReport | None) -> bool:
    """Whether a trial's last reported peak in RAM was almost its whole share."""
    peak = report.memory_bytes if report else None
    return placement.device.kind == "cpu" and near_cap(peak, placement.limit_bytes)
