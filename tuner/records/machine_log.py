"""The load of the study's machine over time, in ``machine.jsonl``. It is used for the report only.

With several machines it is the one that runs the study. Without the file, only the plot is missing.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tuner.machine.devices import initialized_nvml, nvml_gpu, ram_bytes, usable_cores
from tuner.machine.safe_files import not_following
from tuner.records.checking import Amount, Moment, Name, readable_lines
from tuner.trial import GB, Device

SECONDS = 1.0  # between two lines, at first
MOST_OF_TIME = 1000  # later a thousandth of the time that has passed: a day has 5,500 lines
MOST_BYTES = 2**28
PATIENCE = 5  # intervals to wait at the end for a line that is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """A GPU or a MIG instance in a line."""

    used_gb: Amount  # by all processes
    # The share of the driver's last period, at most a second, in which a kernel ran, from 0 to 1. None if the driver
    # does not report it, as for a MIG instance (nvmlDeviceGetUtilizationRates).
    busy: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLine:
    """The machine at a moment."""

    at: Moment  # the time in unix seconds
    busy: Amount  # the mean over the CPU cores that this process may use since the line before, from 0 to 1
    ram_gb: Amount  # the RAM in use, by all processes
    gpus: Mapping[Name, GpuLine] = field(default_factory=dict)  # by the device's label


@contextmanager
def recording(
    path: Path, devices: Sequence[Device], look: Callable[[], MachineLine] | None = None, seconds: float = SECONDS
) -> Iterator[None]:
    """Appends to the file while the block runs. It raises no error of its own, and ends even if the driver hangs.

    ``look`` gives the machine's load, by default a ``LoadMeter`` does.
    """
    ended, began = threading.Event(), time.monotonic()
    labels = {device.uuid: device.label for device in devices if device.uuid}

    def record() -> None:
        with suppress(Exception):  # such as a /proc that cannot be read
            load = look or LoadMeter(labels).look
            while not ended.wait(max(seconds, (time.monotonic() - began) / MOST_OF_TIME)):
                with suppress(OSError):
                    line = json.dumps(to_line(load()))
                    with open(path, "ab", opener=not_following) as file:
                        file.write(f"{line}\n".encode())

    thread = threading.Thread(target=record, daemon=True, name="machine log")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE * seconds)


class LoadMeter:
    """Measures the machine's load. GPUs that the driver does not report are left out."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """Begins the first period. ``labels`` are the names of the GPUs and MIG instances to look at, by UUID."""
        psutil.cpu_percent(percpu=True)
        self._handles = {labels[uuid]: handle for uuid, handle in _handles(labels).items()} if labels else {}

    def look(self) -> MachineLine:
        """The load since the last look."""
        cores = psutil.cpu_percent(percpu=True)
        usable = [cores[core] for core in usable_cores() if core < len(cores)] or cores
        total, free = ram_bytes()
        busy = round(sum(usable) / len(usable) / 100, 3)
        return MachineLine(at=round(time.time(), 2), busy=busy, ram_gb=_gb(total - free), gpus=self._gpus())

    def _gpus(self) -> dict[str, GpuLine]:
        import pynvml

        gpus = {}
        for label, handle in self._handles.items():
            busy = None
            with suppress(pynvml.NVMLError):
                busy = round(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 3)
            with suppress(pynvml.NVMLError):
                gpus[label] = GpuLine(used_gb=_gb(pynvml.nvmlDeviceGetMemoryInfo(handle).used), busy=busy)
        return gpus


def _handles(uuids: Collection[str]) -> dict[str, object]:
    """NVML's handles of these GPUs and MIG instances."""
    import pynvml

    handles: dict[str, object] = {}
    with suppress(pynvml.NVMLError):
        for index in range(initialized_nvml().nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # another GPU may be lost
                handles |= {device.uuid: device.handle for device in nvml_gpu(index).devices if device.uuid in uuids}
    return handles


def _gb(size_bytes: int) -> float:
    return round(size_bytes / GB, 3)


def to_line(machine: MachineLine) -> dict[str, object]:
    """A line of the file, without what is unknown."""
    gpus = {
        label: {key: value for key, value in asdict(gpu).items() if value is not None}
        for label, gpu in machine.gpus.items()
    }
    return {"at": machine.at, "busy": machine.busy, "ram_gb": machine.ram_gb, **({"gpus": gpus} if gpus else {})}


def read_machine(path: Path) -> list[MachineLine]:
    """The lines of ``machine.jsonl`` in order, without damaged ones; empty if the file cannot be read."""
    return readable_lines(MachineLine, path, MOST_BYTES)
