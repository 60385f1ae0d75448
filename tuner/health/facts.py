"""The facts about a machine that ``gathering.py`` finds and ``checks.py`` judges."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.machine.holders import Holder

# The packages that only some options need, with our extras that install them.
EXTRAS = {"plotly": "report", "mlflow": "mlflow", "wandb": "wandb"}


@dataclass(frozen=True)
class Gpu:
    """A GPU or MIG instance as NVML sees it, whether CUDA may use it or not.

    ``error`` is why NVML cannot report its memory. A GPU in MIG mode without an instance has none.
    """

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    holders: tuple[Holder, ...] = ()
    error: str = ""
    instance: int | None = None  # a MIG instance's number on its GPU

    @property
    def without_instances(self) -> bool:
        """Whether it is in MIG mode and has no instance, so that nothing can compute on it."""
        return not self.total_bytes and not self.error


@dataclass(frozen=True)
class Torch:
    """The installed torch; ``error`` is why it cannot be imported, ``cuda`` is None for a build for the CPU."""

    error: str = ""
    cuda: str | None = None
    available: bool = False
    devices: int = 0


@dataclass(frozen=True)
class Disk:
    """The file system of a folder."""

    path: str
    total_bytes: int
    free_bytes: int
    writable: bool = True


@dataclass(frozen=True)
class RaySessions:
    """The sessions of Ray that run on this machine, and the folders of old ones."""

    folder: str
    stale: int = 0  # the number of sessions without a running process
    stale_bytes: int = 0  # the size of their folders
    processes: tuple[int, ...] = ()  # pids of Ray's node processes (raylet, gcs_server)
    address: str = ""  # the cluster that "auto" means; empty if there is none
    answers: bool = False  # whether anything listens there


@dataclass(frozen=True)
class Command:
    """The program that the shell finds under a name, and its owner: "tuner", "ray" or "another program"."""

    path: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Facts:
    """All facts; packages that are not installed are missing."""

    python: str
    executable: str
    system: str
    packages: dict[str, str]
    extras: dict[str, str]
    variables: dict[str, str]
    torch: Torch
    driver: str
    gpus: tuple[Gpu, ...]
    sessions: RaySessions
    ram_bytes: int
    ram_free_bytes: int
    cgroup_bytes: int | None
    cgroup_used_bytes: int
    cores: int
    shared: Disk | None
    results: Disk
    cache: Disk  # of data sets and calibrations
    ray_disk: Disk  # where a study's own Ray keeps its sockets and logs
    commands: dict[str, Command] = field(default_factory=dict)
    mps: str = ""  # the path of NVIDIA's control program for MPS; empty if it is not there
