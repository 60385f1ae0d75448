"""The CUDA side of memory.py: traced estimates against what a card's own allocator says.

The truth is ``max_memory_allocated`` and ``max_memory_reserved`` of each step in a process of its own, on a real or
an emulated card; which of the two is said. It does not change with the estimator, so a table keeps it.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
import torch

from scripts.benchmarks.memory_models import Step, parse_sizes, percentile, print_verdicts, trace
from scripts.gpu.measure_gpu_memory import (
    Measured,
    card_kind,
    in_new_process,
    measure,
    no_gpu,
    read_table,
    runs_out,
    without_cudnn_if_emulated,
    write_table,
)
from tuner.errors import TunerError
from tuner.estimation.allocator.replay import largest_peaks
from tuner.estimation.cards import card_of
from tuner.machine.devices import detect_devices
from tuner.placement.packing import need_bytes
from tuner.trial import MB, Device

MOST_SECONDS = 0.2  # at the median
# Shares of the truth: the median and the 95th percentile of errors without a sign, and how far below it may lie.
BARS = {"allocated": (0.005, 0.02, None), "reserved": (0.005, 0.03, 0.04)}


@dataclass(frozen=True)
class Estimate:
    """What the tracer expects of a step on a card."""

    allocated_bytes: int  # as torch counts them: rounded to 512 bytes
    reserved_bytes: int
    cap_bytes: int  # what an uncalibrated trial may reserve: with the default margin, without the context
    seconds: float


@dataclass(frozen=True)
class Row:
    """A step's truth and estimate; without an estimate, ``note`` says why."""

    name: str
    model: str
    allocated_bytes: int
    reserved_bytes: int
    estimate: Estimate | None
    note: str = ""
    out_of_memory: bool | None = None  # whether it ran out under its cap; None if that was not tried

    def error(self, kind: str) -> float | None:
        """The share by which the estimate is above the truth, negative if it is below; of which kind of bytes."""
        if self.estimate is None:
            return None
        found: int = getattr(self.estimate, f"{kind}_bytes")
        truth: int = getattr(self, f"{kind}_bytes")
        return found / truth - 1


@dataclass(frozen=True)
class Summary:
    """Shares of the truth; median and percentile without a sign."""

    median: float
    percentile: float
    worst_under: float
    worst_over: float


def estimate(step: Step, device: Device) -> Estimate:
    """The estimate of a step as a study would make it, and its time."""
    began = time.perf_counter()
    found = trace(step, "cuda", card_of(device))
    whole = found.to_estimate("cuda")
    seconds = time.perf_counter() - began
    cap = need_bytes(whole) - whole.context_bytes
    return Estimate(largest_peaks(found.events).peak_allocated_bytes, whole.reserved_bytes, cap, seconds)


def measured(steps: Sequence[Step], device: Device, path: Path | None) -> dict[str, Measured]:
    """Each step's truth by its name: from the table if it is there, else measured now and added to the table."""
    kept = read_table(path) if path and path.exists() else []
    here = {
        row.name: row
        for row in kept
        if (row.gpu, row.torch, row.card) == (device.name, str(torch.__version__), card_kind())
    }
    truths = {}
    for step in steps:
        row = here.get(step.name)
        if row is None or (row.model, parse_sizes(row.sizes)) != (step.model, step.sizes):
            click.echo(f"measuring {step.name}", err=True)
            new = in_new_process(measure, step)
            kept = [*(other for other in kept if other is not row), new]
            row = new
            if path:
                write_table(path, kept)
        truths[step.name] = row
    return truths


def compare(step: Step, truth: Measured, device: Device, *, cap: bool) -> Row:
    """A step's row; with ``cap``, the step also runs on the card under its cap."""
    gc.collect()
    row = Row(step.name, step.model, truth.peak_allocated, truth.peak_reserved, None)
    try:
        found = estimate(step, device)
    except TunerError as error:  # the other rows are still wanted
        return Row(**{**vars(row), "note": str(error)})
    out = in_new_process(runs_out, step, found.cap_bytes) if cap else None
    return Row(**{**vars(row), "estimate": found, "out_of_memory": out})


def warm_up(steps: Sequence[Step], device: Device) -> None:
    """The first step of each model: imports, data and operators' first calls are no estimate's time."""
    for step in {step.model: step for step in reversed(steps)}.values():
        try:
            estimate(step, device)
        except TunerError:  # it is told in its row
            continue


def summarise(rows: Sequence[Row], kind: str) -> Summary | None:
    """None if no row has an estimate."""
    errors = [error for row in rows if (error := row.error(kind)) is not None]
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Summary(median(sizes), percentile(sizes, 0.95), min(0.0, *errors), max(0.0, *errors))


def print_row(row: Row) -> None:
    sizes = f"{row.allocated_bytes / MB:>10.2f} {row.reserved_bytes / MB:>10.2f}"
    if row.estimate is None:
        click.echo(f"{row.name:<52} {sizes}  cannot be followed: {row.note[:150]}")
        return
    errors = " ".join(f"{error:>+10.2%}" for kind in BARS if (error := row.error(kind)) is not None)
    tried = {None: "", False: "  runs under its cap", True: "  OUT OF MEMORY under its cap"}[row.out_of_memory]
    click.echo(f"{row.name:<52} {sizes} {errors} {row.estimate.seconds:>7.3f}{tried}")


def print_families(rows: Sequence[Row]) -> None:
    heads = " ".join(f"{head:>8}" for head in ("median", "95th", "under", "over"))
    click.echo(f"\n{'':<22} {'allocated':>35} {'reserved':>38}")
    click.echo(f"{'family':<16} {'steps':>5} {heads}    {heads}")
    for model in [*dict.fromkeys(row.model for row in rows), "all"]:
        family = [row for row in rows if model in (row.model, "all")]
        count = sum(row.estimate is not None for row in family)
        cells = ["    "] + [_cells(summarise(family, kind)) for kind in BARS]
        click.echo(f"{model:<16} {count:>5}{'   '.join(cells)[6:]}")


def _cells(found: Summary | None) -> str:
    values = [found.median, found.percentile, found.worst_under, found.worst_over] if found else []
    return " ".join(f"{value:>8.2%}" for value in values).rjust(35)


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """What the estimates are held to."""
    lost = [row.name for row in rows if row.estimate is None]
    found = [(not lost, f"{len(lost)} of {len(rows)} steps cannot be followed, at most 0")]
    for kind, (most_median, most_percentile, most_under) in BARS.items():
        summary = summarise(rows, kind)
        if summary is None:
            continue
        under = -summary.worst_under
        bars: list[tuple[str, float, float | None]] = [
            ("median error", summary.median, most_median),
            ("95th percentile of errors", summary.percentile, most_percentile),
            ("worst under-estimate", under, most_under),
        ]
        found += [
            (value <= most, f"{kind}: {name} {value:.2%}, at most {most:.1%}")
            for name, value, most in bars
            if most is not None
        ]
    if times := [row.estimate.seconds for row in rows if row.estimate]:
        text = f"an estimate takes {median(times):.3f} s at the median, at most {MOST_SECONDS:g} s"
        found.append((median(times) <= MOST_SECONDS, text))
    tried = [row for row in rows if row.out_of_memory is not None]
    if tried:
        out = [row.name for row in tried if row.out_of_memory]
        text = f"{len(out)} of {len(tried)} run out of memory under their cap, at most 0 {' '.join(out)}".rstrip()
        found.append((not out, text))
    return found


def write_json(path: Path, rows: Sequence[Row], device: Device, half: str) -> None:
    summaries = {kind: summarise(rows, kind) for kind in BARS}
    content = {
        "card": card_kind(),
        "gpu": device.name,
        "torch": str(torch.__version__),
        "half": half,
        "rows": [asdict(row) for row in rows],
        "summary": {kind: found and asdict(found) for kind, found in summaries.items()},
    }
    path.write_text(json.dumps(content, indent=1))


def benchmark(
    steps: Sequence[Step],
    *,
    half: str,
    cap: bool,
    truths_path: Path | None,
    json_path: Path | None,
) -> bool:
    """Measures what is missing, estimates each step and prints all; whether every bar is kept."""
    if reason := no_gpu():
        raise click.UsageError(reason)
    without_cudnn_if_emulated()
    (device, *_), card = detect_devices("cuda"), card_kind()
    cudnn = "without cuDNN" if card == "emulated" else "with cuDNN"
    click.echo(f"{len(steps)} steps ({half}), {card} {device.name}, torch {torch.__version__}, {cudnn}")
    for step in steps:
        if reason := step.why_not(card):
            click.echo(f"excluded on the {card} card: {step.name}: {reason}")
    steps = [step for step in steps if not step.why_not(card)]
    truths = measured(steps, device, truths_path)
    warm_up(steps, device)
    heads = f"{'allocated':>10} {'reserved':>10} {'allocated':>10} {'reserved':>10}"
    click.echo(f"\n{'step (MiB, errors, s)':<52} {heads} {'time':>7}")
    rows = []
    for step in steps:
        rows.append(compare(step, truths[step.name], device, cap=cap))
        print_row(rows[-1])
    print_families(rows)
    if json_path:
        write_json(json_path, rows, device, half)
    return print_verdicts(verdicts(rows))
