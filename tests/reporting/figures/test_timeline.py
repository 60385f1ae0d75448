"""Attempts over time, and their memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting.studies import view_of
from tests.support.attempts import attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.timeline import Bar, in_lanes, memory_over_time, timeline, used_share, without_pauses


def bar(start: float, end: float, reserved: float = 1.0, used: float | None = 0.5) -> Bar:
    return Bar("t1", "cpu", 1, "completed", start, end, reserved, used)


def test_there_are_as_many_lanes_as_ran_at_once() -> None:
    placed = in_lanes([bar(0, 4), bar(1, 2), bar(2, 5), bar(3, 6), bar(4, 5)])
    assert [placed_bar.lane for placed_bar in placed] == [0, 1, 1, 2, 0]


def test_memory_is_summed_over_what_runs() -> None:
    steps = memory_over_time([bar(0, 2, 1, 0.5), bar(1, 3, 2, None), bar(2, 3, 1, 1)])
    assert steps == [(0, 1, 0.5), (1, 3, 0.5), (2, 3, 1), (3, 0, 0)]
    assert used_share([bar(0, 2, 1, 0.5), bar(1, 3, 2, None), bar(2, 4, 1, 1)]) == pytest.approx(0.75)


def test_the_time_between_a_study_and_its_resumption_is_left_out() -> None:
    moved, pauses = without_pauses([bar(0, 10), bar(11, 20), bar(3620, 3630), bar(7230, 7240)])
    assert [(moved_bar.start, moved_bar.end) for moved_bar in moved] == [(0, 10), (11, 20), (20, 30), (30, 40)]
    assert pauses == [(20, 3600), (30, 3600)]


def test_a_timeline_has_a_bar_for_each_attempt_on_its_device(study: RecordedStudy) -> None:
    chart = timeline(study)
    assert chart.plot
    traces = [trace for trace in chart.plot.data if trace.type == "bar" and trace.text]
    drawn = [trial_id for trace in traces for trial_id, *_ in trace.customdata]
    assert sorted(drawn) == sorted(row.trial_id for row in study.attempts)
    shown = [trace.name for trace in chart.plot.data if trace.showlegend is not False]
    assert len(shown) == len(set(shown)), "both devices have one legend"
    first, second, _ = chart.caption.splitlines()
    assert first.startswith("cuda:0 (A generated GPU): ") and second.startswith("cuda:1 ")
    assert "of the device's 14 GB were reserved at a time" in first
    retried = sum(row.attempts > 1 for row in study.attempts if row.device == "cuda:0")
    assert f"{retried} attempts after one that had failed" in first
    paused = [replace(row, status="paused") if row.status != "completed" else row for row in study.attempts]
    assert "had failed" not in timeline(replace(study, attempts=paused)).caption


def test_the_unit_of_time_suits_the_longest_device() -> None:
    ends = enumerate((10, 1000))
    rows = [attempt(trial_id=f"t{n}", device=f"cuda:{n}", started_at=0, ended_at=end) for n, end in ends]
    plot = timeline(view_of(rows)).plot
    assert plot and plot.layout.xaxis4.title.text.endswith("placed, min")
