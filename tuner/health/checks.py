"""Judges the facts about a machine: what works, what does not, and how to repair it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tuner.errors import install_command, option
from tuner.health.facts import EXTRAS, Disk, Facts, Gpu
from tuner.machine.mps import CONTROL
from tuner.machine.shared_memory import LITTLE_BYTES, MORE_SHARED
from tuner.trial import GB, gpu_label

Level = Literal["ok", "warning", "problem"]
OLDEST_PYTHON = (3, 11)
BUFFER_BYTES = 2 * GB  # the default memory buffer of each device
SHARED_BYTES = GB // 4  # the size of Ray's object store, as tuner starts it
TIGHT_DISK_BYTES, LITTLE_DISK_BYTES = GB // 2, 5 * GB
FULLEST = 0.95  # Ray does not write to a disk that is fuller
STALE_BYTES = GB


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    level: Level  # "ok", "warning" (works, but not as well as it could) or "problem" (studies fail)
    text: str
    remedy: str = ""  # what to do; empty if there is nothing to do


def examine(facts: Facts) -> list[Finding]:
    """All findings in order."""
    return [
        _python(facts),
        *_torch(facts),
        *_gpus(facts),
        *_ray(facts),
        *_memory(facts),
        *_shared(facts),
        _disk("results", facts.results, f"give another folder by {option('output')}, or make room"),
        _cache(facts.cache),
        _ray_folder(facts),
        _command(facts),
        _extras(facts),
    ]


def _python(facts: Facts) -> Finding:
    text = f"{facts.python} ({facts.executable}), {facts.system}"
    if tuple(int(part) for part in facts.python.split(".")[:2]) < OLDEST_PYTHON:
        return Finding("python", "problem", text, "install Python 3.11 or newer, and tuner into that")
    if not facts.system.startswith("Linux"):
        return Finding("python", "warning", text, "trials on the CPU are capped on Linux only")
    return Finding("python", "ok", text)


def _torch(facts: Facts) -> Iterator[Finding]:
    torch, version = facts.torch, facts.packages.get("torch", "")
    if torch.error:
        yield Finding("torch", "problem", f"cannot be imported: {torch.error}", "pip install --force-reinstall torch")
        return
    build = f"for CUDA {torch.cuda}" if torch.cuda else "for the CPU"
    gpus = [gpu for gpu in facts.gpus if not gpu.without_instances]
    if torch.cuda and gpus and not torch.available:
        yield _no_cuda(facts, f"{version} {build} finds no GPU, and the driver ({facts.driver}) has {len(gpus)}")
    elif gpus and not torch.cuda:
        remedy = "install a build for CUDA: https://pytorch.org/get-started/locally"
        yield Finding("torch", "warning", f"{version} is a build for the CPU, and there is a GPU", remedy)
    else:
        seen = f", sees {torch.devices} GPU{'s' * (torch.devices != 1)}" if torch.cuda else ""
        yield Finding("torch", "ok", f"{version} {build}{seen}")


def _no_cuda(facts: Facts, text: str) -> Finding:
    visible = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return Finding("torch", "warning", f"{text}: CUDA_VISIBLE_DEVICES={visible!r}", "unset it, or name a GPU")
    return Finding("torch", "problem", text, "the driver is too old for this torch, or broken: look at nvidia-smi")


def _gpus(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        yield Finding("gpus", "ok", "none: trials share this machine's RAM")
    for gpu in facts.gpus:
        yield _gpu(gpu)
    if facts.gpus:
        where = facts.mps or f"{CONTROL} is not on the path"
        yield Finding("mps", "ok", f"{where}; {option('mps', 'auto')} uses it where it is there")


def _gpu(gpu: Gpu) -> Finding:
    check = gpu_label(gpu.index, gpu.instance)
    if gpu.error:
        remedy = "look at nvidia-smi, or hide this GPU by CUDA_VISIBLE_DEVICES"
        return Finding(check, "problem", f"the driver does not report its memory: {gpu.error}", remedy)
    if gpu.without_instances:
        remedy = "make one by nvidia-smi mig -cgi, or end MIG mode"
        return Finding(check, "warning", "is in MIG mode and has no instance, so that nothing can run there", remedy)
    free = f"{gpu.name}, {gpu.free_bytes / GB:.1f} of {gpu.total_bytes / GB:.1f} GB free"
    held = [
        f"pid {each.pid} {each.name}"
        + (f" of {each.user}" if each.user else "")
        + ("" if each.held_bytes is None else f" {each.held_bytes / GB:.1f} GB")
        for each in gpu.holders
    ]
    text = f"{free}; held by {', '.join(held)}" if held else free
    room = min(gpu.free_bytes, gpu.total_bytes - BUFFER_BYTES)
    if room <= 0:
        remedy = "end what holds its memory, or hide this GPU by CUDA_VISIBLE_DEVICES"
        return Finding(check, "problem" if gpu.total_bytes > BUFFER_BYTES else "warning", text, remedy)
    if gpu.free_bytes < gpu.total_bytes / 2:
        remedy = (
            "a study gets what is free; end what holds the rest" if held else "a process that is not shown holds it"
        )
        return Finding(check, "warning", text, remedy)
    return Finding(check, "ok", text)


def _ray(facts: Facts) -> Iterator[Finding]:
    sessions, version = facts.sessions, facts.packages.get("ray")
    if version is None:
        yield Finding("ray", "problem", "is not installed", "pip install 'ray>=2.60'")
        return
    yield Finding("ray", "ok", version)
    if sessions.address:
        where = f"{option('address', 'auto')} is {sessions.address}"
        if sessions.answers:
            yield Finding("ray's cluster", "ok", f"{where}, which answers")
        elif "://" in sessions.address:
            text = f"{where}, which is the form of Ray's client and cannot be joined"
            yield Finding("ray's cluster", "warning", text, "give RAY_ADDRESS as HOST:PORT")
        else:
            remedy = f"ray stop, and remove {sessions.folder}/ray_current_cluster or unset RAY_ADDRESS"
            yield Finding("ray's cluster", "warning", f"{where}, where nothing listens", remedy)
    elif sessions.processes:
        pids = ", ".join(map(str, sessions.processes))
        yield Finding("ray's cluster", "ok", f"studies or programs with their own Ray are running (pid {pids})")
    if sessions.stale:
        size = f"{sessions.stale} old sessions with {sessions.stale_bytes / GB:.2f} GB in {sessions.folder}"
        level: Level = "warning" if sessions.stale_bytes > STALE_BYTES else "ok"
        remedy = f"rm -r {sessions.folder}/session_* while no Ray runs" if level == "warning" else ""
        yield Finding("ray's sessions", level, size, remedy)


def _memory(facts: Facts) -> Iterator[Finding]:
    total, free = facts.ram_bytes, facts.ram_free_bytes
    text = f"{free / GB:.1f} of {total / GB:.1f} GB free, {facts.cores} CPU cores"
    if facts.cgroup_bytes is not None and facts.cgroup_bytes < total:
        free = min(free, facts.cgroup_bytes - facts.cgroup_used_bytes)
        total = facts.cgroup_bytes
        text += f"; this container or job may use {total / GB:.1f} GB, {free / GB:.1f} GB of it free"
    on_gpus = facts.gpus and facts.torch.available  # else trials share it
    short = free < BUFFER_BYTES if on_gpus else min(free, total - BUFFER_BYTES) <= 0
    buffer = option("gpu_memory_buffer_gb")
    remedy = f"end other programs, ask for a larger limit, or make the buffer smaller with {buffer}"
    yield Finding("memory", "problem" if short else "ok", text, remedy if short else "")


def _shared(facts: Facts) -> Iterator[Finding]:
    disk = facts.shared
    if disk is None:
        return
    text = f"{disk.free_bytes / GB:.2f} of {disk.total_bytes / GB:.2f} GB free"
    remedy = f"{MORE_SHARED}; Ray uses its folder on the disk instead, which is slower"
    short = disk.free_bytes < SHARED_BYTES
    if facts.gpus and disk.free_bytes < LITTLE_BYTES:
        text += ", where the workers of data loaders keep their batches"
        remedy = f"{MORE_SHARED}; a loader's worker without room there ends with a bus error"
        short = True
    yield Finding("/dev/shm", "warning" if short else "ok", text, remedy if short else "")


def _cache(disk: Disk) -> Finding:
    """Studies run without it, as where HOME is read-only or missing."""
    remedy = "set XDG_CACHE_HOME to a folder of yours: data sets and calibrations are kept there"
    found = _disk("cache", disk, remedy)
    return replace(found, level="warning") if found.level == "problem" else found


def _ray_folder(facts: Facts) -> Finding:
    remedy = "set RAY_TMPDIR to a folder on another disk with a short path, or make room"
    found, used = _disk("ray's folder", facts.ray_disk, remedy), facts.ray_disk.path
    for name in ("RAY_TMPDIR", "TMPDIR"):
        named = facts.variables.get(name)
        if named and os.path.abspath(named) != used:
            text = f"{found.text}; not {name}={named}, whose path is too long for Ray's sockets or cannot be written"
            if name == "RAY_TMPDIR" and found.level == "ok":
                return Finding(found.check, "warning", text, "set RAY_TMPDIR to a folder of yours with a short path")
            return replace(found, text=text)
        if named:
            break
    return found


def _disk(check: str, disk: Disk, remedy: str) -> Finding:
    text = f"{disk.path}: {disk.free_bytes / GB:.1f} of {disk.total_bytes / GB:.1f} GB free"
    if not disk.writable:
        return Finding(check, "problem", f"{disk.path}: cannot be written", remedy)
    if disk.free_bytes < TIGHT_DISK_BYTES:
        return Finding(check, "problem", text, remedy)
    full = disk.free_bytes < (1 - FULLEST) * disk.total_bytes and check != "results"
    if full or disk.free_bytes < LITTLE_DISK_BYTES:
        return Finding(check, "warning", text, remedy)
    return Finding(check, "ok", text)


def _command(facts: Facts) -> Finding:
    tune, tuner = facts.commands["tune"], facts.commands["tuner"]
    ours = "scripts/tuner or python -m tuner"
    if not tuner.path:
        return Finding("tuner", "ok", f"is not on the path: type {ours}")
    if tuner.owner != "tuner":
        return Finding("tuner", "warning", f"{tuner.path} is another program", f"type {ours}")
    rays = f"; {tune.path} is Ray's" if tune.owner == "ray" else ""
    return Finding("tuner", "ok", f"{tuner.path} is this one{rays}")


def _extras(facts: Facts) -> Finding:
    there = [f"{name} {version}" for name, version in facts.extras.items()]
    missing = {name: extra for name, extra in EXTRAS.items() if name not in facts.extras}
    text = f"{', '.join(there) or 'none'} installed"
    if missing:
        text += f"; not {', '.join(missing)}: {install_command(*missing, extra=','.join(missing.values()))} if wanted"
    return Finding("extras", "ok", text)
