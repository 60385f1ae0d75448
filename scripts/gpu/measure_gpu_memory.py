"""Measures what the training steps of memory_steps.csv take from a GPU, each in a process of its own.

Writes one row a step: peak allocated and peak reserved bytes of torch's allocator, and the context, which is all that
the process takes from the device beside what the allocator has reserved: CUDA context, kernels, libraries' handles.
Where the driver does not list processes by their ids here, it is the growth of the device's used memory, and then
nothing else may use the GPU meanwhile. The table is written at the end, and only if every step was measured.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import click

from scripts.benchmarks.memory_models import Step, read_steps, run
from tuner.machine.caps import capped, is_out_of_memory
from tuner.machine.devices import cuda_devices, driver_version
from tuner.machine.holders import gpu_handle, held_here
from tuner.machine.safe_files import replace_file
from tuner.trial import Device

# Torch numbers devices by speed unless told otherwise, NVML by their place on the bus.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/data/gpu_memory.csv"
SNAPSHOT = "gpu_snapshot.json"
SNAPSHOT_FIELDS = ("action", "size", "addr", "stream")  # what events_from_trace reads
CARD = Device("", "cuda", 0, "the first visible GPU", 0, 0, cores=1)


@dataclass(frozen=True)
class Measured:
    """One row of the table; sizes in bytes.

    Attributes:
        name: the step's, as in memory_steps.csv.
        model: the step's.
        sizes: the step's, as ``key=value`` with spaces between: a row says by itself what was measured.
        gpu: the device's name.
        capability: its compute capability, on which the cuBLAS workspace depends.
        driver: the NVIDIA driver's version.
        torch: torch's version.
        peak_allocated: ``torch.cuda.max_memory_allocated``.
        peak_reserved: ``torch.cuda.max_memory_reserved``.
        context: what the process takes beside what is reserved.
        card: ``real`` or ``emulated``.
    """

    name: str
    model: str
    sizes: str
    gpu: str
    capability: str
    driver: str
    torch: str
    peak_allocated: int
    peak_reserved: int
    context: int
    card: str = "real"


def card_kind() -> Literal["real", "emulated"]:
    """Which of the two CUDA is here: the emulated card's env.sh sets this variable."""
    return "emulated" if "EMULATED_GPU" in os.environ else "real"


def without_cudnn_if_emulated() -> None:
    """Switches cuDNN off for this process on the emulated card, which has none."""
    if card_kind() == "emulated":
        import torch

        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)  # a switch of its own, which Hopper's 16-bit attention goes by


def measure(step: Step) -> Measured:
    """Runs a step on the first visible GPU; to be called in a new process."""
    import torch

    without_cudnn_if_emulated()
    before = used_bytes()
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    run(step, "cuda")
    torch.cuda.synchronize()
    here = held_here(gpu_handle(cuda_devices()[0])) or used_bytes() - before
    major, minor = torch.cuda.get_device_capability()
    return Measured(
        name=step.name,
        model=step.model,
        sizes=" ".join(f"{key}={value}" for key, value in step.sizes.items()),
        gpu=torch.cuda.get_device_name(),
        capability=f"{major}.{minor}",
        driver=driver_version(),
        torch=torch.__version__,
        peak_allocated=torch.cuda.max_memory_allocated(),
        peak_reserved=torch.cuda.max_memory_reserved(),
        context=here - torch.cuda.memory_reserved(),
        card=card_kind(),
    )


def runs_out(step: Step, cap_bytes: int) -> bool:
    """Whether a step runs out of memory on the first visible GPU under a cap; to be called in a new process."""
    import torch

    without_cudnn_if_emulated()
    try:
        with capped(CARD, cap_bytes, base_bytes=0):
            run(step, "cuda")
            torch.cuda.synchronize()
    except Exception as error:
        if is_out_of_memory(error):
            return True
        raise
    return False


def used_bytes() -> int:
    """What NVML says that all processes hold of the first visible GPU, without a CUDA context in this one."""
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(gpu_handle(cuda_devices()[0])).used)


def record(step: Step) -> dict[str, Any]:
    """A step's allocations and releases on the GPU, and the peaks that a replay should find; in a new process."""
    import torch

    without_cudnn_if_emulated()
    # Before the first CUDA tensor, since a replay knows nothing of blocks that were there already.
    torch.cuda.memory._record_memory_history("all", context=None)
    run(step, "cuda")
    torch.cuda.synchronize()
    entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    return {
        "step": step.name,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "fields": SNAPSHOT_FIELDS,
        "entries": [[entry[field] for field in SNAPSHOT_FIELDS] for entry in entries],
    }


def read_table(path: Path) -> list[Measured]:
    """The rows of a table that ``write_table`` wrote."""
    numbers = ("peak_allocated", "peak_reserved", "context")
    with path.open(newline="") as file:
        return [Measured(**{**row, **{key: int(row[key]) for key in numbers}}) for row in csv.DictReader(file)]


def write_table(path: Path, rows: Sequence[Measured]) -> None:
    """Writes all rows, or leaves the file as it was."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [field.name for field in fields(Measured)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, file.getvalue().encode())


def no_gpu() -> str | None:
    """Why nothing can be measured here, in one line; None if it can."""
    import torch

    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} finds no CUDA device; run this on a machine that has one"
    try:
        used_bytes()
    except Exception as error:  # the package is missing, or its own error types
        return f"the GPU's used memory cannot be read by NVML ({error}): install nvidia-ml-py"
    return None


def measure_all(steps: Sequence[Step], at_once: int = 1) -> list[Measured]:
    """Each in a new process, so many at once: each has a context and an allocator of its own."""
    rows = []
    with ThreadPoolExecutor(at_once) as threads:
        for step, row in zip(steps, threads.map(partial(in_new_process, measure), steps), strict=True):
            rows.append(row)
            sizes = (f"{size / 2**20:>9.1f}" for size in (row.peak_allocated, row.peak_reserved, row.context))
            click.echo(f"{step.name:<52} {' '.join(sizes)}")
    return rows


def in_new_process(function: Any, step: Step, *args: object) -> Any:
    """What a function of this module says of a step, in a process that has no CUDA context yet."""
    # A fork server that has imported PyG has asked for CUDA devices, after which no fork of it can use them.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, step, *args).result()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise click.ClickException(f"{step.name} was not measured: {reason}") from error


@click.command(help=__doc__)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=TABLE, show_default=True)
@click.option(
    "--snapshot", metavar="NAME", help=f"Record this step's allocations too, as {SNAPSHOT} beside the table."
)
@click.option("--only", multiple=True, metavar="NAME", help="Steps whose name has this in it; needs --output.")
@click.option(
    "--at-once", type=click.IntRange(1), default=1, show_default=True, help="Steps that are measured side by side."
)
@click.pass_context
def main(ctx: click.Context, output: Path, snapshot: str | None, only: tuple[str, ...], at_once: int) -> None:
    reason = no_gpu()
    if reason:
        click.echo(f"error: {reason}", err=True)
        ctx.exit(2)
    if only and output == TABLE:
        raise click.UsageError("--only would leave the project's table with a part of its rows: give --output")
    if card_kind() == "emulated" and output == TABLE:
        raise click.UsageError("the project's table is a real card's, and this one is emulated: give --output")
    listed = [step for step in read_steps() if not step.why_not(card_kind())]
    steps = [step for step in listed if not only or any(part in step.name for part in only)]
    recorded = [step for step in listed if step.name == snapshot]
    if not steps or (snapshot and not recorded):
        raise click.UsageError("no step of memory_steps.csv has this name")
    click.echo(f"{'step':<52} {'allocated':>9} {'reserved':>9} {'context':>9}  MiB")
    rows = measure_all(steps, at_once)
    recordings = [in_new_process(record, step) for step in recorded]
    write_table(output, rows)
    for recording in recordings:
        replace_file(output.with_name(SNAPSHOT), json.dumps(recording, separators=(",", ":")).encode())
    click.echo(f"{len(rows)} steps: {output}")


if __name__ == "__main__":
    main()
