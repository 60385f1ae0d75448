"""Attempts as bars on a timeline, and what ran at the same time."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tuner.records.attempts import Attempt

# A pause of all devices is left out if it is longer than PAUSE_SECONDS and than PAUSE_SHARE of the busy time.
PAUSE_SECONDS = 30.0
PAUSE_SHARE = 0.1


@dataclass(frozen=True)
class Bar:
    """An attempt on its device."""

    trial_id: str
    device: str  # its label
    attempt: int  # from 1
    status: str
    start: float  # seconds from the first attempt's placement
    end: float
    reserved_gb: float
    used_gb: float | None  # its peak; None if unknown
    lane: int = 0  # the line on which it is drawn, from 0


def to_bars(attempts: Sequence[Attempt]) -> list[Bar]:
    """The attempts with known times and devices; times are in seconds since the first. All lanes are 0."""
    known = [
        (row, row.device, row.started_at, row.ended_at)
        for row in attempts
        if row.device and row.started_at is not None and row.ended_at is not None and row.ended_at >= row.started_at
    ]
    zero = min((started for _, _, started, _ in known), default=0.0)
    times = [(round(started - zero, 3), round(ended - zero, 3)) for _, _, started, ended in known]
    return [
        Bar(row.trial_id, device, row.attempts, row.status, *both, row.limit_gb or 0.0, row.peak_memory_gb)
        for (row, device, _, _), both in zip(known, times, strict=True)
    ]


def in_lanes(bars: Sequence[Bar]) -> list[Bar]:
    """The bars in the order of their start, each on the lowest lane that is free then."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        while busy and busy[0][0] <= bar.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (bar.end, lane))
        placed.append(replace(bar, lane=lane))
    return placed


def without_pauses(bars: Sequence[Bar]) -> tuple[list[Bar], list[tuple[float, float]]]:
    """The bars without long pauses of all devices, such as before a study is resumed.

    Returns:
        The shifted bars, and each pause's new time and its length in seconds.
    """
    ordered = sorted(bars, key=lambda bar: bar.start)
    gaps, until, busy = [], ordered[0].start if ordered else 0.0, 0.0
    for bar in ordered:
        if bar.start > until:
            gaps.append((until, bar.start - until))
        busy += max(0.0, bar.end - max(bar.start, until))
        until = max(until, bar.end)
    long = [(at, length) for at, length in gaps if length > max(PAUSE_SECONDS, PAUSE_SHARE * busy)]
    left_out = [0.0, *accumulate(length for _, length in long)]  # before each pause, and after the last
    moved = []
    for bar in ordered:
        back = left_out[bisect_left(long, (bar.start,))]
        moved.append(replace(bar, start=round(bar.start - back, 3), end=round(bar.end - back, 3)))
    return moved, [(round(at - back, 3), length) for (at, length), back in zip(long, left_out, strict=False)]


def memory_over_time(bars: Sequence[Bar]) -> list[tuple[float, float, float]]:
    """The memory that running attempts have reserved, and the sum of their peaks, after each change.

    Returns:
        Time in seconds, reserved GB and used GB. An attempt's peak counts while it runs; an unknown peak counts as 0.
    """
    changes: dict[float, list[float]] = {}
    for bar in bars:
        for at, sign in ((bar.start, 1), (bar.end, -1)):
            change = changes.setdefault(at, [0.0, 0.0])
            change[0] += sign * bar.reserved_gb
            change[1] += sign * (bar.used_gb or 0.0)
    steps, reserved, used = [], 0.0, 0.0
    for at in sorted(changes):
        reserved, used = reserved + changes[at][0], used + changes[at][1]
        steps.append((at, round(max(0.0, reserved), 4), round(max(0.0, used), 4)))
    return steps


def used_share(bars: Sequence[Bar]) -> float | None:
    """The peaks' share of the reserved GB-seconds, over the attempts with a known peak."""
    known = [bar for bar in bars if bar.used_gb is not None and bar.reserved_gb]
    reserved = sum(bar.reserved_gb * (bar.end - bar.start) for bar in known)
    return sum((bar.used_gb or 0.0) * (bar.end - bar.start) for bar in known) / reserved if reserved else None
