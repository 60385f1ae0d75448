"""How good are traced memory estimates? Compares them with real training steps on a CPU or a GPU.

A row of memory_steps.csv is one step. It is traced, and then run on real tensors: model, data, two optimizer steps
and, for a workload, an evaluation.

On the CPU the truth is the tensors' peak, as torch.profiler records each allocation and release. Everything of
torch's CPU allocator is counted: parameters, gradients, optimizer state, activations, batches, the temporaries inside
kernels, and what building the model took. On neither side are the process and its libraries counted, nor numpy's
arrays, nor what oneDNN and the heap keep for themselves. One process serves for all steps, as exact bytes do not
depend on what ran before.

On CUDA the truth is the allocator's ``max_memory_allocated`` and ``max_memory_reserved`` of each step in a process of
its own, on a real or an emulated card; which of the two is said. The truth does not change with the estimator, so a
table (``--truths``) can keep it.

Error is (estimate - truth) / truth. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import click
import torch

from scripts.benchmarks.memory_models import (
    WORKLOADS,
    Step,
    parse_sizes,
    percentile,
    read_steps,
    run,
    trace,
    workload_parts,
)
from scripts.benchmarks.verdicts import print_verdicts
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
from tuner.decisions.plan import need_bytes
from tuner.estimation.caching_allocator import largest_peaks
from tuner.estimation.cards import card_of
from tuner.machine.devices import detect_devices
from tuner.trial import MB, Device

PERCENTILE = 0.95
MOST_SECONDS = 0.2  # of an estimate, at the median
# Shares of the truth, by what is counted: the median and the 95th percentile of errors without a sign, and how far
# below the truth an estimate may lie.
Bars = Mapping[str, tuple[float, float, float | None]]
CPU_BARS: Bars = {"tensors": (0.03, 0.08, 0.02)}
CUDA_BARS: Bars = {"allocated": (0.005, 0.02, None), "reserved": (0.005, 0.03, 0.04)}


@dataclass(frozen=True)
class Estimate:
    """What the tracer expects of a step, by what is counted; without sizes, ``note`` says why."""

    sizes: Mapping[str, int]
    seconds: float = 0.0
    cap_bytes: int = 0  # CUDA: what an uncalibrated trial may reserve, with the default margin and no context
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One step: its truth by what is counted, and its estimate."""

    name: str
    model: str
    truths: Mapping[str, int]
    estimate: Estimate
    out_of_memory: bool | None = None  # whether it ran out under its cap; None if that was not tried

    def error(self, kind: str) -> float | None:
        """The share by which the estimate is above the truth, negative if it is below; None without an estimate."""
        found = self.estimate.sizes.get(kind)
        return None if found is None else found / self.truths[kind] - 1


@dataclass(frozen=True)
class Summary:
    """Errors of all steps that have an estimate; median and percentile without a sign."""

    median: float
    percentile: float
    worst_under: float
    worst_over: float


def true_peak(step: Step) -> int:
    """The step's peak in bytes on the CPU, by the profiler's record of every allocation and release."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(step, "cpu")
    records = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        now += record.nbytes()
        peak = max(peak, now)
    return peak


def trace_on_cpu(step: Step) -> Estimate:
    return Estimate({"tensors": trace(step, "cpu").peak_bytes()})


def trace_on_card(device: Device, step: Step) -> Estimate:
    found = trace(step, "cuda", card_of(device))
    whole = found.to_estimate("cuda")
    sizes = {"allocated": largest_peaks(found.events).peak_allocated_bytes, "reserved": whole.reserved_bytes}
    return Estimate(sizes, cap_bytes=need_bytes(whole) - whole.context_bytes)


def estimate(tracing: Callable[[Step], Estimate], step: Step) -> Estimate:
    """A step's estimate and the time that it takes, or why there is none."""
    gc.collect()
    began = time.perf_counter()
    try:
        found = tracing(step)
    except Exception as error:  # the other rows are still wanted
        return Estimate({}, note=" ".join(f"{type(error).__name__}: {error}".split()))
    return replace(found, seconds=time.perf_counter() - began)


def warm_up(tracing: Callable[[Step], Estimate], steps: Sequence[Step]) -> None:
    """Traces the first step of each model: imports, data and operators' first calls are no estimate's time."""
    for step in {step.model: step for step in reversed(steps)}.values():
        estimate(tracing, step)


def measured(steps: Sequence[Step], device: Device, path: Path | None) -> dict[str, Measured]:
    """Each step's truth on a card by its name: from the table if it is there, else measured now and added to it."""
    kept = read_table(path) if path and path.exists() else []
    place = device.name, str(torch.__version__), card_kind()
    here = {row.name: row for row in kept if (row.gpu, row.torch, row.card) == place}
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


def summarise(rows: Sequence[Row], kind: str) -> Summary | None:
    """None if no row has an estimate."""
    errors = [error for row in rows if (error := row.error(kind)) is not None]
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Summary(median(sizes), percentile(sizes, PERCENTILE), min(0.0, *errors), max(0.0, *errors))


def print_head(bars: Bars) -> None:
    heads = " ".join(f"{kind:>10}" for kind in [*bars, *bars])
    click.echo(f"\n{'step (MiB, errors, s)':<52} {heads} {'time':>7}")


def print_row(row: Row) -> None:
    sizes = " ".join(f"{size / MB:>10.2f}" for size in row.truths.values())
    if row.estimate.note:
        click.echo(f"{row.name:<52} {sizes}  cannot be followed: {row.estimate.note[:150]}")
        return
    errors = " ".join(f"{error:>+10.2%}" for kind in row.truths if (error := row.error(kind)) is not None)
    tried = {None: "", False: "  runs under its cap", True: "  OUT OF MEMORY under its cap"}[row.out_of_memory]
    click.echo(f"{row.name:<52} {sizes} {errors} {row.estimate.seconds:>7.3f}{tried}")


def print_families(rows: Sequence[Row], bars: Bars) -> None:
    """The summary of each model's steps, and of all."""
    heads = " ".join(f"{head:>8}" for head in ("median", "95th", "under", "over"))
    click.echo(f"\n{'':<22}{''.join(f'   {kind:>35}' for kind in bars)}")
    click.echo(f"{'family':<16} {'steps':>5}{f'   {heads}' * len(bars)}")
    for model in [*dict.fromkeys(row.model for row in rows), "all"]:
        family = [row for row in rows if model in (row.model, "all")]
        count = sum(not row.estimate.note for row in family)
        cells = "".join(f"   {_cells(summarise(family, kind))}" for kind in bars)
        click.echo(f"{model:<16} {count:>5}{cells}")


def _cells(found: Summary | None) -> str:
    values = [found.median, found.percentile, found.worst_under, found.worst_over] if found else []
    return " ".join(f"{value:>8.2%}" for value in values).rjust(35)


def verdicts(rows: Sequence[Row], bars: Bars) -> list[tuple[bool, str]]:
    """What the estimates are held to."""
    lost = sum(bool(row.estimate.note) for row in rows)
    found = [(not lost, f"{lost} of {len(rows)} steps cannot be followed, at most 0")]
    for kind, (most_median, most_percentile, most_under) in bars.items():
        if (summary := summarise(rows, kind)) is None:
            continue
        held: list[tuple[str, float, float | None]] = [
            ("median error", summary.median, most_median),
            ("95th percentile of errors", summary.percentile, most_percentile),
            ("worst under-estimate", -summary.worst_under, most_under),
        ]
        found += [
            (value <= most, f"{kind}: {name} {value:.2%}, at most {most:.1%}")
            for name, value, most in held
            if most is not None
        ]
    if times := [row.estimate.seconds for row in rows if not row.estimate.note]:
        text = f"an estimate takes {median(times):.3f} s at the median, at most {MOST_SECONDS:g} s"
        found.append((median(times) <= MOST_SECONDS, text))
    if tried := [row for row in rows if row.out_of_memory is not None]:
        out = [row.name for row in tried if row.out_of_memory]
        text = f"{len(out)} of {len(tried)} run out of memory under their cap, at most 0 {' '.join(out)}".rstrip()
        found.append((not out, text))
    return found


def rows_on_cpu(steps: Sequence[Step]) -> list[Row]:
    """Traces and measures each step on the CPU, and prints it."""
    torch.set_num_threads(1)  # kernels' temporaries grow with the threads: one, so that every machine has the same
    warm_up(trace_on_cpu, steps)
    click.echo(f"{len(steps)} steps, torch {torch.__version__}, one thread")
    print_head(CPU_BARS)
    rows = []
    for step in steps:
        if step.model in WORKLOADS:
            workload_parts(step)  # generates the data, which is no estimate's time
        found = estimate(trace_on_cpu, step)
        rows.append(Row(step.name, step.model, {"tensors": true_peak(step)}, found))
        print_row(rows[-1])
    return rows


def rows_on_card(steps: Sequence[Step], truths_path: Path | None, *, cap: bool) -> list[Row]:
    """Traces and measures each step on the first GPU, and prints it; with ``cap``, each also runs under its cap."""
    (device, *_), card = detect_devices("cuda"), card_kind()
    cudnn = "without cuDNN" if card == "emulated" else "with cuDNN"
    click.echo(f"{len(steps)} steps, {card} {device.name}, torch {torch.__version__}, {cudnn}")
    truths = measured(steps, device, truths_path)
    tracing = partial(trace_on_card, device)
    warm_up(tracing, steps)
    print_head(CUDA_BARS)
    rows = []
    for step in steps:
        found, truth = estimate(tracing, step), truths[step.name]
        out = in_new_process(runs_out, step, found.cap_bytes) if cap and not found.note else None
        peaks = {"allocated": truth.peak_allocated, "reserved": truth.peak_reserved}
        rows.append(Row(step.name, step.model, peaks, found, out))
        print_row(rows[-1])
    return rows


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--only", multiple=True, metavar="NAME", help="Steps whose name has this in it; may be repeated.")
@click.option("--limit", type=click.IntRange(1), help="The first so many steps.")
@click.option("--cap", is_flag=True, help="CUDA: run each step under a cap of its uncalibrated need, too.")
@click.option(
    "--truths",
    "truths_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CUDA: a table as of measure_gpu_memory.py with steps that need not be measured; others are added to it.",
)
@click.pass_context
def main(
    ctx: click.Context, device: str, only: tuple[str, ...], limit: int | None, cap: bool, truths_path: Path | None
) -> None:
    if device == "cpu" and (cap or truths_path):
        raise click.UsageError("--cap and --truths are for --device cuda")
    if device == "cuda" and (reason := no_gpu()):
        raise click.UsageError(reason)
    steps = [step for step in read_steps() if not only or any(part in step.name for part in only)][:limit]
    if not steps:
        chosen = " ".join(f"--only {part}" for part in only)
        raise click.UsageError(f"{chosen}: memory_steps.csv has no such step")
    place: Literal["cpu", "emulated", "real"] = card_kind() if device == "cuda" else "cpu"
    bars = CUDA_BARS if device == "cuda" else CPU_BARS
    for step in steps:
        if reason := step.why_not(place):
            click.echo(f"excluded on {place}: {step.name}: {reason}")
    steps = [step for step in steps if not step.why_not(place)]
    if device == "cuda":
        without_cudnn_if_emulated()
        rows = rows_on_card(steps, truths_path, cap=cap)
    else:
        rows = rows_on_cpu(steps)
    print_families(rows, bars)
    click.echo()
    ctx.exit(0 if print_verdicts(verdicts(rows, bars)) else 1)


if __name__ == "__main__":
    main()
