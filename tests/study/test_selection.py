"""From options to workloads, data and configurations."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import attempt
from tests.support.toy import Toy, Wide
from tuner.errors import InputError
from tuner.machine.devices import ram_device
from tuner.records.attempts import Attempt
from tuner.records.study_record import PlanRecord, StudyRecord
from tuner.search import configurations as space
from tuner.spec.listed import choose, chosen_before, parse_data
from tuner.spec.searched import choose_searched
from tuner.spec.settings import Settings
from tuner.spec.stored_options import to_stored
from tuner.study.needs import Needs
from tuner.study.past_trial import how_to_repeat
from tuner.study.planning import to_trials
from tuner.trial import Device
from tuner.workloads.base import BUILT_IN
from tuner.workloads.task import load_tasks

FILE = """
defaults: {lr: 0.5, fault: 3}
configurations:
  - {workload: toy-wide, name: a, width: 2}
  - {workload: toy, name: a}
  - {workload: toy-wide, name: b}
"""


@pytest.fixture(autouse=True)
def _toys_are_built_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(BUILT_IN, "toy", "tests.support.toy:Toy")
    monkeypatch.setitem(BUILT_IN, "toy-wide", "tests.support.toy:Wide")
    monkeypatch.setattr(space, "CONFIG_FOLDERS", (tmp_path / "configs",))
    for folder in ("toy", "toy_wide"):
        (tmp_path / "configs" / folder).mkdir(parents=True)
        (tmp_path / "configs" / folder / "quick.yaml").write_text("configurations: [{name: x}, {name: y, lr: 0.5}]")
    (tmp_path / "configs" / "toy" / "full.yaml").write_text("grid: {lr: [0.1, 0.2]}")


def chosen(text: str = "", folder: Path | None = None, **options: Any) -> dict[str, list[str]]:
    """The names of what is chosen, by workload; ``text`` is the file's."""
    found, _ = given(text, folder, **options)
    return {selection.workload.name: [one.name for one in selection.configurations] for selection in found}


def given(text: str = "", folder: Path | None = None, **options: Any) -> Any:
    if text and folder:
        (folder / "own.yaml").write_text(text)
        options["config"] = str(folder / "own.yaml")
    return choose(Settings.of({"data": "synthetic", **options}), options.get("seed", 0))


def test_a_mode_is_that_of_each_workload() -> None:
    assert chosen(workload="toy") == {"toy": ["x", "y"]}
    assert chosen(workload=("toy-wide", "toy", "toy-wide")) == {"toy-wide": ["x", "y"], "toy": ["x", "y"]}
    assert chosen(workload=("toy-wide", "toy"), limit=1) == {"toy-wide": ["x"], "toy": ["x"]}
    with pytest.raises(InputError, match="unknown mode 'full' of workload toy-wide: choose one of quick"):
        chosen(workload=("toy", "toy-wide"), mode="full")


def test_a_file_says_whose_a_configuration_is(tmp_path: Path) -> None:
    found, label = given(FILE, tmp_path)
    values = {selection.workload.name: [dict(one.values) for one in selection.configurations] for selection in found}
    assert (label, list(values)) == ("own", ["toy-wide", "toy"])
    assert [wide["width"] for wide in values["toy-wide"]] == [2, 4]
    assert values["toy"] == [{"lr": 0.5, "weight_decay": 0.0, "epochs": 3, "fault": 3}]


def test_only_those_of_the_workloads_asked_for_are_taken_from_a_file(tmp_path: Path) -> None:
    assert chosen(FILE, tmp_path, workload="toy") == {"toy": ["a"]}
    assert chosen(FILE, tmp_path, workload=("toy", "toy-wide")) == {"toy": ["a"], "toy-wide": ["a", "b"]}
    assert chosen(FILE, tmp_path, only="a") == {"toy-wide": ["a"], "toy": ["a"]}
    assert chosen(FILE, tmp_path, only="b") == {"toy-wide": ["b"]}


def test_an_entry_without_a_workload_is_for_each_that_is_asked_for(tmp_path: Path) -> None:
    text = "configurations: [{name: all}, {name: one, workload: toy-wide}]"
    expected = {"toy": ["all"], "toy-wide": ["all", "one"]}
    assert chosen(text, tmp_path, workload=("toy", "toy-wide")) == expected
    assert chosen(text, tmp_path) == {"graphsage": ["all"], "toy-wide": ["one"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "grid: {workload: [toy, toy-wide], lr: [0.1, 0.2]}",
            {"toy": ["lr=0.1", "lr=0.2"], "toy-wide": ["lr=0.1", "lr=0.2"]},
        ),
        ("{defaults: {workload: toy}, configurations: [{lr: 0.1}]}", {"toy": ["lr=0.1"]}),
        ("{defaults: {workload: toy}, grid: {width: 3, workload: toy-wide}}", {"toy-wide": ["width=3"]}),
    ],
)
def test_grids_and_defaults_may_name_workloads(tmp_path: Path, text: str, expected: dict[str, list[str]]) -> None:
    assert chosen(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("configurations: [{workload: toi}]", {}, "own.yaml: unknown workload 'toi': choose one of graphsage"),
        ("configurations: [{workload: [toy]}]", {}, r"unknown workload .*\['toy'\]"),
        (FILE, {"workload": "graphsage"}, "own.yaml: no configuration is of workload 'graphsage'"),
        (FILE, {"only": "z"}, "no configuration is called 'z': choose one of a, b"),
        (FILE, {"workload": "toi"}, "^unknown workload 'toi'"),
        (FILE.replace("fault:", "fold:"), {}, "own.yaml: defaults: unknown key 'fold'"),
        ("configurations: [{workload: toy, width: 2}]", {}, "unknown key 'width'"),
        (
            "configurations: [{workload: toy, name: a}, {workload: toy, name: a}]",
            {},
            "a: this configuration occurs more",
        ),
        ("{defaults: {workload: toy}, configurations: []}", {}, "the list of configurations is empty"),
        ("{defaults: {workload: toy}, configurations: [3]}", {}, "configuration 1: expected a mapping"),
        (FILE, {"data": {"toi": "x"}}, "data='toi=x': no trial is of that workload; they are of toy-wide, toy"),
    ],
)
def test_what_cannot_be_chosen_is_refused(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        given(text, tmp_path, **options)


def test_an_override_is_for_the_workloads_that_have_its_key() -> None:
    found, _ = given(workload=("toy", "toy-wide"), overrides=("width=7", "lr=0.25"))
    toy, wide = (selection.configurations[0].values for selection in found)
    assert (toy["lr"], wide["lr"], wide["width"], "width" in toy) == (0.25, 0.25, 7, False)
    with pytest.raises(InputError, match=r"overrides: .*unknown key 'depth'"):
        given(workload=("toy", "toy-wide"), overrides=("depth=7",))
    with pytest.raises(InputError, match=r"overrides: .*width = 99 is out of range"):
        given(workload=("toy", "toy-wide"), overrides=("width=99",))


@pytest.mark.parametrize(
    ("texts", "meant"),
    [
        ((), ""),
        (("my.models:MLP=here",), {"my.models:MLP": "here"}),
        (("folder",), "folder"),
        (("lr=0.1/folder",), "lr=0.1/folder"),
        (("toy=a=b", "toy-wide=ml-100k"), {"toy": "a=b", "toy-wide": "ml-100k"}),
        (("toy-wide=x",), {"toy-wide": "x"}),
    ],
)
def test_data_are_for_all_workloads_or_for_each_that_is_named(texts: tuple[str, ...], meant: object) -> None:
    assert parse_data(texts) == meant


@pytest.mark.parametrize("texts", [("a", "b"), ("a", "toy=b"), ("toy=a", "toy=b")])
def test_more_than_one_source_for_a_workload_is_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"data={texts[0]!r} data={texts[1]!r}: give one for all, or one WORKLOAD="):
        parse_data(texts)


@pytest.mark.parametrize(
    ("data", "sources"),
    [
        ("here", {"toy": "here", "toy-wide": "here"}),
        ({"toy-wide": "there"}, {"toy": "", "toy-wide": "there"}),
    ],
)
def test_each_workload_loads_its_own_data(
    monkeypatch: pytest.MonkeyPatch, data: str | dict[str, str], sources: dict[str, str]
) -> None:
    for toy in (Toy, Wide):
        monkeypatch.setattr(toy, "load_data", lambda self, source, seed: (source, seed))
    found, _ = given(workload=("toy", "toy-wide"), data=data, seed=3)
    assert {selection.workload.name: selection.load_data() for selection in found} == {
        name: (source, 3) for name, source in sources.items()
    }


def test_what_a_study_has_tried_is_chosen_again() -> None:
    listed = [{"name": "a", "lr": 0.5}, {"name": "b"}]
    (found,) = chosen_before(listed, ["toy"], "synthetic", 0)
    assert [(configuration.name, configuration.values["lr"]) for configuration in found.configurations] == [
        ("a", 0.5),
        ("b", 0.1),
    ]
    several = [{"workload": "toy", "name": "a"}, {"workload": "toy-wide", "name": "a", "width": 2}]
    toy, wide = chosen_before(several, ["toy", "toy-wide"], {"toy": "x"}, 0)
    assert (len(toy.configurations), wide.configurations[0].values["width"]) == (1, 2)


def repeated(settings: Settings, row: Attempt, **about: Any) -> str:
    """How the row of a study with these settings is run again."""
    described = {"workload": "toy", "classes": {"toy": "tests.support.toy:Toy"}, **about}
    study = StudyRecord(options=to_stored(settings), plan=PlanRecord(threads=1), **described)
    return how_to_repeat(study, row, Path("DIR")).partition(" -m tuner ")[2]


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"config": [{"lr": 0.1}]}, {}),
        ({"search": "random", "space": {"lr": {"uniform": [0, 1]}}}, {}),
        ({"workload": ["toy", "toy-wide"]}, {"workload": ["toy", "toy-wide"]}),
        ({}, {"auto_batch": {"t001": 96}}),
    ],
)
def test_what_no_list_names_is_trained_again_by_its_record(options: dict[str, Any], about: dict[str, Any]) -> None:
    assert repeated(Settings(**options), attempt(trial_id="t001"), **about) == "train --from DIR --trial t001"


def test_a_trial_that_got_more_memory_is_trained_again_by_its_record() -> None:
    assert repeated(Settings(), attempt(trial_id="t001", attempts=2)) == "train --from DIR --trial t001"


def test_the_command_that_repeats_a_trial_of_several_seeds_has_its_own_and_that_of_the_split() -> None:
    settings = Settings(seed=3, seeds=5, time_limit="2h")
    row = attempt(name="a", seed=5)
    assert repeated(settings, row) == "--only a --seed 5 --split-seed 3 --threads 1"
    assert repeated(settings, replace(row, seed=3)) == "--only a --seed 3 --threads 1"
    assert repeated(settings.changed(split_seed=5), row) == "--only a --seed 5 --threads 1"


def test_data_of_a_workload_without_a_trial_do_not_matter_to_what_a_study_has_tried() -> None:
    listed = [{"name": "x", "lr": 0.1, "weight_decay": 0.0, "epochs": 3, "fault": 0}]
    (choice,) = chosen_before(listed, ["toy"], {"toy": "here", "graphsage": "ml-100k"}, 0)
    assert [configuration.name for configuration in choice.configurations] == ["x"]


def test_paths_are_taken_as_text(tmp_path: Path) -> None:
    settings = Settings(data={"toy": tmp_path}, output=tmp_path)
    assert (settings.data, settings.output) == ({"toy": str(tmp_path)}, str(tmp_path))


def test_the_training_loops_options_are_every_workloads_and_stand_only_where_they_are_given() -> None:
    choices, _ = given(workload="toy", overrides=("clear_cache_every_n=4", "amp=0"), only="x", limit=1)
    (configuration,) = choices[0].configurations
    assert configuration.values == {"lr": 0.1, "weight_decay": 0.0, "epochs": 3, "fault": 0, "clear_cache_every_n": 4}


def test_micro_batches_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("configurations: [{name: x, accumulation: 3}]")
    with pytest.raises(InputError, match="x: accumulation: workload toy has no batch size to divide"):
        given(workload="toy", config=str(own))
    with pytest.raises(InputError, match="x: accumulation 3 does not divide batch_size 2048"):
        given(workload="graphsage", config=str(own))


def test_bad_files_are_skipped_by_the_workloads_that_read_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="skip_bad: has no effect on the data of toy"):
        given(workload="toy", data="synthetic", skip_bad=True)
    (tmp_path / "configs" / "gt_ssl").mkdir()
    (tmp_path / "configs" / "gt_ssl" / "quick.yaml").write_text("configurations: [{name: x}]")
    for number in range(4):
        (tmp_path / f"{number}.swc").write_text("1 1 0 0 0 1 -1\n2 3 1 0 0 1 1\n" if number else "not a tree")
    found, _ = given(workload=["toy", "gt-ssl"], data={"gt-ssl": str(tmp_path)}, skip_bad=True)
    assert [len(choice.load_data() or ()) for choice in found] == [0, 3]
    with pytest.raises(InputError, match=r"0.swc, line 1: expected the numbers .*; skip_bad=True leaves"):
        given(workload="gt-ssl", data=str(tmp_path))[0][0].load_data()


def swc_files(folder: Path) -> str:
    for name in ("lab/basket/1", "lab/basket/2", "lab/pyramidal/3", "other/basket/4"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.swc").write_text("1 1 0 0 0 5 -1\n2 3 1 0 0 1 1\n")
    return str(folder)


def test_data_are_loaded_as_all_configurations_say(tmp_path: Path) -> None:
    options = Settings(workload=["gt-ssl"], data=swc_files(tmp_path), config=[{"epochs": 1}, {"epochs": 2}])
    for level, classes in ((1, ("lab", "other")), (2, ("basket", "pyramidal"))):
        ((selection,), _) = choose(options.changed(overrides=(f"label_level={level}",)), 0)
        assert selection.load_checked().classes == classes  # type: ignore[attr-defined]
        (again,) = chosen_before(
            [{**configuration.values, "name": configuration.name} for configuration in selection.configurations],
            ["gt-ssl"],
            options.data,
            0,
        )
        assert again.load_checked().classes == classes  # type: ignore[attr-defined]


def test_configurations_that_say_it_differently_are_refused(tmp_path: Path) -> None:
    listed = [{"label_level": 2}, {"epochs": 2}]
    text = "label_level 2 and 1 in one study: data are loaded once for all .*: give overrides='label_level=2'"
    with pytest.raises(InputError, match=text):
        choose(Settings(workload=["gt-ssl"], data=swc_files(tmp_path), config=listed), 0)


def test_a_search_has_one_value_of_what_says_how_data_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    given = {"workload": ["gt-ssl"], "data": swc_files(tmp_path), "search": "optuna", "num_samples": 2}
    space = {"lr": {"loguniform": [1e-4, 1e-2]}}
    for options in ({"space": {**space, "label_level": 2}}, {"space": space, "overrides": ("label_level=2",)}):
        (selection,) = choose_searched(Settings(**given, **options), StudyRecord(workload=[])).selections
        assert selection.load_checked().classes == ("basket", "pyramidal")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"label_level = .*: data are loaded once for all trials: give it one value"):
        choose_searched(
            Settings(**given, space={**space, "label_level": {"choice": [1, 2]}}), StudyRecord(workload=[])
        )


def test_mixed_precision_is_refused_on_the_cpu_where_batches_vary(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wide, "batches_vary", True)
    settings = Settings(model_memory_gb=0.1)
    for workload, refused in (("toy", False), ("toy-wide", True)):
        choices, _ = given(workload=workload, overrides=("amp=1",), only="x")
        tasks, trials = load_tasks(choices), to_trials(choices, settings)
        assert Needs(tasks, [gpu_16gb], settings).of(trials).requests
        with pytest.raises(InputError, match="x: amp 1: not on the CPU") if refused else nullcontext():
            Needs(tasks, [ram_device()], settings).of(trials)
