"""Records the memory that this user's studies have reserved for their trials, so that none is reserved twice.

Each holder of a lease has a file in a private folder. It keeps the file locked, and the kernel frees the lock when
the holder ends, however that happens. All files are read and written under one more lock.
"""

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

from tuner.machine.holders import memory_now, with_descendants
from tuner.machine.private_folder import locked
from tuner.machine.safe_files import not_following
from tuner.trial import Device

LOCK, PREFIX, SUFFIX = "leases.lock", "lease-", ".json"
LOCK_SECONDS = 5.0  # a lease is written in less than a millisecond; a process stopped meanwhile must not block others
WAITING_SECONDS = 15.0  # a waiting study renews its lease twice a second
ALONE_SECONDS = 60.0  # how long a study uses what it knows after it could not get the lock


@dataclass(frozen=True)
class Share:
    """What a trial was given of a device."""

    trial: str
    device: str  # as ``device_key`` names it
    given_bytes: int
    threads: int


@dataclass(frozen=True)
class Lease:
    """What a study has reserved for its running trials; a trial of Ray Tune has a lease of its own."""

    pid: int
    name: str  # the study's folder
    began: float  # seconds since the epoch
    shares: tuple[Share, ...] = ()
    # What it waits for, since when, and when it last looked (seconds since the epoch), if it has no running trial and
    # only what others have reserved keeps it from starting one.
    waits_for: str = ""
    waits_since: float = 0.0
    looked: float = 0.0

    def waits(self, device: str, now: float) -> bool:
        """Whether it waits for memory of a device. A suspended study does not count."""
        return self.waits_for == device and now - self.looked < WAITING_SECONDS

    def reserved_bytes(self, device: str) -> int:
        """What its trials were given of a device."""
        return sum(share.given_bytes for share in self.shares if share.device == device)


def device_key(device: Device) -> str:
    """The name of a device in leases: a GPU's UUID, or RAM with the name of the machine or container."""
    return device.uuid or f"RAM of {os.uname().nodename}"


def host_ram(gpu: Device) -> Device:
    """The RAM of a GPU's host, as a device."""
    return Device("", "cpu", 0, "RAM", gpu.ram_bytes, gpu.free_ram_bytes, 0)


class LeaseHolder:
    """Keeps this process's lease, and reads those of others."""

    def __init__(self, name: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        """Creates the file only with the first ``exclusive``."""
        self._lock_seconds = lock_seconds
        self.lease = Lease(os.getpid(), name, time.time())
        self._others: tuple[Lease, ...] = ()
        self._written: Lease | None = None
        self._again = 0.0  # when to try the lock again; monotonic seconds
        self._descriptor: int | None = None
        forget = WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (forget() or (lambda: None))())

    def __del__(self) -> None:
        """Ends the lease of a holder that is no longer used."""
        self._forget()

    @contextmanager
    def exclusive(self) -> Iterator[tuple[Lease, ...]]:
        """The leases of others, which cannot change within the block. This lease is written at its end.

        Without the lock, they are those of the last time with it, and this lease is not written.
        """
        with ExitStack() as stack:
            folder = None
            if time.monotonic() >= self._again:
                try:
                    folder = stack.enter_context(locked(LOCK, self._lock_seconds))
                    self._make_file(folder)
                    self._others = tuple(_read(folder, beside=self._path))
                except OSError:
                    self._again = time.monotonic() + ALONE_SECONDS
            yield self._others
            if folder is not None and self.lease != self._written:
                self._write()

    def close(self) -> None:
        """Ends the lease."""
        if self._descriptor is not None:
            with suppress(OSError), locked(LOCK, LOCK_SECONDS):  # which removes the folder if this is the last
                self._path.unlink()
            self._forget()

    def _make_file(self, folder: Path) -> None:
        if self._descriptor is None:
            self._descriptor, path = mkstemp(SUFFIX, PREFIX, folder)
            self._path = Path(path)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def _write(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # the disk is full: others see the old lease
                content = json.dumps(asdict(self.lease)).encode()
                os.pwrite(self._descriptor, content, 0)
                os.ftruncate(self._descriptor, len(content))
                self._written = self.lease

    def _forget(self) -> None:
        """Closes the file, also in a fork of this process, which has no lease."""
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
    """The devices, with the memory of other studies counted as free: it will be, once they end."""
    leases = read_leases()
    if not leases:
        return tuple(devices)
    trees = with_descendants([lease.pid for lease in leases])

    def free_bytes(device: Device) -> int:
        held = memory_now(device, trees).held_bytes
        if held is None:
            held = tuple(lease.reserved_bytes(device_key(device)) for lease in leases)
        return min(device.total_bytes, device.free_bytes + sum(held))

    def with_both(device: Device) -> Device:
        free_ram = free_bytes(host_ram(device)) if device.ram_bytes else 0
        return replace(device, free_bytes=free_bytes(device), free_ram_bytes=free_ram)

    return tuple(device if device.node_id else with_both(device) for device in devices)


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
                shares = tuple(Share(**share) for share in fields.pop("shares"))
                yield Lease(**fields, shares=shares)
