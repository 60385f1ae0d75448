"""Advice for the next study, from the figures of this one.

Each sentence gives its figures and names an option. Nothing is said without a reason.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tuner.decisions.capacity import bound_by_cores, within_cores
from tuner.decisions.plan import Plan
from tuner.errors import NOT_GIVEN, option
from tuner.records.attempts import Attempt
from tuner.reporting.texts import count_text
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


def advise(figures: Figures) -> list[str]:
    """Pieces of advice, the most useful first."""
    return list(filter(None, (_out_of_memory(figures), _shares(figures))))


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
    whole = most * GB >= 0.99 * figures.plan.limits().device_bytes
    if given_up and whole and programs:
        return ""
    if given_up and whole and settings.on_oom != "accumulate":
        remedy = f"a whole device was not enough for {given_up}: {_advised('on_oom', 'accumulate')} halves them"
    elif settings.estimates_memory and settings.memory_estimation == "measured":
        return ""
    elif settings.estimates_memory:
        remedy = f"{_advised('memory_estimation', 'measured')} measures a step of each instead"
    elif enough and not given_up:
        remedy = f"{_advised(settings.given_by, _up(enough))} was enough in the end"
    else:
        remedy = f"without {_advised(settings.given_by)} the need of each is estimated"
    times = count_text(len(ran_out), "time")
    return f"{count_text(len(names), 'trial')} ran out of memory {times}, with {most:.2f} GB at most: {remedy}"


def _shares(figures: Figures) -> str:
    """Advice on smaller shares, if unused memory kept trials waiting."""
    plan, settings, peaks = figures.plan, figures.settings, _peaks(figures)
    share, ran_out = settings.given_gb, any(row.status == "out_of_memory" for row in figures.attempts)
    if settings.estimates_memory or share is None or plan.bound != "memory" or not peaks or ran_out:
        return ""
    enough = _up(max(peaks) * SPARE)
    bound_to = bound_by_cores(plan.devices, plan.max_workers)
    fit = within_cores([int(budget / (enough * GB)) for budget in plan.budgets], bound_to)
    most = min(sum(fit), settings.max_workers or sum(fit), len(figures.rows))
    if enough >= share or most <= plan.workers:
        return ""
    peaks_text = f"peaks reached {max(peaks) / share:.0%} of the shares: {_advised(settings.given_by, enough)}"
    return f"{peaks_text} would run {most} instead of {plan.workers} at once"


def _peaks(figures: Figures) -> list[float]:
    """Each trial's peak in GB, taken as its configuration's largest; empty if a configuration has none."""
    largest = defaultdict[tuple[str, str], float](float)
    for row in figures.rows:
        if row.status == "completed":
            largest[row.workload, row.name] = max(largest[row.workload, row.name], row.peak_memory_gb or 0.0)
    peaks = [largest[row.workload, row.name] for row in figures.rows]
    return peaks if all(peaks) else []


def _up(gb: float) -> float:
    """A number of GB rounded up to hundredths."""
    return math.ceil(round(100 * gb, 6)) / 100


def _advised(name: str, value: object = NOT_GIVEN) -> str:
    """An option, and its value if one is advised, rounded to hundredths."""
    return f"`{option(name, round(value, 2) if isinstance(value, float) else value)}`"
