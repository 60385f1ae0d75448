from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.hyperparameters import Hyperparameter
from tuner.search.configurations import Schema, configurations, mode_file, named, read_configs, select
from tuner.trial import Configuration
from tuner.workloads.graphsage.workload import GraphSAGE

SCHEMA = {
    "width": Hyperparameter(64, 1, 512, "channels"),
    "lr": Hyperparameter(0.01, 1e-6, 1.0, "learning rate"),
}


def load(path: Path, schema: Schema) -> list[Configuration]:
    listed, defaults = read_configs(path)
    return configurations(listed, schema, defaults=defaults, source=str(path))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_a_configuration_leaves_out_comes_from_the_file_then_the_schema(tmp_path: Path) -> None:
    path = write(tmp_path, "own.yaml", "defaults: {lr: 1e-3}\nconfigurations: [{name: a, width: 8}, {lr: 0.1}]")
    found = load(path, SCHEMA)
    assert [(one.name, dict(one.values)) for one in found] == [
        ("a", {"width": 8, "lr": 0.001}),
        ("lr=0.1", {"width": 64, "lr": 0.1}),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grid.yaml", "grid: {width: [8, 16], lr: [0.1, 0.2]}"),
        ("grid.toml", "[grid]\nwidth = [8, 16]\nlr = [0.1, 0.2]"),
        ("grid.json", '{"grid": {"width": [8, 16], "lr": [0.1, 0.2]}}'),
    ],
)
def test_a_grid_is_every_combination_in_any_format(tmp_path: Path, name: str, text: str) -> None:
    found = load(write(tmp_path, name, text), SCHEMA)
    assert [tuple(one.values.values()) for one in found] == [(8, 0.1), (8, 0.2), (16, 0.1), (16, 0.2)]
    assert found[0].name == "width=8,lr=0.1"


def test_a_whole_number_is_good_for_a_float_and_becomes_one() -> None:
    (found,) = configurations([{"width": 8.0, "lr": 1}], SCHEMA)
    assert [(type(value), value) for value in found.values.values()] == [(int, 8), (float, 1.0)]


def test_all_faults_are_told_at_once() -> None:
    listed = [
        {"name": "a", "wdth": 8},
        {"name": "b", "width": 0, "lr": "high"},
        {"name": "b", "width": 1.5},
        {"name": "c", "lr": True},
        {"name": "d", "lr": float("nan")},
        7,
    ]
    with pytest.raises(InputError, match="list: ") as caught:
        configurations(listed, SCHEMA, source="list")
    for fault in (
        "a: unknown key 'wdth' (did you mean width?)",
        "b: width = 0 is out of range (allowed: a whole number from 1 to 512)",
        "b: lr = 'high' is not a number (allowed: a number from 1e-06 to 1)",
        "b: width = 1.5 is not allowed",
        "b: this name is used more than once",
        "c: lr = True is not a number",
        "d: lr = nan is not allowed",
        "configuration 6: expected a mapping",
    ):
        assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping"),
        ("- 1", "expected a mapping"),
        ("configurations: []", "empty"),
        ("grid: {width: []}", "no value for width"),
        ("grid: [1]", "'grid' must be a mapping"),
        ("configurations: 3", "expected a list"),
        ("{configurations: [{}], grid: {width: 1}}", "one of 'configurations', 'grid' and 'space'"),
        ("configs: []", "got configs"),
        ("defaults: 3\nconfigurations: [{}]", "'defaults' must be a mapping"),
        ("defaults: {wide: 3}\nconfigurations: [{}]", "defaults: unknown key 'wide'"),
        ("a: b: c", "cannot be parsed"),
        ("configurations: !!python/object/apply:os.getcwd []", "cannot be parsed"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(write(tmp_path, "own.yaml", text), SCHEMA)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_kind_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.yaml: No such file"):
        load(tmp_path / "gone.yaml", SCHEMA)
    with pytest.raises(InputError, match=r"unknown kind of file '\.ini'"):
        load(write(tmp_path, "own.ini", "x"), SCHEMA)


def test_the_known_modes_are_told() -> None:
    with pytest.raises(InputError, match="architecture, full, learning, quick, regularization"):
        mode_file("graphsage", "speed")


@pytest.mark.parametrize("mode", ["architecture", "full", "learning", "quick", "regularization"])
def test_every_mode_of_graphsage_is_valid(mode: str) -> None:
    assert len(load(mode_file("graphsage", mode), GraphSAGE.hyperparameters)) >= 2


def test_the_architecture_mode_holds_the_known_architectures() -> None:
    found = load(mode_file("graphsage", "architecture"), GraphSAGE.hyperparameters)
    shapes = {(one.values["hidden_dim"], one.values["num_layers"]) for one in found}
    assert shapes >= {(32, 2), (64, 2), (128, 2), (256, 2), (64, 3), (64, 4), (128, 3), (256, 4)}


def test_one_or_the_first_few_can_be_selected() -> None:
    found = {"toy": configurations([{"name": name} for name in "abc"], SCHEMA)}
    assert [one.name for one in select(found, limit=2)["toy"]] == ["a", "b"]
    assert [one.name for one in select(found, only="c")["toy"]] == ["c"]
    with pytest.raises(InputError, match="called 'd': choose one of a, b, c"):
        select(found, only="d")
    with pytest.raises(InputError, match="limit=0"):
        select(found, limit=0)


def test_names_have_the_keys_that_vary() -> None:
    rows = [{"epochs": 20, "lr": lr, "size": 8} for lr in (0.1, 0.2)]
    assert [one.name for one in named(rows)] == ["lr=0.1", "lr=0.2"]
    assert [one.name for one in named(rows[:1])] == ["epochs=20,lr=0.1,size=8"]
