"""Several studies on one page."""

from __future__ import annotations

from dataclasses import replace

from tuner.objective import Objective
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.page.side_by_side import side_by_side_html


def test_studies_have_a_column_each_and_common_plots(study: RecordedStudy, seeded: RecordedStudy) -> None:
    text = side_by_side_html({"forty": study, "seeded": seeded}, ["forty/report.html", ""])
    assert '<th scope="col">forty</th><th scope="col">seeded</th>' in text
    assert '<a href="forty/report.html">its page</a></td><td>not written' in text
    assert text.count('class="plot"') == 2


def test_what_differs_is_listed_and_what_is_the_same_is_not(study: RecordedStudy) -> None:
    other = replace(study, record=replace(study.record, settings={"auto_memory": True, "epochs": 5}, revision="abc"))
    differs = side_by_side_html({"a": study, "b": other}, ["", ""]).partition('id="differs"')[2]
    assert '<th scope="row">epochs</th><td>–</td><td>5</td>' in differs
    assert "code revision" in differs and "auto_memory" not in differs


def test_studies_of_other_data_are_to_be_compared_with_care(study: RecordedStudy) -> None:
    first, other = (
        replace(study, record=replace(study.record, fingerprint=fingerprint)) for fingerprint in ("a", "b")
    )
    assert "Compare with care: the data, or their split, differ" in side_by_side_html(
        {"a": first, "b": other}, ["", ""]
    )
    assert "Compare with care" not in side_by_side_html({"a": first, "b": first}, ["", ""])


def test_names_of_workloads_and_metrics_are_text_in_headings_ids_too(study: RecordedStudy) -> None:
    nasty = '"><img src=x>'
    other = replace(study, objectives={nasty: Objective(nasty)})
    text = side_by_side_html({"a": other, "b": other}, ["", ""])
    assert "<img" not in text and 'aria-labelledby="common-0"' in text
