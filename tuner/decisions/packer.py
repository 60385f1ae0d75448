"""Decides which trial starts next, where, and with how much memory."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tuner.decisions.accounts import Account, Accounts
from tuner.decisions.capacity import UNBOUNDED, largest_ram
from tuner.decisions.events import (
    Allowed,
    CapacityObserved,
    Corrected,
    Decision,
    DeviceLost,
    Dropped,
    Ended,
    Event,
    Held,
    Opened,
    Planned,
    Released,
    Replanned,
    RetryReady,
    Started,
)
from tuner.decisions.plan import NO_DEVICES, Plan
from tuner.decisions.queue import Queue
from tuner.decisions.rank_groups import RankGroups, rank_group_of
from tuner.decisions.state import State
from tuner.trial import Device, Outcome, Placement, Request


class Packer:
    """The policy that starts trials: it has the accounts of the devices, and the queue of what waits.

    The first trial of the queue that fits goes to the emptiest device. So trials spread over the devices, and small
    ones fill the gaps. Trials of several ranks go first: room is kept for those that do not fit yet.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        """Has no devices before the study is ``Opened``, unless there is a plan."""
        self._plan = NO_DEVICES
        self._accounts = Accounts()
        self.groups = RankGroups(self._accounts)
        self._queue = Queue()
        self._most = math.inf  # how many trials may be placed at once until the next ``limit``
        self._bounded = False  # whether the last ``limit`` bounded memory or RAM
        self._now = 0.0  # of the study's clock, in seconds
        if plan:
            self.extend(plan)

    def hear(self, state: State, event: Event) -> None:
        """Keeps the accounts."""
        if isinstance(event, Opened):
            self.extend(event.plan)
            self.enqueue(event.requests)
        elif not self._plan.devices:  # of an earlier process
            return
        elif isinstance(event, CapacityObserved) and event.bounds:
            self.limit(event.bounds.rooms, event.bounds.most, event.bounds.ram_bytes)
        elif isinstance(event, Planned):
            self.enqueue(event.requests)
        elif isinstance(event, RetryReady):
            self.enqueue([event.request])
        elif isinstance(event, Corrected):
            self.enqueue(event.requests.values())
        elif isinstance(event, Dropped):
            self.drop(event.request.trial.trial_id)
        elif isinstance(event, Started):
            self.start(event.placement)
        elif isinstance(event, Ended) and event.outcome and event.outcome.placement:
            self.release(event.outcome.placement)
        elif isinstance(event, Allowed):
            self.allow(event.device, event.workers)
        elif isinstance(event, Replanned):
            self.extend(event.plan)
        elif isinstance(event, DeviceLost):
            self.remove(event.device)
        if isinstance(event, (Opened, Replanned, Held, Released)):
            for account in self._accounts:
                account.away = account.device in state.released or account.device in state.wanted
            self.groups.look = True
            self._accounts.sort()

    def decide(self, state: State, now: float) -> Decision | None:
        """The next start, while the free capacity of the devices is known."""
        if state.bounds is None or state.stopping:
            return None
        self._now = now
        if request := self.groups.without_place():
            error = "the devices have no place for all its ranks at once"
            return Dropped(request, Outcome(request.trial, "failed", error=error))
        start = self.next()
        return Started(*start) if start else None

    @property
    def room_bytes(self) -> int:
        """The free bytes of the emptiest device with a free slot, without bounds; 0 if there is none."""
        return next((account.free for account in self._accounts.emptiest_of_each()), 0)

    def held_back(self) -> tuple[Request, Device] | None:
        """The trial that would start next if this study were alone on its devices, with its share, and its device."""
        if not self._bounded:
            return (start[0], start[1].device) if (start := self._next()) else None
        if held := self.groups.held_back():
            return held
        for account in self._accounts.emptiest_of_each() if self._queue else ():
            free = min(account.free, account.reservation.spare) if account.reservation else account.free
            if fitting := self._queue.first(free, self._accounts.free_ram(account.device)):
                need, request = fitting
                return replace(request, need_bytes=need), account.device
        return None

    def placement(self, request: Request, device: Device) -> Placement:
        """A request's place on a device, with the share that it asks for; nothing is reserved yet."""
        return self._placement(request, request.need_bytes, self._accounts[device])

    def is_short_of(self, device: Device, wanted: Collection[Device], more: int) -> bool:
        """Whether trials wait that fit on a device, and more than the others have slots for that are held or wanted.

        If none waits, as many ``more`` will.
        """
        account = self._accounts[device]
        if account.allowed <= 0 or self.groups:
            return account.allowed > 0
        ram = self._accounts.ram_budgets.get(device.node_id, UNBOUNDED)
        fitting = self._queue.first(account.budget, ram)
        if not fitting and (self._queue or not more):
            return False
        need, host_bytes = (fitting[0], fitting[1].host_bytes) if fitting else (1, 0)
        rooms = [one for one in self._accounts if not one.lost and one.free >= need]
        rooms = [one for one in rooms if self._accounts.free_ram(one.device) >= host_bytes]
        return len(self._queue) + more > sum(one.slots if one.device in wanted else one.open_slots for one in rooms)

    def runs_on(self, device: Device) -> bool:
        """Whether trials run on a device."""
        return bool(self._accounts[device].running)

    def uses(self, device: Device) -> bool:
        """Whether trials run on a device, or it is kept for ranks."""
        return bool(self.runs_on(device) or self._accounts[device].reservation or self.groups)

    def extend(self, plan: Plan) -> None:
        """Takes the first plan, or one that has the same devices and maybe others after them."""
        waiting, before = self._waiting, self._plan
        self._plan = plan
        for device, had, now in zip(before.devices, before.at_first, plan.at_first):  # noqa: B905
            if now > max(had, self._accounts[device].allowed):
                self.allow(device, now)
        self._accounts.add(plan)
        self._queue = Queue(
            memory_binds=plan.bound in ("memory", "RAM") or plan.guaranteed < plan.workers,
            largest=(plan.limits().device_bytes, max(plan.ram_budgets.values(), default=0)),
            total=(sum(plan.budgets), sum(plan.ram_budgets.values())),
            slots=sum(plan.at_first),
        )
        self._count_devices()
        self.enqueue(waiting)

    def limit(self, rooms: Mapping[Device, int], most: int | None = None, ram_bytes: int | None = None) -> None:
        """Bounds the reservations on these devices until the next call, since others use them, too.

        Other devices have no bound, and releases raise none. ``most`` bounds the number of placed trials, and
        ``ram_bytes`` this machine's RAM beside its GPUs.
        """
        self._most = math.inf if most is None else most
        self.groups.look = True
        was_bounded, self._bounded = self._bounded, bool(rooms) or ram_bytes is not None
        if was_bounded or self._bounded:
            self._accounts.limit(rooms, ram_bytes)
        else:
            self._accounts.look_again()

    def allow(self, device: Device, workers: int) -> None:
        """Sets how many trials may run on a device at once. Running trials are left alone."""
        account = self._accounts[device]
        more, account.allowed = workers - account.allowed, workers
        account.slots += more
        if account.reservation:
            account.reservation.slots += more
        self.groups.look = True
        self._accounts.changed(account)

    def enqueue(self, requests: Iterable[Request]) -> None:
        """Adds trials to the queue. Those that wait get other needs instead, and keep their turn among equals.

        A trial that needs more than any device has will get a whole device.
        """
        for each in requests:
            request, need = self._within_devices(each)
            if request.trial.ranks > 1:
                self.groups.add(request, need)
            else:
                self._queue.add(request, need, self._queue.pop(request.trial.trial_id))
        self.groups.look = True
        self._accounts.look_again()

    def next(self) -> tuple[Request, Placement] | None:
        """The trial that starts next, and where; None if none fits now. ``start`` reserves its share."""
        return self._next() if self._most > 0 else None

    def start(self, placement: Placement) -> None:
        """Takes a trial out of the queue, and reserves its share, regardless of bounds."""
        self.drop(placement.trial.trial_id)
        for place in placement.all:
            self._accounts.take(place, self._now)
            self._most -= 1

    def release(self, placement: Placement) -> None:
        """Frees the memory share of a trial that has ended."""
        for place in placement.all:
            self._accounts.give_back(place)
        self.groups.look = True

    def remove(self, device: Device) -> None:
        """Removes a device, so that nothing more is placed on it."""
        self._accounts[device].lost = True
        self._count_devices()
        for account in self._accounts:
            account.reservation = None
        self._accounts.sort()
        self.enqueue(self._waiting)

    def drop(self, trial_id: str) -> None:
        """Takes a trial out of the queue, if it waits."""
        self._queue.pop(trial_id)
        self.groups.drop(trial_id)

    @property
    def _waiting(self) -> list[Request]:
        return [*self._queue.requests, *self.groups.requests]

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
        if group := self.groups.next(self._most):
            request, need, accounts = group
            return request, rank_group_of([self._placement(request, need, account) for account in accounts])
        while self._queue and (account := self._accounts.emptiest()):
            room = account.room
            if fitting := self._queue.first(room, self._accounts.ram(account.device)):
                need, request = fitting
                return request, self._placement(request, need, account)
            if not self._queue.has_room(room):  # nor on any other device, which has less
                break
            self._accounts.set_aside(account.device.node_id)
        return self._next_before_ranks() if self._queue and self.groups else None

    def _next_before_ranks(self) -> tuple[Request, Placement] | None:
        """The next trial that will have ended when kept room is needed."""
        for account in self._accounts:
            if account.reservation is None or account.full or account.away or account.slots <= 0:
                continue
            seconds = account.reservation.until - self._now
            if 0 < seconds < math.inf:
                ram = self._accounts.ram(account.device)
                if fitting := self._queue.first(account.within_bounds, ram, seconds):
                    need, request = fitting
                    return request, self._placement(request, need, account)
                account.full = True
        return None

    def _count_devices(self) -> None:
        """Notes the most that a trial may have on the remaining devices, and the smallest RAM of their hosts."""
        self._limits = self._plan.limits([account.device for account in self._accounts if account.lost])
        rams = [self._plan.ram_budgets.get(account.device.node_id, UNBOUNDED) for account in self._left()]
        self._smallest_ram = min(rams, default=0)

    def _left(self) -> list[Account]:
        """The remaining devices that the plan uses."""
        return [account for account in self._accounts if self._plan.slots[account.index] and not account.lost]

    def _within_devices(self, request: Request) -> tuple[Request, int]:
        """The request and its need, limited to the largest device, and the largest RAM of a host that can hold it."""
        ranks, (largest, _) = request.trial.shape.ranks_per_node, self._limits.of(request.trial.shape)
        need = min(self._need(request), largest)
        if ranks * request.host_bytes > self._smallest_ram:
            holding = [account.device for account in self._left() if account.budget >= need]
            if ranks > 1:  # only nodes that have a place for all
                most = Counter(device.node_id for device in holding)
                holding = [device for device in holding if device.kind == "cpu" or most[device.node_id] >= ranks]
            ram = largest_ram(holding, self._plan.ram_budgets) // ranks
            request = replace(request, host_bytes=min(request.host_bytes, ram))
        return request, need
