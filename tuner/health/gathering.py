"""Gathers facts about this machine. Nothing is changed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from tuner.errors import one_line
from tuner.execution.cluster import session_bases
from tuner.execution.cluster_discovery import announced_address, port_answers, ray_folder
from tuner.health.facts import EXTRAS, Command, Disk, Facts, Gpu, RaySessions, Torch
from tuner.machine.devices import (
    ALLOCATOR_VARIABLE,
    NvmlDevice,
    available_cores,
    cgroup_memory,
    nvml_gpu,
)
from tuner.machine.holders import gpu_holders
from tuner.machine.mps import control_program
from tuner.machine.shared_memory import SHARED

PACKAGES = ("torch", "ray")
VARIABLES = ("CUDA_VISIBLE_DEVICES", ALLOCATOR_VARIABLE, "RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR")
ADDRESS_SECONDS = 1.0


def gather() -> Facts:
    """The facts about this machine; takes a few seconds."""
    import platformdirs
    import psutil

    memory, (limit, used) = psutil.virtual_memory(), cgroup_memory()
    driver, gpus = _gpus()
    sessions = _sessions()
    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        system=f"{platform.system()} {platform.release()}",
        packages=_versions(PACKAGES),
        extras=_versions((*EXTRAS,), other={"mlflow": "mlflow-skinny"}),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        torch=_torch(),
        driver=driver,
        gpus=gpus,
        sessions=sessions,
        ram_bytes=memory.total,
        ram_free_bytes=memory.available,
        cgroup_bytes=limit,
        cgroup_used_bytes=used,
        cores=available_cores(),
        shared=_disk(SHARED) if SHARED.is_dir() else None,
        results=_disk(Path("results")),
        cache=_disk(platformdirs.user_cache_path("tuner")),
        ray_disk=_ray_disk(),
        commands={name: _command(name) for name in ("tune", "tuner")},
        mps=control_program() or "",
    )


def _versions(names: tuple[str, ...], other: dict[str, str] | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        for each in filter(None, (name, (other or {}).get(name))):
            with suppress(metadata.PackageNotFoundError):
                found.setdefault(name, metadata.version(each))
    return found


def _torch() -> Torch:
    try:
        import torch

        available = torch.cuda.is_available()
        return Torch("", torch.version.cuda, available, torch.cuda.device_count() if available else 0)
    except Exception as error:  # a broken installation may raise anything
        return Torch(f"{type(error).__name__}: {one_line(error, 200)}")


def _gpus() -> tuple[str, tuple[Gpu, ...]]:
    """The driver's version, empty without one, and all its GPUs, with MIG instances in place of those in MIG mode."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return "", ()
    try:
        found = [gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _gpus_at(index)]
        return str(pynvml.nvmlSystemGetDriverVersion()), tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _gpus_at(index: int) -> list[Gpu]:
    import pynvml

    try:
        found = nvml_gpu(index)
    except pynvml.NVMLError as error:  # it is lost, or belongs to another user
        return [Gpu(index, "", 0, 0, error=str(error))]
    return [_gpu(each) for each in found.devices] or [Gpu(index, "", 0, 0)]


def _gpu(found: NvmlDevice) -> Gpu:
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(found.handle)
    except pynvml.NVMLError as error:  # it shares the machine's RAM
        return Gpu(found.index, "", 0, 0, error=str(error), instance=found.instance)
    name, holders = str(pynvml.nvmlDeviceGetName(found.handle)), tuple(gpu_holders(found.handle))
    return Gpu(found.index, name, int(memory.total), int(memory.free), holders, instance=found.instance)


def _sessions() -> RaySessions:
    folder = ray_folder()
    running = _ray_processes()
    used = {part for line in running.values() for part in line.split() if "session_" in part}
    stale: list[Path] = []
    with suppress(OSError):  # another user's folder
        stale = [
            path
            for path in folder.glob("session_*")
            if path.is_dir() and not path.is_symlink() and not any(path.name in part for part in used)
        ]
    address = announced_address()
    answers = "/" not in address and address.rpartition(":")[2].isdigit() and port_answers(address, ADDRESS_SECONDS)
    size_bytes = sum(map(_size_bytes, stale))
    return RaySessions(str(folder), len(stale), size_bytes, tuple(running), address, answers)


def _ray_processes() -> dict[int, str]:
    """Command lines of Ray's node processes, by pid."""
    import psutil

    found: dict[int, str] = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in ("raylet", "gcs_server"):
            found[process.pid] = " ".join(process.info["cmdline"] or ())
    return found


def _size_bytes(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(base, name)).st_size
    return total


def _ray_disk() -> Disk:
    """Where a study's own Ray would have its folder; one that cannot be written if there is no such place."""
    bases = session_bases()
    return _disk(bases[0]) if bases else replace(_disk(Path("/tmp")), writable=False)


def _disk(path: Path) -> Disk:
    """The file system of a folder, which need not exist yet."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if os.path.exists(each))
    usage = shutil.disk_usage(there)
    return Disk(str(path), usage.total, usage.free, os.access(there, os.W_OK))


def _command(name: str, find: Callable[[str], str | None] = shutil.which) -> Command:
    """The program that a name on the command line starts. Its imports distinguish Ray's script from ours."""
    path = find(name)
    if path is None:
        return Command()
    text = ""
    with suppress(OSError):
        text = Path(path).read_bytes()[:2000].decode(errors="replace")
    owner = "tuner" if "from tuner." in text else "ray" if "ray.tune" in text else "another program"
    return Command(path, owner)
