"""How sure the first place of a workload's best trial is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.reporting.texts import count_text, number_text

FEW = 4  # with fewer trials, the second best is the median trial or half of it
NEAR = 0.05  # of the distance from the best to the median trial
MANY = 10  # trials, of which the best is likely to have been lucky
LAST = 5  # epochs, whose changes say how much a value moves by chance


def standing(
    rows: Sequence[Attempt],
    objective: Objective,
    more_seeds: str,
    caution: str = "",
    curve: Mapping[int, EpochLine] | None = None,
) -> list[str]:
    """The lead of a workload's best trial, and what remains uncertain about it; empty for a single trial.

    Args:
        rows: trials of one seed, the best first.
        objective: what they are compared by; nothing is said of a lead by several.
        more_seeds: a sentence that says how to train with more seeds; empty if the study takes no more.
        caution: why the workload's data may not tell the best trial.
        curve: the best trial's reports by epoch, which say by how much its value moves.
    """
    metric = objective.metric
    cautions = [f"Caution: {caution}."] if caution else []
    done = [row for row in rows if row.status == "completed" and math.isfinite(row.number(metric))]
    if len(done) < 2 or objective.others:
        return cautions if len(done) > 1 else []
    losses = [row.loss(objective) for row in done]
    lead, spread = losses[1] - losses[0], statistics.median(losses) - losses[0]
    within = NEAR * spread
    near = sum(loss - losses[0] <= within for loss in losses[1:])
    lines = [_lead(done[1].name, lead, spread if len(done) >= FEW else 0.0, near, within)]
    lines.append(f"Each configuration has one seed, {_chance(lead, metric, curve or {})} {more_seeds}".rstrip())
    if len(done) >= MANY:
        lines.append(
            f"It is the best of {len(done)} by {metric}, and such a choice favours luck{_tested(done, metric)}"
        )
    return lines + cautions


def _chance(lead: float, metric: str, curve: Mapping[int, EpochLine]) -> str:
    """What the best trial's own curve says of chance in its lead."""
    values = [value for line in curve.values() if (value := line.metrics.get(metric)) is not None][-LAST - 1 :]
    if len(values) <= LAST:
        return "so nothing here tells how much of this lead is chance."
    moves = statistics.median(abs(after - before) for before, after in pairwise(values))
    more = "more" if lead > moves else "less" if lead < moves else "as much"
    than = "as" if more == "as much" else "than"
    return (
        f"so how much of this lead is chance is not known; it is {more} {than} the {number_text(moves)} "
        f"by which its {metric} changed between its last epochs (median of {LAST})."
    )


def _tested(done: Sequence[Attempt], metric: str) -> str:
    """What a metric says of the best trial by which nothing was chosen."""
    name = metric.replace("val_", "test_", 1)
    best = done[0].value(name) if metric.startswith("val_") else None
    if best is None:
        return ": with another seed its value may well be worse."
    text = f"; its {name}, by which nothing was chosen, is {number_text(best)}"
    others = [row.number(name) for row in done[1:] if row.value(name) is not None]
    return (
        f"{text}, and {number_text(statistics.median(others))} in the median of the others." if others else f"{text}."
    )


def _lead(second: str, lead: float, spread: float, near: int, within: float) -> str:
    """The lead over the second best and, unless ``spread`` is 0, the median trial; and how many trials are near."""
    if lead == 0:
        return f"It is as good as {second}."
    text = f"It is {number_text(lead)} better than {second}, the second best"
    text += f", and {number_text(spread)} better than the median trial" if spread else ""
    return text + (f". {count_text(near, 'trial')} are within {number_text(within)} of it." if near > 1 else ".")
