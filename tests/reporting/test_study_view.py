"""A study as reports see it."""

from __future__ import annotations

from dataclasses import replace

from tuner.reporting.study_view import StudyView


def test_trials_of_several_seeds_are_told_apart_and_all_counted(study: StudyView) -> None:
    known = len(study.record.configurations)
    seeds = replace(study, record=replace(study.record, seed=3, seeds=2), rows=study.rows[:1])
    row = study.rows[0]
    assert seeds.total == 2 * known
    assert seeds.trial_names[row.trial_id].endswith(f"{row.name} (seed {row.seed})")
    assert seeds.trial_names[f"t{known + 1:03d}"] == f"{study.record.configurations[0].name} (seed 4)"
