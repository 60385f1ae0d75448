"""The page's tables."""

from __future__ import annotations

from tuner.records.seed_statistics import averages
from tuner.reporting.page.tables import configurations_table, mean_text
from tuner.reporting.study_view import StudyView
from tuner.trial import Objective


def test_configurations_have_the_means_and_verdicts_that_results_have(seeded: StudyView) -> None:
    table = configurations_table(seeded.rows, Objective("val_loss"), "configurations", "Configurations")
    found = averages(seeded.rows, Objective("val_loss"))
    lines = [line for line in table.splitlines() if line.startswith("<tr")]
    for each, line in zip(found, lines, strict=True):
        assert each.interval
        assert f">{each.name}</th>" in line
        assert f'data-sort="{each.interval.mean}">{mean_text(each.interval)}<td' in line
        assert f">{len(each.values)}/3<td" in line
        assert ("cannot be told from the best" in line) == (each.verdict == "=")
    assert {each.verdict for each in found} == {"best", "=", "worse"}
