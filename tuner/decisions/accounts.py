"""The accounts of devices: what of each is given to trials, and kept for ranks."""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tuner.decisions.capacity import UNBOUNDED
from tuner.decisions.plan import Plan
from tuner.trial import Device, Placement, Request, Trial

Rank = tuple[str, int]  # a trial's id and the number of its rank


@dataclass
class Reservation:
    """The room of a device that is kept for ranks of a trial, until there is room for all of them.

    That is a reservation with backfilling, as in EASY (D. Lifka, The ANL/IBM SP Scheduling System, 1995): another
    trial may start there if it is expected to end before, or leaves the room. A trial of unknown seconds must leave
    it.
    """

    trial_id: str
    until: float  # when its ranks are expected to start, by the study's clock; infinite if that is unknown
    size: int  # the room in bytes
    spare: int  # what those may take that end later
    slots: int
    others: dict[Rank, int]  # their bytes


@dataclass(eq=False)
class Account:
    """A device of a plan, and what of it is given to trials."""

    index: int  # in the plan
    device: Device
    budget: int  # the bytes that trials divide
    free: int
    slots: int  # those that are free; below 0 where fewer are allowed than trials run
    allowed: int  # how many trials may run at once
    bound: float = math.inf  # what may be reserved until others' memory is looked at again
    lost: bool = False
    away: bool = False  # whether it is a cluster's that the study does not hold now
    reservation: Reservation | None = None
    full: bool = False  # no trial fits now that would end before kept room is needed
    running: dict[Rank, tuple[float, int]] = field(default_factory=dict)  # when they are expected to end; bytes

    @property
    def within_bounds(self) -> int:
        """The free bytes within the bound."""
        return int(min(self.free, self.bound))

    @property
    def room(self) -> int:
        """The bytes that can be reserved now: free, within the bound, and not kept for ranks."""
        return min(self.within_bounds, self.reservation.spare) if self.reservation else self.within_bounds

    @property
    def open_slots(self) -> int:
        """How many trials can start, if they fit; none if it is below 1."""
        if self.lost or self.away:
            return 0
        return min(self.slots, self.reservation.slots) if self.reservation else self.slots

    def ranks_of(self, trial: Trial) -> int:
        """How many ranks of a trial it takes: a GPU one, the CPU all of a node."""
        return trial.shape.ranks_per_node if self.device.kind == "cpu" else 1

    def takes(self, place: Placement, now: float) -> None:
        """A rank starts, at this time of the study's clock."""
        seconds = Request(place.trial, place.estimate, 0).seconds
        rank, end = (place.trial.trial_id, place.rank), math.inf if seconds is None else now + seconds
        if (reservation := self.reservation) and end >= reservation.until:
            reservation.others[rank] = place.limit_bytes
            reservation.spare -= place.limit_bytes
            reservation.slots -= 1
        self.running[rank] = end, place.limit_bytes
        self.free -= place.limit_bytes
        self.bound -= place.limit_bytes
        self.slots -= 1

    def gives_back(self, place: Placement) -> None:
        """A rank has ended. That raises no bound."""
        rank = place.trial.trial_id, place.rank
        if (reservation := self.reservation) and (size := reservation.others.pop(rank, 0)):
            reservation.spare += size
            reservation.slots += 1
        del self.running[rank]
        self.free += place.limit_bytes
        self.slots += 1

    def room_at(self, need: int, slots: int) -> float | None:
        """When this much memory and this many slots are expected: -inf if now, inf if unknown, None if never."""
        when, free, free_slots = math.inf if self.away else -math.inf, self.free, self.slots
        for end, size in sorted(self.running.values()):
            if free >= need and free_slots >= slots:
                break
            when, free, free_slots = max(when, end), free + size, free_slots + 1
        return when if free >= need and free_slots >= slots else None

    def keep(self, trial: Trial, need: int, until: float) -> None:
        """Keeps room for ranks of a trial, each of which needs ``need`` bytes."""
        number = self.ranks_of(trial)
        later = {rank: size for rank, (end, size) in self.running.items() if end > until}
        spare, slots = self.budget - need * number - sum(later.values()), self.allowed - number - len(later)
        self.reservation = Reservation(trial.trial_id, until, need * number, spare, slots, later)


class Accounts:
    """The accounts of a plan's devices, and the RAM of their hosts."""

    def __init__(self) -> None:
        """Without a device."""
        self._accounts: list[Account] = []
        self._of: dict[Device, Account] = {}
        self.ram_budgets: dict[str, int] = {}  # by node id, of hosts whose RAM is known
        self._free_ram: dict[str, int] = {}
        self._ram_bound = math.inf  # what may be reserved of this machine's RAM until the next ``limit``

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts)

    def __getitem__(self, device: Device) -> Account:
        return self._of[device]

    def at(self, indexes: Iterable[int]) -> list[Account]:
        """The accounts with these indexes."""
        return [self._accounts[index] for index in indexes]

    def add(self, plan: Plan) -> None:
        """Adds the devices of a plan that are not there yet."""
        listed = list(zip(plan.devices, plan.budgets, plan.at_first, strict=True))
        for device, budget, slots in listed[len(self._accounts) :]:
            self._of[device] = Account(len(self._accounts), device, budget, budget, slots, slots)
            self._accounts.append(self._of[device])
        more = {node: ram for node, ram in plan.ram_budgets.items() if node not in self.ram_budgets}
        self.ram_budgets.update(more)
        self._free_ram.update(more)
        self.sort()

    def limit(self, rooms: Mapping[Device, int], ram_bytes: int | None) -> None:
        """Bounds what may be reserved on these devices, and of this machine's RAM; elsewhere there is no bound."""
        self._ram_bound = math.inf if ram_bytes is None else max(0, ram_bytes)
        for account in self._accounts:
            account.bound = max(0, rooms.get(account.device, math.inf))
        self.sort()

    def take(self, place: Placement, now: float) -> None:
        """Reserves a rank's share, regardless of bounds."""
        account, node = self._of[place.device], place.device.node_id
        account.takes(place, now)
        if node in self._free_ram:
            self._free_ram[node] -= place.host_bytes
        self._ram_bound -= 0 if node else place.host_bytes
        self.changed(account)

    def give_back(self, place: Placement) -> None:
        """Frees a rank's share."""
        account, node = self._of[place.device], place.device.node_id
        account.gives_back(place)
        if node in self._free_ram:
            self._free_ram[node] += place.host_bytes
        self.changed(account)

    def ram(self, device: Device) -> int:
        """The bytes of its host's RAM that can be reserved for a device now: free, and within the bound."""
        free = self.free_ram(device)
        return free if device.node_id or not self._free_ram else int(min(free, self._ram_bound))

    def free_ram(self, device: Device) -> int:
        """The free bytes of the budget of a device's host's RAM."""
        return self._free_ram.get(device.node_id, UNBOUNDED)

    def emptiest(self) -> Account | None:
        """The device with the most room among those with a free slot, of the nodes that are not set aside."""
        while self._nodes:
            account = self._accounts[self._nodes[0][1]]
            if self._nodes[0] == self._emptiest_of(account.device.node_id):
                return account
            heapq.heappop(self._nodes)
        return None

    def set_aside(self, node: str) -> None:
        """The node of the emptiest device has no RAM for any trial."""
        heapq.heappop(self._nodes)
        self._aside.add(node)

    def emptiest_of_each(self) -> list[Account]:
        """The emptiest open device of each host without bounds, the one with the most free bytes first."""
        accounts: dict[str, Account] = {}
        for account in sorted(self._accounts, key=lambda one: (-one.free, -one.index)):
            if account.open_slots > 0:
                accounts.setdefault(account.device.node_id, account)
        return list(accounts.values())

    def changed(self, account: Account) -> None:
        """A device has other room than before."""
        account.full, node = False, account.device.node_id
        heapq.heappush(self._heaps[node], (-account.room, account.index))
        self._bring_back(node)

    def look_again(self) -> None:
        """Other trials wait than before, so more may fit."""
        for account in self._accounts:
            account.full = False
        for node in list(self._aside):
            self._bring_back(node)

    def sort(self) -> None:
        """Makes the heaps of devices, by their room. They may have stale entries."""
        self._heaps: dict[str, list[tuple[int, int]]] = {}  # by node id, since the devices of a node share its RAM
        for account in self._accounts:
            account.full = False
            self._heaps.setdefault(account.device.node_id, []).append((-account.room, account.index))
        self._nodes: list[tuple[int, int]] = []  # the emptiest device of each node
        self._aside: set[str] = set()  # nodes without RAM for any trial, which are not in ``_nodes``
        for node, heap in self._heaps.items():
            heapq.heapify(heap)
            self._bring_back(node)

    def _emptiest_of(self, node: str) -> tuple[int, int] | None:
        """The device of a node with the most room among those with a free slot."""
        heap = self._heaps[node]
        while heap:
            account = self._accounts[heap[0][1]]
            if -heap[0][0] == account.room and account.open_slots > 0:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _bring_back(self, node: str) -> None:
        """Has the emptiest device of a node looked at again."""
        self._aside.discard(node)
        if device := self._emptiest_of(node):
            heapq.heappush(self._nodes, device)
