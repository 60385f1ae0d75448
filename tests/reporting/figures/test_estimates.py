"""Estimates against peaks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.reporting.studies import points
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.machine import estimate_against_peak


def test_estimates_are_judged_only_where_some_were_made(study: RecordedStudy) -> None:
    chart = estimate_against_peak(study)
    completed = [row for row in study.rows if row.status == "completed"]
    assert len(points(chart, "markers").x) == len(completed)
    assert re.search(r"off by \d\.\d% at the median", chart.caption)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"model_memory_gb": 2.0}, "2 GB"),
        ({"model_memory_gb": 1.5, "memory_gb": 2.5}, "2.5 GB"),  # of an earlier version, with its default
        ({"memory_gb": {"python object": "<lambda>"}}, "what a function of its configuration says"),
    ],
)
def test_memory_that_was_given_is_no_estimate(study: RecordedStudy, given: dict[str, object], size: str) -> None:
    record = replace(study.record, settings={"auto_memory": False, **given})
    said = estimate_against_peak(replace(study, record=record)).caption
    assert said == f"No memory was estimated: each was given {size}."


def test_the_shares_of_first_trials_are_no_estimates(study: RecordedStudy) -> None:
    completed = [row for row in study.rows if row.status == "completed"]
    first = completed[:2]
    rows = [replace(row, estimated_bytes=None) if row in first else row for row in study.rows]
    others = len(completed) - len(first)
    chart = estimate_against_peak(replace(study, attempts=rows))
    assert 0 < others < len(completed)
    assert (len(points(chart, "markers").x), f" of {others} under the peak" in chart.caption) == (others, True)
