"""Synthetic CAN traffic with and without attacks, for demonstrations and tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_frames import Frames, in_order
from tuner.errors import InputError

# The period of each ID in seconds, as in a recorded car.
PERIODS = (0.01,) * 14 + (0.02,) * 5 + (0.05,) * 2 + (0.1,) * 4 + (1.0,) * 2
JITTER = 0.0003  # seconds, the standard deviation of a frame's delay
BURSTS = 10  # the number of an attack's bursts in a recording; each split by time has some
ATTACKED = 0.4  # the share of the time with injected frames
GAPS = {"dos": 0.0005, "fuzzing": 0.001}  # seconds between injected frames
CONSTANT, COUNTER, SIGNAL, NOISE = range(4)  # the kinds of bytes


@dataclass(frozen=True)
class Message:
    """The frames of an ID."""

    identifier: int
    period: float  # seconds between frames
    length: int  # the number of bytes of a frame
    kinds: NDArray[np.int64]  # (8,) the kind of each byte
    values: NDArray[np.int64]  # (8,) the initial value of each byte


def synthetic_can(frames: int = 25_000, *, seed: int = 0) -> dict[str, Frames]:
    """Three recordings of one car's traffic by name: no attack, denial of service, fuzzing.

    27 IDs are sent periodically with jitter. Their bytes are constants, counters, slow signals or noise. The first
    attack floods the bus with frames of ID 0 and zeros, the second sends random IDs and bytes, both in bursts.
    """
    if frames < 1:
        raise InputError(f"frames {frames}: must be at least 1")
    random = np.random.default_rng(seed)
    messages = _messages(random)
    recordings = {}
    for attack in ("attack_free", "dos", "fuzzing"):
        # Long enough without injected frames; further frames are cut off.
        seconds = 1.1 * frames / sum(1 / period for period in PERIODS)
        parts = [_sent(message, seconds, random) for message in messages]
        if attack in GAPS:
            rate = sum(map(len, parts)) / seconds
            seconds *= rate / (rate + ATTACKED / GAPS[attack])
            parts.append(_injected(attack, seconds, random))
        every = in_order(parts)
        recordings[f"{attack}_synthetic"] = every.take(slice(0, frames))
    return recordings


def _messages(random: np.random.Generator) -> list[Message]:
    identifiers = np.sort(random.choice(np.arange(1, 0x7FF), len(PERIODS), replace=False))
    return [
        Message(
            int(identifier),
            period,
            8 if random.random() < 0.9 else int(random.integers(2, 8)),
            random.choice(4, 8, p=(0.5, 0.1, 0.3, 0.1)),
            random.integers(0, 256, 8),
        )
        for identifier, period in zip(identifiers, random.permutation(PERIODS), strict=True)
    ]


def _sent(message: Message, seconds: float, random: np.random.Generator) -> Frames:
    """An ID's frames over this number of seconds."""
    count = int(seconds / message.period) + 1
    number = np.arange(count)
    time = (number + random.random()) * message.period + random.normal(0, JITTER, count)
    data = np.zeros((count, 8), dtype=np.uint8)
    for byte in range(message.length):
        start, kind = int(message.values[byte]), message.kinds[byte]
        if kind == NOISE:
            data[:, byte] = random.integers(0, 256, count)
        elif kind == SIGNAL:
            data[:, byte] = 127 + 60 * np.sin(time * (0.2 + byte / 8) + start) + random.normal(0, 2, count)
        else:
            data[:, byte] = (start + number * (kind == COUNTER)) % 256
    return Frames(time, np.full(count, message.identifier, dtype=np.int32), data, np.zeros(count, dtype=bool))


def _injected(attack: str, seconds: float, random: np.random.Generator) -> Frames:
    """An attack's frames, in bursts that are spread evenly over this number of seconds."""
    period = seconds / BURSTS
    burst = np.arange(0, ATTACKED * period, GAPS[attack])
    begins = (np.arange(BURSTS) + random.uniform(0, 1 - ATTACKED, BURSTS)) * period
    time = (begins[:, None] + burst).ravel() + random.normal(0, JITTER / 10, BURSTS * len(burst))
    count = len(time)
    # A denial of service sends frames with ID 0, which wins every arbitration.
    identifiers, values = (1, 1) if attack == "dos" else (0x800, 0x100)
    identifier, data = random.integers(0, identifiers, count), random.integers(0, values, (count, 8))
    return Frames(time, identifier.astype(np.int32), data.astype(np.uint8), np.ones(count, dtype=bool))
