"""Drawn configurations come back from everything that writes or reads them: equal, and with their types."""

from __future__ import annotations

import ast
import json
import random
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest

import tuner
from tests.support.commands import said
from tuner.records.recorded_study import open_study
from tuner.search.plain_values import plain_space
from tuner.study.past_trial import how_to_repeat
from tuner.values import decode, encode, parse, plain, to_text, value_key

OBJECTS: list[Any] = [random.Random, len, np.ones(2), {1, 2}, [np.zeros(1), "x"]]
OTHERS: list[Any] = [
    (1, (2, "a")),
    date(2024, 1, 2),
    Path("a/b"),
    {1: "a"},
    float("inf"),
    {"python tuple": [1], "x.y": 0},
]
SCALARS: list[Any] = [None, True, False, 0, 1, 1.0, -2.5, "", "1", "007", "True", "None", "[64]", 'a"b', "é", 2**70]
KEYS = ("a", "name", "workload", "m.b", "m.c", "values")


def drawn(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(10 if depth < 2 else 6)
    if kind < 6:
        return draw.choice(SCALARS)
    if kind == 6:
        return draw.choice(OBJECTS if depth == 0 else OTHERS)
    if kind == 7:
        return draw.choice(OTHERS)
    inner = [drawn(draw, depth + 1) for _ in range(draw.randrange(3))]
    return inner if kind == 8 else {f"k.{place}": one for place, one in enumerate(inner)}


def listed(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Configurations without groups, which have some of the keys."""
    draw, found = random.Random(seed), {}
    while len(found) < number:
        config = {key: drawn(draw) for key in KEYS if draw.random() < 0.7}
        found[value_key(plain(config))] = config
    return list(found.values())


def flat(config: dict[str, Any], group: str = "") -> dict[str, Any]:
    inner = {f"{group}{key}": value for key, value in config.items() if key != "m"}
    return {**inner, **flat(config["m"], "m.")} if "m" in config else inner


def keys(configs: list[Any]) -> list[str]:
    return sorted(value_key(plain(dict(config))) for config in configs)


@pytest.fixture(scope="module", params=[100, pytest.param(2000, marks=pytest.mark.slow)])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A study of drawn configurations, what was given, and what its function received."""
    given, received = listed(request.param), list[Any]()

    def train(config: dict[str, Any]) -> dict[str, float]:
        received.append(flat(config))
        return {"loss": float(len(received))}

    entries = [
        {"name": f"c{number}"} | {f"config/{key}": value for key, value in config.items()}
        for number, config in enumerate(given)
    ]
    call = {"config": entries, "metric": "loss", "direction": "minimize", "report": False, "in_process": True}
    result = tuner.run(train, **call, memory_gb=1.0, output=tmp_path_factory.mktemp("round") / "out")
    return result, given, received, train


def test_the_function_the_result_and_a_resume_have_the_objects_themselves(study: Any) -> None:
    result, given, received, train = study
    assert [row.status for row in result.trials] == ["completed"] * len(given)
    for found in (received[: len(given)], [row.config for row in result.trials]):
        assert keys(found) == keys(given)
        held = [value for config in found for value in config.values() if callable(value)]
        assert set(held) == {random.Random, len}
    number = len(received)
    again = tuner.run(
        train,
        resume=result,
        report=False,
        config=[
            {"name": f"c{place}"} | {f"config/{key}": value for key, value in config.items()}
            for place, config in enumerate(given)
        ],
    )
    assert len(received) == number, "a resume of an ended study trains nothing"
    assert keys([row.config for row in again.trials]) == keys(given)


def test_the_folder_its_frame_and_its_json_have_values_with_their_types(
    study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result, given, _, _ = study
    assert keys([row.config for row in open_study(result.folder).rows]) == keys(given)
    table = tuner.results(result.folder)
    frame = [
        {column[7:]: value for column, value in line.items() if column.startswith("config/") and value is not MISSING}
        for line in table.astype(object)
        .map(lambda value: MISSING if _is_missing(value) else value)
        .to_dict("records")
    ]
    assert keys(frame) == keys(given)
    text = said(capsys, "results", str(result.folder), "--json")
    lines = [
        {key[7:]: decode(value) for key, value in line.items() if key[:7] == "config/"} for line in json.loads(text)
    ]
    known = [{key: value for key, value in config.items() if value is not None} for config in given]
    assert keys([{k: v for k, v in line.items() if v is not None} for line in lines]) == keys(known)


MISSING = object()


def _is_missing(value: Any) -> bool:
    return value is pd.NA or (isinstance(value, float) and value != value)


def test_the_call_that_repeats_a_trial_and_the_texts_of_its_values_mean_it(study: Any) -> None:
    result, given, _, _ = study
    recorded, called = open_study(result.folder), 0
    for row in recorded.rows:
        assert value_key({key: parse(to_text(value)) for key, value in row.config.items() if _is_json(value)}) == (
            value_key({key: value for key, value in row.config.items() if _is_json(value)})
        )
        if all(map(_is_json, row.config.values())):
            text = how_to_repeat(recorded.record, row, result.folder).partition("  #")[0]
            assert value_key(flat(ast.literal_eval(text.removeprefix("train(")[:-1]))) == value_key(dict(row.config))
            called += 1
    assert called > len(given) / 20


def _is_json(value: Any) -> bool:
    return '{"python ' not in json.dumps(encode(value))


def test_optuna_gets_parameters_that_it_takes_and_tells_apart(study: Any, tmp_path: Path) -> None:
    result, given, _, _ = study
    (made,) = tuner.export(result.folder, optuna=f"sqlite:///{tmp_path}/optuna.db")
    exported = optuna.load_study(study_name=made.study_name, storage=made.storage)
    assert len(exported.trials) == len(given)
    rows = {row.trial_id: row for row in result.trials}
    for name in KEYS:
        pairs = {
            (value_key(plain(rows[trial.user_attrs["trial_id"]].config[name])), repr(trial.params[name]))
            for trial in exported.trials
            if name in trial.params
        }
        assert len({value for value, _ in pairs}) == len({text for _, text in pairs}) == len(pairs)


def test_choices_of_a_space_are_tried_as_they_are_by_a_grid_and_by_a_sampler(tmp_path: Path) -> None:
    values = [None, True, 1, "1", 0.5, [64], [64, 32], (1, 2), {"a": 1}, random.Random, len, date(2024, 1, 2)]
    for search, number in (("grid", None), ("tpe", 60), ("random", len(values))):
        received = list[Any]()

        def train(config: dict[str, Any]) -> dict[str, float]:
            received.append(config["x"])  # noqa: B023
            return {"loss": 0.5}

        given = {} if number is None else {"num_samples": number}
        folder = tmp_path / search
        call = {"space": {"x": {"choice": values}}, "search": search, "metric": "loss", "direction": "minimize"}
        tuner.run(train, **call, **given, output=folder, report=False, in_process=True, memory_gb=1.0)
        assert {value_key(plain(one)) for one in received} == {value_key(plain(one)) for one in values}
        assert {type(one) for one in received} == {type(one) for one in values}
    assert plain_space({"x": {"choice": tuple(values)}}) == {"x": {"choice": values}}
