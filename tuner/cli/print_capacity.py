"""The plan of a study for several cards, as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tuner.reporting.texts import gb_span
from tuner.trial import GB

if TYPE_CHECKING:
    from tuner.api.capacity import Capacity, Card, Misfit


def capacity_text(found: Capacity) -> str:
    """Two lines for the study, one for each card, and the changes with which other trials fit."""
    lines = [f"{'' if number else 'data':<10} {line}" for number, line in enumerate(found.data.splitlines())]
    lines += [_trials_line(found), "", f"{'card':>8} {'for trials':>12} {'largest':>10} {'workers':>9}  fit"]
    lines += [_card_line(card, len(found.requests)) for card in found.cards]
    for card in found.cards:
        if card.misfits:
            lines += ["", *_misfit_lines(card)]
    return "\n".join(lines)


def _trials_line(found: Capacity) -> str:
    needs = [request.need_bytes for request in found.requests]
    methods = ", ".join(dict.fromkeys(request.estimate.method for request in found.requests))
    return (
        f"{'trials':<10} {len(needs)} of {gb_span(min(needs), max(needs))} ({methods}), {found.packing} packing, "
        f"{found.buffer_bytes / GB:g} GB buffer"
    )


def _card_line(card: Card, trials: int) -> str:
    least = f"{card.workers_at_least}-" if card.workers_at_least < card.workers else ""
    largest = f"{card.footprint_bytes / GB:.2f} GB" if card.fitting else "-"
    return (
        f"{_gb(card.card_bytes):>8} {card.budget_bytes / GB:>9.2f} GB {largest:>10} {least + str(card.workers):>9}  "
        f"{card.fitting} of {trials}"
    )


def _misfit_lines(card: Card) -> list[str]:
    count = len(card.misfits)
    head = f"{_gb(card.card_bytes)}: {count} do{'es' if count == 1 else ''} not fit"
    sought = [misfit for misfit in card.misfits if misfit.sought]
    if not sought:
        most = max(misfit.card_bytes for misfit in card.misfits)
        advice = "estimate their memory instead of giving it to see what would make them fit"
        return [f"{head}: a card of {_ceil(most)} GB holds them; {advice}"]
    width = max(len(misfit.name) for misfit in sought)
    more = [f"  and {count - len(sought)} smaller ones"] if len(sought) < count else []
    return [
        f"{head}; the cheapest change with which each would",
        *(_misfit_line(misfit, width) for misfit in sought),
        *more,
    ]


def _misfit_line(misfit: Misfit, width: int) -> str:
    name = f"  {misfit.name:<{width}} {misfit.need_bytes / GB:>8.2f} GB: "
    if misfit.change is None:
        return f"{name}no accumulation, amp, checkpointing or smaller batch; a card of {_ceil(misfit.card_bytes)} GB"
    values = ", ".join(f"{key} {value}" for key, value in misfit.change.items())
    return f"{name}{values}: {(misfit.changed_need_bytes or 0) / GB:.2f} GB"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / GB:g} GB"


def _ceil(size_bytes: int) -> str:
    """GB with a digit after the point, rounded up."""
    return f"{math.ceil(10 * size_bytes / GB) / 10:g}"
