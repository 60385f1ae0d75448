"""What a page shows of a study."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.reporting.studies import told
from tests.support.generated_study import OBJECTIVES
from tuner.objective import Objective
from tuner.records.epochs import EpochLine
from tuner.records.recorded_study import RecordedStudy
from tuner.records.seed_statistics import averages, summary
from tuner.records.study_record import OPTUNA_CALL
from tuner.reporting.figures.timeline import timeline
from tuner.reporting.page.sections import main_html, running_rows
from tuner.reporting.result_tables import interval_text
from tuner.trial import GB, Configuration


@pytest.fixture
def few(study: RecordedStudy) -> RecordedStudy:
    """A study of two trials, of which little is drawn."""
    return told(study, attempts=study.rows[:2], epochs=[])


def test_an_older_study_gives_a_page_that_says_what_was_not_kept(study: RecordedStudy) -> None:
    attempts = [replace(row, started_at=None, ended_at=None) for row in study.attempts]
    old = told(study, attempts=attempts, epochs=[])
    assert "an earlier version ran it and did not record times" in timeline(old).caption
    text = main_html(old)
    assert "No epoch with a val_loss was recorded" in text
    assert text.count('class="plot"') == 2 + 1 + 1 + 2 + 1 + 1


def test_a_study_of_which_nothing_has_ended_gives_a_page_that_says_so(study: RecordedStudy) -> None:
    text = main_html(told(study, attempts=[], epochs=[]))
    assert text.count('class="plot"') == 0
    for said in (
        "No trial has completed yet",
        "No trial has ended yet",
        "no attempt has ended yet",
        "40, all not started",
    ):
        assert said in text


def test_workloads_have_sections_of_their_own(study: RecordedStudy) -> None:
    error = {"val_error": 0.5}
    other = [replace(row, trial_id=f"u{row.trial_id}", workload="wide", metrics=error) for row in study.rows]
    both = replace(
        study,
        attempts=[*study.attempts, *other],
        objectives={**OBJECTIVES, "wide": Objective("val_error")},
    )
    text = main_html(both)
    for heading in ("Best trial of toy", "Best trial of wide", "Comparison: toy", "Comparison: wide"):
        assert heading in text


def test_the_head_is_the_best_configuration_by_mean_and_the_best_single_trial_has_its_seed(
    seeded: RecordedStudy,
) -> None:
    best, *others = averages(seeded.rows, Objective("val_loss"))
    assert best.verdict == "best"
    assert best.interval
    lucky = seeded.rows[0]
    text = main_html(seeded)
    assert "Best trial" not in text
    assert f'<p class="name">{best.name}</p>' in text
    assert f'<dd class="big">{interval_text(best.interval)}</dd>' in text
    assert f'<p class="finding">{summary([best, *others])}.</p>' in text
    assert f"Its best trial: <strong>{lucky.name} (seed {lucky.seed})</strong>, val_loss" in text


def test_a_single_value_that_is_better_than_the_best_configurations_is_told(seeded: RecordedStudy) -> None:
    assert "may be lucky" not in main_html(seeded)
    lucky = next(row for row in reversed(seeded.rows) if row.status == "completed")
    lowest = min(row.metrics["val_loss"] for row in seeded.rows if row.status == "completed")
    better = replace(lucky, metrics={**lucky.metrics, "val_loss": lowest - 0.001})
    text = main_html(replace(seeded, attempts=[better if row is lucky else row for row in seeded.attempts]))
    found = rf"The best single value, [\d.]+, is that of {lucky.name} \(seed {lucky.seed}\), whose mean is"
    assert re.search(found, text)


def test_seeds_of_one_configuration_are_not_compared(seeded: RecordedStudy) -> None:
    text = main_html(replace(seeded, attempts=[row for row in seeded.rows if row.name == "width-8"]))
    assert "All trials have the same hyperparameters" in text
    assert "Means of 3 of 3 seeds" in text
    assert "cannot be told from the best" not in text


def test_trials_that_have_a_whole_device_but_less_than_they_would_cache_are_named(few: RecordedStudy) -> None:
    plan = replace(few.record.plan, tight=["wide", "<b>"])
    text = main_html(replace(few, record=replace(few.record, plan=plan)))
    assert "wide, &lt;b&gt;: each has a whole device, and runs as the allocator gives back what it caches" in text
    assert "Tight" not in main_html(few)


def test_traces_in_the_folder_are_linked_with_how_to_look_at_them(few: RecordedStudy) -> None:
    text = main_html(told(few, snapshots=["wide.pickle", '<a"b>.pickle']))
    assert '<a href="wide.pickle" download>wide.pickle</a>' in text
    assert '<a href="%3Ca%22b%3E.pickle" download>&lt;a&quot;b&gt;.pickle</a>' in text
    assert "https://docs.pytorch.org/memory_viz" in text
    assert "memory_viz" not in main_html(few)


def test_trials_that_run_are_rows_with_what_they_hold_and_are_counted(study: RecordedStudy) -> None:
    line = {"trial_id": "t041", "attempt": 1, "epoch": 3, "at": 0.0, "metrics": {"val_loss": 1.0}}
    held = EpochLine(**line, device="cuda:1", limit_bytes=2 * GB, memory_bytes=GB)
    planned = [*study.record.configurations, *(Configuration(name, {"lr": 0.5}) for name in ("late", "later"))]
    more = replace(study.record, configurations=planned)
    going = told(study, record=more, epochs=[*study.epochs, held], is_open=True)
    (row,) = running_rows(going)
    assert (row.name, row.epochs, row.device, row.limit_gb, row.peak_memory_gb) == ("late", 3, "cuda:1", 2, 1)
    text = main_html(going)
    assert re.search(r"42: \d+ completed, .*, 1 running, 1 not started", text)
    assert '["t041","late",1.0' in text.replace('["1.0"]', "1.0")
    assert "with trials still to end" in text
    assert "1 interrupted, 1 not started<" in main_html(told(going, epochs=going.epochs)), "its process was killed"


def test_how_it_was_run_has_the_arguments(few: RecordedStudy) -> None:
    text = main_html(replace(few, record=replace(few.record, settings={"num_samples": 40, "space": {"lr": [1]}})))
    assert "<dt>num_samples</dt><dd>40</dd>" in text and "<dt>space</dt><dd>{&quot;lr&quot;: [1]}</dd>" in text


def test_more_seeds_are_advised_only_where_a_study_takes_them(few: RecordedStudy) -> None:
    own = replace(few, record=replace(few.record, command=OPTUNA_CALL))
    suggested = replace(few, record=replace(few.record, settings={"search": "optuna"}))
    said = [main_html(view).count("Resume the study with three seeds") for view in (few, own, suggested)]
    assert said == [1, 0, 0]
