"""How busy this machine is: its CPU, its RAM and its GPUs."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from tuner.machine.devices import initialized_nvml, nvml_gpu, ram_bytes


@dataclass(frozen=True)
class GpuLoad:
    """A GPU or a MIG instance at a moment."""

    # The share of the driver's last period, at most a second, in which a kernel ran; from 0 to 1. None if the driver
    # does not report it, as for a MIG instance (nvmlDeviceGetUtilizationRates).
    busy: float | None
    used_bytes: int  # by all processes


@dataclass(frozen=True)
class Load:
    """The machine at a moment."""

    busy: float  # the mean over the CPU cores that this process may use since the last look, from 0 to 1
    used_bytes: int  # of the RAM, by all processes
    gpus: Mapping[str, GpuLoad] = field(default_factory=dict)  # by UUID


class LoadMeter:
    """Measures the machine's load. GPUs that the driver does not report are left out."""

    def __init__(self, uuids: frozenset[str]) -> None:
        """Begins the first period. ``uuids`` are of the GPUs and MIG instances to look at."""
        psutil.cpu_percent(percpu=True)
        self._handles = _handles(uuids) if uuids else {}

    def look(self) -> Load:
        """The load since the last look."""
        cores = psutil.cpu_percent(percpu=True)
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
        shown = [cores[core] for core in own if core < len(cores)] or cores
        total, free = ram_bytes()
        return Load(sum(shown) / len(shown) / 100, total - free, self._gpus())

    def _gpus(self) -> dict[str, GpuLoad]:
        import pynvml

        found = {}
        for uuid, handle in self._handles.items():
            busy = None
            with suppress(pynvml.NVMLError):
                busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            with suppress(pynvml.NVMLError):
                found[uuid] = GpuLoad(busy, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used))
        return found


def _handles(uuids: frozenset[str]) -> dict[str, Any]:
    """NVML's handles of these GPUs and MIG instances."""
    import pynvml

    handles: dict[str, Any] = {}
    with suppress(pynvml.NVMLError):
        for index in range(initialized_nvml().nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # another GPU may be lost
                handles |= {device.uuid: device.handle for device in nvml_gpu(index).devices if device.uuid in uuids}
    return handles
