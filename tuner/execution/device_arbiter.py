"""How much of this machine's devices a study may give to its trials, beside other studies and other programs.

The plan divides what is free before the first trial. From then on the rule is, for each device,

    room = min(total - buffer, total - other_processes) - reserved

where ``other_processes`` is the memory of processes that belong to no study, and ``reserved`` is what all studies
together have reserved for their running trials. The same holds for the RAM beside GPUs, of which a buffer is left
free as well. Devices of other machines are ignored.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.decisions.capacity import ram_buffer_bytes
from tuner.decisions.events import Bounds
from tuner.decisions.plan import Plan, need_bytes
from tuner.errors import option
from tuner.machine.holders import Holder, Memory, holders, memory_now, with_descendants
from tuner.machine.leases import Lease, LeaseHolder, Share, device_key, host_ram
from tuner.trial import GB, MB, Device, Placement, Request, ShortOf

READING_SECONDS = 0.5  # between two readings of the devices' memory, at least
READING_SHARE = 0.05  # the largest share of the time that may be spent on readings
SAID_AFTER_SECONDS = 5.0  # a trial that has just ended may still be freeing its memory
GIVEN_UP_SECONDS = 1800.0
# The memory of other processes varies a little all the time, and so do their figures.
SLACK_BYTES, SLACK = 256 * MB, 0.02
LEARNED_PARTS = 8  # a learned footprint is a guess, so an eighth of it is enough to start with
NAMED = 2  # the number of holders that a text names
NAMED_BYTES = 64 * MB  # holders of less are not named


@dataclass(frozen=True)
class Wait:
    """What to do with a trial that fits beside this study's own trials, but not beside others."""

    text: str = ""  # a notice for the user; empty if it was given already, or it is too early
    given_up: str = ""  # why it will never start


class DeviceArbiter:
    """Decides what this study may give to its trials, and tells other studies."""

    def __init__(
        self,
        name: str = "",
        plan: Plan | None = None,
        *,
        read: Callable[[Device, Sequence[Collection[int]]], Memory] = memory_now,
        read_holders: Callable[[Device, Collection[int], int], Sequence[Holder]] = holders,
        reading_lasts: Callable[[float], float] = lambda took: max(READING_SECONDS, took / READING_SHARE),
        clock: Callable[[], float] = time.time,
        takes_rest: bool = False,
    ) -> None:
        """Takes a lease under this name with the first ``placing``. Without a plan nobody shares the devices.

        With ``takes_rest``, a trial with a learned footprint takes what other studies leave, if that may be enough.
        """
        self._takes_rest = takes_rest
        self._buffer_bytes, self._threads = (plan.buffer_bytes, plan.threads) if plan else (0, 1)
        self._devices = [device for device in plan.devices if not device.node_id] if plan else []
        self._budgets = dict(zip(plan.devices, plan.budgets, strict=True)) if plan else {}
        self._ram = _ram_beside(self._devices)
        if plan and self._ram is not None:
            self._budgets[self._ram] = plan.ram_budgets[""]
        self._watched = [*self._devices, *([self._ram] if self._ram else [])]
        self._read, self._read_holders = read, read_holders
        self._reading_lasts = reading_lasts  # the seconds until the next one, by those that one took
        self._clock = clock
        self._holder = LeaseHolder(name)
        self._others: tuple[Lease, ...] = ()
        self._readings: dict[Device, Memory] = {}
        self._read_again = 0.0  # when to read them anew; monotonic seconds
        self._held_since: float | None = None
        self._other_processes_since: float | None = None
        self._said = False
        self._without_cores = False  # whether all cores are used, also by other studies

    @contextmanager
    def placing(self, running: Collection[Placement]) -> Iterator[Bounds]:
        """What may be placed beside the running trials. Other studies reserve nothing until the end of the block.

        Call ``reserve`` within the block.
        """
        if not self._devices:
            yield Bounds({})
            return
        with self._holder.exclusive() as others:
            if [lease.pid for lease in others] != [lease.pid for lease in self._others]:
                self._readings = {}
            self._others = others
            self.reserve(running)
            yield self._bounds()

    def reserve(self, running: Collection[Placement]) -> None:
        """Records what these trials have reserved."""
        given = []
        for placement in running:
            trial_id, device, threads = placement.trial.trial_id, placement.device, placement.threads
            if not device.node_id:
                given.append(Share(trial_id, device_key(device), placement.limit_bytes, threads))
                if self._ram is not None and placement.host_bytes:
                    given.append(Share(trial_id, device_key(self._ram), placement.host_bytes, threads))
        lease = replace(self._holder.lease, shares=tuple(given))
        self._holder.lease = _not_waiting(lease) if given else lease

    def remains(self, held: tuple[Request, Device]) -> Request | None:
        """The request cut to what is left, where that can be enough; None if it waits.

        A whole device is smaller while other programs hold a part of it. A first share is a guess, of which a part is
        enough to start with; once the footprint is learned, that is. With as much as a trial ran out with it would do
        so again. Of several ranks it is what each has.

        This is only for a study without running trials, on a device without trials of other studies. Where this
        study's processes cannot be told from others, the request is not cut: if the memory is missing, its attempt
        does not count.
        """
        request, device = held
        if device not in self._devices:
            return None
        estimate, ranks = request.estimate, request.trial.ranks > 1
        beside = self._takes_rest and estimate.is_learned and not self._holder.lease.shares
        if not (beside or self.has_alone(device)):
            return None
        if self._memory(device).held_bytes is None:
            return None if ranks else request
        number = request.trial.shape.ranks_per_node if device.kind == "cpu" else 1  # of its ranks here
        need, room = request.need_bytes // number, self._room(device) // number
        learned = estimate.is_learned and not request.history.out_of_memory
        whole = learned or request.need_bytes >= self._budgets[device]
        least = need_bytes(estimate) if learned else max(estimate.least_bytes, request.ran_out_bytes + 1)
        if learned and estimate.is_first_share:
            least = max(need // LEARNED_PARTS, estimate.context_bytes + 1)
        if self._ram is not None and request.host_bytes > (room_in_ram := self._room(self._ram)):
            if ranks or estimate.host_measured:
                return None
            request, whole = replace(request, host_bytes=room_in_ram), whole or need <= room
        fits = whole and least <= room and (need > room or not ranks)
        return replace(request, need_bytes=min(need, room)) if fits else None

    def has_alone(self, device: Device) -> bool:
        """Whether no trial runs, neither of this study nor of another one on the device or in the RAM beside it."""
        keys = {device_key(memory) for memory in (device, self._ram) if memory is not None}
        theirs = [share for lease in self._others for share in lease.shares]
        return not self._holder.lease.shares and not any(share.device in keys for share in theirs)

    def wait(self, held: tuple[Request, Device] | None, *, placed: bool) -> Wait:
        """Says once who holds the memory that a trial waits for; gives up if other processes hold it for too long.

        When a trial ends, studies without a running trial go first, in the order in which they began to wait.
        """
        now = self._clock()
        if placed or held is None or held[1] not in self._devices:
            self._held_since = self._other_processes_since = None
            self._said = False
            self._holder.lease = _not_waiting(self._holder.lease)
            return Wait()
        request, device = held
        need = request.need_bytes
        if self._ram is not None and need <= self._room(device):  # it is the RAM that it waits for
            need, device = request.host_bytes, self._ram
        alone = self._left(device, all_of_studies=True)  # for this study, if the others had ended
        reserved = self._holder.lease.reserved_bytes(device_key(device))
        by_studies = self._without_cores or (bool(self._others) and need <= alone - reserved)
        if by_studies and not self._holder.lease.shares:
            since = self._holder.lease.waits_since or now
            key = device_key(device)
            self._holder.lease = replace(self._holder.lease, waits_for=key, waits_since=since, looked=now)
        self._held_since = self._held_since or now
        told_apart = self._memory(device).held_bytes is not None
        never = told_apart and not by_studies and need > alone
        self._other_processes_since = self._other_processes_since or now if never else None
        if self._other_processes_since is not None and now - self._other_processes_since >= GIVEN_UP_SECONDS:
            whose = self._whose(request, need, device, by_studies=False)
            return Wait(given_up=f"no memory in {GIVEN_UP_SECONDS / 60:.0f} minutes: {whose}")
        if self._said or now - self._held_since < SAID_AFTER_SECONDS:
            return Wait()
        self._said = True
        return Wait(f"{request.trial.name} waits: {self._whose(request, need, device, by_studies=by_studies)}")

    def short(self, device: Device, short_of: ShortOf = "") -> str:
        """Who holds memory, or RAM beside the device, that the plan counted on; empty if nobody does."""
        looked_at = self._ram if short_of == "RAM" else device
        if device not in self._devices or looked_at is None:
            return ""
        self._readings = {}
        missing = self._budgets[looked_at] - self._left(looked_at, all_of_studies=True)
        return self._other_processes_text(looked_at) if missing > 0 else ""

    def close(self) -> None:
        """Ends the lease."""
        self._holder.close()

    def _bounds(self) -> Bounds:
        self._without_cores = False
        free = (self._read(device, ()).free_bytes >= self._budgets[device] for device in self._watched)
        if not self._others and all(free):  # then the holders do not matter
            return Bounds({})
        most = self._most()
        self._without_cores = most == 0
        rooms = {device: self._room(device) for device in self._devices}
        return Bounds(rooms, most, None if self._ram is None else self._room(self._ram))

    def _room(self, device: Device) -> int:
        """What this study may still reserve; nothing while a study without a running trial has waited longer."""
        key, now = device_key(device), self._clock()
        since = self._holder.lease.waits_since or math.inf
        if any(lease.waits(key, now) and lease.waits_since < since for lease in self._others):
            return 0
        reserved = sum(lease.reserved_bytes(key) for lease in (self._holder.lease, *self._others))
        return max(0, self._left(device) - reserved)

    def _left(self, device: Device, *, all_of_studies: bool = False) -> int:
        """The memory of a device that all studies together may use.

        Memory that another study holds beyond its reservations, such as contexts of idle workers, is not available
        before that study ends. ``all_of_studies`` counts it as available.
        """
        memory, key = self._memory(device), device_key(device)
        reserved = [lease.reserved_bytes(key) for lease in (self._holder.lease, *self._others)]
        held = reserved if memory.held_bytes is None else memory.held_bytes
        studies = held[0] + sum(held[1:] if all_of_studies else map(min, held[1:], reserved[1:]))
        other_processes = max(0, memory.total_bytes - memory.free_bytes - studies)
        slack, buffer_bytes = max(SLACK_BYTES, int(SLACK * memory.total_bytes)), self._buffer_bytes
        if device == self._ram:
            buffer_bytes = ram_buffer_bytes(self._devices[0], buffer_bytes)
            other_processes += buffer_bytes
        return min(memory.total_bytes - buffer_bytes, memory.total_bytes - other_processes + slack)

    def _most(self) -> int | None:
        """How many trials the cores have room for beside other studies; at least one for each study."""
        rams = [device for device in self._devices if device.kind == "cpu" and device.cores]
        key = device_key(rams[0]) if rams else ""
        theirs = [share for lease in self._others for share in lease.shares if share.device == key]
        if not theirs:
            return None
        ours = self._holder.lease.shares
        free = rams[0].cores - sum(share.threads for share in (*ours, *theirs))
        return max(0 if ours else 1, free // self._threads)

    def _memory(self, device: Device) -> Memory:
        """The device's memory, from a recent reading."""
        began = time.monotonic()
        if not self._readings or began > self._read_again:
            trees = self._trees()
            self._readings = {device: self._read(device, trees) for device in self._watched}
            self._read_again = began + self._reading_lasts(time.monotonic() - began)
        return self._readings[device]

    def _trees(self) -> list[set[int]]:
        """The processes of this study, and of each of the others."""
        return with_descendants([lease.pid for lease in (self._holder.lease, *self._others)])

    def _whose(self, request: Request, need: int, device: Device, *, by_studies: bool) -> str:
        key = device_key(device)
        running = {lease.name: {share.trial for share in lease.shares} for lease in self._others}
        if self._without_cores:
            used = [
                f"{len(trials)} trial{'s' * (len(trials) != 1)} of {name}"
                for name, trials in running.items()
                if trials
            ]
            return f"the {device.cores} CPU cores are used, also by {', '.join(used)}"
        # With a learned footprint, a trial may need far less than its share.
        which = "its share is" if request.estimate.is_learned else "it needs"
        needs = f"{which} {need / GB:.2f} GB of {'RAM' if device == self._ram else device.label}"
        if not by_studies:
            return f"{needs}, and {self._other_processes_text(device)}"
        reserved = [(lease.reserved_bytes(key), lease.name) for lease in self._others]
        theirs = [f"{size / GB:.2f} GB by {name}" for size, name in reserved if size >= NAMED_BYTES]
        whose = f"use: {', '.join(theirs)}" if theirs else "still hold or wait for"
        remedy = f"; {option('memory_gb')} gives a smaller share" if request.estimate.is_learned else ""
        return f"{needs}, which other studies {whose}{remedy}"

    def _other_processes_text(self, device: Device) -> str:
        memory, ours = self._memory(device), set[int]().union(*self._trees())
        largest = self._read_holders(device, ours, NAMED)
        largest = [holder for holder in largest if (holder.held_bytes or 0) >= NAMED_BYTES]
        free = f"{memory.free_bytes / GB:.2f} of {memory.total_bytes / GB:.2f} GB are free"
        if not largest or memory.held_bytes is None:
            return f"{free}; who holds the rest cannot be seen from here"
        return f"{free}; held are {', '.join(map(str, largest))}"


def _not_waiting(lease: Lease) -> Lease:
    return replace(lease, waits_for="", waits_since=0.0, looked=0.0)


def _ram_beside(devices: Sequence[Device]) -> Device | None:
    """This machine's RAM as a device, where trials take it beside its GPUs."""
    gpu = next((device for device in devices if device.kind == "cuda" and device.ram_bytes), None)
    return None if gpu is None else host_ram(gpu)
