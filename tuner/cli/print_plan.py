"""What ``plan``, ``optimize`` and, of a transformer, ``estimate`` print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING

from tuner.errors import joined
from tuner.records.seed_statistics import some_names
from tuner.reporting.plan_text import DEVICES, WATCH_GPU, WATCH_MEMORY, more_devices, plan_text
from tuner.reporting.texts import TextColumn, count_text, gb_of_ranks, gb_span, gb_text, labelled, rough, table_lines
from tuner.sizing.choices import USERS_BOUND
from tuner.sizing.transformers.formula import TransformerConfig, parameter_count
from tuner.sizing.transformers.gpu_memory import CARD_SHARE, largest_batches, precision_of
from tuner.spec.spelling import in_terminal
from tuner.trial import GB, Device, MemoryEstimate

if TYPE_CHECKING:
    from tuner.api.capacity import Capacity, Card, Misfit
    from tuner.api.optimize import Optimization
    from tuner.api.plan import Forecast
    from tuner.sizing.config_edits import FileEdit

# Advice by GB of tensors, from the GPU memory estimation guide: an upper bound, and the text.
BANDS = (
    (4, "reasonable"),
    (8, "moderate: monitor the GPU's memory while it trains"),
    (12, "high: reduce the batch or the sequences"),
)
BEYOND = "very high: it needs a high-end GPU or several"
FIRST = 5  # the most trials that are named of those that start together on a device


def capacity_text(capacity: Capacity) -> str:
    """Two lines for the study, one for each card, and the changes with which other trials fit."""
    needs = [request.need_bytes for request in capacity.requests]
    methods = ", ".join(dict.fromkeys(request.estimate.method for request in capacity.requests))
    trials = (
        f"{len(needs)} of {gb_span(min(needs), max(needs))} ({methods}), {capacity.packing} packing, "
        f"{capacity.buffer_bytes / GB:g} GB buffer"
    )
    lines = [labelled("data", capacity.data), labelled("trials", trials), ""]
    lines.append(f"{'card':>8} {'for trials':>12} {'largest':>10} {'workers':>9}  fit")
    lines += [_card_line(card, len(needs)) for card in capacity.cards]
    for card in capacity.cards:
        if card.misfits:
            lines += ["", *_misfit_lines(card)]
    return "\n".join(lines)


def _card_line(card: Card, trials: int) -> str:
    least = f"{card.workers_at_least}-" if card.workers_at_least < card.workers else ""
    largest = gb_text(card.footprint_bytes) if card.fitting else "-"
    return (
        f"{_short_gb(card.card_bytes):>8} {gb_text(card.budget_bytes):>12} {largest:>10} "
        f"{least + str(card.workers):>9}  {card.fitting} of {trials}"
    )


def _misfit_lines(card: Card) -> list[str]:
    count = len(card.misfits)
    head = f"{_short_gb(card.card_bytes)}: {count} do{'es' if count == 1 else ''} not fit"
    sought = [misfit for misfit in card.misfits if misfit.sought]
    if not sought:
        most = max(misfit.card_bytes for misfit in card.misfits)
        advice = "estimate their memory instead of giving it to see what would make them fit"
        return [f"{head}: a card of {_ceil(most)} GB holds them; {advice}"]
    width = max(len(misfit.name) for misfit in sought)
    more = [f"  and {count - len(sought)} smaller ones"] if len(sought) < count else []
    return [
        f"{head}; the cheapest change with which each would",
        *(_misfit_line(one, width) for one in sought),
        *more,
    ]


def _misfit_line(misfit: Misfit, width: int) -> str:
    name = f"  {misfit.name:<{width}} {gb_text(misfit.need_bytes):>11}: "
    if misfit.change is None:
        return f"{name}no accumulation, amp, checkpointing or smaller batch; a card of {_ceil(misfit.card_bytes)} GB"
    values = ", ".join(f"{key} {value}" for key, value in misfit.change.items())
    return f"{name}{values}: {gb_text(misfit.changed_need_bytes or 0)}"


def _short_gb(size_bytes: int) -> str:
    return f"{size_bytes / GB:g} GB"


def _ceil(size_bytes: int) -> str:
    """GB with a digit after the point, rounded up."""
    return f"{math.ceil(10 * size_bytes / GB) / 10:g}"


def transformer_text(config: TransformerConfig, estimates: Sequence[tuple[str, MemoryEstimate]]) -> str:
    """The model, the savings of narrower precisions, advice, and how to watch a GPU's memory."""
    totals = {name: guess.reserved_bytes / GB for name, guess in estimates}
    base, *others = totals
    saved = {name: totals[base] - totals[name] for name in others}
    savings = ", ".join(f"{name} {gb:.2f} GB ({gb / totals[base]:.0%})" for name, gb in saved.items())
    precision = precision_of(config)
    batches = largest_batches(config, precision)
    sizes = ", ".join(f"{gb} GB {batch or 'none'}" for gb, batch in batches.items())
    early = [name for name, guess in estimates if not guess.gradient_bytes]
    lines = {
        "model": _model(config),
        "parameters": f"{parameter_count(config) / 1e6:.2f} M",
        "peak": f"of {', '.join(early)} at the loss, before there are gradients" if early else "",
        "saved": f"against {base}: {savings}",
        "advice": f"{precision} takes {totals[precision]:.2f} GB without the context: {advice(totals[precision])}",
        "cards": f"largest {precision} batch within {CARD_SHARE:.0%} of a card, context included: {sizes}",
        "watch": f"{WATCH_GPU}\n{WATCH_MEMORY}",
    }
    return "\n".join(labelled(head, text) for head, text in lines.items() if text)


def advice(total_gb: float) -> str:
    """Advice for a footprint of this many GB without the context."""
    return next((text for limit, text in BANDS if total_gb < limit), BEYOND)


def _model(config: TransformerConfig) -> str:
    head = "tied" if config.tied else "untied"
    checkpointing = ", checkpointing" if config.checkpointing else ""
    return (
        f"{config.model_layer} x {config.model_embd}, {config.model_head} heads, {config.model_positions} positions, "
        f"vocabulary {config.vocabulary:,} ({head}); batch {config.batch_size} x {config.seq_len} tokens; "
        f"{config.attention} attention{checkpointing}"
    )


def forecast_text(forecast: Forecast) -> str:
    """The plan, what each device would do, and what the packing gains."""
    plan = forecast.plan
    seconds = forecast.schedule.seconds if forecast.measured else None
    lines = [plan_text(plan, forecast.requests, forecast.data, forecast.sized.text, seconds)]
    lines += [labelled("search", forecast.searched), *forecast.left_out]
    lines += [
        labelled("first", f"{request.trial.name} is trained, once and alone: {gb_text(request.need_bytes)}")
        for request in forecast.first
    ]
    lines.append(labelled("schedule", "\n".join(_device_text(forecast, device) for device in plan.devices[:DEVICES])))
    lines += [more_devices(plan), labelled("packing", _gain(forecast))]
    return joined(*lines, by="\n")


def _device_text(forecast: Forecast, device: Device) -> str:
    plan, schedule = forecast.plan, forecast.schedule
    budget = plan.budgets[plan.devices.index(device)]
    placements = schedule.by_device[device]
    ranks = Counter(placement.trial.trial_id for placement, *_ in placements)
    each = {placement.trial.trial_id: placement for placement, start, _ in placements if start == 0}
    first = [f"{forecast.title(p.trial)} {gb_of_ranks(ranks[name], p.limit_bytes)}" for name, p in each.items()]
    began = f"; first {some_names(first, FIRST)}" if first else ""
    trials = f"{count_text(len(ranks), 'trial')}, up to {schedule.most_at_once(device)} at once"
    return f"{device.label}: {trials}, memory {schedule.busy(device, budget):.0%} used{began}"


def _gain(forecast: Forecast) -> str:
    took, alone, uniform = forecast.schedule.seconds, forecast.one_by_one, forecast.uniform
    after = f" ({rough(alone)})" if forecast.measured else ""
    gain = f"{alone / took:.1f} times as fast as one after another{after}"
    gain += f", {uniform / took:.2f} times as fast as uniform packing" if forecast.plan.packing == "per-trial" else ""
    assumed = "if time grows with epochs and memory; --like DIR takes it from a study's trials"
    return gain if forecast.measured else f"{gain}, {assumed}"


def optimization_text(sized: Optimization, dry_run: bool) -> str:
    """The device, a row for each stage or configuration, the reasons, and the changes of files."""
    device, goal = sized.device, sized.goal
    target = (
        f"{device.name}: {gb_text(device.total_bytes)}, of which a step may take {gb_text(goal.limit_bytes)} "
        f"(safety margin {goal.safety_margin:g})"
    )
    notes = [f"- {text}" for text in sized.notes]
    return "\n".join([target, sized.source, "", *_table(sized), "", *notes, *_files(sized, dry_run)]).rstrip()


def _table(sized: Optimization) -> list[str]:
    listed, total = sized.chosen, sized.device.total_bytes
    variables = list(dict.fromkeys(name for chosen in listed for name in chosen.variables))
    measured = any(chosen.measured_bytes is not None for chosen in listed)
    bounds = [
        in_terminal(USERS_BOUND) if chosen.stopped_by == USERS_BOUND else chosen.stopped_by for chosen in listed
    ]
    columns = [
        TextColumn("name", [chosen.name for chosen in listed], left=True),
        TextColumn("batch", [str(chosen.batch_size) for chosen in listed]),
        TextColumn("accumulation", [str(chosen.accumulation) for chosen in listed]),
        TextColumn("effective", [str(chosen.effective_batch) for chosen in listed]),
        *(TextColumn(name, [_number(chosen.variables.get(name)) for chosen in listed]) for name in variables),
        TextColumn("predicted", [_gb_or_blank(chosen.need_bytes) for chosen in listed]),
        *[TextColumn("measured", [_gb_or_blank(chosen.measured_bytes) for chosen in listed])] * measured,
        TextColumn("share", [f"{chosen.need_bytes / total:.0%}" for chosen in listed]),
        TextColumn("stopped by", bounds, left=True),
        TextColumn("method", [chosen.method for chosen in listed], left=True),
    ]
    return table_lines(columns)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _gb_or_blank(size_bytes: int | None) -> str:
    return "" if size_bytes is None else gb_text(size_bytes)


def _files(sized: Optimization, dry_run: bool) -> list[str]:
    """The changes of each file, as a diff if nothing was written."""
    if not sized.edits:
        return []
    if dry_run:
        return ["", *(_diff(edit) or f"{edit.path}: unchanged" for edit in sized.edits)]
    lines = [f"{edit.path}: {key} {old} → {new}" for edit in sized.edits for key, old, new in edit.changes]
    lines += [f"{edit.path}: unchanged" for edit in sized.edits if not edit.changes]
    return ["", *lines, *(f"backup: {path}" for path in sized.backups)]


def _diff(edit: FileEdit) -> str:
    """The change of a file in unified form; empty if there is none."""
    before, after = edit.before.splitlines(), edit.after.splitlines()
    return "\n".join(unified_diff(before, after, str(edit.path), str(edit.path), lineterm=""))
