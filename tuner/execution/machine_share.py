"""What a study may promise of this machine's devices, beside other studies and other programs.

The plan is made of what is free before the first trial. From then on the rule is, for each device,

    room = min(total - buffer, total - strangers) - promised

where ``strangers`` is what processes hold that belong to no study, and ``promised`` is what all studies together have
promised to their running trials. The RAM beside GPUs is promised likewise, and its buffer is left free beside what
strangers hold. Devices of other machines are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.machine.holders import Memory, holders, memory_now, with_descendants
from tuner.machine.leases import Lease, LeaseHolder, Share, device_key
from tuner.placement.packing import Plan
from tuner.placement.rooms import ram_buffer_bytes
from tuner.trial import GB, MB, Device, Placement, Request, ShortOf

READING_SECONDS = 0.5  # what strangers hold is read no more often
SAID_AFTER_SECONDS = 5.0  # a trial that has just ended may still be giving its memory back
GIVEN_UP_SECONDS = 1800.0
# Strangers' memory varies a little all the time, and so do figures of processes.
SLACK_BYTES, SLACK = 256 * MB, 0.02
NAMED = 2  # how many holders a text names
NAMED_BYTES = 64 * MB  # those that hold less are not named


@dataclass(frozen=True)
class Bounds:
    """What may be placed now."""

    rooms: Mapping[Device, int]  # the bytes of each device; a device that is missing has no bound
    most: int | None = None  # the number of trials; None for no bound
    ram_bytes: int | None = None  # of this machine's RAM beside its GPUs; None for no bound


@dataclass(frozen=True)
class Wait:
    """Why a trial that fits beside this study's own trials does not start."""

    text: str = ""  # what is to be said now; empty if it has been said, or it is too early
    given_up: str = ""  # why it will never start


class Unshared:
    """Nobody else uses the devices."""

    @contextmanager
    def placing(self) -> Iterator[Bounds]:
        """What may be placed; ``promise`` belongs into the block."""
        yield Bounds({})

    def promise(self, running: Collection[Placement]) -> None:
        """Notes which trials run."""

    def wait(self, held: tuple[Request, Device] | None, *, placed: bool) -> Wait:
        """What follows if a trial is held back."""
        return Wait()

    def short(self, device: Device, short_of: ShortOf = "") -> str:
        """Who holds memory, or RAM beside the device, that the plan counted on; empty if nobody does."""
        return ""

    def close(self) -> None:
        """Ends the promises."""


class MachineShare(Unshared):
    """This study's part of this machine."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        *,
        read: Callable[[Device, Sequence[Collection[int]]], Memory] = memory_now,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Makes the study's lease under this name."""
        self._plan = plan
        self._devices = [device for device in plan.devices if not device.node_id]
        self._budgets = dict(zip(plan.devices, plan.budgets, strict=True))
        self._ram = _ram_beside(self._devices)
        if self._ram is not None:
            self._budgets[self._ram] = plan.ram_budgets[""]
        self._watched = [*self._devices, *([self._ram] if self._ram else [])]
        self._read = read
        self._clock = clock
        self._holder = LeaseHolder(name)
        self._others: tuple[Lease, ...] = ()
        self._readings: tuple[float, dict[Device, Memory]] = (0.0, {})
        self._held_since: float | None = None
        self._strangers_since: float | None = None
        self._said = False
        self._without_cores = False  # whether all cores are used, also by other studies

    @contextmanager
    def placing(self) -> Iterator[Bounds]:
        """What may be placed now. No other study promises anything until the end of the block."""
        self._without_cores = False
        with self._holder.exclusive() as self._others:
            own, others = self._holder.lease, self._others
            if own.shares and any(lease.waits(self._clock()) for lease in others):
                yield Bounds(dict.fromkeys(self._devices, 0))
                return
            if not others and all(self._surely_free(device) for device in self._watched):
                yield Bounds({})
                return
            most = self._most()
            self._without_cores = most == 0
            rooms = {device: self._room(device, others) for device in self._devices}
            yield Bounds(rooms, most, None if self._ram is None else self._room(self._ram, others))

    def promise(self, running: Collection[Placement]) -> None:
        """Notes the promises to these trials."""
        if not self._devices:
            return
        before = {(share.trial, share.device): share for share in self._holder.lease.shares}
        now = round(self._clock(), 1)
        given = [
            Share(each.trial.trial_id, device_key(each.device), each.limit_bytes, each.threads, now)
            for each in running
        ]
        if self._ram is not None:
            key = device_key(self._ram)
            here = [each for each in running if each.host_bytes and not each.device.node_id]
            given += [Share(each.trial.trial_id, key, each.host_bytes, each.threads, now) for each in here]
        shares = tuple(before.get((share.trial, share.device), share) for share in given)
        self._holder.lease = replace(self._holder.lease, shares=shares, waited=0.0)

    def wait(self, held: tuple[Request, Device] | None, *, placed: bool) -> Wait:
        """Says once who holds the memory that a trial waits for; gives up if strangers hold it for too long.

        A study that has no running trial goes first when another study's trial ends.
        """
        now = self._clock()
        if placed or held is None:
            self._held_since = self._strangers_since = None
            self._said = False
            return Wait()
        request, device = held
        need = request.need_bytes
        if self._ram is not None and need <= self._room(device, self._others):  # it is the RAM that it waits for
            need, device = request.host_bytes, self._ram
        by_studies = self._without_cores or (bool(self._others) and need <= self._room(device, ()))
        if by_studies and not self._holder.lease.shares:
            self._holder.lease = replace(self._holder.lease, waited=now)
        self._held_since = self._held_since or now
        never = not by_studies and need > self._left(device)
        self._strangers_since = self._strangers_since or now if never else None
        if self._strangers_since is not None and now - self._strangers_since >= GIVEN_UP_SECONDS:
            whose = self._whose(need, device, by_studies=False)
            return Wait(given_up=f"no memory in {GIVEN_UP_SECONDS / 60:.0f} minutes: {whose}")
        if self._said or now - self._held_since < SAID_AFTER_SECONDS:
            return Wait()
        self._said = True
        return Wait(f"{request.trial.name} waits: {self._whose(need, device, by_studies=by_studies)}")

    def short(self, device: Device, short_of: ShortOf = "") -> str:
        """Who holds memory, or RAM beside the device, that the plan counted on; empty if nobody does."""
        looked_at = self._ram if short_of == "RAM" else device
        if device not in self._devices or looked_at is None:
            return ""
        self._readings = (0.0, {})
        missing = self._budgets[looked_at] - self._left(looked_at)
        return self._strangers_text(looked_at) if missing > 0 else ""

    def close(self) -> None:
        """Ends the lease."""
        self._holder.close()

    def _surely_free(self, device: Device) -> bool:
        """Whether all that the plan has of the device is free, so that nobody need ask who holds what."""
        return self._read(device, ()).free_bytes >= self._budgets[device]

    def _room(self, device: Device, others: Sequence[Lease]) -> int:
        key = device_key(device)
        promised = sum(lease.promised_bytes(key) for lease in (self._holder.lease, *others))
        return max(0, self._left(device) - promised)

    def _left(self, device: Device) -> int:
        """What all studies together may use of a device.

        What another study holds beyond its promises, such as the contexts of idle workers, is not to be had.
        """
        memory, key, now = self._memory(device), device_key(device), self._clock()
        held = memory.held_bytes
        if held is None or len(held) != 1 + len(self._others):
            held = tuple(lease.settled_bytes(key, now) for lease in (self._holder.lease, *self._others))
        theirs = zip(held[1:], self._others, strict=True)
        ours = held[0] + sum(min(size, lease.promised_bytes(key)) for size, lease in theirs)
        strangers = max(0, memory.total_bytes - memory.free_bytes - ours)
        slack = max(SLACK_BYTES, int(SLACK * memory.total_bytes))
        if device == self._ram:
            strangers += ram_buffer_bytes(self._devices[0], self._plan.buffer_bytes)
        return min(memory.total_bytes - self._plan.buffer_bytes, memory.total_bytes - strangers + slack)

    def _most(self) -> int | None:
        """How many trials the cores are left for, beside those of other studies; a study may always have one."""
        rams = [device for device in self._devices if device.kind == "cpu" and device.cores]
        key = device_key(rams[0]) if rams else ""
        theirs = [share for lease in self._others for share in lease.shares if share.device == key]
        if not theirs:
            return None
        own = self._holder.lease.shares
        free = rams[0].cores - sum(share.threads for share in (*own, *theirs))
        return max(0 if own else 1, free // self._plan.threads)

    def _memory(self, device: Device) -> Memory:
        """The device's memory, read anew if that was some time ago."""
        read_at, found = self._readings
        if not found or abs(time.monotonic() - read_at) > READING_SECONDS:
            trees = self._trees()
            found = {each: self._read(each, trees) for each in self._watched}
            self._readings = time.monotonic(), found
        return found[device]

    def _trees(self) -> list[set[int]]:
        """The processes of this study, and of each of the others."""
        return with_descendants([lease.pid for lease in (self._holder.lease, *self._others)])

    def _whose(self, need: int, device: Device, *, by_studies: bool) -> str:
        key = device_key(device)
        if self._without_cores:
            used = [
                f"{len({share.trial for share in lease.shares})} trials of {lease.name}"
                for lease in self._others
                if lease.shares
            ]
            return f"the {device.cores} CPU cores are used, also by {', '.join(used)}"
        needs = f"it needs {need / GB:.2f} GB of {'RAM' if device == self._ram else device.label}"
        if not by_studies:
            return f"{needs}, and {self._strangers_text(device)}"
        theirs = [f"{lease.promised_bytes(key) / GB:.2f} GB by {lease.name}" for lease in self._others]
        return f"{needs}, which other studies use: {', '.join(theirs)}"

    def _strangers_text(self, device: Device) -> str:
        memory = self._memory(device)
        found = [
            each
            for each in holders(device, set[int]().union(*self._trees()))
            if (each.held_bytes or 0) >= NAMED_BYTES
        ]
        free = f"{memory.free_bytes / GB:.2f} of {memory.total_bytes / GB:.2f} GB are free"
        return (
            f"{free}; held are {', '.join(map(str, found[:NAMED]))}"
            if found
            else f"{free}; who holds the rest cannot be seen from here"
        )


def _ram_beside(devices: Sequence[Device]) -> Device | None:
    """This machine's RAM as a device, where trials take it beside its GPUs."""
    gpu = next((device for device in devices if device.kind == "cuda" and device.ram_bytes), None)
    return None if gpu is None else Device("", "cpu", 0, "RAM", gpu.ram_bytes, gpu.free_ram_bytes, 0)
