"""``status``: the studies of this user that run on this machine, and what they share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.machine.devices import detect_devices
from tuner.machine.holders import memory_now, with_descendants
from tuner.machine.leases import Lease, device_key, read_leases
from tuner.trial import GB


@dataclass(frozen=True)
class DeviceStatus:
    """A device, what studies have promised of it to their trials, and what others hold. GB are 2**30 bytes."""

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
    """This user's running studies on this machine, by device. Those on other machines of a cluster are not known.

    Returns:
        One entry for each device.
    """
    leases = read_leases()
    trees = with_descendants([lease.pid for lease in leases])
    found = []
    devices = detect_devices()
    if devices[0].kind == "cuda":
        devices = (*devices, *detect_devices("cpu"))
    for device in devices:
        memory, key = memory_now(device, trees), device_key(device)
        taken = memory.total_bytes - memory.free_bytes
        strangers = None if memory.held_bytes is None else taken - sum(memory.held_bytes)
        found.append(
            DeviceStatus(
                device.label,
                _gb(memory.total_bytes),
                _gb(memory.free_bytes),
                _gb(sum(lease.promised_bytes(key) for lease in leases)),
                None if strangers is None else _gb(max(0, strangers)),
                tuple(_study(lease, key) for lease in leases),
            )
        )
    return found


def status_text(devices: Sequence[DeviceStatus]) -> str:
    """The studies for a terminal: a line for each device, and below it one for each study."""
    lines = []
    for device in devices:
        others = "" if device.others_gb is None else f", {device.others_gb:.2f} GB held by other programs"
        lines.append(
            f"{device.device}: {device.free_gb:.2f} of {device.total_gb:.2f} GB free, "
            f"{device.promised_gb:.2f} GB promised to trials{others}"
        )
        for study in device.studies:
            what = f"{len(study.trials)} running, {study.promised_gb:.2f} GB" + ("; waits" if study.waits else "")
            lines.append(f"  {study.name} (process {study.pid}, {study.minutes:.0f} min): {what}")
    if not any(device.studies for device in devices):
        lines.append("no study runs")
    return "\n".join(lines)


def _study(lease: Lease, key: str) -> StudyStatus:
    trials = tuple(share.trial for share in lease.shares if share.device == key)
    now = time.time()
    waits = bool(lease.waits_for) and lease.waits(lease.waits_for, now)
    minutes, promised = round((now - lease.began) / 60, 1), _gb(lease.promised_bytes(key))
    return StudyStatus(lease.name, lease.pid, minutes, trials, promised, waits)


def _gb(size: int) -> float:
    return round(size / GB, 3)
