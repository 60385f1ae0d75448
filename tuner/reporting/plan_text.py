"""A plan and its estimates as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.decisions.capacity import ram_buffer_bytes
from tuner.decisions.plan import HOST_MARGIN, host_need_bytes, is_tight, low_bytes, need_bytes
from tuner.errors import joined, option, printable
from tuner.reporting.texts import TextColumn, count_text, gb_span, gb_text, labelled, rough, table_lines
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
    lines = [labelled("data", data), labelled("trials", f"{len(requests)}{_seeds(requests)}")]
    if not requests:
        return joined(*lines, "no trials are left to run", by="\n")
    lines += [labelled("batch", batches), labelled("footprint", "\n".join(_footprint_lines(plan, requests)))]
    whose = _whose(requests)
    lines += [
        labelled(device.label, _device_text(plan, index, whose, known=not requests[0].estimate.is_first_share))
        for index, device in enumerate(plan.devices[:DEVICES])
    ]
    lines += [more_devices(plan), *_ram_lines(plan), labelled("workers", _workers(plan, fewer_by))]
    lines.append(labelled("time", "\n".join(time_lines(requests, seconds, plan.workers))))
    return joined(*lines, by="\n")


def more_devices(plan: Plan) -> str:
    """A line for the devices that are not shown; empty if all are."""
    return labelled("", f"and {len(plan.devices) - DEVICES} more devices") if len(plan.devices) > DEVICES else ""


def _workers(plan: Plan, fewer_by: str) -> str:
    """How many trials run at once, and what limits their number."""
    cores, free = sum(device.cores for device in plan.devices), sum(device.free_cores for device in plan.devices)
    busy = f"; {cores - free} of {count_text(cores, 'core')} busy with other work" if free < cores else ""
    bound = option(fewer_by) if plan.bound == "max_workers" else plan.bound
    if plan.bound == "CPU cores" and plan.max_workers:
        bound += f" and not by {option(fewer_by, plan.max_workers)}"
    each = f"{count_text(plan.threads, 'thread')} each"
    if plan.workers > cores > 0:  # as the user gives their number
        each += f", on {count_text(cores, 'core')} that they share"
    least = f"{plan.guaranteed} to " if plan.guaranteed < plan.workers else ""
    may_be = f"; up to {sum(plan.slots)}, if that proves faster" if plan.may_grow else ""
    return f"{least}{plan.workers}, {each}; bounded by {bound}{busy}{may_be}"


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
    timed = [request for request in requests if request.seconds]
    if not timed:
        can_be_timed = any(request.estimate.method.startswith(("traced", "static")) for request in requests)
        sooner = f"; {option('memory_estimation', 'measured')} times a step of each" if can_be_timed else ""
        return f"unknown until the first epochs{sooner}"
    an_epoch = _span([rough(size) for size in sorted(request.estimate.epoch_seconds or 0.0 for request in timed)])
    epochs = _span([f"{number:,}" for number in sorted(request.trial.epochs for request in timed)])
    longest = rough(max(request.seconds or 0.0 for request in timed))
    whose = f" for the longest of {len(timed)} trials" if len(timed) > 1 else ""
    others = f"; unknown for {len(requests) - len(timed)} of {len(requests)} trials" if requests != timed else ""
    return f"about {an_epoch} an epoch, {epochs} epoch{'s' * (epochs != '1')}: {longest}{whose}{others}"


def _span(ascending: Sequence[str]) -> str:
    return ascending[0] if ascending[0] == ascending[-1] else f"{ascending[0]} to {ascending[-1]}"


def monitoring_text(plan: Plan) -> str:
    """A command that shows the memory of the plan's GPUs; empty if it has none."""
    return labelled("watch", WATCH_MEMORY) if any(device.kind == "cuda" for device in plan.devices) else ""


def _seeds(requests: Sequence[Request]) -> str:
    seeds = sorted({request.trial.seed for request in requests})
    if len(seeds) < 2:
        return ""
    configurations = {(request.trial.workload, request.trial.name) for request in requests}
    number = count_text(len(configurations), "configuration")
    return f", of {number} with seeds {seeds[0]} to {seeds[-1]}; the data are split alike for all"


def _whose(requests: Sequence[Request]) -> str:
    return "rank" if any(request.trial.ranks > 1 for request in requests) else "trial"


def _device_text(plan: Plan, index: int, whose: str, *, known: bool) -> str:
    """A device's memory and the number of trials on it. A share that follows from their number is no footprint."""
    device, budget, fit = plan.devices[index], plan.budgets[index], plan.fits[index]
    share = f", each with 1/{fit} of it" if plan.packing == "uniform" and fit else ""
    cores = f", {device.cores} CPU cores" if device.cores else ""
    shared = f", {gb_text(device.shared_bytes, 1)} shared by trials" if device.shared_bytes else ""
    return (
        f"{device.name}: {gb_text(device.total_bytes, 1)} in all, {gb_text(plan.buffer_bytes, 1)} buffer, "
        f"{gb_text(device.free_bytes, 1)} free{shared}: {gb_text(budget, 1)} for trials{cores}\n"
        f"{_quotient(budget, plan.footprint_bytes, fit) + ' by memory, ' if known else ''}at most "
        f"{plan.expected[index]} {'ranks ' * (whose == 'rank')}run at once{share}"
    )


def _quotient(budget: int, footprint: int, fit: int) -> str:
    return f"⌊{budget / GB:.2f} / {footprint / GB:.2f}⌋ = {fit} fit"


def _ram_lines(plan: Plan) -> list[str]:
    """A line for the RAM of each GPU host, and the number of trials that fit in it."""
    hosts = {device.node_id: device for device in plan.devices if device.node_id in plan.ram_fits}
    lines = []
    for node, device in list(hosts.items())[:DEVICES]:
        budget, buffer = plan.ram_budgets[node], ram_buffer_bytes(device, plan.buffer_bytes)
        text = (
            f"{device.host or 'beside the GPUs'}: {gb_text(device.ram_bytes, 1)} in all, "
            f"{gb_text(device.free_ram_bytes, 1)} free, {gb_text(buffer, 1)} buffer: {gb_text(budget, 1)} for "
            f"trials, {_quotient(budget, plan.ram_footprint_bytes, plan.ram_fits[node])}"
        )
        lines.append(labelled("RAM", text))
    more = len(hosts) - len(lines)
    return lines + ([labelled("", f"and that of {more} more machines")] if more > 0 else [])


def _footprint_lines(plan: Plan, requests: Sequence[Request]) -> list[str]:
    """The memory of the largest trial and its parts, then notes on estimates and what does not fit otherwise."""
    estimates = [request.estimate for request in requests]
    notes = Counter((estimate.method, estimate.note) for estimate in estimates if estimate.note)
    lines = [_footprint(plan, requests)]
    lines += [f"{count} of them {method}: {note}" for (method, note), count in notes.items()]
    tight = [request.estimate for request in requests if is_tight(request.estimate, request.need_bytes)]
    if tight:  # they fit a device only because the allocator releases its cache
        most, least = max(guess.total_bytes for guess in tight), max(guess.least_bytes for guess in tight)
        lines += [
            f"{len(tight)} of them would take up to {gb_text(most)}, which no device has for trials; on a whole one",
            f"they run in {gb_text(least)}, as the allocator then gives back what it caches",
        ]
    return lines


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
        first = f"the first {_whose(requests)}s share the memory, {sizes} each"
        return f"not known yet: {first}; their peaks tell what others need"
    parts = f" = {guess.context_bytes / GB:.2f} context + {guess.reserved_bytes / GB:.2f}"
    parts += f" + {guess.margin:.0%} margin" if guess.margin else ""
    parts += f" + {guess.headroom_bytes / GB:.2f} headroom" if guess.headroom_bytes else ""
    if need_bytes(guess) != plan.footprint_bytes:
        parts += f", given {plan.footprint_bytes / GB:.2f}"
    each = "; each has what it needs" if differ else ""
    name = title(largest.trial.workload, largest.trial.name, several=several)
    return f"{need}{parts} of {name}, the largest ({guess.method}){each}"
