"""How sure the first place is."""

from __future__ import annotations

from dataclasses import replace

from tests.reporting.studies import rows_of
from tuner.objective import Objective
from tuner.records.epochs import EpochLine
from tuner.reporting.page.standing import standing

LOSS = Objective("val_loss")


def test_a_lead_is_compared_with_that_over_the_median_trial() -> None:
    first, chance = standing(rows_of(val_loss=[0.5, 0.51, 0.7, 0.9, 1.0]), LOSS, "Train more.")
    assert first == "It is 0.01 better than n1, the second best, and 0.2 better than the median trial."
    assert chance.startswith(
        "Each configuration has one seed, so nothing here tells how much of this lead is chance."
    )
    assert chance.endswith("Train more.")


def test_a_lead_is_compared_with_how_much_the_best_trial_moved_between_its_last_epochs() -> None:
    values = [5.0, 1.0, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5]
    curve = {
        epoch: EpochLine(trial_id="t0", attempt=1, epoch=epoch, at=0.0, metrics={"val_loss": value})
        for epoch, value in enumerate(values, 1)
    }
    _, chance, *_ = standing(rows_of(val_loss=[0.5, 0.51, 0.7, 0.9]), LOSS, "", curve=curve)
    said = "it is less than the 0.1 by which its val_loss changed between its last epochs (median of 5)."
    assert chance == f"Each configuration has one seed, so how much of this lead is chance is not known; {said}"


def test_more_is_better_where_that_is_so_and_equals_are_level() -> None:
    rows = rows_of(val_accuracy=[0.9, 0.8, 0.7, 0.5])
    first, _ = standing(rows, Objective("val_accuracy", "maximize"), "")
    assert first == "It is 0.1 better than n1, the second best, and 0.15 better than the median trial."
    assert standing(rows_of(val_loss=[1.0, 1.0, 2.0]), LOSS, "")[0] == "It is as good as n1."


def test_of_fewer_than_four_trials_the_lead_is_not_compared_as_the_second_makes_the_median() -> None:
    assert standing(rows_of(val_loss=[1.0, 1.5, 2.0]), LOSS, "")[0] == "It is 0.5 better than n1, the second best."


def test_trials_that_are_near_the_best_are_counted() -> None:
    rows = rows_of(val_loss=[1.0, 1.001, 1.002, 2.0, 2.0, 2.0])
    assert standing(rows, LOSS, "")[0].endswith("2 trials are within 0.0250 of it.")


def test_the_best_of_many_was_lucky_and_a_test_metric_is_told() -> None:
    rows = rows_of(val_loss=[number / 10 for number in range(10)])
    said = "It is the best of 10 by val_loss, and such a choice favours luck"
    assert standing(rows, LOSS, "")[-1] == f"{said}: with another seed its value may well be worse."
    rows = [replace(row, metrics={**row.metrics, "test_loss": row.number("val_loss") + 1}) for row in rows]
    told = "; its test_loss, by which nothing was chosen, is 1, and 1.5 in the median of the others."
    assert standing(rows, LOSS, "")[-1] == said + told


def test_a_single_trial_leads_nobody_and_a_workloads_caution_is_told() -> None:
    assert standing(rows_of(val_loss=[1.0]), LOSS, "", "few ratings") == []
    assert standing(rows_of(val_loss=[1.0, 2.0]), LOSS, "", "few ratings")[-1] == "Caution: few ratings."


def test_nothing_is_said_of_a_lead_by_several_objectives_as_the_second_may_be_better_in_one() -> None:
    both = Objective("val_loss", others=(Objective("size"),))
    assert standing(rows_of(val_loss=[1.0, 0.5]), both, "Train more.", "few ratings") == ["Caution: few ratings."]


def test_a_test_metric_of_zero_is_told_too() -> None:
    rows = [replace(row, metrics={**row.metrics, "test_loss": 0.0}) for row in rows_of(val_loss=[0.1] * 10)]
    assert standing(rows, LOSS, "")[-1].endswith(
        "its test_loss, by which nothing was chosen, is 0, and 0 in the median of the others."
    )
