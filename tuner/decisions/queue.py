"""The trials that wait, and which of them starts next.

``Group`` holds trials of about the same needs, so that what fits a device is found without going through them all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from itertools import count
from operator import itemgetter

from tuner.trial import Request

# The negated seconds and need, so that sorted entries begin with the longest; the order of arrival; the need of RAM.
Entry = tuple[int, float, int, int, int, Request]  # the seed comes first
NEGATED_NEED, RAM = itemgetter(2), itemgetter(4)
BLOCK = 64  # the most entries of a block
PER_OCTAVE = 3  # classes of device memory for each doubling; of RAM there is one
URGENT = 0.3  # the share of the time that waiting trials need in any case, from which a trial is long


class Group:
    """Trials of about the same needs, sorted, in blocks whose smallest needs are known."""

    def __init__(self, most_bytes: float, most_ram: float) -> None:
        """Without a trial. None needs more than these bytes of memory and of RAM."""
        self._most_bytes, self._most_ram = most_bytes, most_ram
        self._blocks: list[list[Entry]] = []
        self._least: list[tuple[int, int]] = []  # of each block: the smallest need of memory, and of RAM
        self.least = 0, 0  # of all blocks

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def head(self) -> Entry:
        """The first trial, whether it fits or not."""
        return self._blocks[0][0]

    def add(self, entry: Entry) -> None:
        """Adds a trial."""
        at = min(bisect_left(self._blocks, entry, key=lambda block: block[-1]), max(0, len(self._blocks) - 1))
        if not self._blocks:
            self._blocks, self._least, self.least = [[]], [_needs(entry)], _needs(entry)
        block = self._blocks[at]
        insort(block, entry)
        self._least[at] = _smaller(self._least[at], _needs(entry))
        self.least = _smaller(self.least, _needs(entry))
        if len(block) > BLOCK:
            halves = [block[: BLOCK // 2], block[BLOCK // 2 :]]
            self._blocks[at : at + 1] = halves
            self._least[at : at + 1] = [_least(half) for half in halves]

    def remove(self, entry: Entry) -> None:
        """Takes a trial out."""
        at = bisect_left(self._blocks, entry, key=lambda block: block[-1])
        block, before = self._blocks[at], self._least[at]
        del block[bisect_left(block, entry)]
        if not block:
            del self._blocks[at], self._least[at]
        elif before[0] == -entry[2] or before[1] == entry[4]:
            self._least[at] = _least(block)
        if self._blocks and (not block or self._least[at] != before):
            self.least = min(need for need, _ in self._least), min(ram for _, ram in self._least)

    def first(self, room_bytes: float, ram_bytes: float) -> Entry | None:
        """The first trial in order that fits."""
        if self._most_bytes <= room_bytes and self._most_ram <= ram_bytes:
            return self.head
        for block, (need, ram) in zip(self._blocks, self._least, strict=True):
            if need <= room_bytes and ram <= ram_bytes:
                for entry in block:
                    if -entry[2] <= room_bytes and entry[4] <= ram_bytes:
                        return entry
        return None


def _needs(entry: Entry) -> tuple[int, int]:
    return -entry[2], entry[4]


def _least(block: list[Entry]) -> tuple[int, int]:
    return -max(map(NEGATED_NEED, block)), min(map(RAM, block))


def _smaller(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The smaller need of memory of two, and the smaller one of RAM."""
    return min(one[0], other[0]), min(one[1], other[1])


class Queue:
    """Waiting trials with the bytes that each will be given.

    If memory may keep a worker idle, the largest trial that fits starts first, and of about equally large ones the
    longest. But one that is long beside all that is left, or of unknown duration, starts before them, or the study
    would end with it alone. Otherwise the longest starts first, and of equally long ones the largest. Lower seeds go
    first, so that a study that ends early has results of every configuration.
    """

    def __init__(
        self, *, memory_binds: bool = True, memory_bytes: int = 1, ram_bytes: int = 0, slots: float = math.inf
    ) -> None:
        """An empty queue of devices with so much memory, RAM (0 if it is unknown) and so many slots in all."""
        self._memory_binds = memory_binds
        self._capacity = float(memory_bytes), ram_bytes or math.inf, slots
        self._order = count()
        self._groups: dict[tuple[int, int], Group] = {}  # by the classes of memory and RAM, the largest first
        self._entries: dict[str, Entry] = {}  # by trial id
        self._work = [0.0, 0.0, 0.0]  # seconds times memory, RAM and slots, of trials whose seconds are known

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def requests(self) -> list[Request]:
        """What waits."""
        return [entry[-1] for entry in self._entries.values()]

    @property
    def seconds(self) -> float:
        """The least time in which the devices can run what waits, as far as that is known."""
        return max(work / capacity for work, capacity in zip(self._work, self._capacity, strict=True))

    def add(self, request: Request, need: int, turn: int | None = None) -> None:
        """Adds a trial; ``turn`` is its order of arrival, by default after all others."""
        seconds = math.inf if request.seconds is None else request.seconds
        entry = (
            request.trial.seed,
            -seconds,
            -need,
            next(self._order) if turn is None else turn,
            request.host_bytes,
            request,
        )
        self._entries[request.trial.trial_id] = entry
        key = self._classes(entry)
        if key not in self._groups:
            self._groups[key] = Group(2 ** ((key[0] + 1) / PER_OCTAVE), 2 ** key[1] if key[1] else request.host_bytes)
            self._groups = dict(sorted(self._groups.items(), key=lambda item: self._share(item[0]), reverse=True))
        self._groups[key].add(entry)
        self._count(entry, 1)

    def first(self, room_bytes: float, ram_bytes: float) -> tuple[int, Request] | None:
        """Need and request of the next trial for a device with this free memory and RAM; None if none fits."""
        largest: Entry | None = None
        longest: Entry | None = None
        urgent = URGENT * self.seconds if self._memory_binds else -math.inf
        for group in self._groups.values():
            (need, ram), head = group.least, group.head
            if need > room_bytes or ram > ram_bytes:
                continue
            if largest and longest and head[0] >= largest[0] and (head > longest or -head[1] < urgent):
                continue  # none of them could go first
            if (found := group.first(room_bytes, ram_bytes)) is None:
                continue
            if largest is None or found[0] < largest[0]:
                largest = found
            if longest is None or found < longest:
                longest = found
        found = longest if longest and -longest[1] >= urgent else largest
        return (-found[2], found[-1]) if found else None

    def has_room(self, room_bytes: float) -> bool:
        """Whether a trial fits a device with this free memory, if RAM is no limit."""
        return any(group.least[0] <= room_bytes for group in self._groups.values())

    def pop(self, trial_id: str) -> int | None:
        """Takes a trial out if it waits, and returns its turn."""
        if (entry := self._entries.pop(trial_id, None)) is None:
            return None
        key = self._classes(entry)
        self._groups[key].remove(entry)
        if not self._groups[key]:
            del self._groups[key]
        self._count(entry, -1)
        return entry[3]

    def _count(self, entry: Entry, sign: int) -> None:
        seconds = -sign * entry[1]
        if math.isfinite(seconds):
            for kind, size in enumerate((-entry[2], entry[4], 1)):
                self._work[kind] += seconds * size

    def _classes(self, entry: Entry) -> tuple[int, int]:
        ram = entry[4].bit_length() if math.isfinite(self._capacity[1]) else 0
        return math.floor(PER_OCTAVE * math.log2(max(1, -entry[2]))), ram

    def _share(self, classes: tuple[int, int]) -> float:
        """The share of the memory or RAM that trials of these classes take, whichever is more, as a logarithm."""
        memory, ram, _ = self._capacity
        shares = [classes[0] / PER_OCTAVE - math.log2(memory)]
        return max([*shares, classes[1] - math.log2(ram)] if classes[1] else shares)
