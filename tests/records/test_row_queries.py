"""Conditions, order and columns of results, without a file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attempts import attempt
from tuner.errors import InputError
from tuner.objective import Objective
from tuner.records.ranking import best_first
from tuner.records.row_queries import (
    Order,
    default_columns,
    find_column,
    head,
    parse_columns,
    parse_order,
    parse_where,
    sort_rows,
    varying,
)
from tuner.values import Label, split_conditions

COLUMNS = [
    "study",
    "name",
    "status",
    "val_rmse",
    "epochs",
    "duration_s",
    "error",
    "config/hidden_dim",
    "config/epochs",
]


# What the page's conditions are tested with, too.
CASES = [
    ("hidden_dim>=64", {"config/hidden_dim": 64}, True),
    ("hidden_dim > 64", {"config/hidden_dim": 64}, False),
    ("config/hidden_dim<64", {"config/hidden_dim": 9}, True),
    ("hidden_dim==64.0", {"config/hidden_dim": 64}, True),
    ("hidden_dim='64'", {"config/hidden_dim": 64}, True),
    ("epochs=5", {"epochs": 5, "config/epochs": 9}, True),
    ("config/epochs=5", {"epochs": 5, "config/epochs": 9}, False),
    ("seconds<=1.5", {"duration_s": 1.5}, True),
    ("seconds > 1 m", {"duration_s": 61.0}, True),
    ("val_rmse < inf", {"val_rmse": 1.0}, True),
    ("name=32", {"name": "32"}, True),
    ("name=32", {"name": "32.0"}, False),
    ("name<b", {"name": "a"}, True),
    ('name="a == b"', {"name": "a == b"}, True),
    ("name=a b ", {"name": "a b"}, True),
    ("error~MEMORY", {"error": "out of memory"}, True),
    ("hidden_dim~12", {"config/hidden_dim": 128}, True),
    ("hidden_dim<abc", {"config/hidden_dim": 1}, False),
    ("hidden_dim=abc", {"config/hidden_dim": 1}, False),
    ("hidden_dim!=abc", {"config/hidden_dim": 1}, True),
    ("val_rmse!=1", {}, True),
    ("val_rmse=1", {}, False),
    ("val_rmse<1", {}, False),
    ("val_rmse~1", {}, False),
    ('error=""', {}, True),
    ("error==''", {"error": "x"}, False),
    ('error!=""', {"error": "x"}, True),
    ('error!=""', {}, False),
    ('val_rmse<""', {"val_rmse": 1.0}, False),
    ("hidden_dim=false", {"config/hidden_dim": False}, True),
    ("hidden_dim=0", {"config/hidden_dim": False}, False),
    ("hidden_dim!=True", {"config/hidden_dim": False}, True),
    ("hidden_dim=none", {"config/hidden_dim": None}, True),
    ('hidden_dim=""', {"config/hidden_dim": None}, False),
    ('hidden_dim=""', {}, True),
    ("hidden_dim=[64, 32]", {"config/hidden_dim": [64, 32]}, True),
    ("hidden_dim<1", {"config/hidden_dim": False}, False),
    ("hidden_dim=ReLU", {"config/hidden_dim": Label("ReLU")}, True),
    ("hidden_dim=[64,32]", {"config/hidden_dim": [64, 32]}, True),
    ('hidden_dim={"b": 1, "a": [2]}', {"config/hidden_dim": {"a": [2], "b": 1}}, True),
    ("hidden_dim~1e-05", {"config/hidden_dim": 1e-5}, True),
    ("hidden_dim~1.0", {"config/hidden_dim": 1.0}, True),
    ("hidden_dim~1.0", {"config/hidden_dim": 1}, False),
    ("hidden_dim>=1e-5", {"config/hidden_dim": 1e-5}, True),
    ("hidden_dim>1K", {"config/hidden_dim": 1024}, True),
    ("hidden_dim=007", {"config/hidden_dim": "007"}, True),
    ("hidden_dim=stra\u00dfe", {"config/hidden_dim": Label("STRASSE")}, False),
    ("error~STRASSE", {"error": "stra\u00dfe"}, True),
    ("error~\u03a3", {"error": "\u03b1\u03c2"}, True),
    ("hidden_dim=[1, 2.0]", {"config/hidden_dim": [1.0, 2]}, True),
    ('hidden_dim={"a": 1}', {"config/hidden_dim": {"a": 1.0}}, True),
    ("hidden_dim=[true]", {"config/hidden_dim": [1]}, False),
    ("hidden_dim=18446744073709551616", {"config/hidden_dim": 2**64 - 1}, False),
    ("hidden_dim>9007199254740992", {"config/hidden_dim": 2**53 + 1}, True),
    ("hidden_dim=1\u0663", {"config/hidden_dim": 13}, False),
    ("hidden_dim=(1, 2)", {"config/hidden_dim": (1, 2)}, True),
    ("hidden_dim<-.5e-3", {"config/hidden_dim": -0.001}, True),
]


@pytest.mark.parametrize(("text", "values", "holds"), CASES)
def test_a_condition_compares_a_column_with_a_value(text: str, values: dict[str, Any], holds: bool) -> None:
    condition = parse_where(text, COLUMNS)
    assert condition.holds(attempt(**values).value(condition.name, "")) is holds


WRONG = ["hidden_dim", "", "=5", "epochs=", "epochs=>5", "epochs===5", "epochs<>5", "name='a", "epochs >"]
JOINED = [
    ("lr<0.01 and width=64", ["lr<0.01", "width=64"]),
    ("a=1  and b!=2 and c~x", ["a=1", "b!=2", "c~x"]),
    ("error~rock and roll and a=1", ["error~rock and roll", "a=1"]),
    ('error~"a and b=c" and d=1', ['error~"a and b=c"', "d=1"]),
    ("error~'a and b=c'", ["error~'a and b=c'"]),
    ("words and more", ["words and more"]),
]


@pytest.mark.parametrize(("text", "parts"), JOINED)
def test_and_joins_conditions_and_belongs_to_a_value_elsewhere(text: str, parts: list[str]) -> None:
    assert split_conditions(text) == parts


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_comparison_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r'^where=.*: expected a name, .* such as "hidden_dim>=64"'):
        parse_where(text, COLUMNS)


def test_a_condition_is_never_executed() -> None:
    with pytest.raises(InputError, match=r'no column "__import__\('):
        parse_where("__import__('os').getcwd()=5", COLUMNS)


def test_an_unknown_column_is_told_with_those_that_are_close() -> None:
    with pytest.raises(InputError, match=r"^where='hiden_dim>3': no column 'hiden_dim': did you mean hidden_dim\?$"):
        parse_where("hiden_dim>3", COLUMNS)
    with pytest.raises(InputError, match=r"^sort='-xyz': no column 'xyz': there are study, name"):
        parse_order("-xyz", COLUMNS)
    with pytest.raises(InputError, match=r"^columns: no column 'stat': did you mean status\?$"):
        parse_columns("name,stat", COLUMNS)


@pytest.mark.parametrize("column", [*COLUMNS, "config/seconds"])
def test_what_a_head_says_is_a_name_of_its_column(column: str) -> None:
    known = [*COLUMNS, "config/seconds"]
    assert find_column(head(column, known), known, "--sort") == column


def test_heads_are_short_where_that_tells_columns_apart() -> None:
    heads = [head(column, COLUMNS) for column in COLUMNS[-4:]]
    assert heads == ["seconds", "error", "hidden_dim", "config/epochs"]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("hidden_dim", Order("config/hidden_dim")),
        ("-seconds", Order("duration_s", descending=True)),
        ("epochs:desc", Order("epochs", descending=True)),
        ("epochs:asc", Order("epochs")),
    ],
)
def test_an_order_is_a_column_and_a_direction(text: str, order: Order) -> None:
    assert parse_order(text, COLUMNS) == order


def test_another_direction_is_refused() -> None:
    with pytest.raises(InputError, match="sort='epochs:down': expected COLUMN, -COLUMN"):
        parse_order("epochs:down", COLUMNS)


def test_columns_are_asked_for_in_a_text_or_a_list_each_once() -> None:
    expected = ["name", "config/hidden_dim", "duration_s"]
    assert parse_columns("name, hidden_dim,seconds,name", COLUMNS) == expected
    assert parse_columns(["name", "hidden_dim", "duration_s"], COLUMNS) == expected
    for names in (" ,", "name,,seed", "name,", []):
        with pytest.raises(InputError, match=r"columns=.*: expected names with commas"):
            parse_columns(names, COLUMNS)


def test_rows_are_sorted_by_several_columns_and_what_is_missing_comes_last() -> None:
    configs = [{"a": 2}, {"a": 1}, {}, {"a": 2, "b": "x"}, {"a": "text"}]
    rows = [
        attempt(seed=number, **{f"config/{key}": value for key, value in config.items()})
        for number, config in enumerate(configs, 1)
    ]
    a, b = Order("config/a"), Order("config/b")
    assert [row.seed for row in sort_rows(rows, [a, b])] == [2, 4, 1, 5, 3]
    assert [row.seed for row in sort_rows(rows, [Order("config/a", descending=True)])] == [5, 1, 4, 2, 3]
    assert sort_rows(rows, []) == rows


def test_the_best_of_each_workload_come_first_and_then_what_did_not_complete() -> None:
    rows = [
        attempt(name="worse", val=2.0),
        attempt(name="failed", status="failed"),
        attempt(name="other", workload="b", loss=1.0),
        attempt(name="better", val=1.0),
        attempt(name="none"),
    ]
    found = best_first(rows, {"b": Objective("loss"), "toy": Objective("val")})
    assert [row.name for row in found] == ["other", "better", "worse", "none", "failed"]


def test_the_default_columns_are_what_came_out_and_what_differs() -> None:
    common = {"seed": 1, "attempts": 1, "val_rmse": 1.0, "config/epochs": 3}
    columns = ["seed", "attempts", "error", "config/hidden_dim", "config/epochs"]
    rows = [attempt(**common, **{"config/hidden_dim": width}) for width in (1, 2)]
    came_out = ["epochs", "duration_s", "estimated_memory_gb", "peak_memory_gb"]
    assert default_columns(rows, columns, Objective("val_rmse")) == [
        "name",
        "status",
        "val_rmse",
        *came_out,
        "config/hidden_dim",
    ]
    rows = [attempt(seed=1, error="x", study="a"), attempt(seed=2, attempts=2, test_rmse=1.0, study="b")]
    told = ["study", "name", "seed", "status", "attempts", "test_rmse", *came_out, "error"]
    assert default_columns(rows, columns, Objective("val_rmse")) == told


def test_hyperparameters_with_more_than_one_value_vary_and_the_seed_does_not() -> None:
    rows = [attempt(**{"seed": seed, "config/width": seed, "config/depth": 3}) for seed in (0, 1)]
    assert varying(rows) == ["config/width"]
