"""Trials of several ranks, which start all at once or not at all."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from tuner.trial import Placement, Request, Shape

Waiting = tuple[tuple[int, int, float, int], str, Request, int, Shape]  # its turn and id; need and shape
Room = tuple[float, int, int]  # when a device has room, its free bytes as a negative number, and its index


class RankGroups:
    """Those that wait: lower seeds first, then those of the most ranks, the longest, and the largest."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting: dict[str, Waiting] = {}
        self._order: list[Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[tuple[Request, int, Shape]]:
        """Each with its need and its shape."""
        return map(itemgetter(2, 3, 4), self._order)

    def add(self, request: Request, need: int) -> None:
        """Adds one, each of whose ranks will be given so many bytes; one that waits gets another need."""
        trial_id, seconds = request.trial.trial_id, math.inf if request.seconds is None else request.seconds
        self.pop(trial_id)
        turn, shape = (request.trial.seed, -request.trial.ranks, -seconds, -need), request.trial.shape
        self._waiting[trial_id] = turn, trial_id, request, need, shape
        insort(self._order, self._waiting[trial_id], key=itemgetter(0, 1))

    def pop(self, trial_id: str) -> bool:
        """Takes one out; returns whether it waited."""
        if found := self._waiting.pop(trial_id, None):
            del self._order[bisect_left(self._order, found[:2], key=itemgetter(0, 1))]
        return found is not None


def together(shape: Shape, nodes: Iterable[Sequence[Room]]) -> list[int]:
    """The device of each rank, by index; empty if there are too few nodes with room.

    ``nodes`` has the devices of each node that have room. The soonest and emptiest are taken.
    """
    found, here = list[tuple[float, int, list[int]]](), shape.ranks_per_node
    for devices in nodes:
        chosen = sorted(devices)[:here]
        if len(chosen) == here:
            when, used = max(when for when, _, _ in chosen), sum(used for _, used, _ in chosen)
            found.append((when, used, [index for *_, index in chosen]))
    best = sorted(found)[: shape.nodes] if len(found) >= shape.nodes else []
    return [index for *_, indexes in best for index in indexes]


def rank_group_of(places: Sequence[Placement]) -> Placement:
    """The placement of rank 0, which has those of the others."""
    first, *rest = [replace(place, rank=rank) for rank, place in enumerate(places)]
    return replace(first, others=tuple(rest))
