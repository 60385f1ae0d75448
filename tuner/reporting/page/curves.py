"""Learning curves: the validation metric against the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.reporting.page.figure import Figure, count_text, number_text, usual_end
from tuner.reporting.page.study import PageStudy
from tuner.reporting.seeds import has_seeds

SHOWN = 60  # so many curves can be told apart at most
BEST = 5  # so many are emphasised and named


def learning_curves(study: PageStudy, workload: str) -> Figure:
    """The metric of a workload's trials after each epoch, the best of them emphasised.

    Args:
        study: with the epochs of all trials.
        workload: whose curves.
    """
    title, metric = "Learning curves", study.metrics[workload]
    if not study.epochs:
        return Figure("curves", title, "This study kept no epochs (epochs.jsonl), so there are no curves.")
    rows = study.of_workload(workload)
    all_ = _by_trial(study, metric)
    others = {row["trial_id"] for name in study.metrics if name != workload for row in study.of_workload(name)}
    running = [trial_id for trial_id in study.running if trial_id not in {row["trial_id"] for row in rows} | others]
    ranked = [trial_id for trial_id in (*(row["trial_id"] for row in rows), *running) if all_.get(trial_id)]
    if not ranked:
        return Figure("curves", title, f"No epoch with a {metric} has ended yet, so there are no curves.")
    best = {row["trial_id"] for row in rows[:BEST] if row["status"] == "completed"}
    shown = subset(ranked, SHOWN)
    curves = [{"id": each, "best": each in best, "points": sorted(all_[each].items())} for each in shown]
    values = [value for each in shown for value in all_[each].values()]
    data = {"metric": metric, "curves": curves, "low": min(values), "high": usual_end(values)}
    return Figure("curves", title, _finding(study, workload, all_, len(shown), len(ranked)), data, height=380)


def subset(ranked: Sequence[str], most: int) -> list[str]:
    """The best ten, and of the others so many at even distances by rank that there are ``most`` at the most."""
    if len(ranked) <= most:
        return list(ranked)
    rest, room = ranked[10:], most - 10
    return [*ranked[:10], *(rest[number * len(rest) // room] for number in range(room))]


def _by_trial(study: PageStudy, metric: str) -> dict[str, dict[int, float]]:
    """The metric by trial and epoch; what a later attempt says replaces what an earlier one did."""
    found: dict[str, dict[int, float]] = {}
    for line in study.epochs:
        value: Any = line["metrics"].get(metric)
        if isinstance(value, (int, float)):
            found.setdefault(line["trial_id"], {})[int(line["epoch"])] = value
    return found


def _finding(study: PageStudy, workload: str, all_: dict[str, dict[int, float]], shown: int, ranked: int) -> str:
    rows = study.of_workload(workload)
    text = f"{study.metrics[workload]} on the validation split after each epoch"
    text += (
        f", {count_text(ranked, 'trial')}"
        if shown == ranked
        else (f": {shown} of {ranked:,} trials, the ten best and others evenly by rank")
    )
    best = next((row for row in rows if row["status"] == "completed"), None)
    points = all_.get(best["trial_id"]) if best else None
    if not best or not points:
        return text + "."
    epoch = min(points, key=points.__getitem__)
    last = max(points)
    which = "best single trial" if has_seeds(rows) else "best"
    name = study.trial_names[best["trial_id"]]
    text += f". The {which}, {name}, was lowest at {number_text(points[epoch])} after epoch {epoch} of {last}"
    if last > 1:
        text += "; it was still falling at its end" if epoch == last else ", and did not get lower after that"
    return text + "."
