"""The page's tables."""

from __future__ import annotations

from tuner.records.seed_statistics import averages
from tuner.reporting.page.tables import configurations_table
from tuner.reporting.result_tables import interval_text
from tuner.reporting.study_view import StudyView
from tuner.trial import Objective


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: StudyView) -> None:
    table = configurations_table(seeded.rows, Objective("val_loss"), "configurations", "Configurations")
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
