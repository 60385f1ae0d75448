"""Parallel coordinates, and the metric against each hyperparameter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting.studies import points, rows_of, view_of
from tuner.records.attempts import Attempt
from tuner.records.seed_statistics import averages
from tuner.reporting.figures.coordinates import parallel_coordinates
from tuner.reporting.figures.effects import against_each, rank_correlation
from tuner.reporting.study_view import StudyView
from tuner.trial import Objective


def test_ranks_correlate_whatever_the_distances_and_ties_share_a_rank() -> None:
    assert rank_correlation([1, 2, 30], [5, 60, 700]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486833)  # scipy.stats.spearmanr
    assert rank_correlation([1, 1], [1, 2]) == 0


def test_the_findings_name_what_the_best_have_in_common() -> None:
    rows = rows_of(
        depth=[2, 2, 2, 3, 4, 3, 4, 2], width=[8, 16, 32, 8, 16, 32, 8, 16], val_loss=[n / 10 for n in range(8)]
    )
    assert parallel_coordinates(view_of(rows), "toy").caption.endswith("Of the best 3 trials, all have depth = 2.")
    depth, width = against_each(view_of(rows), "toy")
    assert (depth.title, width.title) == ("depth", "width")
    assert depth.caption == "Median val_loss best at 2 (0.15, 4 trials), worst at 4 (0.5, 2 trials)."
    medians = points(depth, "lines+markers")
    assert medians.x == (0.0, 0.5, 1.0)
    assert medians.y == pytest.approx([0.15 / 0.7, 0.4 / 0.7, 0.5 / 0.7], abs=1e-4)


def test_the_quarter_in_which_a_number_does_best_is_named() -> None:
    sizes = list(range(10, 30))
    rows = rows_of(size=sizes, val_loss=[abs(size - 22) / 10 for size in sizes])
    (figure,) = against_each(view_of(rows), "toy")
    assert "that from 20 to 24 has the best median val_loss (0.1)" in figure.caption


def test_only_trials_that_have_a_hyperparameter_are_counted() -> None:
    rows = rows_of(
        lr=[*(n / 100 for n in range(1, 11)), *[None] * 5],
        units=[*[8] * 5, *[32] * 5, *[None] * 5],
        val_loss=[n / 10 for n in range(15)],
    )
    rows = [
        replace(row, config={key: value for key, value in row.config.items() if value is not None}) for row in rows
    ]
    lr, units = against_each(view_of(rows), "toy")
    assert lr.caption.startswith("Of the quarters by lr, that from 0.01 to 0.02 has the best")
    assert units.caption.endswith("best at 8 (0.2, 5 trials), worst at 32 (0.7, 5 trials).")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "No trial has ended with a val_loss yet"),
        (rows_of(width=[1], val_loss=[0.5]), "Only one trial was successful"),
        (rows_of(width=[1, 1], val_loss=[0.5, 0.6]), "All trials have the same hyperparameters"),
    ],
)
def test_what_cannot_be_compared_says_why(rows: list[Attempt], reason: str) -> None:
    chart = parallel_coordinates(view_of(rows), "toy")
    assert chart.plot is None
    assert reason in chart.caption


def test_comparisons_of_several_seeds_are_of_means_and_the_seed_is_no_axis(seeded: StudyView) -> None:
    whole, each = parallel_coordinates(seeded, "toy"), against_each(seeded, "toy")
    labels = ["hidden_dim", "num_layers", "dropout", "lr", "batch_size"]
    assert whole.plot and [*whole.plot.layout.xaxis.ticktext] == [
        f"<b>{each}</b>" for each in [*labels, "mean val_loss"]
    ]
    assert [chart.title for chart in each] == labels
    means = [found.interval.mean for found in averages(seeded.rows, Objective("val_loss")) if found.interval]
    lines = dict(about for trace in reversed(whole.plot.data) for about in trace.customdata if about)
    assert list(lines.values()) == pytest.approx(means, abs=1e-6)
    assert whole.caption.startswith("12 configurations, each a line")
    done = [[row.trial_id, row.metrics["val_loss"]] for row in seeded.rows if row.status == "completed"]
    trials = [chart.plot.data[0] for chart in each if chart.plot]
    assert [[*trace.customdata] for trace in trials] == [done] * len(labels)
    assert {trace.hovertemplate.partition("<br>")[2][:9] for trace in trials} == {"val_loss "}
    assert {*lines} <= {*seeded.trial_names}
