"""What the report's page is made of, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attempts import attempt
from tests.generated_study import METRICS, write_study
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.records.study_record import UNKNOWN
from tuner.reporting.figures.attempt_bars import Bar, in_lanes, memory_over_time, to_bars, used_share, without_pauses
from tuner.reporting.figures.axes import metric_axis, nice_ticks, value_axis, varying
from tuner.reporting.figures.chart import Chart
from tuner.reporting.figures.coordinates import parallel_coordinates
from tuner.reporting.figures.curves import learning_curves, subset
from tuner.reporting.figures.effects import against_each, rank_correlation
from tuner.reporting.figures.estimates import estimate_against_peak
from tuner.reporting.figures.style import COLOURS, DARK, SHADES, shade
from tuner.reporting.figures.timeline import timelines
from tuner.reporting.page.document import page_html
from tuner.reporting.page.parts import json_block
from tuner.reporting.page.sections import main_html
from tuner.reporting.study_view import StudyView, read_study_view


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    folder = tmp_path_factory.mktemp("studies") / "forty"
    write_study(folder, 40)
    return read_study_view(folder, METRICS, lambda row: f"again {row.name}")


def rows_of(**columns: list[Any]) -> list[Attempt]:
    """Completed rows with these values of hyperparameters, and the metric ``val_loss``."""
    names = [key if key.startswith("val_") else f"config/{key}" for key in columns]
    return [
        attempt(trial_id=f"t{number}", name=f"n{number}", **dict(zip(names, values, strict=True)))
        for number, values in enumerate(zip(*columns.values(), strict=True))
    ]


def view_of(rows: list[Attempt]) -> StudyView:
    """A study of which nothing but these rows is known."""
    return StudyView("s", UNKNOWN, [], rows, [], METRICS, lambda _: "")


def points(chart: Chart, mode: str) -> Any:
    """The one trace of a chart that is drawn in this mode."""
    assert chart.plot
    (found,) = (trace for trace in chart.plot.data if trace.mode == mode)
    return found


def bar(start: float, end: float, reserved: float = 1.0, used: float | None = 0.5) -> Bar:
    return Bar("t1", "cpu", 1, "completed", start, end, reserved, used)


def test_few_values_stand_at_even_distances_whatever_they_are() -> None:
    axis = value_axis("config/width", rows_of(width=[256, 32, "wide", 64, None]))
    assert (axis.scale, axis.places) == ("even", [0.6667, 0.0, 1.0, 0.3333, None])
    assert axis.ticks == [(0.0, "32"), (0.3333, "64"), (0.6667, "256"), (1.0, "wide")]


def test_many_numbers_stand_where_they_are_on_a_logarithmic_axis_if_they_span_decades() -> None:
    axis = value_axis("config/lr", rows_of(lr=[10 ** (-number / 4) for number in range(4, 17)]))
    assert axis.scale == "logarithmic"
    assert (axis.places[0], axis.places[6], axis.places[-1]) == (1.0, 0.5, 0.0)
    assert [text for _, text in axis.ticks] == ["0.0001", "0.001", "0.01", "0.1"]
    linear = value_axis("config/size", rows_of(size=list(range(10, 21))))
    assert (linear.scale, linear.places[5], linear.ticks[0]) == ("linear", 0.5, (0.0, "10"))


def test_a_metric_far_from_the_others_stands_at_the_axis_end() -> None:
    values = [0.9 + number / 100 for number in range(10)]
    axis = metric_axis("val_loss", rows_of(val_loss=[*values, 1e6]))
    assert axis.places[0] == 0.0
    assert axis.places[-1] == 1.0
    assert 0.5 < (axis.places[9] or 0) < 1.0


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.83, 0.97, [0.85, 0.9, 0.95]), (3, 3, [3]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_what_was_tried_is_what_varies_but_no_seed() -> None:
    first, second = rows_of(width=[1, 2], depth=[3, 3])
    rows = [first, replace(second, seed=1)]
    assert varying(rows) == ["config/width"]


def test_ranks_correlate_whatever_the_distances_and_ties_share_a_rank() -> None:
    assert rank_correlation([1, 2, 30], [5, 60, 700]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486833)  # scipy.stats.spearmanr
    assert rank_correlation([1, 1], [1, 2]) == 0


def test_the_findings_name_what_the_best_have_in_common() -> None:
    rows = rows_of(
        depth=[2, 2, 2, 3, 4, 3, 4, 2], width=[8, 16, 32, 8, 16, 32, 8, 16], val_loss=[n / 10 for n in range(8)]
    )
    assert parallel_coordinates(view_of(rows), "toy").caption.endswith("Of the best 3, 3 have depth 2.")
    depth, width = against_each(view_of(rows), "toy")
    assert (depth.title, width.title) == ("depth", "width")
    assert depth.caption == "Median val_loss lowest at 2 (0.15, 4 trials), highest at 4 (0.5, 2 trials)."
    medians = points(depth, "lines+markers")
    assert medians.x == (0.0, 0.5, 1.0)
    assert medians.y == pytest.approx([0.15 / 0.7, 0.4 / 0.7, 0.5 / 0.7], abs=1e-4)


def test_the_quarter_in_which_a_number_does_best_is_named() -> None:
    sizes = list(range(10, 30))
    rows = rows_of(size=sizes, val_loss=[abs(size - 22) / 10 for size in sizes])
    (figure,) = against_each(view_of(rows), "toy")
    assert "that from 20 to 24 has the lowest median val_loss (0.1)" in figure.caption


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "No trial has ended with a val_loss yet"),
        (rows_of(width=[1], val_loss=[0.5]), "Only one trial has ended well"),
        (rows_of(width=[1, 1], val_loss=[0.5, 0.6]), "All trials have the same hyperparameters"),
    ],
)
def test_what_cannot_be_compared_says_why(rows: list[Attempt], reason: str) -> None:
    chart = parallel_coordinates(view_of(rows), "toy")
    assert chart.plot is None
    assert reason in chart.caption


def test_there_are_as_many_lanes_as_ran_at_once() -> None:
    placed = in_lanes([bar(0, 4), bar(1, 2), bar(2, 5), bar(3, 6), bar(4, 5)])
    assert [each.lane for each in placed] == [0, 1, 1, 2, 0]


def test_memory_is_summed_over_what_runs() -> None:
    steps = memory_over_time([bar(0, 2, 1, 0.5), bar(1, 3, 2, None), bar(2, 3, 1, 1)])
    assert steps == [(0, 1, 0.5), (1, 3, 0.5), (2, 3, 1), (3, 0, 0)]
    assert used_share([bar(0, 2, 1, 0.5), bar(1, 3, 2, None), bar(2, 4, 1, 1)]) == pytest.approx(0.75)


def test_the_time_between_a_study_and_its_resumption_is_left_out() -> None:
    moved, pauses = without_pauses([bar(0, 10), bar(11, 20), bar(3620, 3630), bar(7230, 7240)])
    assert [(each.start, each.end) for each in moved] == [(0, 10), (11, 20), (20, 30), (30, 40)]
    assert pauses == [(20, 3600), (30, 3600)]


def test_a_timeline_has_a_bar_for_each_attempt_on_its_device(study: StudyView) -> None:
    charts = timelines(study)
    assert [chart.title.split(" (")[0] for chart in charts] == ["Timeline of cuda:0", "Timeline of cuda:1"]
    traces = [
        trace for chart in charts if chart.plot for trace in chart.plot.data if trace.type == "bar" and trace.text
    ]
    drawn = [trial_id for trace in traces for trial_id, *_ in trace.customdata]
    assert sorted(drawn) == sorted(row.trial_id for row in study.attempts)
    bars = to_bars(study.attempts)
    assert min(each.start for each in bars) == 0
    assert "of the device's 14.00 GB were reserved at a time" in charts[0].caption
    retried = sum(each.attempt > 1 for each in bars if each.device == "cuda:0")
    assert f"{retried} bar" in charts[0].caption


def test_an_older_study_gives_a_page_that_says_what_was_not_kept(study: StudyView) -> None:
    attempts = [replace(row, started_at=None, ended_at=None) for row in study.attempts]
    old = replace(study, attempts=attempts, epochs=[])
    assert "it ran before the times of attempts were kept" in timelines(old)[0].caption
    assert "kept no epochs" in learning_curves(old, "toy").caption
    assert main_html(old).count('class="plot"') == 1 + 5 + 1


def test_a_study_of_which_nothing_has_ended_gives_a_page_that_says_so(study: StudyView) -> None:
    text = main_html(replace(study, attempts=[], rows=[], epochs=[]))
    assert text.count('class="plot"') == 0
    for said in (
        "No trial has completed yet",
        "No trial has ended yet",
        "no attempt has ended yet",
        "40 not ended yet",
    ):
        assert said in text


def test_curves_are_the_best_and_others_evenly_by_rank() -> None:
    chosen = subset([str(number) for number in range(1000)], 60)
    assert (len(chosen), chosen[:11], chosen[-1]) == (60, [str(number) for number in range(11)], "980")
    assert subset(["a", "b"], 60) == ["a", "b"]


def test_a_later_attempt_says_what_an_epoch_came_to(study: StudyView) -> None:
    line = EpochLine(trial_id=study.rows[0].trial_id, attempt=2, epoch=3, at=0.0, metrics={"val_loss": 9.0})
    plot = learning_curves(replace(study, epochs=[*study.epochs, line]), "toy").plot
    curve = next(trace for trace in plot.data if trace.customdata[0] == [line.trial_id])
    assert (3, 9.0) in zip(curve.x, curve.y, strict=True)
    assert list(curve.x) == list(range(1, 13))


def test_a_running_trial_has_a_curve_and_is_named(study: StudyView) -> None:
    waiting = replace(study.study, configurations=[*study.study.configurations, {"name": "late <one>"}])
    line = EpochLine(trial_id="t041", attempt=1, epoch=1, at=0.0, metrics={"val_loss": 1.0})
    going = replace(study, study=waiting, epochs=[*study.epochs, line])
    plot = learning_curves(going, "toy").plot
    assert [trace.name for trace in plot.data if trace.customdata[0] == ["t041"]] == ["late &lt;one&gt;"]
    assert "late &lt;one&gt; (after epoch 1)" in main_html(going)


def test_trials_of_several_seeds_are_told_apart_and_all_counted(study: StudyView) -> None:
    known = len(study.study.configurations)
    seeds = replace(study, study=replace(study.study, seed=3, seeds=2), rows=study.rows[:1])
    row = study.rows[0]
    assert seeds.total == 2 * known
    assert seeds.trial_names[row.trial_id].endswith(f"{row.name} (seed {row.seed})")
    assert seeds.trial_names[f"t{known + 1:03d}"] == f"{study.study.configurations[0]['name']} (seed 4)"


def test_estimates_are_judged_only_where_some_were_made(study: StudyView) -> None:
    chart = estimate_against_peak(study)
    completed = [row for row in study.rows if row.status == "completed"]
    assert len(points(chart, "markers").x) == len(completed)
    assert re.search(r"off by \d\.\d% at the median", chart.caption)
    given = replace(study, study=replace(study.study, settings={"auto_memory": False, "model_memory_gb": 2.0}))
    assert estimate_against_peak(given).caption.startswith("No memory was estimated: each was given 2.0 GB")


def test_workloads_have_sections_of_their_own(study: StudyView) -> None:
    error = {"val_error": 0.5}
    other = [replace(row, trial_id=f"u{row.trial_id}", workload="wide", metrics=error) for row in study.rows]
    both = replace(
        study,
        rows=[*study.rows, *other],
        attempts=[*study.attempts, *other],
        metrics={**METRICS, "wide": "val_error"},
    )
    text = main_html(both)
    for heading in ("Best trial of toy", "Best trial of wide", "Comparison: toy", "Comparison: wide"):
        assert heading in text


def test_no_text_breaks_out_of_the_json_in_a_page() -> None:
    text = json_block("drawn", json.dumps(["</script><!--<script>&"]))
    assert text.count("<") == 2
    assert json.loads(text.partition(">")[2].removesuffix("</script>")) == ["</script><!--<script>&"]


def test_names_of_users_are_text_wherever_they_stand(tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>'\"$title"
    write_study(tmp_path / "s", 6, name=nasty)
    found = read_study_view(tmp_path / "s", METRICS, lambda row: f"tune --only {row.name}")
    found = replace(found, name=nasty, study=replace(found.study, command=nasty, data=nasty))
    page = page_html(found)
    assert "<img" not in page.partition("<body>")[2].partition("<script>")[0]
    assert page.count("</script>") == page.count("<script") == page.count('class="plot"') + 4, (
        "colours and three scripts"
    )


def test_every_light_colour_has_one_dark_counterpart() -> None:
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS)
    assert [DARK[light] for light, _ in COLOURS.values()] == [dark for _, dark in COLOURS.values()]
    shades = [shade(step / (SHADES - 1)) for step in range(SHADES)]
    assert (shades[0], shades[-1], len(set(shades))) == (COLOURS["best"][0], COLOURS["worst"][0], SHADES)
    assert {*shades} <= {*DARK}


def test_a_policy_lets_no_other_script_run_and_nothing_be_loaded(study: StudyView) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page_html(study))
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "connect-src &#x27;none&#x27;" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy
