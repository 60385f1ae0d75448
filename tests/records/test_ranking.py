"""One rule says which trial is the best, and in which order the others follow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.attempts import attempt
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.ranking import best_of, contenders, ranked
from tuner.trial import FRONT

ACC = Objective("acc", "maximize")
BOTH = Objective("loss", others=(Objective("size"),))


def row(trial_id: str, value: float | None, status: str = "completed", name: str = "", seed: int = 0) -> Attempt:
    return attempt(trial_id=trial_id, name=name or trial_id, seed=seed, status=status, acc=value)


def ids(rows: Sequence[Attempt]) -> str:
    return " ".join(one.trial_id for one in rows)


def seeded(**values: Sequence[float | None]) -> list[Attempt]:
    """A trial for each value, its id the configuration's name and the seed; None is a trial that failed."""
    return [
        row(f"{name}{seed}", value, "failed" if value is None else "completed", name, seed)
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]


def test_completed_trials_come_first_then_those_that_reported_then_the_others() -> None:
    rows = [row("1", None, "failed"), row("2", 0.9, "pruned"), row("3", 0.5), row("4", 0.95, "interrupted")]
    assert ids(ranked(rows, ACC)) == "3 4 2 1"


def test_of_equal_trials_the_one_with_the_lowest_number_is_the_best_whichever_ended_first() -> None:
    assert ids(ranked([row("t1000", 0.5), row("t999", 0.5), row("t1001", 0.6)], ACC)) == "t1001 t999 t1000"


def test_without_a_completed_trial_the_best_of_those_that_reported_is_the_best_and_says_its_status() -> None:
    best = best_of([row("1", 0.7, "pruned"), row("2", 0.8, "interrupted"), row("3", None, "failed")], ACC)
    assert best and (best.trial_id, best.status) == ("2", "interrupted")
    assert best_of([row("3", None, "failed")], ACC) is None


def test_a_trial_that_breaks_a_constraint_is_never_the_best() -> None:
    assert best_of([row("1", 0.9, "infeasible")], ACC) is None
    assert ids(ranked([row("1", 0.9, "infeasible"), row("2", 0.1, "pruned")], ACC)) == "2 1"


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ({"a": (0.8, 0.8), "b": (0.95, 0.1)}, "a0 a1 b0 b1"),
        ({"b": (0.7, 0.9), "a": (0.8, 0.8)}, "a0 a1 b1 b0"),  # the means are equal
        ({"a": (0.9, None), "b": (0.5, 0.6)}, "b1 b0 a0 a1"),  # a has one completed seed
        ({"a": (0.9, None), "b": (0.95, None)}, "b0 a0 a1 b1"),
    ],
)
def test_with_seeds_the_best_trial_is_the_best_seed_of_the_configuration_with_the_best_mean(
    values: dict[str, tuple[float, ...]], order: str
) -> None:
    assert ids(ranked(seeded(**values), ACC)) == order


def test_with_several_objectives_the_best_is_the_first_of_the_first_front() -> None:
    rows = [
        attempt(trial_id=str(number), loss=loss, size=size)
        for number, (loss, size) in enumerate([(3, 1), (1, 3), (2, 2), (3, 3), (1, 3)])
    ]
    order = ranked(rows, BOTH)
    assert (ids(order), [one.metrics[FRONT] for one in order]) == ("1 4 0 2 3", [1, 1, 1, 1, 2])
    best = best_of([attempt(trial_id="5", status="pruned", loss=1, size=3), *rows[3:4]], BOTH)
    assert best and best.trial_id == "3"


def test_of_studies_side_by_side_configurations_of_one_name_have_means_of_their_own() -> None:
    rows = [
        attempt(trial_id=f"{study}{seed}", study=study, name="same", seed=seed, acc=value)
        for study, values in (("a", (0.1, 0.9)), ("b", (0.6, 0.6)))
        for seed, value in enumerate(values)
    ]
    assert ids(ranked(rows, ACC)) == "b0 b1 a1 a0"


def test_the_best_seed_of_each_configuration_whose_seeds_still_run_may_become_the_best() -> None:
    order = ranked(seeded(a=(0.5, 0.5), b=(0.4, 0.45), c=(0.1,), d=(0.2, 0.2)), ACC)
    assert ids(contenders(order, ACC, {"b", "c"})) == "a0 b1 c0"
    assert ids(contenders(order, ACC, ())) == "a0"
    assert ids(contenders([row("1", 0.9, "pruned"), row("2", 0.8, "pruned")], ACC, {"1", "2"})) == "1"
