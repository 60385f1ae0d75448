"""``tuner doctor``: a list of checks. Each looks at one part of this machine and yields what it finds."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import platformdirs
import psutil
import pynvml

from tuner.errors import one_line
from tuner.execution.cluster import ray_folder, session_bases
from tuner.machine.devices import NvmlDevice, available_cores, cuda_devices, nvml_gpu, ram_bytes
from tuner.machine.holders import compute_processes, holder
from tuner.machine.processes import LITTLE_BYTES, MORE_SHARED, SHARED
from tuner.trial import GB, gpu_label

Level = Literal["ok", "warning", "problem"]
BUFFER_BYTES = 2 * GB  # the default memory buffer of each device
TIGHT_DISK_BYTES, LITTLE_DISK_BYTES = GB // 2, 5 * GB
STALE_BYTES = GB
HIDE = "or hide this GPU by CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    level: Level  # "ok", "warning" (works, but not as well as it could) or "problem" (studies fail)
    text: str
    remedy: str = ""  # what to do; empty if there is nothing to do


def _judged(check: str, text: str, *faults: tuple[object, Level, str]) -> Finding:
    """A finding with the level and the remedy of the first fault whose condition holds; "ok" if none does."""
    findings = (Finding(check, level, text, remedy) for holds, level, remedy in faults if holds)
    return next(findings, Finding(check, "ok", text))


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} ({sys.executable}), {platform.system()} {platform.release()}"
    yield Finding("python", "ok", text)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        text = f"cannot be imported: {one_line(error, 200)}"
        yield Finding("torch", "problem", text, "install torch again")
        return
    build, visible, usable = torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"), 0
    seen = torch.cuda.device_count() if build else 0
    with suppress(pynvml.NVMLError):  # a GPU is lost, of which ``_gpus`` tells
        usable = len(cuda_devices())
    text = f"{metadata.version('torch')} for {f'CUDA {build}, sees {seen} GPU(s)' if build else 'the CPU'}"
    yield _judged(
        "torch",
        f"{text}, the driver has {usable}" if usable > seen else text,
        (usable and not build, "warning", "install a build for CUDA: https://pytorch.org/get-started/locally"),
        (usable > seen, "problem", "the driver is too old for this torch, or broken: look at nvidia-smi"),
        (build and visible and not seen, "warning", f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs: unset it"),
    )


def _gpus() -> Iterator[Finding]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield Finding("gpus", "ok", "none: trials share this machine's RAM")
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield from _gpu(index)
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Iterator[Finding]:
    """A finding for a GPU, or for each instance of one in MIG mode."""
    label = gpu_label(index, None)
    try:
        devices = nvml_gpu(index).devices
        if not devices:
            text = "is in MIG mode and has no instance, so that nothing can run on it"
            yield Finding(label, "warning", text, "make one by nvidia-smi mig -cgi, or end MIG mode")
        yield from map(_gpu_memory, devices)
    except pynvml.NVMLError as error:  # it is lost, belongs to another user, or shares the machine's RAM
        text = f"the driver does not report its memory: {error}"
        yield Finding(label, "problem", text, f"look at nvidia-smi, {HIDE}")


def _gpu_memory(device: NvmlDevice) -> Finding:
    memory = pynvml.nvmlDeviceGetMemoryInfo(device.handle)
    holders = [holder(pid, held) for pid, held in compute_processes(device.handle)]
    total, free = int(memory.total), int(memory.free)
    held = f"; held: {', '.join(map(str, holders))}" if holders else ""
    return _judged(
        gpu_label(device.index, device.instance),
        f"{pynvml.nvmlDeviceGetName(device.handle)}, {_free(free, total)}{held}",
        (min(free, total - BUFFER_BYTES) <= 0, "problem", f"end what holds its memory, {HIDE}"),
        (free < total / 2, "warning", "a study gets what is free; end what holds the rest"),
    )


def _ray(stale_bytes: int = STALE_BYTES) -> Iterator[Finding]:
    yield Finding("ray", "ok", metadata.version("ray"))
    running = [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet"]
    if running:
        yield Finding("ray's sessions", "ok", f"Ray is running (pid {', '.join(map(str, running))})")
        return
    folder = ray_folder()
    with suppress(OSError):  # another user's folder
        sessions = [path for path in folder.glob("session_*") if not path.is_symlink()]
        size = sum(path.lstat().st_size for session in sessions for path in session.rglob("*"))
        text, remedy = (
            f"{len(sessions)} old sessions with {size / GB:.2f} GB in {folder}",
            f"rm -r {folder}/session_*",
        )
        yield _judged("ray's sessions", text, (size > stale_bytes, "warning", remedy))


def _memory(ram: Callable[[], tuple[int, int]] = ram_bytes) -> Iterator[Finding]:
    total, free = ram()
    remedy = "end other programs, ask for a larger limit, or give studies a smaller memory buffer"
    text = f"{_free(free, total)}, {available_cores()} CPU cores"
    yield _judged("memory", text, (min(free, total - BUFFER_BYTES) <= 0, "problem", remedy))


def _shared_memory() -> Iterator[Finding]:
    if SHARED.is_dir():
        usage = shutil.disk_usage(SHARED)
        remedy = f"{MORE_SHARED}; a data loader's worker without room there ends with a bus error, and Ray is slower"
        yield _judged(str(SHARED), _free(usage.free, usage.total), (usage.free < LITTLE_BYTES, "warning", remedy))


def _disks() -> Iterator[Finding]:
    yield _disk("results", Path("results"), "make room, or run studies in another folder")
    yield _disk("cache", platformdirs.user_cache_path("tuner"), "set XDG_CACHE_HOME to a folder of yours", "warning")
    bases, chosen = session_bases(), os.environ.get("RAY_TMPDIR")
    remedy = "set RAY_TMPDIR to a folder of yours on another disk with a short path, or make room"
    if chosen and bases and Path(chosen).absolute() != bases[0]:
        text = f"{chosen} is not used: its path is too long for Ray's sockets, or it cannot be written"
        yield Finding("ray's folder", "warning", text, remedy)
    yield _disk("ray's folder", bases[0] if bases else Path(chosen or "/tmp"), remedy)


def _disk(check: str, path: Path, remedy: str, worst: Level = "problem") -> Finding:
    """The file system of a folder, which need not exist yet."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.exists(folder))
    usage = shutil.disk_usage(there)
    if not os.access(there, os.W_OK):
        return Finding(check, worst, f"{path}: cannot be written", remedy)
    return _judged(
        check,
        f"{path}: {_free(usage.free, usage.total)}",
        (usage.free < TIGHT_DISK_BYTES, worst, remedy),
        (usage.free < LITTLE_DISK_BYTES, "warning", remedy),
    )


def _command() -> Iterator[Finding]:
    path, remedy = shutil.which("tuner"), "type scripts/tuner or python -m tuner"
    if path is None:
        yield Finding("tuner", "ok", f"is not on the path: {remedy}")
        return
    ours = b"from tuner." in Path(path).read_bytes()[:2000]  # the script that pip installs
    text = f"{path} is {'this one' if ours else 'another program'}"
    yield _judged("tuner", text, (not ours, "warning", remedy))


def _free(free: int, total: int) -> str:
    return f"{free / GB:.2f} of {total / GB:.2f} GB free"


CHECKS = (_python, _torch, _gpus, _ray, _memory, _shared_memory, _disks, _command)


def doctor() -> list[Finding]:
    """Looks at Python, torch, GPUs and who holds their memory, Ray, RAM, disks and the command. Changes nothing.

    Returns:
        A finding for each thing that was looked at; its ``level`` is "ok", "warning" or "problem".
    """
    return [finding for check in CHECKS for finding in check()]


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings for a terminal: one line each with its remedy below it, and the counts at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8} {finding.check}: {finding.text}")
        if finding.remedy:
            lines.append(f"{'':<8} → {finding.remedy}")
    levels = [finding.level for finding in findings]
    counts = {f"{level}{'s' * (levels.count(level) != 1)}": levels.count(level) for level in ("problem", "warning")}
    return "\n".join([*lines, ", ".join(f"{count or 'no'} {noun}" for noun, count in counts.items())])
