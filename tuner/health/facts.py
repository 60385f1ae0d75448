"""What there is on a machine, as ``gathering.py`` finds it and ``checks.py`` judges it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Holder:
    """A process that holds a GPU's memory; its bytes are None where the driver does not tell."""

    pid: int
    name: str
    user: str
    held_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML sees it, whether CUDA may use it or not; ``error`` is why NVML cannot tell its memory."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    holders: tuple[Holder, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Torch:
    """What torch says of itself.

    Attributes:
        error: why it cannot be imported; empty if it can.
        cuda: the CUDA that it was built for; None for a build for the CPU.
        available: whether it can use a GPU.
        devices: how many GPUs it sees.
    """

    error: str = ""
    cuda: str | None = None
    available: bool = False
    devices: int = 0


@dataclass(frozen=True)
class Disk:
    """A file system, by what is kept on it."""

    path: str
    total_bytes: int
    free_bytes: int
    writable: bool = True


@dataclass(frozen=True)
class Sessions:
    """What Ray has left or runs on this machine.

    Attributes:
        folder: where it keeps its sessions.
        stale: how many there are of no process that runs.
        stale_bytes: what these take.
        processes: pids of Ray's node processes (raylet, gcs_server).
        address: of the cluster that ``--address auto`` means; empty if there is none.
        answers: whether anything listens there.
    """

    folder: str
    stale: int = 0
    stale_bytes: int = 0
    processes: tuple[int, ...] = ()
    address: str = ""
    answers: bool = False


@dataclass(frozen=True)
class Command:
    """What the shell finds under a name: ``tuner``'s, ``ray``'s, or something else's; no path if there is nothing."""

    path: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it; sizes in bytes, packages that are not installed are not there."""

    python: str
    executable: str
    system: str
    packages: dict[str, str]
    extras: dict[str, str]
    variables: dict[str, str]
    torch: Torch
    driver: str
    gpus: tuple[Gpu, ...]
    sessions: Sessions
    ram_bytes: int
    ram_free_bytes: int
    cgroup_bytes: int | None
    cgroup_used_bytes: int
    cores: int
    shared: Disk | None
    results: Disk
    ray_disk: Disk
    commands: dict[str, Command] = field(default_factory=dict)
