"""What this user's studies on this machine have promised to their trials, so that no memory is promised twice.

Each holder of a lease has a file in a private folder. It keeps the file locked, and the kernel frees the lock when
the holder ends, however that happens. All files are read and written under one more lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkstemp
from typing import Any
from weakref import WeakMethod

from tuner.machine.atomic_files import not_following
from tuner.machine.holders import memory_now, with_descendants
from tuner.machine.private_folder import locked
from tuner.trial import Device

LOCK, PREFIX, SUFFIX = "leases.lock", "lease-", ".json"
LOCK_SECONDS = 5.0  # a lease is written in less than a millisecond; whoever is stopped meanwhile stops nobody else
WAITING_SECONDS = 15.0  # who waits looks twice a second
SETTLED_SECONDS = 60.0  # until then a trial may not have taken its share yet


@dataclass(frozen=True)
class Share:
    """What a trial was given of a device."""

    trial: str
    device: str  # as ``device_key`` names it
    given_bytes: int
    threads: int
    since: float  # seconds since the epoch


@dataclass(frozen=True)
class Lease:
    """What a study has promised to its running trials; a trial of Ray Tune has a lease of its own."""

    pid: int
    name: str  # the study's folder
    began: float  # seconds since the epoch
    shares: tuple[Share, ...] = ()
    # When it last found that it has no running trial and only the promises of others keep it from starting one;
    # seconds since the epoch, 0 for never.
    waited: float = 0.0

    def waits(self, now: float) -> bool:
        """Whether it waits for its first trial; one that has been stopped does not count."""
        return now - self.waited < WAITING_SECONDS

    def promised_bytes(self, device: str) -> int:
        """What its trials were given of a device."""
        return sum(share.given_bytes for share in self.shares if share.device == device)

    def settled_bytes(self, device: str, now: float) -> int:
        """The same of trials that have had the time to take it."""
        settled = (each for each in self.shares if each.device == device and now - each.since > SETTLED_SECONDS)
        return sum(share.given_bytes for share in settled)


def device_key(device: Device) -> str:
    """What leases call a device of this machine; RAM goes by the name of the machine or the container."""
    return device.uuid or f"RAM of {os.uname().nodename}"


class LeaseHolder:
    """Keeps this process's lease, and reads those of others."""

    def __init__(self, name: str) -> None:
        """Makes the file. Where that is impossible the process has no lease, and sees none."""
        self.lease = Lease(os.getpid(), name, time.time())
        self._descriptor: int | None = None
        with suppress(OSError), locked(LOCK, LOCK_SECONDS) as folder:
            self._descriptor, path = mkstemp(SUFFIX, PREFIX, folder)
            self._path = Path(path)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._write()
        forget = WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (forget() or (lambda: None))())

    def __del__(self) -> None:
        """A holder that nobody has any more has no lease."""
        self._forget()

    @contextmanager
    def exclusive(self) -> Iterator[tuple[Lease, ...]]:
        """The leases of others, which stay as they are within the block; what is set in it is written at its end."""
        before = self.lease
        with ExitStack() as stack:
            others: tuple[Lease, ...] = ()
            if self._descriptor is not None:
                with suppress(OSError):  # without the lock it goes on alone
                    folder = stack.enter_context(locked(LOCK, LOCK_SECONDS))
                    others = tuple(_read(folder, beside=self._path))
            yield others
            if self.lease != before:
                self._write()

    def close(self) -> None:
        """Ends the lease."""
        if self._descriptor is not None:
            with suppress(OSError), locked(LOCK, LOCK_SECONDS):  # which removes the folder if this is the last
                self._path.unlink()
            self._forget()

    def _write(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # the disk is full: others see the lease as it was
                content = json.dumps(asdict(self.lease)).encode()
                os.pwrite(self._descriptor, content, 0)
                os.ftruncate(self._descriptor, len(content))

    def _forget(self) -> None:
        """Closes the file; a process that this one has forked keeps no lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_leases() -> list[Lease]:
    """The leases of this user's processes on this machine, the oldest first."""
    try:
        with locked(LOCK, LOCK_SECONDS) as folder:
            return sorted(_read(folder), key=lambda lease: lease.began)
    except OSError:
        return []


def with_leased(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices of this machine with what other studies hold of them counted as free: it will be, as they end."""
    leases = read_leases()
    if not leases:
        return tuple(devices)
    trees, now = with_descendants([lease.pid for lease in leases]), time.time()

    def free_bytes(device: Device) -> int:
        held = memory_now(device, trees).held_bytes
        if held is None:
            held = tuple(lease.settled_bytes(device_key(device), now) for lease in leases)
        return min(device.total_bytes, device.free_bytes + sum(held))

    def with_both(device: Device) -> Device:
        ram = Device("", "cpu", 0, "RAM", device.ram_bytes, device.free_ram_bytes, 0)
        free_ram = free_bytes(ram) if device.ram_bytes else 0
        return replace(device, free_bytes=free_bytes(device), free_ram_bytes=free_ram)

    return tuple(each if each.node_id else with_both(each) for each in devices)


def _read(folder: Path, beside: Path | None = None) -> Iterator[Lease]:
    """The leases whose holders live; the files of others are removed."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        if path == beside:
            continue
        with suppress(OSError), open(path, "rb", opener=not_following) as file:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                continue
            with suppress(ValueError, TypeError, KeyError):
                fields: dict[str, Any] = json.load(file)
                shares = tuple(Share(**each) for each in fields.pop("shares"))
                yield Lease(**fields, shares=shares)
