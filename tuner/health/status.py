"""``tuner status``: this user's running studies on this machine, and the memory that they share."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tuner.machine.devices import detect_devices
from tuner.machine.holders import memory_now, with_descendants
from tuner.machine.leases import Lease, device_key, read_leases
from tuner.trial import GB, Device


@dataclass(frozen=True)
class DeviceStatus:
    """A device: the memory promised to studies' trials, and what other programs hold. GB are 2**30 bytes."""

    device: str
    total_gb: float
    free_gb: float
    promised_gb: float
    others_gb: float | None  # held by other programs; None if they cannot be told apart
    studies: tuple[StudyStatus, ...]


@dataclass(frozen=True)
class StudyStatus:
    """A study on a device. A trial of Ray Tune under ``memory_aware`` is listed like a study of one trial."""

    name: str  # its folder
    pid: int
    minutes: float  # since it began
    trials: tuple[str, ...]  # the ids of those that run on the device
    promised_gb: float
    waits: bool  # for memory that other studies use


def status() -> list[DeviceStatus]:
    """One entry for each device, with this user's running studies. Other machines of a cluster are not known."""
    leases, devices = read_leases(), detect_devices()
    if devices[0].kind == "cuda":
        devices = (*devices, *detect_devices("cpu"))
    trees = with_descendants([lease.pid for lease in leases])
    return [_device(device, leases, trees) for device in devices]


def _device(device: Device, leases: Sequence[Lease], trees: Sequence[Collection[int]]) -> DeviceStatus:
    memory, key = memory_now(device, trees), device_key(device)
    used = memory.total_bytes - memory.free_bytes
    return DeviceStatus(
        device.label,
        _gb(memory.total_bytes),
        _gb(memory.free_bytes),
        _gb(sum(lease.reserved_bytes(key) for lease in leases)),
        None if memory.held_bytes is None else _gb(max(0, used - sum(memory.held_bytes))),
        tuple(_study(lease, key) for lease in leases),
    )


def status_text(devices: Sequence[DeviceStatus]) -> str:
    """The studies for a terminal: a line for each device, and below it one for each study."""
    lines = []
    for device in devices:
        others = "" if device.others_gb is None else f", {device.others_gb:.2f} GB held by other programs"
        lines.append(
            f"{device.device}: {device.free_gb:.2f} of {device.total_gb:.2f} GB free, "
            f"{device.promised_gb:.2f} GB reserved for trials{others}"
        )
        for study in device.studies:
            process = f"process {study.pid}, {study.minutes:.0f} min"
            running = f"{len(study.trials)} running, {study.promised_gb:.2f} GB{'; waits' * study.waits}"
            lines.append(f"  {study.name} ({process}): {running}")
    return "\n".join(lines if any(device.studies for device in devices) else [*lines, "no study runs"])


def _study(lease: Lease, key: str) -> StudyStatus:
    trials = tuple(share.trial for share in lease.shares if share.device == key)
    now = time.time()
    waits = bool(lease.waits_for) and lease.waits(lease.waits_for, now)
    minutes, promised = round((now - lease.began) / 60, 1), _gb(lease.reserved_bytes(key))
    return StudyStatus(lease.name, lease.pid, minutes, trials, promised, waits)


def _gb(size: int) -> float:
    return round(size / GB, 3)
