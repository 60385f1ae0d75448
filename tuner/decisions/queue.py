"""The trials that wait, in the order in which they start."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from itertools import count

from tuner.trial import Request

Position = tuple[int, int]  # of a trial in the queue: its seed, and its index among trials of that seed
# The sort keys: need and expected seconds, or the reverse, and the negated order of arrival. Then the need again.
Entry = tuple[float, float, int, int, Request]


class Queue:
    """Waiting trials with the bytes that each will be given.

    If memory may keep a worker idle, the largest trial that fits starts first, and of equally large ones the longest.
    Otherwise the longest starts first, and of equally long ones the largest. A trial of unknown duration counts as
    the longest. Lower seeds go first, so that a study that ends early has results of every configuration.
    """

    def __init__(self, *, memory_binds: bool = True) -> None:
        """An empty queue."""
        self._memory_binds = memory_binds
        self._order = count()
        self._waiting: dict[int, list[Entry]] = {}  # by seed, the next to start at the end
        self._seeds: list[int] = []  # sorted; there may be 100,000
        self._looked: tuple[str, Position] | None = None  # the trial that was looked at last
        self._rams: list[int] = []  # the needs of the hosts' RAM, sorted
        self.least_ram = 0  # the smallest of them, also after the last trial has left

    def __len__(self) -> int:
        return len(self._rams)

    def add(self, request: Request, need: int) -> None:
        """Adds a trial."""
        self._looked = None
        insort(self._rams, request.host_bytes)
        if request.trial.seed not in self._waiting:
            insort(self._seeds, request.trial.seed)
        seconds = math.inf if request.seconds is None else request.seconds
        first, second = (need, seconds) if self._memory_binds else (seconds, need)
        entry = first, second, -next(self._order), need, request
        insort(self._waiting.setdefault(request.trial.seed, []), entry)
        self.least_ram = self._rams[0]

    def first(self, room_bytes: float, ram_bytes: int) -> Position | None:
        """The next trial for a device with this free memory and RAM; None if none fits."""
        for seed in self._seeds:
            same_seed = self._waiting[seed]
            end = len(same_seed)
            if self._memory_binds:
                end = bisect_right(same_seed, room_bytes, key=lambda entry: entry[0])
            position = end - 1
            while position >= 0:
                *_, need, request = same_seed[position]
                if need <= room_bytes and request.host_bytes <= ram_bytes:
                    break
                position -= 1
            if position >= 0:
                return seed, position
        return None

    def find(self, trial_id: str) -> Position | None:
        """The position of a trial; None if it does not wait."""
        if self._looked and self._looked[0] == trial_id:
            return self._looked[1]
        for seed, same_seed in self._waiting.items():
            for position, (*_, request) in enumerate(same_seed):
                if request.trial.trial_id == trial_id:
                    return seed, position
        return None

    def look(self, at: Position) -> tuple[int, Request]:
        """The need and the request of the trial at a position."""
        *_, need, request = self._waiting[at[0]][at[1]]
        self._looked = request.trial.trial_id, at
        return need, request

    def pop(self, at: Position) -> tuple[int, Request]:
        """Takes the trial at a position out, and returns its need and request."""
        seed, position = at
        self._looked = None
        *_, need, request = self._waiting[seed].pop(position)
        if not self._waiting[seed]:
            del self._waiting[seed]
            self._seeds.remove(seed)
        del self._rams[bisect_left(self._rams, request.host_bytes)]
        self.least_ram = self._rams[0] if self._rams else self.least_ram
        return need, request

    def pop_all(self) -> list[Request]:
        """Takes all trials out, in their order of arrival."""
        self._looked = None
        entries = [entry for same_seed in self._waiting.values() for entry in same_seed]
        self._waiting, self._seeds, self._rams = {}, [], []
        return [entry[-1] for entry in sorted(entries, key=lambda entry: -entry[2])]
