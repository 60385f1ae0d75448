"""Generated CAN traffic with and without attacks, for when there are no recordings at hand and for tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_frames import Frames, in_order
from tuner.errors import InputError

# As in a recorded car: how often IDs are sent, in seconds, and how many there are of each.
PERIODS = (0.01,) * 14 + (0.02,) * 5 + (0.05,) * 2 + (0.1,) * 4 + (1.0,) * 2
JITTER = 0.0003  # seconds, the standard deviation of a frame's delay
BURSTS = 10  # of an attack in a recording: there are some in each part of a split by time
ATTACKED = 0.4  # of the time
GAPS = {"dos": 0.0005, "fuzzing": 0.001}  # seconds between injected frames
CONSTANT, COUNTER, SIGNAL, NOISE = range(4)  # what a byte can be


@dataclass(frozen=True)
class Message:
    """What an ID sends."""

    identifier: int
    period: float  # seconds between frames
    length: int  # bytes of a frame
    kinds: NDArray[np.int64]  # (8,) what each byte is
    values: NDArray[np.int64]  # (8,) where each begins


def synthetic_can(frames: int = 25_000, *, seed: int = 0) -> dict[str, Frames]:
    """Frames of one car's traffic in three recordings, by name: no attack, denial of service, fuzzing.

    27 IDs are sent at fixed periods, give or take; their bytes stand still, count, follow a slow signal or are
    noise. The first attack floods the bus with frames of ID 0 and zeros, the second sends random IDs and bytes; both
    come in bursts.
    """
    if frames < 1:
        raise InputError(f"frames {frames}: must be at least 1")
    random = np.random.default_rng(seed)
    messages = _messages(random)
    recordings = {}
    for attack in ("attack_free", "dos", "fuzzing"):
        # Long enough for the frames without the injected ones; what is too much is cut off.
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
    """An ID's frames over so many seconds."""
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
    """An attack's frames: the bursts are spread evenly over so many seconds."""
    period = seconds / BURSTS
    burst = np.arange(0, ATTACKED * period, GAPS[attack])
    begins = (np.arange(BURSTS) + random.uniform(0, 1 - ATTACKED, BURSTS)) * period
    time = (begins[:, None] + burst).ravel() + random.normal(0, JITTER / 10, BURSTS * len(burst))
    count = len(time)
    # A denial of service is of frames that win every arbitration: ID 0.
    identifiers, values = (1, 1) if attack == "dos" else (0x800, 0x100)
    identifier, data = random.integers(0, identifiers, count), random.integers(0, values, (count, 8))
    return Frames(time, identifier.astype(np.int32), data.astype(np.uint8), np.ones(count, dtype=bool))
