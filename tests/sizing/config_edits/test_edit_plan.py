"""Which values go into which configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.sizing.choices import Chosen
from tuner.sizing.config_edits.edit_plan import EditPlan, NewValues, new_values, parse_keys, plan_edits, stage_of
from tuner.sizing.config_edits.found_files import find_config_files

STAGES = ["01", "02-05"]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("01_stage.yaml", "01"),
        ("stage_1.toml", "01"),
        ("Stage3.yaml", "02-05"),
        ("02-05_stage.yaml", "02-05"),
        ("text_03.v2.yml", "02-05"),
        ("config.yaml", None),
        ("config_v2.yaml", None),
        ("01-03.yaml", None),
        ("stage_6.yaml", None),
    ],
)
def test_a_files_number_tells_its_stage(name: str, stage: str | None) -> None:
    assert stage_of(Path(name), STAGES) == stage


def chosen(name: str, negatives: int, **values) -> Chosen:
    variables = {"n_positives": 2 * negatives, "n_negatives": negatives}
    parts = {"name": name, "batch_size": 46, "accumulation": 5, "devices": 1, "need_bytes": 1, "stopped_by": "memory"}
    return Chosen(**{**parts, "method": "footprint", "variables": variables, **values})


def two_stages(**values) -> NewValues:
    return new_values([chosen("01", 24, **values), chosen("02-05", 8)], "batch_size", one_step=False)


def plan_of(folder: Path, files: dict[str, str], values: NewValues, keys=None, sized=()) -> EditPlan:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return plan_edits(find_config_files([str(folder)]), values, {}, keys or {}, sized)


def written(folder: Path, files: dict[str, str], values: NewValues, **keys: str) -> dict[str, dict[str, str]]:
    plan = plan_of(folder, files, values, keys)
    return {edit.path.name: {change.key: change.after for change in edit.changes} for edit in plan.edits}


def test_every_file_has_the_batch_and_a_stages_file_its_own_numbers(tmp_path: Path) -> None:
    files = {
        "config.yaml": "loader:\n  batch_size: 1 # samples\ntrainer: {steps: 1}\nn_negatives: 1\n",
        "01_stage.yaml": "n_positives: 1\nn_negatives: 24\n",
        "02-05_stage.toml": "[loss]\nn_negatives = 1\n",
        "README.md": "n_negatives: 1\n",
    }
    assert written(tmp_path, files, two_stages(), accumulation="trainer.steps") == {
        "config.yaml": {"loader.batch_size": "46", "trainer.steps": "5"},
        "01_stage.yaml": {"n_positives": "48"},
        "02-05_stage.toml": {"loss.n_negatives": "8"},
    }


def test_our_own_files_say_the_samples_of_an_optimizer_step(tmp_path: Path) -> None:
    values = new_values([chosen("32x2", 8)], "batch_size", one_step=True)
    found = written(tmp_path, {"own.yaml": "defaults: {batch_size: 1, accumulation: 1, n_negatives: 9}\n"}, values)
    assert found["own.yaml"] == {
        "defaults.batch_size": "230",
        "defaults.accumulation": "5",
        "defaults.n_negatives": "8",
    }


@pytest.mark.parametrize(
    ("files", "keys", "message"),
    [
        (
            {"a.yaml": "lr: 1\n"},
            {},
            "no file in it has a place for batch_size, accumulation, n_positives, n_negatives: add one",
        ),
        ({"a.yaml": "batch_size: 1\n"}, {}, "accumulation 5: no file has a key accumulation: add it"),
        (
            {"a.yaml": "batch_size: 1\n"},
            {"accumulation": "a.b"},
            "key='accumulation=a.b': no file holds a.b: give the path",
        ),
        ({"a.yaml": "lr: 1\n"}, {"batchsize": "a"}, "key='batchsize=a': nothing .* mean batch_size"),
        (
            {"a.yaml": "x: {batch_size: 1}\ny: {batch_size: 2}\n"},
            {},
            r"occurs 2 times \(x.batch_size, y.batch_size\): .* as key='NAME=DOTTED.PATH'",
        ),
        ({"a.yaml": "batch_size: ${oc.env:BS}\n"}, {}, r"a.yaml: batch_size is \${oc.env:BS}, not a number"),
        (
            {"06.yaml": "n_negatives: 1", "b.yaml": "["},
            {},
            "n_negatives in .*06.yaml: no stage .*; .*b.yaml: is not YAML",
        ),
        ({"a.txt": ""}, {}, "the folder has no file in .yaml, .yml, .toml"),
    ],
)
def test_files_that_cannot_have_it_are_refused(tmp_path: Path, files, keys, message: str) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, files, two_stages(), **keys)


def test_a_batch_is_not_written_without_the_number_that_was_lowered_for_it(tmp_path: Path) -> None:
    files = {"config.yaml": "batch_size: 1\naccumulation: 1\n", "02_stage.yaml": "n_negatives: 1\n"}
    with pytest.raises(InputError, match="stage 01: n_negatives 24: the batch fits only with it"):
        written(tmp_path, files, two_stages(lowered=("n_negatives",)))
    assert written(tmp_path, {"01.yaml": "n_negatives: 1\n"}, two_stages(lowered=("n_negatives",)))["01.yaml"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere", "there is no such file or folder"), ("a.json", "must be one of .yaml, .yml, .toml")],
)
def test_paths_that_are_no_such_files_are_refused(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=message):
        find_config_files([str(tmp_path / path)])
    with pytest.raises(InputError, match=r"key='batch_size': expected NAME=DOTTED\.PATH"):
        parse_keys(["batch_size"])


def test_a_folder_is_searched_to_any_depth_but_for_backups_and_what_is_hidden(tmp_path: Path) -> None:
    names = ["b.yml", "a/z.toml", "a/b/c.yaml", ".git/d.yaml", "e.backup.yaml", "f.yaml.backup", "g.backup/h.yaml"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "link.yaml").symlink_to("b/c.yaml")
    found = find_config_files([str(tmp_path), str(tmp_path / "b.yml"), str(tmp_path / "a")])
    assert [str(file.path.relative_to(tmp_path)) for file in found] == ["a/b/c.yaml", "a/z.toml", "b.yml"]
    assert [(file.named, len(set(file.folders))) for file in found] == [(False, 2), (False, 2), (True, 1)]


def test_what_a_folder_has_beside_is_left_alone_and_named(tmp_path: Path) -> None:
    files = {f"more/{name}.yaml": "lr: 1\n" for name in "abcd"} | {
        "config.yaml": "batch_size: 1\naccumulation: 1\n",
        "06_stage.yaml": "n_negatives: 1\n",
        "stage_one.yaml": "n_positives: 1\n",
        "bad.yaml": "a: [\n",
    }
    plan = plan_of(tmp_path, files, two_stages())
    strays, others = (note.replace(f"{tmp_path}/", "") for note in plan.notes if note.startswith("left alone: "))
    assert [edit.path.name for edit in plan.edits] == ["config.yaml"]
    assert "n_negatives in 06_stage.yaml, n_positives in stage_one.yaml: no stage has this number" in strays
    assert "more/a.yaml, more/b.yaml, more/c.yaml and 1 more, without any of batch_size" in others
    assert "; bad.yaml: is not YAML" in others


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "lr: 1", "a.yaml: holds none of batch_size, accumulation: add one, or say where"),
        ("01.yaml", "lr: 1", "01.yaml: holds none of batch_size, accumulation, n_positives, n_negatives: add"),
        ("06.yaml", "n_negatives: 1", "06.yaml: holds n_negatives, but no stage has this number"),
        ("a.yaml", "[", "a.yaml: is not YAML"),
    ],
)
def test_a_file_that_is_named_itself_must_have_a_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "good.yaml").write_text("batch_size: 1\naccumulation: 1\n")
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        plan_edits(find_config_files([str(tmp_path), str(tmp_path / name)]), two_stages(), {}, {})


def test_what_no_file_holds_is_told(tmp_path: Path) -> None:
    files = {"01.yaml": "n_positives: 1\n", "02.yaml": "n_positives: 1\nn_negatives: 1\n"}
    assert plan_of(tmp_path, files, two_stages()).notes == (
        "not written: batch_size 46, accumulation 5: no file holds them",
        "not written: n_negatives 24 of stage 01: no file holds it",
    )
    files = {"config.yaml": "batch_size: 1\n"}
    notes = plan_of(tmp_path, files, two_stages(accumulation=1)).notes
    assert notes == ("not written: n_negatives 24 of stage 01: no file holds it",)
