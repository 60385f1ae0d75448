"""How much each hyperparameter matters."""

from __future__ import annotations

from random import Random

import pytest

from tests.reporting.studies import rows_of
from tuner.errors import InputError
from tuner.records.attempts import Attempt
from tuner.reporting import importance
from tuner.reporting.importance import importances, judged
from tuner.trial import Objective

LOSS = Objective("val_loss")


def of_two(count: int) -> list[Attempt]:
    """Rows whose metric is that of ``lr``, with a little of ``width`` in it."""
    draw = Random(1)
    lr, width = ([draw.random() for _ in range(count)] for _ in range(2))
    return rows_of(width=width, lr=lr, val_loss=[a + 0.05 * b for a, b in zip(lr, width, strict=True)])


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_what_decides_the_metric_comes_first_whichever_way_is_better(direction: str) -> None:
    first, second = importances(of_two(60), ["width", "lr"], Objective("val_loss", direction), {})
    assert (first.key, second.key) == ("lr", "width")
    assert first.share > 0.7 and first.share + second.share == pytest.approx(1)
    assert 0 <= second.low <= second.share <= second.high < first.low, "resamples agree"


def test_the_same_trials_give_the_same_figures() -> None:
    rows = of_two(20)
    assert importances(rows, ["width", "lr"], LOSS, {}) == importances(rows, ["width", "lr"], LOSS, {})


@pytest.mark.parametrize(
    ("rows", "keys", "why"),
    [
        (of_two(9), ["width", "lr"], "9 completed trials are too few to judge, at least 10 are needed"),
        (of_two(20), ["lr"], "fewer than two hyperparameters vary"),
        (rows_of(a=range(10), b=range(10), val_loss=[1.0] * 10), ["a", "b"], "trials have the same val_loss"),
    ],
)
def test_what_cannot_be_judged_says_why(rows: list[Attempt], keys: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        importances(rows, keys, LOSS, {})


def test_what_optuna_raises_is_told_in_place_of_the_importance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "_evaluator", lambda: 1 / 0)
    with pytest.raises(InputError, match="Optuna could not compute it: ZeroDivisionError"):
        importances(of_two(20), ["width", "lr"], LOSS, {})


def test_of_too_many_trials_for_ten_resamples_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "RESAMPLED", 199)
    assert all(each.low == each.share == each.high for each in importances(of_two(20), ["width", "lr"], LOSS, {}))
    monkeypatch.setattr(importance, "RESAMPLED", 200)
    assert all(each.low < each.high for each in importances(of_two(20), ["width", "lr"], LOSS, {}))


def test_a_hyperparameter_that_some_trials_lack_is_not_judged() -> None:
    rows = rows_of(a=[1, 2], b=[1, None], val_loss=[1.0, 2.0])
    assert judged(rows, ["config/a", "config/b"]) == ["a"]
