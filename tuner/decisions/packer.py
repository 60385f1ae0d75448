"""Decides which trial starts next and where, and keeps the memory accounts of a plan's devices."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuner.decisions.capacity import UNBOUNDED, largest_ram, most_per_rank
from tuner.decisions.gangs import Gangs, Kept, Room, Running, gang_of, together
from tuner.decisions.packing import Plan
from tuner.decisions.queue import Queue
from tuner.trial import Device, Placement, Request, Shape, Trial


class Packer:
    """Keeps the memory accounts of a plan's devices and the queue of trials, and decides which trial starts where.

    The first trial of the queue that fits goes to the emptiest device. So trials spread over the devices, and small
    ones fill the gaps. Trials of several ranks go first: room is kept for one that does not fit yet.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._free: list[int] = []
        self._slots: list[int] = []  # those that are free; below 0 where fewer are allowed than trials run
        self._allowed: list[int] = []
        self._bounds: list[float] = []  # what may be reserved until the next ``limit``
        self._running: list[Running] = []
        self._index: dict[Device, int] = {}
        self._free_ram: dict[str, int] = {}
        self._most = math.inf  # how many trials may be placed at once until then
        self._bounded = False  # whether the last ``limit`` bounded memory or RAM
        self._lost: set[int] = set()
        self.now = 0.0  # of the study's clock, in seconds
        self._gangs = Gangs()
        self._kept: dict[int, Kept] = {}  # by the device's index
        self._full: set[int] = set()  # of these, on which no trial fits now that would end before
        self._look = False  # whether a trial of several ranks may fit that did not
        self._ram_bound = math.inf  # what may be reserved of this machine's RAM until the next ``limit``
        self._add(plan)

    def extend(self, more: Plan) -> None:
        """Adds the devices of a plan."""
        waiting = [*self._queue.requests, *(request for request, *_ in self._gangs)]
        self._plan = self._plan.with_more(more)
        self._add(more)
        self.enqueue(waiting)

    def _add(self, plan: Plan) -> None:
        for device, budget, slots in zip(plan.devices, plan.budgets, plan.at_first, strict=True):
            self._index[device] = len(self._free)
            self._free.append(budget)
            self._slots.append(slots)
            self._allowed.append(slots)
            self._bounds.append(math.inf)
            self._running.append(Running())
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
    def largest_bytes(self) -> int:
        """The largest possible memory share of a trial: the largest budget of a remaining device; 0 without any."""
        return self._largest

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot, without bounds; 0 if there is none."""
        return next((free for free, _ in self._freest()), 0)

    def limit(self, rooms: Mapping[Device, int], most: int | None = None, ram_bytes: int | None = None) -> None:
        """Bounds the reservations on these devices until the next call, since others use them, too.

        Other devices have no bound, and releases raise none. ``most`` bounds the number of placed trials, and
        ``ram_bytes`` this machine's RAM beside its GPUs.
        """
        self._ram_bound = math.inf if ram_bytes is None else max(0, ram_bytes)
        self._most = math.inf if most is None else most
        self._look = True
        self._full.clear()
        was_bounded, self._bounded = self._bounded, bool(rooms) or ram_bytes is not None
        if was_bounded or self._bounded:
            self._bounds = [max(0, rooms.get(device, math.inf)) for device in self._plan.devices]
            self._sort()

    def allow(self, device: Device, workers: int) -> None:
        """Sets how many trials may run on a device at once. Running trials are left alone."""
        index = self._index[device]
        more, self._allowed[index] = workers - self._allowed[index], workers
        if kept := self._kept.get(index):
            kept.slots += more
        self._look = True
        self._change(index, 0, more, 0)

    def held_back(self) -> tuple[Request, Device] | None:
        """The next trial that fits without bounds, with the share that it would get, and its device."""
        if not self._bounded:
            return (found[0], found[1].device) if (found := self._next()) else None
        whole = {i: (self._free[i], slots) for i, slots in enumerate(self._slots) if i not in self._lost}
        for request, need, _ in self._gangs:
            if places := self._together(request, need, whole):
                short, here = min(places, key=self._within_bounds), request.trial.ranks_here
                asked = replace(request, host_bytes=here * request.host_bytes, need_bytes=need * places.count(short))
                return asked, self._plan.devices[short]
        for free, index in self._freest() if self._queue else ():
            spare = self._kept[index].spare if index in self._kept else free
            if fitting := self._queue.first(min(free, spare), self._own_ram(index)):
                need, request = fitting
                return replace(request, need_bytes=need), self._plan.devices[index]
        return None

    def placement(self, request: Request, device: Device) -> Placement:
        """The placement of a request on a device, with what it asks for; nothing is reserved yet."""
        return self._placement(request, request.need_bytes, self._index[device])

    def start(self, placement: Placement) -> None:
        """Takes a trial out of the queue, and reserves its share, regardless of bounds."""
        self.drop(placement.trial.trial_id)
        for place in placement.all:
            index = self._index[place.device]
            seconds = Request(place.trial, place.estimate, 0).seconds
            end = math.inf if seconds is None else self.now + seconds
            if kept := self._kept.get(index):
                kept.takes(place, end)
            self._running[index].ends[place.trial.trial_id, place.rank] = end, place.limit_bytes
            self._change(index, -place.limit_bytes, -1, -place.host_bytes)
            self._most -= 1

    def drop(self, trial_id: str) -> None:
        """Takes a trial out of the queue, if it waits."""
        self._queue.pop(trial_id)
        self._gangs.pop(trial_id)
        self._keep_no_more(trial_id)

    def enqueue(self, requests: Iterable[Request]) -> None:
        """Adds trials to the queue. Those that wait get other needs instead, and keep their turn among equals.

        A trial that needs more than any device has will get a whole device.
        """
        for request in requests:
            if request.trial.ranks > 1:
                self._enqueue_gang(*self._within_devices(request))
                continue
            turn = self._queue.pop(request.trial.trial_id)
            self._queue.add(*self._within_devices(request), turn)
        self._full.clear()
        for node in list(self._aside):
            self._bring_back(node)

    def _enqueue_gang(self, request: Request, need: int) -> None:
        """Adds a trial of several ranks, or gives it another need. Room that is kept for it stays kept if it can."""
        trial, self._look = request.trial, True
        mine = {index: kept for index, kept in self._kept.items() if kept.trial_id == trial.trial_id}
        sizes = {index: need * self._ranks_on(index, trial) for index in mine}
        if any(self._plan.budgets[index] < size for index, size in sizes.items()):
            self._keep_no_more(trial.trial_id)
            mine = {}
        for index, kept in mine.items():
            kept.spare += kept.kept - sizes[index]
            kept.kept = sizes[index]
            self._change(index, 0, 0, 0)
        self._gangs.add(request, need)

    def next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where; None if none fits now. ``start`` reserves its share."""
        return self._next() if self._most > 0 else None

    def release(self, placement: Placement) -> None:
        """Frees the memory share of a trial that has ended."""
        for place in placement.all:
            index = self._index[place.device]
            if kept := self._kept.get(index):
                kept.gives_back(place)
            self._running[index].ends.pop((place.trial.trial_id, place.rank))
            self._change(index, place.limit_bytes, 1, place.host_bytes)
        self._look = True

    def remove(self, device: Device) -> None:
        """Removes a device, so that nothing more is placed on it."""
        self._lost.add(self._index[device])
        self._count_devices()
        self._bring_back(device.node_id)
        self._kept = {}
        self._sort()
        self.enqueue([*self._queue.requests, *(request for request, *_ in self._gangs)])

    def without_place(self) -> Request | None:
        """A trial whose ranks have no place together, also if all others had ended."""
        return next((request for request, need, _ in self._gangs if not need), None) if self._look else None

    def _need(self, request: Request) -> int:
        """The memory share of a trial. With uniform packing it is the same, unless the trial ran out of memory."""
        return max(request.need_bytes, self._plan.footprint_bytes if self._plan.packing == "uniform" else 0)

    def _placement(self, request: Request, need: int, index: int) -> Placement:
        device, fraction, threads = self._plan.devices[index], self._fraction(index, need), self._plan.threads
        return Placement(request.trial, request.estimate, device, fraction, need, threads, request.host_bytes)

    def _fraction(self, index: int, need: int) -> float:
        if self._plan.packing == "uniform" and need == self._plan.footprint_bytes:
            return 1 / self._plan.fits[index]
        return need / self._plan.budgets[index]

    def _next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where, whatever their number."""
        if self._look and self._gangs and (found := self._next_gang()):
            return found
        while self._queue and self._nodes:
            _, index = self._nodes[0]
            node = self._plan.devices[index].node_id
            if self._nodes[0] != self._emptiest(node):
                heapq.heappop(self._nodes)
                continue
            room = self._room(index)
            if fitting := self._queue.first(room, self._ram(index)):
                need, request = fitting
                return request, self._placement(request, need, index)
            if not self._queue.has_room(room):  # nor on any other device, which has less
                break
            heapq.heappop(self._nodes)
            self._aside.add(node)
        return self._next_before_ranks() if self._queue else None

    def _next_before_ranks(self) -> tuple[Request, Placement] | None:
        """The next trial that will have ended when kept room is needed."""
        for index, kept in self._kept.items() if self._queue else ():
            left = kept.until - self.now
            if index not in self._full and 0 < left < math.inf and self._slots[index] > 0:
                if fitting := self._queue.first(self._within_bounds(index), self._ram(index), left):
                    return fitting[1], self._placement(fitting[1], fitting[0], index)
                self._full.add(index)
        return None

    def _next_gang(self) -> tuple[Request, Placement] | None:
        """The next trial of several ranks for which there is room. Room is kept for those that have none."""
        own: dict[str, list[int]] = defaultdict(list)
        for index, kept in self._kept.items():
            own[kept.trial_id].append(index)
        rooms, now, later = self._open(), dict[Shape, int](), dict[Shape, int]()  # the most for each rank
        for request, need, shape in self._gangs:
            mine, found = own.get(request.trial.trial_id), list[int]()
            if shape not in now:
                now[shape] = self._most_per_rank({index: room for index, (room, _) in rooms.items()}, shape)
                later[shape] = self._most_per_rank(self._not_kept, shape)
            if mine:
                kept_rooms = {index: (self._within_bounds(index), self._slots[index]) for index in mine}
                found = self._together(request, need, kept_rooms)
            if not found and need <= now[shape]:
                found = self._together(request, need, rooms)
            if found and shape[0] <= self._most:
                return request, gang_of([self._placement(request, need, index) for index in found])
            if not mine and need <= later[shape] and self._keep(request, need):
                rooms, now = self._open(), {}
        self._look = False
        return None

    @property
    def _not_kept(self) -> dict[int, int]:
        """The budgets of the remaining devices on which no room is kept."""
        kept = self._kept.keys() | self._lost
        return {index: budget for index, budget in enumerate(self._plan.budgets) if index not in kept}

    def _most_per_rank(self, rooms: Mapping[int, int], shape: Shape) -> int:
        """The most that each rank of a trial can have of these bytes of devices."""
        return most_per_rank([self._plan.devices[index] for index in rooms], list(rooms.values()), shape)

    def _open(self) -> dict[int, tuple[int, int]]:
        """The room and the slots that are free on each device, and not kept for ranks."""
        kept = {index: kept.slots for index, kept in self._kept.items()}
        return {
            index: (self._room(index), min(slots, kept.get(index, slots)))
            for index, slots in enumerate(self._slots)
            if self._is_open(index)
        }

    def _together(self, request: Request, need: int, rooms: Mapping[int, tuple[int, int]]) -> list[int]:
        """The devices for the ranks of a trial, by their rooms and slots; empty if there is no place."""
        ram = request.trial.ranks_here * request.host_bytes
        found = []
        for index, (room, slots) in rooms.items():
            number = self._ranks_on(index, request.trial)
            if room >= number * need and slots >= number and (not ram or self._ram(index) >= ram):
                found.append((-math.inf, index))
        return self._of_nodes(request.trial, found)

    def _keep(self, request: Request, need: int) -> bool:
        """Keeps room for a trial of several ranks where it will be there the soonest, unless there is no place."""
        when = dict[int, float]()
        for index in self._not_kept:
            number, free, slots = self._ranks_on(index, request.trial), self._free[index], self._slots[index]
            at = self._running[index].room_at(need * number, number, free, slots)
            if at is not None:
                when[index] = at
        found = self._of_nodes(request.trial, [(at, index) for index, at in when.items()])
        until = max((when[index] for index in found), default=0.0)
        for index, number in Counter(found).items():
            bytes_later, later = self._running[index].later(until)
            spare, slots = self._plan.budgets[index] - need * number, self._allowed[index] - number
            kept = Kept(request.trial.trial_id, until, need * number, spare - bytes_later, slots - later)
            self._kept[index] = kept
            self._change(index, 0, 0, 0)
        return bool(found)

    def _keep_no_more(self, trial_id: str) -> None:
        """Keeps no more room for a trial."""
        for index in [index for index, kept in self._kept.items() if kept.trial_id == trial_id]:
            del self._kept[index]
            self._look = True
            self._change(index, 0, 0, 0)

    def _ranks_on(self, index: int, trial: Trial) -> int:
        """How many ranks of a trial a device takes: a GPU one, the CPU all of a node."""
        return trial.ranks_here if self._plan.devices[index].kind == "cpu" else 1

    def _of_nodes(self, trial: Trial, found: Iterable[tuple[float, int]]) -> list[int]:
        """The devices of a trial's ranks, of those that have room at these times."""
        nodes: dict[str, list[Room]] = defaultdict(list)
        for when, index in found:
            number = self._ranks_on(index, trial)
            nodes[self._plan.devices[index].node_id] += [(when, -self._free[index], index)] * number
        return together(trial.shape, nodes.values())

    def _sort(self) -> None:
        """Makes the heaps of devices, by their room. They may have stale entries."""
        self._heaps: dict[str, list[tuple[int, int]]] = {}  # by node id, since the devices of a node share its RAM
        for index, device in enumerate(self._plan.devices):
            self._heaps.setdefault(device.node_id, []).append((-self._room(index), index))
        self._nodes: list[tuple[int, int]] = []  # the emptiest device of each node
        self._aside: set[str] = set()  # nodes without RAM for any trial, which are not in ``_nodes``
        for node, heap in self._heaps.items():
            heapq.heapify(heap)
            self._bring_back(node)

    def _emptiest(self, node: str) -> tuple[int, int] | None:
        """The device of a node with the most room among those with a free slot."""
        heap = self._heaps[node]
        while heap and (-heap[0][0] != self._room(heap[0][1]) or not self._is_open(heap[0][1])):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _count_devices(self) -> None:
        """Notes the largest share of the remaining devices, and the smallest RAM of their hosts."""
        self._largest = self._plan.largest_without([self._plan.devices[index] for index in self._lost])
        rams = [self._plan.ram_budgets.get(device.node_id, UNBOUNDED) for device in self._left()]
        self._smallest_ram = min(rams, default=0)

    def _is_open(self, index: int) -> bool:
        kept = self._kept.get(index)
        return self._slots[index] > 0 and not (kept and kept.slots <= 0) and index not in self._lost

    def _left(self) -> list[Device]:
        """The remaining devices that the plan uses."""
        return [device for i, device in enumerate(self._plan.devices) if self._plan.slots[i] and i not in self._lost]

    def _within_devices(self, request: Request) -> tuple[Request, int]:
        """The request and its need, limited to the largest device, and the largest RAM of a host that can hold it."""
        budgets, rams = self._plan.budgets, self._plan.ram_budgets
        ranks, lost = request.trial.ranks_here, [self._plan.devices[index] for index in self._lost]
        largest = self._largest if request.trial.ranks == 1 else self._plan.largest_without(lost, request.trial.shape)
        need = min(self._need(request), largest)
        if ranks * request.host_bytes > self._smallest_ram:
            holding = [device for device in self._left() if budgets[self._index[device]] >= need]
            if ranks > 1:  # only nodes that have a place for all
                most = Counter(device.node_id for device in holding)
                holding = [device for device in holding if device.kind == "cpu" or most[device.node_id] >= ranks]
            request = replace(request, host_bytes=min(request.host_bytes, largest_ram(holding, rams) // ranks))
        return request, need

    def _ram(self, index: int) -> int:
        """The bytes of its host's RAM that can be reserved for a device now: free, and within the bound."""
        if not self._free_ram or self._plan.devices[index].node_id:
            return self._own_ram(index)
        return int(min(self._own_ram(index), self._ram_bound))

    def _own_ram(self, index: int) -> int:
        """The free bytes of the budget of a device's host's RAM."""
        return self._free_ram.get(self._plan.devices[index].node_id, UNBOUNDED) if self._free_ram else UNBOUNDED

    def _bring_back(self, node: str) -> None:
        """Has the emptiest device of a node looked at again."""
        self._aside.discard(node)
        if device := self._emptiest(node):
            heapq.heappush(self._nodes, device)

    def _freest(self) -> list[tuple[int, int]]:
        """Free bytes and index of the emptiest open device of each host, the most first."""
        found: dict[str, tuple[int, int]] = {}
        for index, (device, free) in enumerate(zip(self._plan.devices, self._free, strict=True)):
            if self._is_open(index):
                found[device.node_id] = max(found.get(device.node_id, (0, 0)), (free, index))
        return sorted(found.values(), reverse=True)

    def _within_bounds(self, index: int) -> int:
        """The free bytes of a device within the bound."""
        return int(min(self._free[index], self._bounds[index]))

    def _room(self, index: int) -> int:
        """The bytes that can be reserved on a device now: free, within the bound, and not kept for ranks."""
        room = self._within_bounds(index)
        return min(room, self._kept[index].spare) if index in self._kept else room

    def _change(self, index: int, memory: int, slots: int, ram: int) -> None:
        self._free[index] += memory
        self._bounds[index] += min(0, memory)
        self._slots[index] += slots
        self._full.discard(index)
        node = self._plan.devices[index].node_id
        heapq.heappush(self._heaps[node], (-self._room(index), index))
        if node in self._free_ram:
            self._free_ram[node] += ram
        self._ram_bound += 0 if node else min(0, ram)
        self._bring_back(node)
