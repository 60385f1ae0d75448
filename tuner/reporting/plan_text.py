"""A plan and its estimates as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.decisions.capacity import ram_buffer_bytes
from tuner.decisions.plan import HOST_MARGIN, host_need_bytes, is_tight, low_bytes, need_bytes
from tuner.errors import option, printable
from tuner.reporting.columns import TextColumn, table_lines
from tuner.reporting.texts import count_text, gb_span, rough
from tuner.trial import GB, MemoryEstimate, Request, title

if TYPE_CHECKING:
    from tuner.decisions.plan import Plan

DEVICES = 8  # the maximum number of devices that are shown
# From the GPU memory estimation guide.
WATCH_GPU = "nvidia-smi -l 1"
WATCH_MEMORY = "nvidia-smi -l 1 --query-gpu=memory.used,memory.total,memory.free --format=csv"


def estimates_text(listed: Sequence[tuple[str, MemoryEstimate]], width: int | None = None) -> str:
    """A table of the memory that each named configuration needs, and its parts, in GB.

    ``width`` is that of a terminal; None for lines of any length.
    """
    guesses = [guess for _, guess in listed]
    parts = [part for part in guesses[0].parts() if any(guess.parts()[part] for guess in guesses)]
    in_ram = any(guess.host_bytes for guess in guesses)
    needs = [_gb(need_bytes(guess)) for guess in guesses]
    methods = [guess.method + (f" ({guess.note})" if guess.note and width is None else "") for guess in guesses]
    notes = {guess.note: f"{name}: {guess.note}" for name, guess in listed if guess.note and width is not None}
    columns = [
        TextColumn("name", [printable(name) for name, _ in listed], left=True, names=True),
        *(TextColumn(part, [_gb(guess.parts()[part]) for guess in guesses], spared=2) for part in parts),
        TextColumn("reserved", [_gb(guess.reserved_bytes) for guess in guesses], spared=5),
        TextColumn("margin", [f"{guess.margin:.0%}" for guess in guesses], spared=4),
        TextColumn("headroom", [_gb(guess.headroom_bytes) for guess in guesses], spared=3),
        TextColumn("need", needs),
        TextColumn(
            "interval",
            [f"{_gb(low_bytes(guess))} to {need}" for guess, need in zip(guesses, needs, strict=True)],
            spared=1,
        ),
        *[TextColumn("RAM", [_gb(host_need_bytes(guess)) for guess in guesses])] * in_ram,
        TextColumn("method", methods, left=True, spared=6),
    ]
    below = "GB (2**30 bytes) at the peak; the need of a trial = context + headroom + reserved · (1 + margin)"
    beside = f"; of the host's RAM it is that of the estimate · {1 + HOST_MARGIN:g}" if in_ram else ""
    return "\n".join([*table_lines(columns, width), *notes.values(), f"{below}{beside}"])


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / GB:.3f}"


def plan_text(
    plan: Plan,
    requests: Sequence[Request],
    data: str,
    batches: str = "",
    seconds: float | None = None,
    fewer_by: str = "max_workers",
) -> str:
    """The plan in a few lines: data, footprint, memory, workers and what limits their number, and time.

    ``requests`` are all trials to run. ``data`` has a line for each data set, ``batches`` one for each batch size.
    ``seconds`` is the estimated time of the whole study. ``fewer_by`` is the option that limits the workers.
    """
    lines = _labelled("data", data)
    lines.append(f"{'trials':<10} {len(requests)}{_seeds(requests)}")
    if not requests:
        return "\n".join([*lines, "no trials are left to run"])
    lines += _labelled("batch", batches)
    lines.append(f"{'footprint':<10} {_footprint(plan, requests)}")
    notes = Counter((request.estimate.method, request.estimate.note) for request in requests if request.estimate.note)
    lines += [f"{'':<10} {count} of them {method}: {note}" for (method, note), count in notes.items()]
    lines += [f"{'':<10} {line}" for line in _tight(requests)]
    for index in range(min(DEVICES, len(plan.devices))):
        lines += _device_lines(plan, index, _whose(requests))
    if len(plan.devices) > DEVICES:
        lines.append(f"{'':<10} and {len(plan.devices) - DEVICES} more devices")
    lines += _ram_lines(plan)
    threads = f"{count_text(plan.threads, 'thread')} each"
    cores, free = sum(device.cores for device in plan.devices), sum(device.free_cores for device in plan.devices)
    busy = f"; {cores - free} of {count_text(cores, 'core')} busy with other work" if free < cores else ""
    bound = option(fewer_by) if plan.bound == "max_workers" else plan.bound
    least = f"{plan.guaranteed} to " if plan.guaranteed < plan.workers else ""
    may_be = f"; up to {sum(plan.slots)} if that turns out to be a gain" if plan.may_grow else ""
    lines.append(f"{'workers':<10} {least}{plan.workers}, {threads}; bounded by {bound}{busy}{may_be}")
    return "\n".join(lines + _labelled("time", "\n".join(time_lines(requests, seconds, plan.workers))))


def time_lines(requests: Sequence[Request], seconds: float | None, workers: int) -> list[str]:
    """Estimated times of an epoch and the longest trial of each workload, and of the whole study."""
    workloads = dict.fromkeys(request.trial.workload for request in requests)
    lines = [_time([request for request in requests if request.trial.workload == name]) for name in workloads]
    together = f"{rough(seconds)} in all with {count_text(workers, 'worker')}" if seconds else ""
    if len(lines) > 1:
        lines = [f"{name}: {line}" for name, line in zip(workloads, lines, strict=True)]
        return lines + ([together] if together else [])
    return [f"{lines[0]}, {together}"] if together and len(requests) > 1 else lines


def _time(requests: Sequence[Request]) -> str:
    """Estimated times of an epoch and the longest trial of one workload."""
    known = [request for request in requests if request.seconds]
    if not known:
        can_be_timed = any(request.estimate.method.startswith(("traced", "static")) for request in requests)
        sooner = f"; {option('memory_estimation', 'measured')} times a step of each" if can_be_timed else ""
        return f"unknown until the first epochs{sooner}"
    an_epoch = _span([rough(size) for size in sorted(request.estimate.epoch_seconds or 0.0 for request in known)])
    epochs = _span([f"{number:,}" for number in sorted(request.trial.epochs for request in known)])
    longest = rough(max(request.seconds or 0.0 for request in known))
    whose = f" for the longest of {len(known)} trials" if len(known) > 1 else ""
    others = f"; unknown for {len(requests) - len(known)} of {len(requests)} trials" if requests != known else ""
    return f"about {an_epoch} an epoch, {epochs} epoch{'s' * (epochs != '1')}: {longest}{whose}{others}"


def _span(ascending: Sequence[str]) -> str:
    return ascending[0] if ascending[0] == ascending[-1] else f"{ascending[0]} to {ascending[-1]}"


def monitoring_text(plan: Plan) -> str:
    """A command that shows the memory of the plan's GPUs; empty if it has none."""
    on_gpu = any(device.kind == "cuda" for device in plan.devices)
    return f"{'watch':<10} {WATCH_MEMORY}" if on_gpu else ""


def _tight(requests: Sequence[Request]) -> list[str]:
    """Lines about trials that fit a device only because the allocator releases its cache."""
    tight = [request.estimate for request in requests if is_tight(request.estimate, request.need_bytes)]
    if not tight:
        return []
    most, least = max(guess.total_bytes for guess in tight), max(guess.least_bytes for guess in tight)
    return [
        f"{len(tight)} of them would take up to {most / GB:.2f} GB, which no device has for trials; with a whole one",
        f"they run in {least / GB:.2f} GB, as the allocator then gives back what it caches",
    ]


def _seeds(requests: Sequence[Request]) -> str:
    seeds = sorted({request.trial.seed for request in requests})
    if len(seeds) < 2:
        return ""
    configurations = {(request.trial.workload, request.trial.name) for request in requests}
    number = count_text(len(configurations), "configuration")
    return f", of {number} with seeds {seeds[0]} to {seeds[-1]}; the data are split alike for all"


def _labelled(label: str, text: str) -> list[str]:
    return [f"{'' if number else label:<10} {line}" for number, line in enumerate(text.splitlines())]


def _whose(requests: Sequence[Request]) -> str:
    return "rank" if any(request.trial.ranks > 1 for request in requests) else "trial"


def _device_lines(plan: Plan, index: int, whose: str) -> list[str]:
    device, budget, fit = plan.devices[index], plan.budgets[index], plan.fits[index]
    share = f", each with 1/{fit} of it" if plan.packing == "uniform" and fit else ""
    cores = f", {device.cores} CPU cores" if device.cores else ""
    return [
        f"{device.label:<10} {device.name}: {device.total_bytes / GB:.1f} GB in all, {plan.buffer_bytes / GB:.1f} GB "
        f"buffer, {device.free_bytes / GB:.1f} GB free: {budget / GB:.1f} GB for trials{cores}",
        f"{'':<10} ⌊{budget / GB:.2f} / {plan.footprint_bytes / GB:.2f}⌋ = {fit} fit by memory, at most "
        f"{plan.expected[index]} {'ranks ' * (whose == 'rank')}run at once{share}",
    ]


def _ram_lines(plan: Plan) -> list[str]:
    """A line for the RAM of each GPU host, and the number of trials that fit in it."""
    fits, lines = plan.ram_fits, []
    hosts = {device.node_id: device for device in plan.devices if device.node_id in fits}
    for node, device in list(hosts.items())[:DEVICES]:
        budget, buffer_gb = plan.ram_budgets[node] / GB, ram_buffer_bytes(device, plan.buffer_bytes) / GB
        lines.append(
            f"{'RAM':<10} {device.host or 'beside the GPUs'}: {device.ram_bytes / GB:.1f} GB in all, "
            f"{device.free_ram_bytes / GB:.1f} GB free, {buffer_gb:.1f} GB buffer: {budget:.1f} GB for trials, "
            f"⌊{budget:.2f} / {plan.ram_footprint_bytes / GB:.2f}⌋ = {fits[node]} fit"
        )
    more = len(hosts) - len(lines)
    return lines + ([f"{'':<10} and that of {more} more machines"] if more > 0 else [])


def _footprint(plan: Plan, requests: Sequence[Request]) -> str:
    largest = max(requests, key=lambda request: request.need_bytes)
    several = len({request.trial.workload for request in requests}) > 1
    guess, least = largest.estimate, min(request.need_bytes for request in requests)
    differ = plan.packing == "per-trial" and least < plan.footprint_bytes
    sizes = gb_span(least if differ else plan.footprint_bytes, plan.footprint_bytes)
    need = f"{sizes} a {_whose(requests)}"
    if guess.is_given:
        return f"{need}, as given"
    if guess.is_first_share:
        if len(requests) == 1:
            return f"not known yet: the trial gets {sizes}"
        return f"not known yet: the first {_whose(requests)}s get {sizes} each; their peaks tell what others need"
    sum_ = f" = {guess.context_bytes / GB:.2f} context + {guess.reserved_bytes / GB:.2f}"
    sum_ += f" + {guess.margin:.0%} margin" if guess.margin else ""
    sum_ += f" + {guess.headroom_bytes / GB:.2f} headroom" if guess.headroom_bytes else ""
    if need_bytes(guess) != plan.footprint_bytes:
        sum_ += f", given {plan.footprint_bytes / GB:.2f}"
    own = "; each has what it needs" if differ else ""
    name = title(largest.trial.workload, largest.trial.name, several=several)
    return f"{need}{sum_} of {name}, the largest ({guess.method}){own}"
