"""Decides which trial starts next and where, and keeps the memory accounts of a plan's devices."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuner.decisions.accounts import Account
from tuner.decisions.capacity import UNBOUNDED, largest_ram, most_per_rank
from tuner.decisions.plan import Plan
from tuner.decisions.queue import Queue
from tuner.decisions.rank_groups import RankGroups, Room, rank_group_of, together
from tuner.trial import Device, Placement, Request, Shape, Trial


class Packer:
    """Keeps the memory accounts of a plan's devices and the queue of trials, and decides which trial starts where.

    The first trial of the queue that fits goes to the emptiest device. So trials spread over the devices, and small
    ones fill the gaps. Trials of several ranks go first: room is kept for those that do not fit yet.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._accounts: list[Account] = []
        self._of: dict[Device, Account] = {}
        self._free_ram: dict[str, int] = {}
        self._most = math.inf  # how many trials may be placed at once until the next ``limit``
        self._bounded = False  # whether the last ``limit`` bounded memory or RAM
        self._ram_bound = math.inf  # what may be reserved of this machine's RAM until the next ``limit``
        self.now = 0.0  # of the study's clock, in seconds
        self._groups = RankGroups()
        self._look = False  # whether a trial of several ranks may fit that did not
        self._add(plan)

    def extend(self, more: Plan) -> None:
        """Adds the devices of a plan."""
        waiting = self._waiting
        self._plan = self._plan.with_more(more)
        self._add(more)
        self.enqueue(waiting)

    def _add(self, plan: Plan) -> None:
        for device, budget, slots in zip(plan.devices, plan.budgets, plan.at_first, strict=True):
            self._of[device] = Account(len(self._accounts), device, budget, budget, slots, slots)
            self._accounts.append(self._of[device])
        self._free_ram.update(plan.ram_budgets)
        whole = self._plan
        self._queue = Queue(
            memory_binds=whole.bound in ("memory", "RAM") or whole.guaranteed < whole.workers,
            largest=(whole.largest_budget, max(whole.ram_budgets.values(), default=0)),
            total=(sum(whole.budgets), sum(whole.ram_budgets.values())),
            slots=sum(whole.at_first),
        )
        self._sort()
        self._count_devices()

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot, without bounds; 0 if there is none."""
        return next((account.free for account in self._freest()), 0)

    def limit(self, rooms: Mapping[Device, int], most: int | None = None, ram_bytes: int | None = None) -> None:
        """Bounds the reservations on these devices until the next call, since others use them, too.

        Other devices have no bound, and releases raise none. ``most`` bounds the number of placed trials, and
        ``ram_bytes`` this machine's RAM beside its GPUs.
        """
        self._ram_bound = math.inf if ram_bytes is None else max(0, ram_bytes)
        self._most = math.inf if most is None else most
        self._look_again()
        was_bounded, self._bounded = self._bounded, bool(rooms) or ram_bytes is not None
        if was_bounded or self._bounded:
            for account in self._accounts:
                account.bound = max(0, rooms.get(account.device, math.inf))
            self._sort()

    def allow(self, device: Device, workers: int) -> None:
        """Sets how many trials may run on a device at once. Running trials are left alone."""
        account = self._of[device]
        more, account.allowed = workers - account.allowed, workers
        account.slots += more
        if account.reservation:
            account.reservation.slots += more
        self._look = True
        self._has_changed(account)

    def held_back(self) -> tuple[Request, Device] | None:
        """The next trial that fits without bounds, with the share that it would get, and its device."""
        if not self._bounded:
            return (found[0], found[1].device) if (found := self._next()) else None
        whole = [(account, account.free, account.slots) for account in self._accounts if not account.lost]
        for request, need, _ in self._groups:
            if places := self._together(request, need, whole):
                short, here = (
                    min(places, key=lambda account: account.within_bounds),
                    request.trial.shape.ranks_per_node,
                )
                asked = replace(request, host_bytes=here * request.host_bytes, need_bytes=need * places.count(short))
                return asked, short.device
        for account in self._freest() if self._queue else ():
            free = min(account.free, account.reservation.spare) if account.reservation else account.free
            if fitting := self._queue.first(free, self._own_ram(account.device)):
                need, request = fitting
                return replace(request, need_bytes=need), account.device
        return None

    def placement(self, request: Request, device: Device) -> Placement:
        """The placement of a request on a device, with what it asks for; nothing is reserved yet."""
        return self._placement(request, request.need_bytes, self._of[device])

    def start(self, placement: Placement) -> None:
        """Takes a trial out of the queue, and reserves its share, regardless of bounds."""
        self.drop(placement.trial.trial_id)
        for place in placement.all:
            account, node = self._of[place.device], place.device.node_id
            account.takes(place, self.now)
            self._most -= 1
            if node in self._free_ram:
                self._free_ram[node] -= place.host_bytes
            self._ram_bound -= 0 if node else place.host_bytes
            self._has_changed(account)

    def drop(self, trial_id: str) -> None:
        """Takes a trial out of the queue, if it waits."""
        self._queue.pop(trial_id)
        if self._groups.pop(trial_id):
            self._keep_no_more(trial_id)

    def enqueue(self, requests: Iterable[Request]) -> None:
        """Adds trials to the queue. Those that wait get other needs instead, and keep their turn among equals.

        A trial that needs more than any device has will get a whole device.
        """
        for request in requests:
            if request.trial.ranks > 1:
                self._enqueue_group(*self._within_devices(request))
                continue
            turn = self._queue.pop(request.trial.trial_id)
            self._queue.add(*self._within_devices(request), turn)
        self._look_again()
        for node in list(self._aside):
            self._bring_back(node)

    def _enqueue_group(self, request: Request, need: int) -> None:
        """Adds a trial of several ranks, or gives it another need. Room that is kept for it stays kept if it can."""
        sizes = {one: need * one.ranks_of(request.trial) for one in self._kept_for(request.trial.trial_id)}
        if any(size > account.budget for account, size in sizes.items()):
            self._keep_no_more(request.trial.trial_id)
        for account, size in sizes.items():
            if reservation := account.reservation:
                reservation.spare, reservation.size = reservation.spare + reservation.size - size, size
                self._has_changed(account)
        self._groups.add(request, need)

    def next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where; None if none fits now. ``start`` reserves its share."""
        return self._next() if self._most > 0 else None

    def release(self, placement: Placement) -> None:
        """Frees the memory share of a trial that has ended."""
        for place in placement.all:
            account = self._of[place.device]
            account.gives_back(place)
            if place.device.node_id in self._free_ram:
                self._free_ram[place.device.node_id] += place.host_bytes
            self._has_changed(account)
        self._look = True

    def remove(self, device: Device) -> None:
        """Removes a device, so that nothing more is placed on it."""
        self._of[device].lost = True
        self._count_devices()
        for account in self._accounts:
            account.reservation = None
        self._sort()
        self.enqueue(self._waiting)

    def without_place(self) -> Request | None:
        """A trial whose ranks have no place together, also if all others had ended."""
        return next((request for request, need, _ in self._groups if not need), None) if self._look else None

    @property
    def _waiting(self) -> list[Request]:
        return [*self._queue.requests, *(request for request, *_ in self._groups)]

    def _need(self, request: Request) -> int:
        """The memory share of a trial. With uniform packing it is the same, unless the trial ran out of memory."""
        return max(request.need_bytes, self._plan.footprint_bytes if self._plan.packing == "uniform" else 0)

    def _placement(self, request: Request, need: int, account: Account) -> Placement:
        fraction = need / account.budget
        if self._plan.packing == "uniform" and need == self._plan.footprint_bytes:
            fraction = 1 / self._plan.fits[account.index]
        threads, host_bytes = self._plan.threads, request.host_bytes
        return Placement(request.trial, request.estimate, account.device, fraction, need, threads, host_bytes)

    def _next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where, whatever their number."""
        if self._look and self._groups and (found := self._next_group()):
            return found
        while self._queue and self._nodes:
            account = self._accounts[self._nodes[0][1]]
            node = account.device.node_id
            if self._nodes[0] != self._emptiest(node):
                heapq.heappop(self._nodes)
                continue
            room = account.room
            if fitting := self._queue.first(room, self._ram(account.device)):
                need, request = fitting
                return request, self._placement(request, need, account)
            if not self._queue.has_room(room):  # nor on any other device, which has less
                break
            heapq.heappop(self._nodes)
            self._aside.add(node)
        return self._next_before_ranks() if self._queue and self._groups else None

    def _next_before_ranks(self) -> tuple[Request, Placement] | None:
        """The next trial that will have ended when kept room is needed."""
        for account in self._accounts:
            if account.reservation is None or account.full or account.slots <= 0:
                continue
            left = account.reservation.until - self.now
            if 0 < left < math.inf:
                if fitting := self._queue.first(account.within_bounds, self._ram(account.device), left):
                    return fitting[1], self._placement(fitting[1], fitting[0], account)
                account.full = True
        return None

    def _next_group(self) -> tuple[Request, Placement] | None:
        """The next trial of several ranks for which there is room. Room is kept for those that have none."""
        own: dict[str, list[Account]] = defaultdict(list)
        for account in self._accounts:
            if account.reservation:
                own[account.reservation.trial_id].append(account)
        rooms, now, later = self._open(), dict[Shape, int](), dict[Shape, int]()  # the most for each rank
        for request, need, shape in self._groups:
            mine, found = own.get(request.trial.trial_id), list[Account]()
            if shape not in now:
                now[shape] = most_per_rank([one[0].device for one in rooms], [one[1] for one in rooms], shape)
                rest = [account for account in self._accounts if not (account.reservation or account.lost)]
                later[shape] = most_per_rank([one.device for one in rest], [one.budget for one in rest], shape)
            if mine and any(one.within_bounds >= need for one in mine):
                own_rooms = [(one, one.within_bounds, one.slots) for one in mine]
                found = self._together(request, need, own_rooms + [room for room in rooms if room[0] not in mine])
            elif need <= now[shape]:
                found = self._together(request, need, rooms)
            if found and shape.ranks <= self._most:
                return request, rank_group_of([self._placement(request, need, account) for account in found])
            if not mine and need <= later[shape] and self._keep(request, need):
                rooms, now = self._open(), {}
        self._look = False
        return None

    def _open(self) -> list[tuple[Account, int, int]]:
        """The room and the slots that are free on each device, and not kept for ranks."""
        return [(one, one.room, slots) for one in self._accounts if (slots := one.open_slots) > 0]

    def _together(self, request: Request, need: int, rooms: Iterable[tuple[Account, int, int]]) -> list[Account]:
        """The devices for the ranks of a trial, by their rooms and slots; empty if there is no place."""
        trial, found = request.trial, list[tuple[float, Account]]()
        ram = trial.shape.ranks_per_node * request.host_bytes
        for account, room, slots in rooms:
            number = account.ranks_of(trial)
            if room >= number * need and slots >= number and (not ram or self._ram(account.device) >= ram):
                found.append((-math.inf, account))
        return self._of_nodes(trial, found)

    def _keep(self, request: Request, need: int) -> bool:
        """Keeps room for a trial of several ranks where it will be there the soonest, unless there is no place."""
        trial, when, rams = request.trial, list[tuple[float, Account]](), self._plan.ram_budgets
        for account in self._accounts:
            has_ram = rams.get(account.device.node_id, UNBOUNDED) >= trial.shape.ranks_per_node * request.host_bytes
            if has_ram and not (account.reservation or account.lost):
                number = account.ranks_of(trial)
                if (at := account.room_at(need * number, number)) is not None:
                    when.append((at, account))
        found = dict.fromkeys(self._of_nodes(trial, when))
        until = max((at for at, account in when if account in found), default=0.0)
        for account in found:
            account.keep(trial, need, until)
            self._has_changed(account)
        return bool(found)

    def _kept_for(self, trial_id: str) -> list[Account]:
        return [
            account for account in self._accounts if account.reservation and account.reservation.trial_id == trial_id
        ]

    def _keep_no_more(self, trial_id: str) -> None:
        """Keeps no more room for a trial."""
        for account in self._kept_for(trial_id):
            account.reservation = None
            self._look = True
            self._has_changed(account)

    def _of_nodes(self, trial: Trial, found: Iterable[tuple[float, Account]]) -> list[Account]:
        """The devices of a trial's ranks, of those that have room at these times."""
        nodes: dict[str, list[Room]] = defaultdict(list)
        for when, account in found:
            nodes[account.device.node_id] += [(when, -account.free, account.index)] * account.ranks_of(trial)
        return [self._accounts[index] for index in together(trial.shape, nodes.values())]

    def _sort(self) -> None:
        """Makes the heaps of devices, by their room. They may have stale entries."""
        self._heaps: dict[str, list[tuple[int, int]]] = {}  # by node id, since the devices of a node share its RAM
        for account in self._accounts:
            self._heaps.setdefault(account.device.node_id, []).append((-account.room, account.index))
        self._nodes: list[tuple[int, int]] = []  # the emptiest device of each node
        self._aside: set[str] = set()  # nodes without RAM for any trial, which are not in ``_nodes``
        for node, heap in self._heaps.items():
            heapq.heapify(heap)
            self._bring_back(node)

    def _emptiest(self, node: str) -> tuple[int, int] | None:
        """The device of a node with the most room among those with a free slot."""
        heap = self._heaps[node]
        while heap:
            account = self._accounts[heap[0][1]]
            if -heap[0][0] == account.room and account.open_slots > 0:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _count_devices(self) -> None:
        """Notes the largest share of the remaining devices, and the smallest RAM of their hosts."""
        self._lost = [account.device for account in self._accounts if account.lost]
        self._largest = self._plan.largest_without(self._lost)
        rams = [self._plan.ram_budgets.get(account.device.node_id, UNBOUNDED) for account in self._left()]
        self._smallest_ram = min(rams, default=0)

    def _left(self) -> list[Account]:
        """The remaining devices that the plan uses."""
        return [account for account in self._accounts if self._plan.slots[account.index] and not account.lost]

    def _within_devices(self, request: Request) -> tuple[Request, int]:
        """The request and its need, limited to the largest device, and the largest RAM of a host that can hold it."""
        shape, ranks = request.trial.shape, request.trial.shape.ranks_per_node
        largest = self._largest if shape.ranks == 1 else self._plan.largest_without(self._lost, shape)
        need = min(self._need(request), largest)
        if ranks * request.host_bytes > self._smallest_ram:
            holding = [account.device for account in self._left() if account.budget >= need]
            if ranks > 1:  # only nodes that have a place for all
                most = Counter(device.node_id for device in holding)
                holding = [device for device in holding if device.kind == "cpu" or most[device.node_id] >= ranks]
            ram = largest_ram(holding, self._plan.ram_budgets) // ranks
            request = replace(request, host_bytes=min(request.host_bytes, ram))
        return request, need

    def _ram(self, device: Device) -> int:
        """The bytes of its host's RAM that can be reserved for a device now: free, and within the bound."""
        if not self._free_ram or device.node_id:
            return self._own_ram(device)
        return int(min(self._own_ram(device), self._ram_bound))

    def _own_ram(self, device: Device) -> int:
        """The free bytes of the budget of a device's host's RAM."""
        return self._free_ram.get(device.node_id, UNBOUNDED) if self._free_ram else UNBOUNDED

    def _bring_back(self, node: str) -> None:
        """Has the emptiest device of a node looked at again."""
        self._aside.discard(node)
        if device := self._emptiest(node):
            heapq.heappush(self._nodes, device)

    def _freest(self) -> list[Account]:
        """The emptiest open device of each host, the one with the most free bytes first."""
        found: dict[str, Account] = {}
        for account in sorted(self._accounts, key=lambda one: (-one.free, -one.index)):
            if account.open_slots > 0:
                found.setdefault(account.device.node_id, account)
        return list(found.values())

    def _look_again(self) -> None:
        """More may fit than before."""
        self._look = True
        for account in self._accounts:
            account.full = False

    def _has_changed(self, account: Account) -> None:
        account.full, node = False, account.device.node_id
        heapq.heappush(self._heaps[node], (-account.room, account.index))
        self._bring_back(node)
