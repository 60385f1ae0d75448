"""Which values go into which configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.sizing.choices import Chosen
from tuner.sizing.config_files import Values, config_files, parse_keys, planned_edits, stage_of, values_of

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


def two_stages(**values) -> Values:
    return values_of([chosen("01", 24, **values), chosen("02-05", 8)], "batch_size", in_one_step=False)


def written(folder: Path, files: dict[str, str], values: Values, **keys: str) -> dict[str, dict[str, str]]:
    for name, text in files.items():
        (folder / name).write_text(text)
    edits = planned_edits(config_files([str(folder)]), values, {}, keys)
    return {edit.path.name: {change.key: change.after for change in edit.changes} for edit in edits}


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
    values = values_of([chosen("32x2", 8)], "batch_size", in_one_step=True)
    found = written(tmp_path, {"own.yaml": "defaults: {batch_size: 1, accumulation: 1, n_negatives: 9}\n"}, values)
    assert found["own.yaml"] == {
        "defaults.batch_size": "230",
        "defaults.accumulation": "5",
        "defaults.n_negatives": "8",
    }


@pytest.mark.parametrize(
    ("files", "keys", "message"),
    [
        ({"a.yaml": "lr: 1\n"}, {}, "a.yaml: holds none of batch_size, accumulation: add one, or say where"),
        ({"a.yaml": "batch_size: 1\n"}, {}, "accumulation 5: no file has a key accumulation: add it"),
        (
            {"a.yaml": "batch_size: 1\n"},
            {"accumulation": "a.b"},
            "--key accumulation=a.b: no file holds a.b: give the path",
        ),
        ({"a.yaml": "lr: 1\n"}, {"batchsize": "a"}, "--key batchsize=a: nothing .* mean batch_size"),
        (
            {"a.yaml": "x: {batch_size: 1}\ny: {batch_size: 2}\n"},
            {},
            r"is there 2 times \(x.batch_size, y.batch_size\)",
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
        config_files([str(tmp_path / path)])
    with pytest.raises(InputError, match=r"--key batch_size: expected NAME=DOTTED\.PATH"):
        parse_keys(["batch_size"])
