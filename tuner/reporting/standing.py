"""How certain the best trial of a study with one seed is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.reporting.texts import count_text, number_text

FEW = 4  # with fewer trials, the second best is the median trial or half of it
NEAR = 0.05  # of the distance from the best to the median trial
MANY = 10  # trials, of which the best is likely to have been lucky


def standing(rows: Sequence[Attempt], objective: Objective, more_seeds: str, caution: str = "") -> list[str]:
    """The lead of a workload's best trial, and what remains uncertain about it; empty for a single trial.

    Args:
        rows: trials of one seed, the best first.
        objective: what they are compared by; nothing is said of a lead by several.
        more_seeds: a sentence that says how to train with more seeds; empty if the study takes no more.
        caution: why the workload's data may not tell the best trial.
    """
    metric = objective.metric
    done = [row for row in rows if row.status == "completed" and row.value(metric) is not None]
    if len(done) < 2 or objective.others:
        return [f"Caution: {caution}."] if caution and len(done) > 1 else []
    losses = [row.loss(objective) for row in done]
    lead, spread = losses[1] - losses[0], statistics.median(losses) - losses[0]
    within = NEAR * spread
    near = sum(loss - losses[0] <= within for loss in losses[1:])
    lines = [_lead(done[1].name, lead, spread if len(done) >= FEW else 0.0, near, within)]
    lines.append(f"Each configuration was trained once, so part of this lead may be chance. {more_seeds}".rstrip())
    if len(done) >= MANY:
        text = f"As the best of {len(done)} by {metric}, it was probably lucky with it"
        test = done[0].value(name := metric.replace("val_", "test_", 1)) if metric.startswith("val_") else None
        lines.append(
            f"{text}; its {name}, by which nothing was chosen, is {number_text(test)}."
            if test is not None
            else f"{text}."
        )
    return lines + ([f"Caution: {caution}."] if caution else [])


def _lead(second: str, lead: float, spread: float, near: int, within: float) -> str:
    """The lead over the second best and, unless ``spread`` is 0, the median trial; and how many trials are near."""
    if lead == 0:
        return f"It is as good as {second}."
    text = f"It is {number_text(lead)} better than {second}, the second best"
    text += f", and {number_text(spread)} better than the median trial" if spread else ""
    return text + (f". {count_text(near, 'trial')} are within {number_text(within)} of it." if near > 1 else ".")
