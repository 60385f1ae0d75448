"""The load of the study's machine over time, in ``machine.jsonl``. It is used for the report only.

With several machines it is the one that runs the study. Without the file, only the plot is missing.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.machine.load import Load, LoadMeter
from tuner.machine.safe_files import not_following
from tuner.records.checking import Amount, Moment, Name, readable_lines
from tuner.trial import GB, Device

SECONDS = 1.0  # between two lines, at first
MOST_OF_TIME = 1000  # later a thousandth of the time that has passed: a day has 5,500 lines
MOST_BYTES = 2**28
PATIENCE = 5.0  # seconds to wait at the end for a line that is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """A GPU or a MIG instance in a line."""

    used_gb: Amount  # by all processes
    busy: Amount | None = None  # the share of time in which a kernel ran, from 0 to 1; None if it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLine:
    """The machine at a moment."""

    at: Moment  # the time in unix seconds
    busy: Amount  # the mean over the CPU cores since the line before, from 0 to 1
    ram_gb: Amount  # the RAM in use, by all processes
    gpus: Mapping[Name, GpuLine] = field(default_factory=dict)  # by the device's label


@contextmanager
def recording(path: Path, devices: Sequence[Device]) -> Iterator[None]:
    """Appends to the file while the block runs. It raises no error of its own, and ends even if the driver hangs."""
    ended = threading.Event()
    labels = {device.uuid: device.label for device in devices if device.uuid}
    thread = threading.Thread(target=_record, args=(path, labels, ended), daemon=True, name="machine log")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)


def _record(path: Path, labels: Mapping[str, str], ended: threading.Event) -> None:
    began = time.monotonic()
    with suppress(Exception):  # such as a /proc that cannot be read
        meter = LoadMeter(frozenset(labels))
        while not ended.wait(max(SECONDS, (time.monotonic() - began) / MOST_OF_TIME)):
            with suppress(OSError), open(path, "ab", opener=not_following) as file:
                file.write(f"{json.dumps(to_line(meter.look(), labels, time.time()))}\n".encode())


def to_line(load: Load, labels: Mapping[str, str], at: float) -> dict[str, object]:
    """A line of the file; ``labels`` are the GPUs' names by UUID."""
    gpus = {
        labels[uuid]: ({} if gpu.busy is None else {"busy": round(gpu.busy, 3)})
        | {"used_gb": round(gpu.used_bytes / GB, 3)}
        for uuid, gpu in load.gpus.items()
    }
    about: dict[str, object] = {
        "at": round(at, 2),
        "busy": round(load.busy, 3),
        "ram_gb": round(load.used_bytes / GB, 3),
    }
    return {**about, "gpus": gpus} if gpus else about


def read_machine(path: Path) -> list[MachineLine]:
    """The lines of ``machine.jsonl`` in order, without damaged ones; empty if the file cannot be read."""
    return readable_lines(MachineLine, path, MOST_BYTES)
