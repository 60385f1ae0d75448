"""The plan before a study and the table after it, as text."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.placement.packing import low_bytes, need_bytes
from tuner.records.attempts import Attempt
from tuner.records.row_queries import is_metric, metric_columns
from tuner.reporting.console import WIDE
from tuner.trial import GB, MemoryEstimate, Request, title

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.placement.packing import Plan


def estimates_text(listed: Sequence[tuple[str, MemoryEstimate]]) -> str:
    """What each configuration will need, and of what that is made, as a table in GB.

    The need is context + headroom + reserved · (1 + margin), reserved being all the parts but the context.

    Args:
        listed: name and estimate of each configuration.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    parts = [part for part in listed[0][1].parts() if any(guess.parts()[part] for _, guess in listed)]
    for head in ("name", *parts, "reserved", "margin", "headroom", "need", "interval", "method"):
        table.add_column(head, justify="left" if head in ("name", "method") else "right")
    for name, guess in listed:
        need = need_bytes(guess)
        sizes = [guess.parts()[part] for part in parts] + [guess.reserved_bytes]
        row = [*(f"{size / GB:.3f}" for size in sizes), f"{guess.margin:.0%}", f"{guess.headroom_bytes / GB:.3f}"]
        row += [f"{need / GB:.3f}", f"{low_bytes(guess) / GB:.3f} to {need / GB:.3f}"]
        table.add_row(Text(name), *row, Text(guess.method + (f" ({guess.note})" if guess.note else "")))
    console = Console(width=WIDE, highlight=False)
    with console.capture() as capture:
        console.print(table)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines())
    return text + (
        "\nGB (2**30 bytes) of what lives at the peak; a trial is given its need = context + headroom + reserved · "
        "(1 + margin)"
    )


def duration(seconds: float) -> str:
    """Seconds in the two largest units: ``42 s``, ``3 min 5 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def estimate_accuracy(rows: Sequence[Attempt]) -> str:
    """How far the estimates were from the peaks, and who took more than it was given; empty without peaks."""
    measured = [(row, row.peak_memory_gb) for row in rows if row.peak_memory_gb and row.status == "completed"]
    if not measured:
        return ""
    errors = [row.estimated_memory_gb / peak - 1 for row, peak in measured]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    median = statistics.median(abs(error) for error in errors)
    under = sum(error < 0 for error in errors)
    several = len({row.workload for row in rows}) > 1
    seeds = len({row.seed for row in rows}) > 1
    names = [title(row.workload, row.name, several=several, seed=row.seed if seeds else None) for row, _ in measured]
    over = [name for name, (row, peak) in zip(names, measured, strict=True) if peak > (row.limit_gb or math.inf)]
    beyond = f"; more than they were given took: {', '.join(over)}" if over else ""
    return (
        f"estimates: off by {median:.1%} at the median, {errors[worst]:+.1%} at worst ({names[worst]}), "
        f"{under} of {len(errors)} under the peak{beyond}"
    )


DIGITS = {"duration_s": 1, "gpu_fraction": 3, "estimated_memory_gb": 2, "peak_memory_gb": 2}
SHOWN = 8  # so many devices of a plan are shown


def plan_text(plan: Plan, requests: Sequence[Request], data: str, batches: str = "") -> str:
    """The plan in a few lines: data, footprint, memory, buffer, workers, share, and what bounds them.

    Args:
        plan: the plan.
        requests: all trials that are to run, with their estimates.
        data: the data sets in a few words, a line for each.
        batches: the batches that were found for it, a line for each; empty where none was to be found.
    """
    lines = _labelled("data", data)
    lines.append(f"{'trials':<10} {len(requests)}{_seeds(requests)}")
    if not requests:
        return "\n".join([*lines, "nothing is left to do"])
    lines += _labelled("batch", batches)
    lines.append(f"{'footprint':<10} {_footprint(plan, requests)}")
    notes = Counter((request.estimate.method, request.estimate.note) for request in requests if request.estimate.note)
    lines += [f"{'':<10} {count} of them {method}, as {note}" for (method, note), count in notes.items()]
    for index in range(min(SHOWN, len(plan.devices))):
        lines += _device_lines(plan, index)
    if len(plan.devices) > SHOWN:
        lines.append(f"{'':<10} and {len(plan.devices) - SHOWN} more devices")
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''} each"
    least = f"{plan.guaranteed} to " if plan.guaranteed < plan.workers else ""
    lines.append(f"{'workers':<10} {least}{plan.workers}, {threads}; bounded by {plan.bound}")
    return "\n".join(lines)


def _seeds(requests: Sequence[Request]) -> str:
    seeds = sorted({request.trial.seed for request in requests})
    if len(seeds) < 2:
        return ""
    configurations = len({(request.trial.workload, request.trial.name) for request in requests})
    return (
        f", of {configurations} configurations with seeds {seeds[0]} to {seeds[-1]}; the data are split alike for all"
    )


def _labelled(label: str, text: str) -> list[str]:
    return [f"{'' if number else label:<10} {line}" for number, line in enumerate(text.splitlines())]


# From the GPU memory estimation guide.
WATCH_GPU = "nvidia-smi -l 1"
WATCH_MEMORY = "nvidia-smi -l 1 --query-gpu=memory.used,memory.total,memory.free --format=csv"


def monitoring_text(plan: Plan) -> str:
    """How to watch the memory of the plan's GPUs while a study runs; empty where there are none."""
    on_gpu = any(device.kind == "cuda" for device in plan.devices)
    return f"{'watch':<10} {WATCH_MEMORY}" if on_gpu else ""


def _device_lines(plan: Plan, index: int) -> list[str]:
    device, budget, fit = plan.devices[index], plan.budgets[index], plan.fits[index]
    share = f", each with 1/{fit} of it" if plan.packing == "uniform" and fit else ""
    cores = f", {device.cores} CPU cores" if device.cores else ""
    return [
        f"{device.label:<10} {device.name}: {device.total_bytes / GB:.1f} GB in all, {plan.buffer_bytes / GB:.1f} GB "
        f"buffer, {device.free_bytes / GB:.1f} GB free: {budget / GB:.1f} GB for trials{cores}",
        f"{'':<10} ⌊{budget / GB:.2f} / {plan.footprint_bytes / GB:.2f}⌋ = {fit} fit by memory, at most "
        f"{plan.expected[index]} run at once{share}",
    ]


def _footprint(plan: Plan, requests: Sequence[Request]) -> str:
    largest = max(requests, key=lambda request: request.need_bytes)
    several = len({request.trial.workload for request in requests}) > 1
    guess, least = largest.estimate, min(request.need_bytes for request in requests)
    span = f"{least / GB:.2f} to " if plan.packing == "per-trial" and least < plan.footprint_bytes else ""
    need = f"{span}{plan.footprint_bytes / GB:.2f} GB a trial"
    if guess.is_given:
        return f"{need}, as given"
    sum_ = f" = {guess.context_bytes / GB:.2f} context + {guess.reserved_bytes / GB:.2f}"
    sum_ += f" + {guess.margin:.0%} margin" if guess.margin else ""
    sum_ += f" + {guess.headroom_bytes / GB:.2f} headroom" if guess.headroom_bytes else ""
    if need_bytes(guess) != plan.footprint_bytes:
        sum_ += f", given {plan.footprint_bytes / GB:.2f}"
    each = "; each has what it needs" if span else ""
    name = title(largest.trial.workload, largest.trial.name, several=several)
    return f"{need}{sum_} of {name}, the largest ({guess.method}){each}"


def results_table(rows: Sequence[Attempt], metric: str, *, seeds: bool = False) -> Table:
    """The trials of one workload in the order given, with their reason where they have no metric.

    Args:
        rows: the trials.
        metric: what they are compared by.
        seeds: show each trial's seed.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    metrics = metric_columns(rows, metric)
    error = ("error",) if any(row.error for row in rows) else ()
    seed = ("seed",) if seeds else ()
    tried = ("attempts",) if any(row.attempts > 1 for row in rows) else ()
    heads = ("name", *seed, "status", *tried, *metrics, "epochs", "seconds", "share", "estimated", "peak", *error)
    for head in heads:
        table.add_column(head, justify="left" if head in ("name", "status", "error") else "right")
    for row in rows:
        table.add_row(
            Text(row.name),
            *(str(row.value(key)) for key in seed),
            row.status,
            *(str(row.value(key)) for key in tried),
            *(_number(row.value(key), 4) for key in metrics),
            str(row.epochs),
            _number(row.duration_s, 1),
            _number(row.gpu_fraction, 3),
            _gb(row.estimated_memory_gb),
            _gb(row.peak_memory_gb),
            *(Text(row.error) for _ in error),
        )
    return table


def _number(value: Any, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gb(value: Any) -> str:
    return "" if value is None else f"{value:.2f} GB"


def value_text(column: str, value: Any) -> str:
    """A value in one line that any terminal can show."""
    if value is None:
        return ""
    if isinstance(value, float):
        digits = 4 if is_metric(column) else DIGITS.get(column)
        return f"{value:.6g}" if digits is None else f"{value:.{digits}f}"
    text = str(value)
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
