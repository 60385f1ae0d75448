from __future__ import annotations

import json
import math
from datetime import date, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tuner.values import Label, categories, decode, encode, has_objects, label, parse, plain, to_text, value_key

VALUES: list[Any] = [
    *(None, True, False, 1, 1.0, -0.0, "1", "", "true", "007", "[64]", '"a"', 10**30, 1e300, math.inf),
    *([64, [None, "a"]], [], {}, {"a": {"b": 1}}, {1: "a"}, {"python object": "x"}, (1, (2,)), (), [True]),
    *(date(2024, 1, 2), datetime(2024, 1, 2, 3, 4), Path("a/b"), Label("ReLU"), [Label("ReLU"), 64]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_from_json_and_from_its_text(value: Any) -> None:
    written = json.dumps(encode(value), allow_nan=False)
    for found in (decode(json.loads(written)), value if isinstance(value, Label) else parse(to_text(value))):
        assert found == value and type(found) is type(value)
        assert value_key(found) == value_key(value)
    assert plain(value) is value or plain(value) == value


def test_values_that_are_equal_but_of_other_types_have_other_keys() -> None:
    keys = [value_key(value) for value in VALUES]
    assert len(set(keys)) == len(VALUES)
    assert value_key({"a": 1, "b": 2}) == value_key({"b": 2, "a": 1})


def test_numbers_of_numpy_are_pythons_and_objects_are_labels() -> None:
    assert [type(plain(value)) for value in (np.float64(1), np.int64(1), np.bool_(True))] == [float, int, bool]
    assert plain([Random, (np.int64(1),)]) == ["Random", (1,)]
    assert type(plain(np.ones(2))) is Label and plain(np.ones(2)) == "array([1., 1.])"
    assert has_objects(encode({"a": [Random]})) and not has_objects(encode({"a": [None, (1,)]}))


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("1e-3", 0.001), (".5", 0.5), ("2.", 2.0), ("12e5", 12e5), ("false", False)]
    + [("None", None), ("[1, 2]", [1, 2]), ('"64"', "64"), ("{bad", "{bad"), ("9" * 5000, "9" * 5000)]
    + [(text, text) for text in ("nan", "inf", "1_000", "64x2", "007", "", "1e999")],
)
def test_a_text_means_what_people_mean_by_it(text: str, value: object) -> None:
    assert (parse(text), type(parse(text))) == (value, type(value))


def test_labels_are_for_people() -> None:
    shown = [Random, [64, "a"], {"a": None}, Path("x"), date(2024, 1, 2), math.cos, (1,)]
    assert list(map(label, shown)) == ["Random", "[64, 'a']", "{'a': None}", "x", "2024-01-02", "cos", "(1,)"]


def test_optuna_gets_what_it_takes_and_what_is_equal_is_told_apart() -> None:
    assert list(categories([None, True, 0.5, "a", [1], Label("f")]).values()) == [None, True, 0.5, "a", "[1]", "f"]
    assert list(categories([True, 1, "true"]).values()) == ["true", "1", '"true"']


def test_a_mark_that_nobody_made_is_refused() -> None:
    for content in ({"python eval": "1"}, {"python date": "x"}, {"python tuple": 3}):
        with pytest.raises(ValueError, match="expected a value, not"):
            decode(content)
