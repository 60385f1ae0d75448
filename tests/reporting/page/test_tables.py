"""The page's tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from tests.reporting.studies import rows_of, view_of
from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.records.recorded_study import RecordedStudy
from tuner.records.seed_statistics import averages
from tuner.reporting.page.sections import main_html
from tuner.reporting.page.tables import configurations_table, most_rows, trials_table
from tuner.reporting.result_tables import interval_text


def rows_in(html: str) -> list[Any]:
    """The rows of the first table."""
    rows: list[Any] = json.loads(re.findall(r'class="rows">(.*?)</script>', html, re.S)[0])["rows"]
    return rows


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: RecordedStudy) -> None:
    table, _ = configurations_table(seeded.rows, Objective("val_loss"), "configurations", "Configurations")
    found = averages(seeded.rows, Objective("val_loss"))
    for average, (_, name, mean, *others) in zip(found, rows_in(table), strict=True):
        assert average.interval
        assert (name, mean) == (average.name, [interval_text(average.interval)])
        assert [f"{len(average.values)}/3"] in others
        assert average.verdict in others
    assert {average.verdict for average in found} == {"best", "=", "worse"}


def test_a_page_lists_the_best_of_many_trials_and_others_by_rank_and_says_how_many() -> None:
    rows = rows_of(val_loss=[*range(12_000)])
    rows = [*rows[:-3000], *(replace(row, status="failed", error="x" * 5000) for row in rows[-3000:])]
    most, text = most_rows(rows), main_html(view_of(rows))
    assert f"{most:,} of 12,000 trials are listed" in text
    listed = rows_in(text)
    assert len(listed) == most < len(rows) and len(json.dumps(listed)) < 4_000_000
    assert [row[0] for row in listed[: most // 2]] == [f"t{number}" for number in range(most // 2)], "the best"
    assert f'"failed">failed ({sum("failed" in row for row in listed)})' in text, "the filter counts what is listed"


def test_a_page_lists_the_best_of_many_configurations_and_says_how_many(seeded: RecordedStudy) -> None:
    rows = [replace(row, name=f"{row.name}-{number}") for row in seeded.rows for number in range(900)]
    table, fewer = configurations_table(rows, Objective("val_loss"), "configurations", "Configurations")
    assert len(rows_in(table)) == most_rows(rows) < 10_800
    assert fewer == f"left out: the {10_800 - most_rows(rows):,} configurations after these"


def test_a_cell_says_how_python_writes_what_a_browser_would_write_otherwise() -> None:
    values = [0.5, 1.0, 7, 2**60, "7", True, None, [64, 32], 1e-05]
    rows = [attempt(trial_id=f"t{number}", **{"config/x": value}) for number, value in enumerate(values)]
    table = trials_table(rows, {"toy": Objective("val_loss")})
    keys = re.findall(r'data-column="([^"]*)"', table)
    assert [row[1 + keys.index("config/x")] for row in rows_in(table)] == [
        0.5,
        ["1.0"],
        7,
        [str(2**60)],
        "7",
        ["True", "true"],
        ["None", "null"],
        ["[64, 32]", "[64, 32]"],
        1e-05,
    ]
