"""The page's tables."""

from __future__ import annotations

from dataclasses import replace

from tests.reporting.studies import rows_of, view_of
from tuner.objective import Objective
from tuner.records.recorded_study import RecordedStudy
from tuner.records.seed_statistics import averages
from tuner.reporting.page.sections import _trials
from tuner.reporting.page.tables import configurations_table, most_rows
from tuner.reporting.result_tables import interval_text


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: RecordedStudy) -> None:
    table, _ = configurations_table(seeded.rows, Objective("val_loss"), "configurations", "Configurations")
    found = averages(seeded.rows, Objective("val_loss"))
    lines = [line for line in table.splitlines() if line.startswith("<tr")]
    for average, line in zip(found, lines, strict=True):
        assert average.interval
        assert f">{average.name}</th>" in line
        text = interval_text(average.interval)
        assert f'data-sort="{text.split()[0]}">{text}<td' in line
        assert f">{len(average.values)}/3<td" in line
        assert f">{average.verdict}<td" in line
    assert {average.verdict for average in found} == {"best", "=", "worse"}


def test_a_page_lists_the_best_of_many_trials_and_others_by_rank_and_says_how_many() -> None:
    rows = rows_of(val_loss=[*range(12_000)])
    rows = [*rows[:-3000], *(replace(row, status="failed", error="x" * 5000) for row in rows[-3000:])]
    most, text = most_rows(rows), _trials(view_of(rows))
    assert f"{most:,} of 12,000 trials are listed" in text
    assert text.count("<tr data-trial") == most < len(rows) and len(text) < 4_000_000
    assert all(f'data-trial="t{number}"' in text for number in range(most // 2)), "the best"
    assert f'"failed">failed ({text.count(">failed</span><td")})' in text, "the filter counts what is listed"


def test_a_page_lists_the_best_of_many_configurations_and_says_how_many(seeded: RecordedStudy) -> None:
    rows = [replace(row, name=f"{row.name}-{number}") for row in seeded.rows for number in range(300)]
    table, fewer = configurations_table(rows, Objective("val_loss"), "configurations", "Configurations")
    assert table.count("<tr data-trial") == most_rows(rows) < 3600
    assert fewer == f"left out: the {3600 - most_rows(rows):,} configurations after these"
