"""The figures that Optuna draws: which trials are in them, their names, and what their captions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.reporting.studies import points, rows_of, told, view_of
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart
from tuner.reporting.figures.optuna_figures import (
    distribution,
    history,
    learning_curves,
    parallel_coordinates,
    slices,
    what_matters,
)
from tuner.reporting.figures.optuna_study import Drawn, drawn, subset
from tuner.reporting.figures.style import house_style
from tuner.reporting.page.sections import running_rows
from tuner.trial import Configuration


def of(rows: list[Attempt], direction: str = "minimize") -> Drawn:
    return drawn(replace(view_of(rows), objectives={"toy": Objective("val_loss", direction)}), "toy")


def every(found: Drawn) -> list[Chart]:
    charts = [parallel_coordinates(found), slices(found), *what_matters(found), learning_curves(found)]
    return [*charts, history({"s": found}), distribution({"s": found})]


def test_all_figures_are_of_the_completed_trials_and_a_point_names_its_trial(study: RecordedStudy) -> None:
    found = drawn(study, "toy")
    completed = {row.trial_id for row in study.rows if row.status == "completed"}
    charts = every(found)
    assert all(chart.plot for chart in charts) and len(charts) == 7
    dots: Any = [trace for chart in charts if chart.plot for trace in chart.plot.data if trace.customdata is not None]
    is_lost = {True: {row.trial_id for row in found.lost}, False: completed}
    for lost, ids in is_lost.items():
        some = [trace for trace in dots if (trace.marker.symbol == "x") == lost]
        assert {point[0] for trace in some for point in trace.customdata} == ids
    first = points(history({"s": found}), "markers")
    assert first.text[0] == study.trial_names[first.customdata[0][0]]


def test_a_caption_counts_the_lines_that_are_drawn_and_those_beyond_the_axis() -> None:
    rows = rows_of(lr=[*range(1, 21)], val_loss=[*(n / 100 for n in range(19)), 1e6])
    pruned = [*rows[:10], *(replace(row, status="pruned") for row in rows[10:])]
    assert parallel_coordinates(of(pruned)).caption.startswith("10 of 20 trials, each a line.")
    assert "1 trial is so bad that the axis ends before." in slices(of(rows)).caption
    assert "1 point is so bad that the axis ends before." in history({"s": of(rows)}).caption


def test_a_logarithmic_axis_has_numbers_within_a_decade_where_it_covers_few() -> None:
    for values, step in (([2e-3, 3e-3, 5e-3, 8e-3], None), ([1e-5, 1e-3, 1e-2, 0.1], 1)):
        found = of(rows_of(lr=values, val_loss=[0.1, 0.2, 0.3, 0.4]))
        plot = house_style(slices(found).plot, 300)
        plot.update_xaxes(type="log")
        assert house_style(plot, 300).layout.xaxis.dtick == step


def test_labels_missing_and_conditional_hyperparameters_are_drawn_and_stay_text() -> None:
    nasty = "<b>relu"
    rows = rows_of(
        act=[nasty, "tanh"] * 6, flag=[True, False, True] * 4, size=[8, "all", 16, 32] * 3, lr=list(range(1, 13)),
        val_loss=[n / 10 for n in range(12)],
    )  # fmt: skip
    rows[3:] = [replace(row, config={key: row.config[key] for key in row.config if key != "lr"}) for row in rows[3:]]
    named = [replace(row, name=nasty, config={"<i>k": 1, **row.config, "<i>n": n}) for n, row in enumerate(rows)]
    charts = every(of(named))
    assert all(chart.plot for chart in charts if chart.title != "Learning curves")
    texts = [chart.plot.to_json(validate=False) for chart in charts if chart.plot]
    assert not any("<b>relu" in text or "<i>" in text for text in texts)
    assert any("&lt;b&gt;relu" in text.replace("\\u003c", "<").replace("\\u0026", "&") for text in texts)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_best_is_dark_and_what_decides_the_metric_comes_first(direction: str) -> None:
    lr, width = [n * 7 % 40 / 40 for n in range(40)], [n * 11 % 40 for n in range(40)]
    rows = rows_of(width=width, lr=lr, val_loss=[a + 0.0001 * b for a, b in zip(lr, width, strict=True)])
    rows.sort(key=lambda row: row.loss(Objective("val_loss", direction)))
    found = of(rows, direction)
    bars, contour = what_matters(found)
    assert "40 completed trials from all, by Optuna's PED-ANOVA: lr " in bars.caption
    assert contour.title == "val_loss over lr and width"
    lines = parallel_coordinates(found).plot
    assert lines and lines.data[-1].line.color == "#08306b", "the best is drawn last"


def test_slices_have_a_cross_at_the_worse_edge_for_each_trial_without_a_result() -> None:
    rows = rows_of(lr=[0.1, 0.2, 0.9, 0.8, 0.3], act=["a", "b", "<c", "a", "b"], val_loss=[1.0, 2.0, 3.0, 4.0, 5.0])
    rows[2:4] = [replace(row, status="failed", metrics={}) for row in rows[2:4]]
    chart = slices(of(rows))
    assert chart.plot
    crosses = {trace.x: trace for trace in chart.plot.data if trace.marker.symbol == "x"}
    assert {*crosses} == {(0.9, 0.8), ("&lt;c", "a")}
    assert all(trace.y == (chart.plot.layout.yaxis.range[1],) * 2 for trace in crosses.values())
    assert "Crosses at the edge: 2 trials without a result." in chart.caption


@pytest.mark.parametrize(
    ("pair", "told"), [("a and c", "These two interact most: only both"), ("b and c", "no two clearly")]
)
def test_the_contour_is_of_the_two_that_interact_most_or_of_the_most_important(pair: str, told: str) -> None:
    a, b, c = ([n * step % 40 / 40 for n in range(40)] for step in (7, 11, 17))
    loss = {
        "a and c": [(x + z - 1) ** 2 + y / 2 for x, y, z in zip(a, b, c, strict=True)],
        "b and c": [x / 50 + (y - 0.3) ** 2 + z for x, y, z in zip(a, b, c, strict=True)],
    }[pair]
    rows = rows_of(a=a, b=b, c=c, val_loss=loss)
    _, contour = what_matters(of(sorted(rows, key=lambda row: row.loss(Objective("val_loss")))))
    assert (contour.title, told in contour.caption) == (f"val_loss over {pair}", True)


def test_the_history_is_in_the_order_in_which_trials_ended_and_pruned_ones_are_left_out() -> None:
    rows = [
        replace(row, ended_at=at) for row, at in zip(rows_of(val_loss=[1.0, 2.0, 3.0]), (30, 10, 20), strict=True)
    ]
    rows[2] = replace(rows[2], status="pruned")
    chart = history({"s": of(rows)})
    assert chart.caption == "The best val_loss, 1, came from trial 3 of 3; 1 pruned trial not drawn."
    assert (points(chart, "markers").x, points(chart, "lines").y) == ((1, 3), (2.0, 2.0, 1.0))


def test_several_studies_have_a_line_each() -> None:
    both = {name: of(rows_of(val_loss=values)) for name, values in (("<a>", [1.0, 2.0]), ("b", [3.0, 4.0]))}
    first, second = history(both), distribution(both)
    assert first.plot and second.plot
    assert first.caption.startswith("<a>: the best val_loss, 1, came from trial 1 of 2. b: the best val_loss, 3, ")
    assert [trace.name for trace in second.plot.data] == ["&lt;a&gt;", "b"]


def test_a_few_very_bad_values_do_not_flatten_the_rest() -> None:
    low, high = of(rows_of(val_loss=[*(0.9 + n / 100 for n in range(10)), 1e6])).value_range()
    assert 0.8 < low < 0.9 and 0.99 < high < 1.2


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "No trial has ended with a val_loss yet"),
        (rows_of(width=[1], val_loss=[0.5]), "Only one trial was successful"),
        (rows_of(width=[1, 1], val_loss=[0.5, 0.6]), "All trials have the same hyperparameters"),
    ],
)
def test_what_cannot_be_compared_says_why(rows: list[Attempt], why: str) -> None:
    for chart in (parallel_coordinates(of(rows)), slices(of(rows))):
        assert chart.plot is None and why in chart.caption


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            rows_of(a=[*range(9)], b=[*range(9)], val_loss=[*range(9)]),
            "9 completed trials are too few to judge",
        ),
        (rows_of(a=[*range(20)], val_loss=[*range(20)]), "fewer than two hyperparameters vary"),
        (rows_of(a=[*range(10)], b=[*range(10)], val_loss=[1.0] * 10), "all completed trials have the same val_loss"),
    ],
)
def test_importance_that_cannot_be_judged_says_why(rows: list[Attempt], why: str) -> None:
    (chart,) = what_matters(of(rows))
    assert chart.plot is None and why in chart.caption


def test_what_optuna_raises_is_told_in_place_of_the_importance(
    study: RecordedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optuna.importance.PedAnovaImportanceEvaluator", lambda **_: 1 / 0)
    (chart,) = what_matters(drawn(study, "toy"))
    assert "Optuna could not compute it: ZeroDivisionError" in chart.caption


def test_lines_are_of_the_best_and_others_evenly_by_rank() -> None:
    rows = rows_of(val_loss=[*range(1000)])
    chosen = [row.trial_id for row in subset(rows, 60)]
    assert (len(chosen), chosen[:11], chosen[-1]) == (60, [f"t{number}" for number in range(11)], "t980")
    assert subset(rows[:2], 60) == rows[:2]


def test_a_running_trial_has_a_curve_and_is_named(study: RecordedStudy) -> None:
    waiting = replace(study.record, configurations=[*study.record.configurations, Configuration("late <one>", {})])
    line = EpochLine(trial_id="t041", attempt=1, epoch=1, at=0.0, metrics={"val_loss": 1.0})
    going = told(study, record=waiting, epochs=[*study.epochs, line], is_open=True)
    plot = learning_curves(drawn(going, "toy")).plot
    assert plot and [trace.name for trace in plot.data if trace.customdata[0] == ["t041"]] == ["late &lt;one&gt;"]
    (row,) = running_rows(going)
    assert (row.name, row.status, row.epochs, row.metrics) == ("late <one>", "running", 1, {"val_loss": 1.0})


def test_several_seeds_are_drawn_as_single_trials_and_said_to_be_so(seeded: RecordedStudy) -> None:
    found = drawn(seeded, "toy")
    assert " Configurations have several seeds; each trial is drawn." in slices(found).caption
    assert len(found.keys) == 5, "the seed is no hyperparameter"


def test_of_many_trials_few_are_points_with_each_that_was_the_best_so_far() -> None:
    rows = rows_of(val_loss=[100 + (number * 37) % 91 - number // 10 for number in range(300)], lr=[*range(300)])
    rows = [replace(row, ended_at=float(number)) for number, row in enumerate(rows, 1)]
    improving = {
        row.trial_id for place, row in enumerate(rows) if value(row) < min(map(value, rows[:place]), default=999)
    }
    found = drawn(view_of(sorted(rows, key=value)), "toy", most=30)
    drawn_ids = {trial.user_attrs["trial_id"] for trial in found.trials()}
    assert improving <= drawn_ids and 30 <= len(drawn_ids) < 60
    chart = history({"s": found})
    assert points(chart, "markers").x[-1] > 250, "the place among all trials"
    assert f"{len(drawn_ids)} of 300 trials are drawn" in chart.caption


def value(row: Attempt) -> float:
    return row.number("val_loss")
