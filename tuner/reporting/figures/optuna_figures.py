"""The figures that Optuna draws of a workload's trials, in the house's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import unescape
from itertools import combinations
from typing import TYPE_CHECKING

from tuner.errors import one_line
from tuner.records.attempts import CONFIG
from tuner.records.optuna_space import is_finite, quiet
from tuner.reporting.figures.chart import Chart, of_trials, padded_range, plain, some_drawn, thinned, usual_range
from tuner.reporting.figures.optuna_study import Drawn
from tuner.reporting.figures.style import SCALE, colour, house_style, ranked, series, shade
from tuner.reporting.texts import count_text, number_text

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial
    from plotly.graph_objects import Figure as Plot
    from plotly.graph_objects import Scatter

NAMED = 5  # the best trials, whose learning curves are in the legend
LEAST = 10  # completed trials; with fewer, the order of hyperparameters is chance
MOST_OF_SLICES, LEAST_OF_SLICE = 6000, 300  # points: a browser is slow with more
FEW = 30  # with fewer completed trials, importance is a hint only
FOR_A_KEY = 4  # configurations for each hyperparameter of which interactions are told
LEAST_SHARE = 0.01  # of the variance: less is not worth a look, and may be rounding where all else is explained
CLEAR = 4.0  # standard errors of an interaction, which the strongest of 66 pairs rarely has by chance
BEST_SHARE = 1 / 3  # of the trials are compared with all; below ten of them the estimate is noise


def history(studies: Mapping[str, Drawn]) -> Chart:
    """Each trial's metric in the order in which trials ended, and the best so far; of one study or several."""
    from optuna.visualization import plot_optimization_history

    title, several = "Optimisation history", len(studies) > 1
    shown = {name: drawn for name, drawn in studies.items() if drawn.completed}
    if not any(several or len(drawn.completed) > 1 for drawn in shown.values()):
        return Chart(title, "Fewer than two trials have completed, so there is no history.")
    first = next(iter(shown.values()))
    with quiet():
        plot = plot_optimization_history([drawn.study for drawn in shown.values()], target_name=first.metric)
    plot.data = [trace for trace in plot.data if trace.x]  # without those of infeasible trials
    for number, (name, drawn) in enumerate(shown.items()):
        points, line = plot.data[2 * number : 2 * number + 2]
        points.update(**series(number), name=plain(name) if several else "completed", marker_opacity=0.6)
        trials = drawn.trials()
        places = [drawn.ended[trial.user_attrs["trial_id"]] for trial in trials]
        _name_points(points, [trials[number] for number in points.x], drawn.names)
        line.update(**series(number, shape="hv"), name=f"best so far{f' of {plain(name)}' if several else ''}")
        for trace in (points, line):
            trace.x = [places[number] for number in trace.x]
        line.update({} if several else {"line_color": colour("ink")})
    limits = [drawn.value_range() for drawn in shown.values()]
    span = [min(low for low, _ in limits), max(high for _, high in limits)]
    plot.update_xaxes(title="trials in the order in which they ended", rangemode="tozero", showgrid=False)
    plot.update_yaxes(title=first.metric, range=span)
    text = " ".join(_when_best(f"{name}: " if several else "", drawn) for name, drawn in shown.items())
    text += "".join(drawn.left_out for drawn in shown.values())
    text += next(iter(shown.values())).beyond([value for trace in plot.data[::2] for value in trace.y], "point", span)
    return Chart(title, text, house_style(plot, 320, showlegend=True))


def distribution(studies: Mapping[str, Drawn]) -> Chart:
    """The share of completed trials up to each value of the metric; of one study or several."""
    from optuna.visualization import plot_edf

    several = len(studies) > 1
    shown = {name: drawn for name, drawn in studies.items() if len(drawn.completed) > 1}
    if not shown:
        return Chart("Distribution", "Fewer than two trials have completed, so there is no distribution.")
    first = next(iter(shown.values()))
    with quiet():
        plot = plot_edf([drawn.study for drawn in shown.values()], target_name=first.metric)
    for number, (name, trace) in enumerate(zip(shown, plot.data, strict=True)):
        extra = plain(name) if several else ""
        trace.update(**series(number), name=plain(name))
        trace.hovertemplate = f"%{{y:.0%}} are at %{{x}} or lower<extra>{extra}</extra>"
    plot.update_yaxes(title="share of completed trials", tickformat=".0%", range=[0, 1.02])
    text = " ".join(_half(f"{name}: " if several else "", drawn) for name, drawn in shown.items())
    text += "".join(drawn.left_out for drawn in shown.values())
    return Chart(f"Distribution of {first.objective.metric}", text, house_style(plot, 320, showlegend=several))


def parallel_coordinates(drawn: Drawn) -> Chart:
    """A line for each trial through its hyperparameters and its metric."""
    from optuna.visualization import plot_parallel_coordinate

    title = f"Hyperparameters and {drawn.objective.metric}"
    if why := drawn.what_is_missing():
        return Chart(title, why)
    with quiet():
        plot = plot_parallel_coordinate(drawn.shown, params=list(drawn.keys), target_name=drawn.metric)
    plot.data = plot.data[:-1]  # without the scale of colours
    least = drawn.objective.direction == "minimize"
    for trial, line in zip(drawn.lines(), plot.data, strict=True):
        place = line.y[0] if least else 1 - line.y[0]  # from 0, the best, to 1
        about = [[trial.user_attrs["trial_id"], *text] for text in line.customdata]
        name = drawn.names[trial.user_attrs["trial_id"]]
        line.update(line_color=shade(place), opacity=0.8, customdata=about, text=[name] * len(about))
        line.hovertemplate = "%{text}<br>%{customdata[1]} %{customdata[2]}<extra></extra>"
    plot.update_annotations(font={"size": 11, "color": colour("ink")}, bgcolor=colour("surface"), opacity=0.88)
    plot.update_shapes(line_color=colour("muted"))
    plot.update_xaxes(side="top", tickfont_color=colour("ink"))
    text = f"{_of_all(drawn, len(plot.data))}, each a line. "
    text += f"A stronger colour means a better {drawn.objective.metric}.{drawn.about}"
    columns = [drawn.objective.metric, *(CONFIG + unescape(key) for key in sorted(drawn.keys))]  # of the axes
    plot = house_style(plot, 380, margin={"l": 56, "r": 30, "t": 34, "b": 12}, meta={"columns": columns})
    return Chart(title, text, plot, minimum_width=110 * (len(drawn.keys) + 1))


def slices(drawn: Drawn) -> Chart:
    """The metric against each hyperparameter."""
    from optuna.visualization import plot_slice

    title = f"{drawn.objective.metric} against each hyperparameter"
    if why := drawn.what_is_missing():
        return Chart(title, why)
    with quiet():
        plot = plot_slice(drawn.study, params=list(drawn.keys), target_name=drawn.metric)
    trials = drawn.trials()
    few = {trial.number for trial in thinned(trials, max(MOST_OF_SLICES // len(plot.data), LEAST_OF_SLICE))}
    for points in plot.data:
        kept = [place for place, number in enumerate(points.marker.color) if number in few]
        points.update({key: [points[key][place] for place in kept] for key in "xy"})
        points.marker.color = numbers = [points.marker.color[place] for place in kept]
        _name_points(points, [trials[number] for number in numbers], drawn.names)
        points.marker.update(colorscale=SCALE, showscale=False, line_color=colour("surface"), size=8, opacity=0.85)
    plot.update_yaxes(range=drawn.value_range())
    text = f"A point for each completed trial; a stronger colour means a later one.{drawn.about}"
    text += some_drawn(len(few), len(drawn.ended), "evenly spaced in time")
    text += drawn.beyond([trial.value for trial in trials if trial.state.name == "COMPLETE"], "trial")
    text += _mark_lost(drawn, plot)
    plot = house_style(plot, 300, width=None)
    return Chart(title, text, plot, minimum_width=150 * len(drawn.keys))


def _mark_lost(drawn: Drawn, plot: Plot) -> str:
    """Crosses at the worse edge of each slice: the values of trials without a result. Returns a sentence on them."""
    lost, edge = thinned(drawn.lost, LEAST_OF_SLICE), drawn.value_range()[drawn.objective.direction == "minimize"]
    for points in plot.data if lost else ():
        axis = plot.layout[(points.xaxis or "x").replace("x", "xaxis")]
        values = [(row, row.config.get(unescape(axis.title.text))) for row in lost]
        numbers = axis.type != "category"
        kept = [(row, value) for row, value in values if value is not None and (is_finite(value) or not numbers)]
        x = [value if numbers else plain(str(value)) for _, value in kept]
        marker = {"symbol": "x", "size": 8, "color": [colour(row.status) for row, _ in kept]}
        about = of_trials([row.trial_id for row, _ in kept], drawn.names, "%{x}: no result")
        look = {
            "mode": "markers",
            "marker": marker,
            "cliponaxis": False,
            "xaxis": points.xaxis,
            "yaxis": points.yaxis,
        }
        plot.add_scatter(x=x, y=[edge] * len(kept), **look, **about)
    if not lost:
        return ""
    text = f" Crosses at the edge: {count_text(len(drawn.lost), 'trial')} without a result."
    return text + some_drawn(len(lost), len(drawn.lost))


def what_matters(drawn: Drawn) -> list[Chart]:
    """The importance of hyperparameters, and a contour of the two that interact most.

    Where importance is not known there is no contour, and the one chart says why.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from plotly.graph_objects import Bar, Figure

    title, count = "Importance of hyperparameters", len(drawn.completed)
    if not (why := _not_judged(drawn)):
        try:
            with quiet():
                evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
                shares = get_param_importances(drawn.study, evaluator=evaluator, params=list(drawn.keys))
        except Exception as error:  # of numbers that Optuna cannot take; the rest of a report does not depend on it
            why = f"Optuna could not compute it: {type(error).__name__}: {one_line(error, 200)}"
    if why:
        return [Chart(title, f"Importance is not known: {why}")]
    names, values = list(reversed(shares)), list(reversed(shares.values()))  # the most important one is drawn above
    texts = [f"{share:.2f}" if share >= 0.01 else "<0.01" for share in values]
    bars = Bar(x=values, y=names, orientation="h", text=texts, textposition="outside", cliponaxis=False)
    bars.update(marker_color=colour("completed"), hovertemplate="%{y}: %{x:.0%}<extra></extra>")
    plot = Figure(bars)
    plot.update_xaxes(title="share of the importance of all", tickformat=".0%", range=[0, 1.2 * max(values)])
    plot.update_yaxes(title=None, type="category", showgrid=False, tickfont_color=colour("ink"))
    first, second, *_ = shares
    text = f"How much each tells the best third of {count} completed trials from all, by Optuna's PED-ANOVA: "
    text += f"{unescape(first)} {shares[first]:.0%}, {unescape(second)} {shares[second]:.0%}."
    text += " With so few trials this is only a hint." * (count < FEW) + drawn.left_out
    chart = Chart(title, text, house_style(plot, max(320, 70 + 30 * len(shares)), bargap=0.5))
    pair, told = _strongest_pair(drawn, list(shares))
    return [chart, _contour(drawn, *pair, told)]


def _strongest_pair(drawn: Drawn, keys: Sequence[str]) -> tuple[tuple[str, str], str]:
    """The two of these hyperparameters, the most important first, that interact most, and a sentence on them.

    An interaction is the share of the metric's variance that the product of two ranks explains beyond the ranks and
    squares of all: the squared semipartial correlation in a second-order model (Box and Wilson, 1951).
    """
    import numpy as np

    def ranks(values: Sequence[object]) -> np.ndarray:
        comparable = np.array(values if all(map(is_finite, values)) else [*map(str, values)])
        return normal(np.unique(comparable, return_inverse=True)[1])

    def normal(values: np.ndarray) -> np.ndarray:
        return np.asarray((values - values.mean()) / (values.std() or 1.0))

    important, told = (keys[0], keys[1]), "They are the two most important; no two clearly interact."
    rows = [row for row in drawn.completed if all(unescape(key) in row.config for key in keys)]
    count = len({row.name for row in rows})
    keys = keys[: max(2, count // FOR_A_KEY)]
    free = count - 2 * len(keys) - 2
    if free < 1:
        return important, told
    low, high = drawn.value_range()
    metric = normal(np.clip(np.array([row.number(drawn.objective.metric) for row in rows]), low, high))
    single = [ranks([row.config[unescape(key)] for row in rows]) for key in keys]
    model = np.column_stack([np.ones(len(rows)), *single, *(values**2 for values in single)])
    pairs = list(combinations(range(len(keys)), 2))
    both = np.column_stack([metric, *(single[one] * single[other] for one, other in pairs)])
    rest, *products = (both - model @ np.linalg.lstsq(model, both)[0]).T
    shares = [(product @ metric) ** 2 / max(product @ product, 1e-9) / len(rows) for product in products]
    found = max(shares)
    if found < LEAST_SHARE or found * free < CLEAR**2 * (rest @ rest / len(rows) - found):
        return important, told
    one, other = pairs[shares.index(found)]
    of = f"of the variance of {drawn.objective.metric}"
    return (keys[one], keys[other]), f"These two interact most: only both together explain {found:.0%} {of}."


def learning_curves(drawn: Drawn) -> Chart:
    """The metric of completed, pruned and running trials after each epoch."""
    from optuna.visualization import plot_intermediate_values

    title, trials = "Learning curves", drawn.shown.get_trials(deepcopy=False)
    if not any(trial.intermediate_values for trial in trials):
        return Chart(title, f"No epoch with a {drawn.objective.metric} was recorded, so there are no curves.")
    with quiet():
        plot = plot_intermediate_values(drawn.shown)
    ranks = {row.trial_id: rank for rank, row in enumerate(drawn.completed[:NAMED])}
    for line in plot.data:
        trial_id = trials[int(line.name.removeprefix("Trial"))].user_attrs["trial_id"]
        line.update(name=drawn.names.get(trial_id, plain(trial_id)), marker_size=6)
        line.update(**ranked(ranks.get(trial_id), NAMED), customdata=[[trial_id]] * len(line.x))
        line.hovertemplate = "%{fullData.name}<br>epoch %{x}: %{y}<extra></extra>"
    values = [value for trial in trials for value in trial.intermediate_values.values()]
    plot.update_xaxes(title="epoch", tickformat="d", showgrid=False)
    span = padded_range(values, drawn.objective)
    plot.update_yaxes(title=drawn.metric, range=span)
    running = sum(not trial.state.is_finished() for trial in trials)
    text = f"{drawn.objective.metric} after each epoch. {_of_all(drawn, len(plot.data) - running)}"
    text += (
        f"{f', and {running} not ended' if running else ''}.{_best_curve(drawn)}{drawn.beyond(values, 'value', span)}"
    )
    return Chart(title, text, house_style(plot, 380, showlegend=True, meta={"curves": drawn.objective.metric}))


def _name_points(points: Scatter, trials: Sequence[FrozenTrial], names: Mapping[str, str]) -> None:
    """Gives points the ids and the names of their trials; a click on one in the page shows its row."""
    points.update(**of_trials([trial.user_attrs["trial_id"] for trial in trials], names, "%{x}: %{y}"))


def _of_all(drawn: Drawn, lines: int) -> str:
    """How many of the trials that ended have a line, or are a point, and which."""
    whole, shown = len(drawn.ended), drawn.shown.get_trials(deepcopy=False)
    some = sum(trial.state.is_finished() for trial in shown) < whole
    which = ", the ten best and others evenly spaced by rank" if some else ""
    return (f"{lines} of {count_text(whole, 'trial')}" if lines < whole else count_text(whole, "trial")) + which


def _when_best(who: str, drawn: Drawn) -> str:
    """How soon the best value came."""
    best = drawn.completed[0]
    pruned = len(drawn.ended) - len(drawn.completed)
    text = f"{who}the best {drawn.objective.metric}, {number_text(best.number(drawn.objective.metric))}, came from "
    text += f"trial {drawn.ended[best.trial_id]} of {len(drawn.ended):,}"
    text += f"; {count_text(pruned, 'pruned trial')} not drawn." if pruned else "."
    return text if who else text[0].upper() + text[1:]


def _half(who: str, drawn: Drawn) -> str:
    middle = drawn.completed[(len(drawn.completed) - 1) // 2].number(drawn.objective.metric)
    better = "or lower" if drawn.objective.direction == "minimize" else "or higher"
    return f"{who}{len(drawn.completed):,} completed trials; half have {number_text(middle)} {better}."


def _not_judged(drawn: Drawn) -> str:
    """Why the importance of hyperparameters cannot be judged; empty if it can."""
    count, metric = len(drawn.completed), drawn.objective.metric
    if len(drawn.keys) < 2:
        return "fewer than two hyperparameters vary in the completed trials"
    if count < LEAST:
        return f"{count_text(count, 'completed trial')} are too few to judge; at least {LEAST} are needed"
    same = len({row.number(metric) for row in drawn.completed}) == 1
    return f"all completed trials have the same {metric}" if same else ""


def _contour(drawn: Drawn, first: str, second: str, told: str) -> Chart:
    from optuna.visualization import plot_contour

    names = sorted((first, second))
    title = f"{drawn.objective.metric} over {' and '.join(map(unescape, names))}"
    points = [trial for trial in drawn.lines() if {*names} <= {*trial.params}]
    if any(len({str(trial.params[name]) for trial in points}) < 2 for name in names):
        return Chart(title, "Too few trials have different values of both, so there is no contour.")
    with quiet():
        plot = plot_contour(drawn.shown, params=names, target_name=drawn.metric)
    low, high = usual_range([row.number(drawn.objective.metric) for row in drawn.completed], drawn.objective)
    area, dots, *_ = plot.data
    area.update(colorscale=SCALE, zmin=low, zmax=high, colorbar={"thickness": 12, "outlinewidth": 0})
    area.update(colorbar_title={"text": drawn.metric, "side": "right"})
    dots.marker.update(color=colour("ink"), size=6, line={"width": 1, "color": colour("surface")})
    _name_points(dots, points, drawn.names)
    text = f"{_of_all(drawn, len(points))}, which are the points. "
    text += f"A stronger colour means a better {drawn.objective.metric}. {told}"
    return Chart(title, text, house_style(plot, 320))


def _best_curve(drawn: Drawn) -> str:
    """When the best trial was best."""
    best = drawn.completed[0].trial_id if drawn.completed else None
    curve = next((trial for trial in drawn.lines() if trial.user_attrs["trial_id"] == best), None)
    if not curve or not curve.intermediate_values:
        return ""
    points = curve.intermediate_values
    epoch, last = min(points, key=lambda number: drawn.objective.loss(points[number])), max(points)
    text = f" The best was best at {number_text(points[epoch])} after epoch {epoch} of {last}"
    return text + ("; it was still improving at its end." if epoch == last > 1 else ".")
