"""Advice for the next study, from the figures of this one.

Each sentence gives its figures and names an option. Nothing is said without a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tuner.decisions.packing import Packing, Plan, make_plan
from tuner.errors import NOT_GIVEN, InputError, option
from tuner.records.attempts import Attempt
from tuner.reporting.texts import count_text, gb_span
from tuner.spec.settings import Settings
from tuner.trial import GB

SPARE = 1.1  # what is advised exceeds what was measured by so much


@dataclass(frozen=True)
class Figures:
    """The figures that advice follows from."""

    rows: Sequence[Attempt]  # the study's trials, as the journal has their last attempts
    attempts: Sequence[Attempt]  # all of the journal
    plan: Plan  # how the trials shared the devices
    settings: Settings  # the study's
    programs: Collection[str] = ()  # the workloads that are functions or scripts

    def option(self, name: str, value: object = NOT_GIVEN) -> str:
        """An option, and its value if one is advised, rounded to hundredths."""
        return f"`{option(name, round(value, 2) if isinstance(value, float) else value)}`"


def advise(figures: Figures) -> list[str]:
    """Pieces of advice, the most useful first."""
    rules: list[Callable[[Figures], str]] = [_out_of_memory, _shares]
    return [said for rule in rules if (said := rule(figures))]


def _out_of_memory(figures: Figures) -> str:
    """Advice on trials that ran out of memory: how much is enough, or how to make them smaller."""
    settings, ran_out = figures.settings, [row for row in figures.attempts if row.status == "out_of_memory"]
    programs = any(row.workload in figures.programs for row in ran_out)
    if not ran_out or (programs and settings.estimates_memory):  # nothing can measure a step of these
        return ""
    names, most = {row.trial_id for row in ran_out}, max(row.limit_gb or 0.0 for row in ran_out)
    last = [row for row in figures.rows if row.trial_id in names]
    given_up = sum(row.status == "out_of_memory" for row in last)
    enough = max((row.limit_gb or 0.0 for row in last if row.status == "completed"), default=0.0)
    whole = most * GB >= 0.99 * figures.plan.largest_budget
    if given_up and whole and programs:
        return ""
    if given_up and whole and settings.on_oom != "accumulate":
        remedy = f"a whole device was not enough for {given_up}: {figures.option('on_oom', 'accumulate')} halves them"
    elif settings.estimates_memory and settings.memory_estimation == "measured":
        return ""
    elif settings.estimates_memory:
        remedy = f"{figures.option('memory_estimation', 'measured')} measures a step of each instead"
    elif enough and not given_up:
        remedy = f"{figures.option(settings.given_by, _up(enough))} was enough in the end"
    else:
        remedy = f"without {figures.option(settings.given_by)} what each of them needs is estimated"
    times = count_text(len(ran_out), "time")
    return f"{count_text(len(names), 'trial')} ran out of memory {times}, with {most:.2f} GB at most: {remedy}"


def _shares(figures: Figures) -> str:
    """Advice on smaller shares, if unused memory kept trials waiting."""
    plan, settings = figures.plan, figures.settings
    peaks = _peaks(figures)
    share = settings.given_gb
    ran_out = any(row.status == "out_of_memory" for row in figures.attempts)
    if settings.estimates_memory or share is None or plan.bound != "memory" or not peaks or ran_out:
        return ""
    largest = max(peaks)
    given = _up(largest * SPARE)
    uniform = _workers(figures, [given] * len(peaks), "uniform") if given < share else 0
    own = _workers(figures, [peak * SPARE for peak in peaks], "per-trial")
    if own > max(uniform, plan.workers):
        return (
            f"peaks were {gb_span(GB * min(peaks), GB * largest)}, and each trial was given {share:g} GB: "
            f"without {figures.option(settings.given_by)} up to {own} instead of {plan.workers} would run at once"
        )
    if uniform > plan.workers:
        return (
            f"peaks reached {largest / share:.0%} of the shares: {figures.option(settings.given_by, given)} would "
            f"run {uniform} instead of {plan.workers} at once"
        )
    return ""


def _workers(figures: Figures, needs_gb: Sequence[float], packing: Packing) -> int:
    """The number of trials that would run at once with these needs."""
    plan, settings = figures.plan, figures.settings
    try:
        return make_plan(
            plan.devices,
            [math.ceil(need * GB) for need in needs_gb],
            packing=packing,
            buffer_bytes=plan.buffer_bytes,
            max_workers=settings.max_workers,
            threads=settings.threads,
            host_needs=[plan.ram_footprint_bytes] * len(needs_gb),
        ).workers
    except InputError:
        return 0


def _peaks(figures: Figures) -> list[float]:
    """Each trial's peak in GB, taken as its configuration's largest; empty if a configuration has none."""
    known: dict[tuple[str, str], float] = {}
    for row in figures.rows:
        if row.status == "completed" and row.peak_memory_gb:
            key = row.workload, row.name
            known[key] = max(known.get(key, 0.0), row.peak_memory_gb)
    names = [(row.workload, row.name) for row in figures.rows]
    return [known[name] for name in names] if all(name in known for name in names) else []


def _up(gb: float) -> float:
    """A number of GB rounded up to hundredths."""
    return math.ceil(round(100 * gb, 6)) / 100
