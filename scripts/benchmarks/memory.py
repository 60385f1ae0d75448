"""Compares memory estimates with the real peaks of the training steps in memory_steps.csv, on the CPU or on CUDA.

On CUDA the truth is what the allocator of the first visible card says, real or emulated, each step in a new process;
estimates are the traced ones. What follows is about the CPU.

The truth is the peak of the bytes that torch has allocated while a step runs on real tensors: model, data, two
optimizer steps and, for a workload, an evaluation, all within one profile, as torch.profiler records each allocation
and release. Counted is everything that comes from torch's CPU allocator: parameters, gradients, optimizer state,
activations, batches, the temporaries inside kernels, and what building the model took. Not counted, on either side:
the process and its libraries, numpy's arrays, what oneDNN and the heap keep for themselves, and any margin. One
process serves for all rows, since exact bytes do not depend on what ran before and nothing outlives its profile.

Error is (estimate - truth) / truth. Beside the traced estimate stand the closed formula, where there is one, and
torch's own MemTracker on fake tensors, without the evaluation: that asks a fake tensor for its value.
"""

from __future__ import annotations

import gc
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker

from scripts.benchmarks.memory_models import (
    OPTIMIZER_STEPS,
    WORKLOADS,
    Step,
    build,
    optimizer_of,
    percentile,
    print_verdicts,
    read_steps,
    run,
    trace,
    workload_parts,
)
from tuner.estimation.graphsage_formula import estimate_graphsage
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import representative_batches
from tuner.training.step import train_step
from tuner.trial import MB

METHODS = ("traced", "static", "MemTracker")
# Seconds at the median, and shares of the truth.
MOST_SECONDS = {"static": 0.001, "traced": 0.2}
MOST_MEDIAN, MOST_PERCENTILE, MOST_UNDER = 0.03, 0.08, 0.02
PERCENTILE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A method's answer for one step; without bytes it has none, and the note says why."""

    bytes: int | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One step: its real peak, and what each method said."""

    name: str
    model: str
    truth_bytes: int
    estimates: dict[str, Estimate]

    def error(self, method: str) -> float | None:
        """The share by which the estimate is above the truth, negative if it is below."""
        estimate = self.estimates[method].bytes
        return None if estimate is None else estimate / self.truth_bytes - 1


@dataclass(frozen=True)
class Summary:
    """A method over all the steps that it has an answer for; errors without a sign, but for the two worst."""

    steps: int
    median: float
    percentile: float
    worst_under: float
    worst_over: float
    median_seconds: float
    worst_seconds: float


def true_peak(step: Step) -> int:
    """The step's peak in bytes on real tensors, by the profiler's record of every allocation and release."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(step, "cpu")
    records = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        now += record.nbytes()
        peak = max(peak, now)
    return peak


def traced_peak(step: Step) -> int:
    return trace(step, "cpu").peak_bytes()


def static_peak(step: Step) -> int | None:
    """The closed formula without the process's own share; None for a model that has no formula."""
    if step.model not in WORKLOADS:
        return None
    workload, config, data = workload_parts(step)
    return estimate_graphsage(config, data).reserved_bytes if workload.name == "graphsage" else None


def tracked_peak(step: Step) -> int:
    """What MemTracker counts of the same optimizer steps on fake tensors."""
    with FakeTensorMode() as mode:
        model, external, steps = (_fake_workload if step.model in WORKLOADS else _fake_plain)(step, mode)
        tracker = MemTracker()
        tracker.track_external(model, *external)
        with tracker:
            for take in steps:
                take()
                tracker.reset_mod_stats()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


Tracked = tuple[nn.Module, Sequence[Any], Sequence[Callable[[], Any]]]
"""A model, what else exists before the steps, and the steps."""


def _fake_plain(step: Step, mode: FakeTensorMode) -> Tracked:
    model, batch, loss = build(step)
    optimizer = optimizer_of(step, model)
    last: list[Tensor] = []

    def take() -> None:
        optimizer.zero_grad(set_to_none=True)
        last[:] = [loss(model, *batch)]  # lives until the next one is there, as in ``run``
        last[0].backward()
        optimizer.step()

    return model, (optimizer, *batch), [take] * OPTIMIZER_STEPS


def _fake_workload(step: Step, mode: FakeTensorMode) -> Tracked:
    """The index work on real tensors first, which fails on fakes; then each tensor's fake."""
    workload, config, data = workload_parts(step)
    with unset_fake_temporarily():
        model = workload.build_model(config, data)
        batches = list(islice(representative_batches(workload, config, data), OPTIMIZER_STEPS))
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update(
                    {name: mode.from_tensor(tensor) for name, tensor in tensors.items() if tensor is not None}
                )
        fakes = [tuple(mode.from_tensor(part) for part in batch) for batch in batches]
    optimizer = build_optimizer(workload, model, config)
    external = (optimizer, *(part for batch in fakes for part in batch))
    return model, external, [lambda batch=batch: train_step(workload, model, optimizer, batch) for batch in fakes]


PEAKS: dict[str, Callable[[Step], int | None]] = {
    "traced": traced_peak,
    "static": static_peak,
    "MemTracker": tracked_peak,
}


def estimate(method: str, step: Step) -> Estimate:
    """A method's peak and time, or in one line why it fails."""
    gc.collect()
    began = time.perf_counter()
    try:
        peak = PEAKS[method](step)
    except Exception as error:  # whatever a method cannot do, the others' rows are still wanted
        note = " ".join(f"{type(error).__name__}: {error}".split())
        return Estimate(note=note)
    return Estimate(peak, time.perf_counter() - began)


def warm_up(steps: Sequence[Step]) -> None:
    """The first step of each model by each method: imports and operators' first calls are no method's time."""
    for step in {step.model: step for step in reversed(steps)}.values():
        for method in METHODS:
            estimate(method, step)


def compare(step: Step) -> Row:
    """All methods and the truth for one step."""
    if step.model in WORKLOADS:
        workload_parts(step)  # generates the ratings, which is no method's time
    estimates = {method: estimate(method, step) for method in METHODS}
    return Row(step.name, step.model, true_peak(step), estimates)


def summarise(rows: Sequence[Row], method: str) -> Summary | None:
    """None if the method has no answer for any of the rows."""
    errors = [error for row in rows if (error := row.error(method)) is not None]
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    seconds = [row.estimates[method].seconds for row in rows if row.estimates[method].bytes is not None]
    return Summary(
        steps=len(errors),
        median=median(sizes),
        percentile=percentile(sizes, PERCENTILE),
        worst_under=min(0.0, *errors),
        worst_over=max(0.0, *errors),
        median_seconds=median(seconds),
        worst_seconds=max(seconds),
    )


def print_header() -> None:
    click.echo(
        f"{'step':<52} {'truth MiB':>10} {'traced':>8} {'s':>6} {'static':>8} {'ms':>6} {'MemTracker':>11} {'s':>6}"
    )


def print_row(row: Row) -> None:
    traced, static, tracker = (row.estimates[method] for method in METHODS)
    cells = [
        f"{row.name:<52} {row.truth_bytes / MB:>10.2f}",
        f"{_percent(row.error('traced'), traced):>8} {traced.seconds:>6.3f}",
        f"{_percent(row.error('static'), static):>8} {_blank(static.bytes and f'{1000 * static.seconds:.3f}'):>6}",
        f"{_percent(row.error('MemTracker'), tracker):>11} {_blank(tracker.bytes and f'{tracker.seconds:.3f}'):>6}",
    ]
    click.echo(" ".join(cells))


def _percent(error: float | None, estimate: Estimate) -> str:
    if error is None:
        return "fails" if estimate.note else ""
    return f"{100 * error:+.2f}%"


def _blank(text: str | int | None) -> str:
    return str(text or "")


def print_notes(rows: Sequence[Row]) -> None:
    """Why a method failed, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for method, found in row.estimates.items():
            if found.note:
                reasons.setdefault((method, found.note), []).append(row.name)
    for (method, note), names in reasons.items():
        click.echo(f"\n{method} fails on {', '.join(names)}:\n  {note[:300]}")


def print_summary(rows: Sequence[Row], summaries: dict[str, Summary | None]) -> None:
    click.echo(
        f"\n{'method':<12} {'steps':>5} {'median':>8} {'95th':>8} {'worst under':>12} {'worst over':>11} "
        f"{'median s':>9} {'worst s':>9}"
    )
    for method, found in summaries.items():
        if found:
            errors = [found.median, found.percentile, found.worst_under, found.worst_over]
            middle, high, under, over = (f"{100 * error:.2f}%" for error in errors)
            times = f"{found.median_seconds:>9.5f} {found.worst_seconds:>9.5f}"
            click.echo(f"{method:<12} {found.steps:>5} {middle:>8} {high:>8} {under:>12} {over:>11} {times}")
    click.echo("\ntraced, the worst step of each model")
    for model in dict.fromkeys(row.model for row in rows):
        worst = max((row for row in rows if row.model == model), key=lambda row: abs(row.error("traced") or 0))
        click.echo(f"  {model:<12} {_percent(worst.error('traced'), worst.estimates['traced']):>8}  {worst.name}")


def verdicts(rows: Sequence[Row], summaries: dict[str, Summary | None]) -> list[tuple[bool, str]]:
    """What the estimates are held to."""
    traced, static = summaries["traced"], summaries["static"]
    failed = sum(row.estimates["traced"].bytes is None for row in rows)
    found = [(not failed, f"traced: {failed} of {len(rows)} steps cannot be followed, at most 0")]
    if traced:
        under = -traced.worst_under
        found += [
            (traced.median <= MOST_MEDIAN, f"traced: median error {traced.median:.2%}, at most {MOST_MEDIAN:.0%}"),
            (
                traced.percentile <= MOST_PERCENTILE,
                f"traced: 95th percentile of errors {traced.percentile:.2%}, at most {MOST_PERCENTILE:.0%}",
            ),
            (under <= MOST_UNDER, f"traced: worst under-estimate {under:.2%}, at most {MOST_UNDER:.0%}"),
        ]
    for method, known in (("traced", traced), ("static", static)):
        if known:
            most, seconds = MOST_SECONDS[method], known.median_seconds
            found.append(
                (seconds < most, f"{method}: {1000 * seconds:.3f} ms at the median, below {1000 * most:g} ms")
            )
    return found


def write_json(path: Path, rows: Sequence[Row], summaries: dict[str, Summary | None]) -> None:
    content = {
        "torch": torch.__version__,
        "rows": [asdict(row) for row in rows],
        "summary": {method: found and asdict(found) for method, found in summaries.items()},
    }
    path.write_text(json.dumps(content, indent=1))


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--half",
    type=click.Choice(["all", "seen", "unseen"]),
    default="all",
    show_default=True,
    help="Steps by a hash of their name: the half from which rules are made, or the one that only judges them.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Steps whose name has this in it; may be repeated.")
@click.option("--limit", type=click.IntRange(1), help="The first so many steps.")
@click.option("--cap", is_flag=True, help="CUDA: run each step under a cap of its uncalibrated need, too.")
@click.option(
    "--truths",
    "truths_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CUDA: a table as of measure_gpu_memory.py with steps that need not be measured; others are added to it.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
@click.pass_context
def main(
    ctx: click.Context,
    device: str,
    half: str,
    only: tuple[str, ...],
    limit: int | None,
    cap: bool,
    truths_path: Path | None,
    json_path: Path | None,
) -> None:
    steps = [
        step
        for step in read_steps()
        if (half == "all" or step.is_seen == (half == "seen"))
        and (not only or any(part in step.name for part in only))
    ][:limit]
    if not steps:
        chosen = " ".join(["--half", half, *(f"--only {part}" for part in only)])
        raise click.UsageError(f"{chosen}: memory_steps.csv has no such step")
    if device == "cuda":
        from scripts.benchmarks.cuda_memory import benchmark

        passed = benchmark(steps, half=half, cap=cap, truths_path=truths_path, json_path=json_path)
    elif cap or truths_path:
        raise click.UsageError("--cap and --truths are for --device cuda")
    else:
        passed = benchmark_on_cpu(steps, json_path)
    ctx.exit(0 if passed else 1)


def benchmark_on_cpu(steps: Sequence[Step], json_path: Path | None) -> bool:
    """Estimates and measures each step and prints all; whether every bar is kept."""
    warnings.filterwarnings("ignore", "global module forward hook")  # MemTracker's, as it fails on a frozen teacher
    torch.set_num_threads(1)  # kernels' temporaries grow with the threads: one, so that every machine has the same
    steps = [step for step in steps if not step.why_not("cpu")]
    warm_up(steps)
    click.echo(f"{len(steps)} steps, torch {torch.__version__}, one thread")
    print_header()
    rows = []
    for step in steps:
        rows.append(compare(step))
        print_row(rows[-1])
    summaries = {method: summarise(rows, method) for method in METHODS}
    print_notes(rows)
    print_summary(rows, summaries)
    if json_path:
        write_json(json_path, rows, summaries)
    return print_verdicts(verdicts(rows, summaries))


if __name__ == "__main__":
    main()
