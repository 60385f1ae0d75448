"""Trials of several ranks, which start all at once or not at all."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.trial import Placement, Request

Turn = tuple[int, int, float, int]
Free = tuple[int, int, int]  # of a device: the bytes and slots that are free, and the RAM of its host


class Gangs:
    """Those that wait: lower seeds first, then those of the most ranks, the longest, and the largest."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting: dict[str, tuple[Request, int]] = {}
        self._order: list[tuple[Turn, str]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[tuple[Request, int]]:
        return (self._waiting[trial_id] for _, trial_id in self._order)

    def add(self, request: Request, need: int) -> None:
        """Adds one, each of whose ranks will be given so many bytes; one that waits gets another need."""
        self.pop(request.trial.trial_id)
        self._waiting[request.trial.trial_id] = request, need
        insort(self._order, (_turn(request, need), request.trial.trial_id))

    def pop(self, trial_id: str) -> None:
        """Takes one out if it waits."""
        if found := self._waiting.pop(trial_id, None):
            del self._order[bisect_left(self._order, (_turn(*found), trial_id))]


def _turn(request: Request, need: int) -> Turn:
    seconds = math.inf if request.seconds is None else request.seconds
    return request.trial.seed, -request.trial.ranks, -seconds, -need


@dataclass
class Hold:
    """The room that is kept for one of them, until all of it is free at once.

    Others may start there if they leave that room. So it starts as soon as all have ended that ran when its room was
    first kept. This is a reservation as in EASY backfilling (D. Lifka, The ANL/IBM SP Scheduling System, 1995), by
    room and not by time, as the duration of a program is mostly unknown.
    """

    trial_id: str
    need_bytes: int  # of each rank
    ranks: Mapping[int, int]  # how many on each device, by index
    spare: dict[int, int]  # what others may take of these devices
    slots: dict[int, int]
    others: dict[tuple[str, int], int] = field(default_factory=dict)  # their bytes, by trial and rank

    def resize(self, need: int) -> None:
        """Each rank needs another number of bytes."""
        for index, number in self.ranks.items():
            self.spare[index] += (self.need_bytes - need) * number
        self.need_bytes = need

    def takes(self, place: Placement, index: int) -> None:
        """Another trial starts on one of the devices, or on a further one."""
        if index in self.ranks:
            self.others[place.trial.trial_id, place.rank] = place.limit_bytes
            self.spare[index] -= place.limit_bytes
            self.slots[index] -= 1

    def gives_back(self, place: Placement, index: int) -> None:
        """Another trial has ended."""
        if size := self.others.pop((place.trial.trial_id, place.rank), 0):
            self.spare[index] += size
            self.slots[index] += 1


def hold_for(request: Request, need: int, on: Sequence[int], budgets: Sequence[int], slots: Sequence[int]) -> Hold:
    """Keeps room for each rank on these devices, which have these budgets and slots by their indices."""
    ranks = Counter(on)
    spare = {index: budgets[index] - need * number for index, number in ranks.items()}
    return Hold(request.trial.trial_id, need, ranks, spare, {index: slots[index] - ranks[index] for index in ranks})


def together(request: Request, need: int, nodes: Iterable[Mapping[int, Free]], *, on_cpu: bool) -> list[int]:
    """The device of each rank, by index; empty if no node has room for all.

    ``nodes`` has what is free on each node by the index of its devices. A GPU gets one rank, and the emptiest are
    taken. On a CPU all ranks are on the same device.
    """
    ranks, best = request.trial.ranks, tuple[int, list[int]]((0, []))
    each = ranks if on_cpu else 1
    for devices in nodes:
        fits = [
            (room, index)
            for index, (room, slots, ram) in devices.items()
            if room >= each * need and slots >= each and ram >= ranks * request.host_bytes
        ]
        chosen = sorted(fits, key=lambda found: (-found[0], found[1]))[: ranks // each]
        if len(chosen) == ranks // each:
            best = max(best, (sum(room for room, _ in chosen), [i for _, i in chosen] * each), key=lambda b: b[0])
    return best[1]


def gang_of(places: Sequence[Placement]) -> Placement:
    """The placement of rank 0, which has those of the others."""
    first, *rest = [replace(place, rank=rank) for rank, place in enumerate(places)]
    return replace(first, others=tuple(rest))
