"""The device that a run is sized for, and the memory limit of a step."""

from dataclasses import dataclass, replace

from tuner.errors import InputError
from tuner.machine.devices import DeviceChoice, detect_devices, ram_device
from tuner.trial import GB, Device


@dataclass(frozen=True)
class Target:
    """A real or assumed device, the limit (a safe share, at most the free memory), and notes for the user."""

    device: Device
    limit_bytes: int
    notes: tuple[str, ...] = ()


def detected_target(choice: DeviceChoice, safety_margin: float) -> Target:
    """This machine's device with the smallest limit. A missing GPU raises ``InputError``."""
    devices = detect_devices(choice)
    device = min(devices, key=lambda device: _limit(device, safety_margin))
    limit, notes = _limit(device, safety_margin), []
    if len({device.total_bytes for device in devices}) > 1:
        sizes = ", ".join(f"{other.label} {other.total_bytes / GB:.1f} GB" for other in devices)
        notes.append(f"devices differ ({sizes}): sized for {device.label}, which has the least")
    if limit < int(device.total_bytes * safety_margin):
        notes.append(
            f"{device.label}: others hold some of it: of {device.total_bytes / GB:.2f} GB only "
            f"{device.free_bytes / GB:.2f} GB are free"
        )
    return Target(device, limit, tuple(notes))


def given_target(choice: DeviceChoice, total_gb: float, safety_margin: float) -> Target:
    """An assumed device with this memory: a GPU, or with "cpu" a machine's RAM."""
    total = int(total_gb * GB)
    device = ram_device() if choice == "cpu" else present_or_imagined("cuda")
    return Target(replace(device, total_bytes=total, free_bytes=total), int(total * safety_margin))


def present_or_imagined(choice: DeviceChoice) -> Device:
    """This machine's first device of this kind; a GPU need not exist."""
    try:
        return detect_devices(choice)[0]
    except InputError:
        if choice != "cuda":
            raise
        return imagined_gpu(0)


def imagined_gpu(size_bytes: int, index: int = 0) -> Device:
    """A GPU that need not exist; its machine is assumed to have enough CPU cores."""
    return Device("", "cuda", index, "a GPU", size_bytes, size_bytes, cores=0)


def _limit(device: Device, safety_margin: float) -> int:
    return min(int(device.total_bytes * safety_margin), device.free_bytes)
