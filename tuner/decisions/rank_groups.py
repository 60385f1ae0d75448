"""Trials of several ranks, which start all at once or not at all."""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from tuner.decisions.accounts import Account, Accounts
from tuner.decisions.capacity import UNBOUNDED, most_per_rank
from tuner.trial import Device, Placement, Request, Shape, Trial

Waiting = tuple[tuple[int, int, float, int], str, Request, int, Shape]  # its turn and id; need and shape
Free = tuple[Account, int, int]  # a device with its free bytes and slots
Room = tuple[float, int, int]  # when a device has room, its free bytes as a negative number, and its index


class RankGroups:
    """Those that wait: lower seeds first, then those of the most ranks, the longest, and the largest."""

    def __init__(self, accounts: Accounts) -> None:
        """None waits."""
        self._accounts = accounts
        self._waiting: dict[str, Waiting] = {}
        self._order: list[Waiting] = []
        self.look = False  # whether one may fit that did not

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def requests(self) -> list[Request]:
        """What waits."""
        return [request for _, _, request, *_ in self._order]

    def add(self, request: Request, need: int) -> None:
        """Adds one, each of whose ranks needs ``need`` bytes; one that waits gets another need.

        Room that is kept for it stays kept if it can.
        """
        trial_id, seconds = request.trial.trial_id, math.inf if request.seconds is None else request.seconds
        sizes = {one: need * one.ranks_of(request.trial) for one in self.kept_for(trial_id)}
        if any(size > account.budget for account, size in sizes.items()):
            self._keep_no_more(trial_id)
        for account, size in sizes.items():
            if reservation := account.reservation:
                reservation.spare, reservation.size = reservation.spare + reservation.size - size, size
                self._accounts.changed(account)
        self._remove(trial_id)
        turn, shape = (request.trial.seed, -request.trial.ranks, -seconds, -need), request.trial.shape
        self._waiting[trial_id] = turn, trial_id, request, need, shape
        insort(self._order, self._waiting[trial_id], key=itemgetter(0, 1))

    def drop(self, trial_id: str) -> None:
        """Takes one out, if it waits."""
        if self._remove(trial_id):
            self._keep_no_more(trial_id)

    def next(self, most: float) -> tuple[Request, int, list[Account]] | None:
        """The next that fits and has at most ``most`` ranks, its need, and the device of each rank.

        Room is kept for those that have none.
        """
        if not (self.look and self._waiting):
            return None
        kept: dict[str, list[Account]] = defaultdict(list)
        for account in self._accounts:
            if account.reservation:
                kept[account.reservation.trial_id].append(account)
        rooms, now, later = self._open(), dict[Shape, int](), dict[Shape, int]()  # the most for each rank
        for _, trial_id, request, need, shape in self._order:
            mine, places = kept.get(trial_id), list[Account]()
            if shape not in now:
                now[shape] = most_per_rank([one[0].device for one in rooms], [one[1] for one in rooms], shape)
                rest = [account for account in self._accounts if not (account.reservation or account.lost)]
                later[shape] = most_per_rank([one.device for one in rest], [one.budget for one in rest], shape)
            if mine and any(one.within_bounds >= need for one in mine):
                kept_rooms = [(one, one.within_bounds, one.slots) for one in mine if not one.away]
                places = self._together(request, need, kept_rooms + [room for room in rooms if room[0] not in mine])
            elif need <= now[shape]:
                places = self._together(request, need, rooms)
            if places and shape.ranks <= most:
                return request, need, places
            if not mine and need <= later[shape] and self._keep(request, need):
                rooms, now = self._open(), {}
        self.look = False
        return None

    def held_back(self) -> tuple[Request, Device] | None:
        """The next that would start without bounds, with what it needs of the device that lacks the most."""
        there = [account for account in self._accounts if not (account.lost or account.away)]
        whole = [(account, account.free, account.slots) for account in there]
        for *_, request, need, shape in self._order:
            if places := self._together(request, need, whole):
                short = min(places, key=lambda account: account.within_bounds)
                host_bytes, need_bytes = shape.ranks_per_node * request.host_bytes, need * places.count(short)
                return replace(request, host_bytes=host_bytes, need_bytes=need_bytes), short.device
        return None

    def without_place(self) -> Request | None:
        """A trial whose ranks have no place together, also if all others had ended."""
        return next((request for *_, request, need, _ in self._order if not need), None) if self.look else None

    def kept_for(self, trial_id: str) -> list[Account]:
        """The devices that keep room for a trial."""
        return [one for one in self._accounts if one.reservation and one.reservation.trial_id == trial_id]

    def _remove(self, trial_id: str) -> bool:
        """Takes one out, for which room is kept on; returns whether it waited."""
        if entry := self._waiting.pop(trial_id, None):
            del self._order[bisect_left(self._order, entry[:2], key=itemgetter(0, 1))]
        return entry is not None

    def _open(self) -> list[Free]:
        """The room and the slots that are free on each device, and not kept for ranks."""
        return [(one, one.room, slots) for one in self._accounts if (slots := one.open_slots) > 0]

    def _together(self, request: Request, need: int, rooms: Iterable[Free]) -> list[Account]:
        """The devices for the ranks of a trial, by their rooms and slots; empty if there is no place."""
        trial, fitting = request.trial, list[tuple[float, Account]]()
        ram = trial.shape.ranks_per_node * request.host_bytes
        for account, room, slots in rooms:
            number = account.ranks_of(trial)
            if room >= number * need and slots >= number and (not ram or self._accounts.ram(account.device) >= ram):
                fitting.append((-math.inf, account))
        return self._of_nodes(trial, fitting)

    def _keep(self, request: Request, need: int) -> bool:
        """Keeps room for a trial where it will be there the soonest, unless there is no place."""
        trial, when, rams = request.trial, list[tuple[float, Account]](), self._accounts.ram_budgets
        for account in self._accounts:
            has_ram = rams.get(account.device.node_id, UNBOUNDED) >= trial.shape.ranks_per_node * request.host_bytes
            if has_ram and not (account.reservation or account.lost):
                number = account.ranks_of(trial)
                if (at := account.room_at(need * number, number)) is not None:
                    when.append((at, account))
        places = dict.fromkeys(self._of_nodes(trial, when))
        until = max((at for at, account in when if account in places), default=0.0)
        for account in places:
            account.keep(trial, need, until)
            self._accounts.changed(account)
        return bool(places)

    def _keep_no_more(self, trial_id: str) -> None:
        """Keeps no more room for a trial."""
        for account in self.kept_for(trial_id):
            account.reservation = None
            self.look = True
            self._accounts.changed(account)

    def _of_nodes(self, trial: Trial, fitting: Iterable[tuple[float, Account]]) -> list[Account]:
        """The devices of a trial's ranks, of those that have room at these times."""
        nodes: dict[str, list[Room]] = defaultdict(list)
        for when, account in fitting:
            nodes[account.device.node_id] += [(when, -account.free, account.index)] * account.ranks_of(trial)
        return self._accounts.at(together(trial.shape, nodes.values()))


def together(shape: Shape, nodes: Iterable[Sequence[Room]]) -> list[int]:
    """The device of each rank, by index; empty if there are too few nodes with room.

    ``nodes`` has the devices of each node that have room. The soonest and emptiest are taken.
    """
    fitting, here = list[tuple[float, int, list[int]]](), shape.ranks_per_node
    for devices in nodes:
        chosen = sorted(devices)[:here]
        if len(chosen) == here:
            when, used = max(when for when, _, _ in chosen), sum(used for _, used, _ in chosen)
            fitting.append((when, used, [index for *_, index in chosen]))
    best = sorted(fitting)[: shape.nodes] if len(fitting) >= shape.nodes else []
    return [index for *_, indexes in best for index in indexes]


def rank_group_of(places: Sequence[Placement]) -> Placement:
    """The placement of rank 0, which has those of the others."""
    first, *rest = [replace(place, rank=rank) for rank, place in enumerate(places)]
    return replace(first, others=tuple(rest))
