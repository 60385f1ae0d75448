"""Estimates against peaks."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.reporting.studies import points
from tuner.reporting.figures.estimates import estimate_against_peak
from tuner.reporting.study_view import StudyView


def test_estimates_are_judged_only_where_some_were_made(study: StudyView) -> None:
    chart = estimate_against_peak(study)
    completed = [row for row in study.rows if row.status == "completed"]
    assert len(points(chart, "markers").x) == len(completed)
    assert re.search(r"off by \d\.\d% at the median", chart.caption)
    given = replace(study, record=replace(study.record, settings={"auto_memory": False, "model_memory_gb": 2.0}))
    assert estimate_against_peak(given).caption.startswith("No memory was estimated: each was given 2.0 GB")


def test_the_shares_of_first_trials_are_no_estimates(study: StudyView) -> None:
    completed = [row for row in study.rows if row.status == "completed"]
    first = {row.estimated_memory_gb for row in completed[:2]}
    view = replace(study, record=replace(study.record, plan=replace(study.record.plan, first_shares_gb=[*first])))
    others = sum(row.estimated_memory_gb not in first for row in completed)
    chart = estimate_against_peak(view)
    assert 0 < others < len(completed)
    assert (len(points(chart, "markers").x), f" of {others} under the peak" in chart.caption) == (others, True)
