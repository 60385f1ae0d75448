"""The optimisation history: what trials came to in the order in which they ended, and the best value so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from tuner.records.attempts import Attempt
from tuner.reporting.figures.chart import Chart, hover, plain, usual_range
from tuner.reporting.figures.style import colour, new_plot, series
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, number_text
from tuner.trial import SUCCESSFUL, Objective

MANY = 200  # more points are drawn smaller


def in_order(rows: Sequence[Attempt], objective: Objective) -> list[Attempt]:
    """The successful trials with a value of the objective's metric, in the order in which they ended."""
    done = [row for row in rows if row.status in SUCCESSFUL and row.value(objective.metric) is not None]
    return sorted(done, key=lambda row: (row.ended_at or 0.0, row.trial_id))


def best_so_far(rows: Sequence[Attempt], objective: Objective) -> list[float]:
    """The best value of the completed trials up to each row; of pruned ones before them, infinitely bad."""
    losses = [row.loss(objective) if row.status == "completed" else float("inf") for row in rows]
    return [objective.loss(loss) for loss in accumulate(losses, min)]


def history(study: StudyView, workload: str) -> Chart:
    """Each trial's metric in the order in which trials ended, and the best so far."""
    title, objective = "Optimisation history", study.objectives[workload]
    rows = in_order(study.of_workload(workload), objective)
    if len(rows) < 2:
        return Chart(title, "Fewer than two trials were successful, so there is no history.")
    metric, names = objective.metric, study.trial_names
    plot = new_plot(320, showlegend=True, margin={"l": 56, "r": 14, "t": 36, "b": 42}, dragmode=False)
    size = 5 if len(rows) > MANY else 7
    looks = {
        "completed": {"color": colour("completed"), "opacity": 0.75, "size": size},
        "pruned": {"color": colour("pruned"), "opacity": 0.75, "size": size, "symbol": "x-thin-open"},
    }
    for status, marker in looks.items():
        places = [place for place, row in enumerate(rows, 1) if row.status == status]
        own = [rows[place - 1] for place in places]
        if own:
            plot.add_scatter(
                **hover(own, metric, names),
                mode="markers",
                x=places,
                y=[row.number(metric) for row in own],
                marker=marker,
                name=status,
            )
    best = best_so_far(rows, objective)
    known = [place for place, value in enumerate(best) if abs(value) != float("inf")]
    plot.add_scatter(
        mode="lines",
        x=[place + 1 for place in known],
        y=[best[place] for place in known],
        name="best so far",
        line={"shape": "hv", "width": 2.2, "color": colour("ink")},
        hovertemplate="best so far %{y}<extra></extra>",
    )
    low, high = usual_range([row.number(metric) for row in rows], objective)
    pad = (high - low or 1) * 0.05
    plot.update_xaxes(title="trials that have ended", showgrid=False, rangemode="tozero", fixedrange=True)
    plot.update_yaxes(title=plain(metric), range=[low - pad, high + pad], fixedrange=True)
    return Chart(title, _finding(rows, best, objective), plot)


def _finding(rows: Sequence[Attempt], best: Sequence[float], objective: Objective) -> str:
    """How soon the best value came."""
    if abs(best[-1]) == float("inf"):
        return f"{count_text(len(rows), 'trial')} in the order in which they ended; none has completed yet."
    first = next(place for place, value in enumerate(best, 1) if value == best[-1])
    text = f"{count_text(len(rows), 'trial')} in the order in which they ended. The best {objective.metric}, "
    text += f"{number_text(best[-1])}, came from the {ordinal(first)}"
    after = len(rows) - first
    return text + (f"; {count_text(after, 'trial')} after it did not improve on it." if after else ".")


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, …"""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def histories(
    studies: Mapping[str, Sequence[Attempt]],
    attempts: Mapping[str, Sequence[Attempt]],
    objective: Objective,
    *,
    over_time: bool,
) -> Chart:
    """The best value so far of several studies' trials, by their number or by time since the first attempt began.

    Args:
        studies: the trials of each study by its name.
        attempts: all attempts of each study, of which the first tells when it began.
        objective: what trials are compared by.
        over_time: whether the horizontal axis has minutes in place of trials.
    """
    title = f"Best {objective.metric} so far, over {'time' if over_time else 'trials'}"
    plot = new_plot(340, showlegend=True, margin={"l": 56, "r": 14, "t": 36, "b": 42}, dragmode=False)
    reached, values = [], list[float]()
    for number, (name, all_) in enumerate(studies.items()):
        rows = in_order(all_, objective)
        best = best_so_far(rows, objective)
        places: Sequence[float] = _minutes(attempts[name], rows) if over_time else range(1, len(rows) + 1)
        shown = [(x, y) for x, y in zip(places, best, strict=False) if abs(y) != float("inf")]
        if not shown:
            continue
        values += [y for _, y in shown]
        reached.append(f"{name} {number_text(shown[-1][1])} after {_amount(places[-1], over_time)}")
        plot.add_scatter(
            mode="lines+markers" if len(shown) < 3 else "lines",
            name=plain(name),
            x=[round(x, 3) for x, _ in shown],
            y=[y for _, y in shown],
            **series(number, shape="hv"),
            hovertemplate=f"{plain(name)}: %{{y}} at %{{x}}<extra></extra>",
        )
    if not values:
        return Chart(title, "No trial has completed yet.")
    low, high = usual_range(values, objective)
    pad = (high - low or 1) * 0.05
    across = "minutes since the first trial began" if over_time else "trials that have ended"
    plot.update_xaxes(title=across, rangemode="tozero", showgrid=False, fixedrange=True)
    plot.update_yaxes(title=plain(objective.metric), range=[low - pad, high + pad], fixedrange=True)
    return Chart(title, f"{'; '.join(reached)}.", plot)


def _minutes(all_: Sequence[Attempt], rows: Sequence[Attempt]) -> list[float]:
    """When each of these rows ended, in minutes since the first attempt began; empty if that is not known."""
    began = min((row.started_at for row in all_ if row.started_at is not None), default=None)
    ended = [row.ended_at for row in rows if row.ended_at is not None]
    return [] if began is None or len(ended) < len(rows) else [(each - began) / 60 for each in ended]


def _amount(value: float, over_time: bool) -> str:
    return f"{number_text(float(value))} min" if over_time else count_text(int(value), "trial")
