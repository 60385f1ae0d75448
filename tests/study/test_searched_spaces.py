"""From the options of a space to what is tried, and back from a study's folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.toy import Batched, Toy
from tuner.errors import InputError, spelled
from tuner.records.study_record import UNKNOWN, StudyRecord
from tuner.search.spaces import parse_space
from tuner.spec.searched import choose_searched, with_search
from tuner.spec.settings import Settings
from tuner.spec.stored_options import CALL, needs_objects, resumed, to_stored, unlike
from tuner.trial import Configuration
from tuner.values import Label
from tuner.workloads.program import arguments


class Opened(Toy):
    """Takes any key."""

    name: ClassVar[str] = "opened"
    schema = None  # type: ignore[assignment]


CONDITIONAL: dict[str, Any] = {
    "fault": {"choice": [0, 4]},
    "weight_decay": {"uniform": [0.1, 0.5], "step": 0.1, "if": {"fault": 4}},
}


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({"space": {"lr": {"choice": [0.1, 0.2]}}}, "grid"),
        ({"space": {"lr": {"choice": [0.1, 0.2]}}, "num_samples": 1}, "random"),
        ({"space": {"lr": {"uniform": [0.1, 0.2]}}}, "random"),
        ({"space": {"model": {"lr": {"uniform": [0.1, 0.2]}}}}, "random"),
        ({"config": {"space": {"lr": 0.1}}}, "grid"),
        ({"config": [{"lr": 0.1}]}, None),
        ({"space": {"lr": {"uniform": [0.1, 0.2]}}, "search": "optuna"}, "tpe"),
        ({"space": {"lr": {"grid_search": [0.1, 0.2]}}}, "grid"),
        ({"space": {"lr": {"grid_search": [0.1, 0.2]}, "fault": {"choice": [0, 1]}}}, "random"),
    ],
)
def test_a_space_has_a_search_that_goes_with_it(options: dict[str, Any], search: str | None) -> None:
    assert with_search(Settings(**options)).search == search


def test_a_range_without_a_number_of_samples_asks_for_it() -> None:
    settings = with_search(Settings(workload=Toy(), space={"lr": {"uniform": [0.1, 0.2]}}))
    with pytest.raises(InputError, match="search='random': say by num_samples how many"):
        choose_searched(settings, UNKNOWN)


def test_a_workload_takes_its_default_where_a_condition_does_not_hold() -> None:
    (choice,) = choose_searched(Settings(workload=Toy(), space=CONDITIONAL, search="grid"), UNKNOWN).selections
    found = [(one.values["fault"], one.values["weight_decay"]) for one in choice.configurations]
    assert found == [(0, 0.0), (4, 0.1), (4, 0.2), (4, 0.3), (4, 0.4), (4, 0.5)]
    assert choice.configurations[0].name == "fault=0"


def test_a_trainable_without_a_schema_lacks_it_there() -> None:
    settings = Settings(workload=Opened(), space={**CONDITIONAL, "m": {"act": {"choice": [None]}}}, search="grid")
    (choice,) = choose_searched(settings, UNKNOWN).selections
    assert [dict(one.values) for one in choice.configurations][:2] == [
        {"fault": 0, "m.act": None},
        {"fault": 4, "weight_decay": 0.1, "m.act": None},
    ]


@pytest.mark.parametrize("fixed", ["overrides", "defaults"])
def test_a_condition_may_name_what_is_fixed(fixed: str) -> None:
    space = {"weight_decay": CONDITIONAL["weight_decay"], "fault": {"choice": [0, 4]}}
    options: dict[str, Any] = {"config": {"space": space}, "overrides": ("fault=4",)}
    if fixed == "defaults":
        options = {"config": {"space": {"weight_decay": space["weight_decay"]}, "defaults": {"fault": 4}}}
    (choice,) = choose_searched(Settings(workload=Toy(), search="grid", **options), UNKNOWN).selections
    assert [one.name for one in choice.configurations] == [f"weight_decay=0.{tenth}" for tenth in range(1, 6)]


@pytest.mark.parametrize("bare", [True, False])
def test_a_file_of_a_space_is_what_its_content_is(tmp_path: Path, bare: bool) -> None:
    file, space = tmp_path / "own.json", {"lr": {"uniform": [0.1, 0.2]}}
    file.write_text(json.dumps(space if bare else {"space": space, "points": [{"lr": 0.15}]}))
    given: dict[str, Any] = {"workload": Toy(), "space": file, "search": "random", "num_samples": 2}
    settings = Settings(**given)
    spec = choose_searched(settings, UNKNOWN)
    (choice,), label = spec.selections, spec.label
    assert label == "random-own"
    assert (choice.configurations[0].values["lr"] == 0.15) is not bare
    assert to_stored(settings)["space"] == json.loads(file.read_text()), "a study does not depend on the file"
    with pytest.raises(InputError, match=r"own.json: lr: 'unifrom' is not a kind of domain: did you mean uniform\?"):
        file.write_text('{"lr": {"unifrom": [0, 1]}}')
        choose_searched(Settings(**given), UNKNOWN)


def test_points_are_tried_first_also_by_a_search_that_goes_on() -> None:
    space, points = {"lr": {"uniform": [0.1, 0.2]}}, [{"lr": 0.15}, {"lr": 0.125}]
    settings = Settings(workload=Toy(), space=space, points=points, search="optuna", num_samples=3)
    for before, expected in (([], [0.15, 0.125]), ([Configuration("suggestion-1", {"lr": 0.15})], [0.125])):
        live = choose_searched(settings, StudyRecord(workload="toy", configurations=before)).search
        for one in before if live else []:
            live.searcher.recall("earlier", one.values)
        asked = [live.searcher.ask(f"t{number}") or {} for number in range(2)] if live else []
        assert [values["lr"] for values in asked][: len(expected)] == expected
    with pytest.raises(InputError, match="points: config has points, too: leave one of them out"):
        content = {"space": space, "points": points}
        choose_searched(Settings(workload=Toy(), config=content, points=points, search="grid"), UNKNOWN)


def kept(space: dict[str, Any]) -> dict[str, Any]:
    """The options of a study with this space, as its folder has them."""
    options: dict[str, Any] = json.loads(json.dumps(to_stored(Settings(space=space))))
    return options


def test_a_space_with_objects_is_resumed_by_the_same_call_alone() -> None:
    space = {"act": {"choice": [None, Toy]}}
    study = StudyRecord(
        workload="opened", command=CALL, options=json.loads(json.dumps(to_stored(Settings(space=space))))
    )
    assert needs_objects(study)
    again = resumed(study, Settings(resume="DIR", space=space))
    assert not unlike(study, again, ("space",))
    with pytest.raises(InputError, match="its space must be given again, as only Python can give it: make the same"):
        resumed(study, Settings(resume="DIR"))
    plain = replace(
        study, options=json.loads(json.dumps(to_stored(Settings(space={"act": {"choice": [None, [1]]}}))))
    )
    assert resumed(plain, Settings(resume="DIR")).space == {"act": {"choice": [None, [1]]}}


@pytest.mark.parametrize("value", [(1, 2), date(2020, 1, 1), Path("/a"), math.nan, {1: 2}])
def test_labels_that_an_earlier_version_kept_are_the_values_that_are_given_again(value: Any) -> None:
    space = {"x": {"choice": ["a", value]}}
    stored = {**kept(space), "space": {"x": {"choice": ["a", {"python object": repr(value)}]}}}
    study = StudyRecord(workload="opened", command=CALL, options=stored)
    again = resumed(study, Settings(resume="DIR", space=space))
    domain = parse_space(again.space, None, "f")["x"]
    config = {"x": Label(repr(value))}
    assert arguments(config, {"x": domain.objects})["x"] == value or value != value
    assert domain.category(config["x"]) is domain.categories[1]
    with pytest.raises(InputError, match="has space="):
        resumed(study, Settings(resume="DIR", space={"x": {"choice": ["a", (3, 4)]}}))


def test_a_resume_refuses_a_mode_beside_a_space_and_cuts_long_values() -> None:
    space = {"x": {"choice": ["a" * 60, "b"]}}
    study = StudyRecord(workload="opened", command=CALL, options={**kept(space), "search": "random"})
    with pytest.raises(InputError, match=r"^mode='quick': DIR has a space: leave it out$"):
        resumed(study, Settings(resume="DIR", mode="quick"))
    with pytest.raises(InputError, match=r"^space=.*…") as found:
        resumed(study, Settings(resume="DIR", space={"x": {"choice": ["c" * 1000]}}))
    assert len(spelled(str(found.value))) < 240


def drawn(number: int, **options: Any) -> list[dict[str, Any]]:
    settings = Settings(workload=Batched(), search="random", num_samples=number, **options)
    (choice,) = choose_searched(settings, UNKNOWN).selections
    return [dict(one.values) for one in choice.configurations]


def test_more_random_samples_only_add_some_and_another_seed_draws_others() -> None:
    space = {"epochs": {"int": [1, 3]}, "lr": {"uniform": [0, 1]}}
    assert drawn(8, space=space)[:3] == drawn(3, space=space) != drawn(3, space=space, seed=1)
    few = drawn(3, space={"epochs": {"int": [1, 3]}})
    assert sorted(values["epochs"] for values in few) == [1, 2, 3], "none is drawn twice"


def test_random_values_that_do_not_go_together_are_drawn_again() -> None:
    found = drawn(4, space={"accumulation": {"choice": [2]}, "batch_size": {"int": [2, 9]}})
    assert sorted(values["batch_size"] for values in found) == [2, 4, 6, 8]
    with pytest.raises(InputError, match=r"none in 1000 draws; reason of the last: .*accumulation 2 does not divide"):
        drawn(2, space={"accumulation": {"choice": [2]}, "batch_size": {"choice": [7, 9]}})


def test_a_list_that_is_one_value_of_a_space_is_said() -> None:
    space = {"hidden": [8, 32], "one": [8], "lr": {"choice": [0.1, 0.2]}}
    spec = choose_searched(with_search(Settings(workload=Opened(), space=space)), UNKNOWN)
    line = "hidden is the list [8, 32] in every trial: {choice: [...]} would try its values one by one"
    assert spec.whole_lists == [line]
