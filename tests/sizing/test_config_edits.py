"""Chosen values in configuration files: only the intended values change, comments stay, and backups are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.errors import ExecutionError, InputError
from tuner.machine import safe_files
from tuner.sizing.choices import Chosen
from tuner.sizing.config_edits import FileEdit, NewValues, apply_edits, config_files, edit_text, plan_edits

# Files as people have them: each value that is to change stands between « and ».
FILES: dict[str, tuple[str, dict[str, int | float]]] = {
    "plain.yaml": (
        "# the data\n\n---\ndata_loader:\n  batch_size: «45»   # samples\n  workers: 45\ntraining:\n  trainer:\n"
        "    accumulate_grad_batches:   «5» # not a comment\n",
        {"data_loader.batch_size": 64, "accumulate_grad_batches": 4},
    ),
    "windows.yml": ("a:\r\n    batch_size:  «45» \r\n\r\n    other: [1,2 , 3]\r\n", {"batch_size": 64}),
    "flow.yaml": (
        'loader: {batch_size: «45»,workers : 2, "n_negatives": «24»}   # }: {\nlist: [45, # one\n {n: 45}]',
        {"loader.batch_size": 64, "n_negatives": 8},
    ),
    "anchored.yaml": (
        "default: &default {lr: 1e-3,   decay: 0.1}\nstage:\n"
        "  <<: *default\n  'batch_size' : &bs   «45»\n  seed: *bs\n",
        {"stage.batch_size": 64},
    ),
    "texts.yaml": (
        'note: |\n  batch_size: 45\n\n  more: \'x\nquoted:  "batch_size: 45"\n'
        '? batch_size\n: «"45"»\ntag: !env {n_negatives:  «0x18»}\n...\n',
        {"batch_size": 64, "n_negatives": 8},
    ),
    "list.yaml": ("stages:\n- name: one\n  n: «1_000»\n-   name: two\n    n:  3\n", {"stages.0.n": 10}),
    "plain.toml": (
        "# top\nseed=1\n\n[data_loader]\nbatch_size   =   «45»   # samples\n\n  [training.trainer]\n"
        '  accumulate_grad_batches=«5»\n\ttail = "45" \n',
        {"batch_size": 64, "training.trainer.accumulate_grad_batches": 4},
    ),
    "windows.toml": (
        "a.b . c = «45» # dotted\r\n\"quoted key\" = { 'x.y' = «0x18»,n = 2 }\r\n"
        "numbers = [ 1,\r\n  «2», # two\r\n 3 ]\r\n",
        {"a.b.c": 64, "quoted key.x.y": 8, "numbers.1": 9},
    ),
}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def edited(path: Path, values: dict[str, int | float]) -> FileEdit:
    return edit_text(path, path.read_bytes().decode(), values)


@pytest.mark.parametrize("name", FILES)
def test_nothing_but_the_values_changes(tmp_path: Path, name: str) -> None:
    text, values = FILES[name]
    kept, *spans = text.split("«")
    before = after = kept
    for span, value in zip(spans, values.values(), strict=True):
        old, rest = span.split("»")
        before += old + rest
        after += (f'"{value}"' if old[0] == '"' else str(value)) + rest
    path = write(tmp_path, name, before)
    found = edited(path, values)
    assert (found.after, len(found.changes)) == (after, len(values))
    (backup,) = apply_edits([found])
    assert (path.read_bytes(), backup.read_bytes()) == (after.encode(), before.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n:", "n: 8"),
        ("n:   # none\nm: 1\n", "n: 8   # none\nm: 1\n"),
        ("n: ~\n", "n: 8\n"),
        ("n: 'auto' # x\n", "n: 8 # x\n"),
        ("n: '7'\n", "n: '8'\n"),
        ("n: 8\n", "n: 8\n"),
    ],
)
def test_what_a_value_was_decides_how_it_is_written(tmp_path: Path, before: str, after: str) -> None:
    found = edited(write(tmp_path, "a.yaml", before), {"n": 8})
    assert found.after == after
    assert (found.changes == ()) == (before == after)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.yaml", "m: 1", "n occurs 0 times"),
        ("a.yaml", "words", "n occurs 0 times"),
        ("a.yaml", "", "n occurs 0 times"),
        ("a.yaml", "a: {n: 1}\nb: {n: 2}\n", r"n occurs 2 times \(a.n, b.n\): .* with key='NAME=DOTTED.PATH'"),
        ("a.toml", "[a]\nn=1\n[b]\nn=2\n", r"n occurs 2 times \(a.n, b.n\): "),
        ("a.yaml", "n: 1\nn: 2\n", r"n occurs 2 times \(n, n\)"),
        ("a.yaml", "m: &m 1\nn: *m", "n is an alias, a list, a mapping or a longer text, not a number"),
        ("a.yaml", "n: [1]", "n is an alias, a list"),
        ("a.yaml", "n: |\n  1\n", "n is an alias, a list"),
        ("a.toml", "[n]\nm=1", "n is an alias, a list"),
        ("a.yaml", "n: ${oc.env:N}", r"n is \${oc.env:N}, not a number: change it by hand"),
        ("a.toml", 'n="${N}"', r'n is "\${N}", not a number'),
        ("a.toml", "n=1\nn=2\n", "is not TOML: .*overwrite"),
        ("a.yaml", "--- \nn: 1\n---\nn: 2\n", "is not one YAML document: but found another document"),
        ("a.yaml", "n: [1\n", "is not one YAML document: "),
        ("a.yaml", "- " * 900 + "1", "is not one YAML document: maximum recursion"),
        ("a.toml", "n= " + "[" * 3_000 + "]" * 3_000, "is not TOML: maximum recursion"),
    ],
)
def test_what_cannot_be_changed_is_told_in_one_line(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=f"{name}: {fault}") as caught:
        edited(path, {"n": 8})
    assert "\n" not in str(caught.value) and path.read_text() == text


def chosen(name: str, negatives: int, **values: object) -> Chosen:
    parts = {"name": name, "batch_size": 46, "accumulation": 5, "devices": 1, "need_bytes": 1, "stopped_by": "memory"}
    variables = {"n_positives": 2 * negatives, "n_negatives": negatives}
    return Chosen(**{**parts, "method": "footprint", "variables": variables, **values})  # type: ignore[arg-type]


def plan(folder: Path, files: dict[str, str], given: tuple[str, ...] = (), **values: object):  # type: ignore[no-untyped-def]
    for name, text in files.items():
        write(folder, name, text)
    stages = [chosen("01", 24, **values), chosen("02-05", 8)]
    common = {"batch_size": 46, "accumulation": stages[0].accumulation}
    keys = {"accumulation": "trainer.steps", **{name: name for name in ("batch_size", "n_positives", "n_negatives")}}
    edits, notes = plan_edits(config_files([str(folder)]), NewValues(stages, common, keys), given)
    return {edit.path.name: {key: after for key, _, after in edit.changes} for edit in edits}, notes


CONFIG = "loader:\n  batch_size: 1 # samples\ntrainer: {steps: 1}\nn_negatives: 1\n"


def test_every_file_has_the_batch_and_a_stages_file_its_own_numbers(tmp_path: Path) -> None:
    files = {
        "config.yaml": CONFIG,
        "stages/01_stage.yaml": "n_positives: 1\nn_negatives: 24\n",
        "stages/02-05_stage.toml": "[loss]\nn_negatives = 1\n",
        "README.md": "n_negatives: 1\n",
        ".git/d.yaml": "[",
        "config.yaml.backup": "[",
        "bad.yaml": "a: [\n",
    }
    edits, notes = plan(tmp_path, files)
    assert edits == {
        "config.yaml": {"loader.batch_size": "46", "trainer.steps": "5"},
        "01_stage.yaml": {"n_positives": "48"},
        "02-05_stage.toml": {"loss.n_negatives": "8"},
    }
    bad, missing = notes
    assert "left alone: " in bad and "bad.yaml: is not one YAML document" in bad
    assert missing == "not written, as no file holds it: n_positives 16 of 02-05"


def test_each_file_of_a_folder_is_changed_whole_or_left_alone_and_named(tmp_path: Path) -> None:
    files = {
        "a.yaml": CONFIG,
        "batch.yaml": "batch_size: 1\n",
        "sweep.yaml": "hydra: {params: {batch_size: 'choice(1, 2)', trainer.steps: 1}}\ntrainer: {steps: 1}\n",
        "two.yaml": "a: {batch_size: 1}\nb: {batch_size: 1}\ntrainer: {steps: 1}\n",
        "other.yaml": "lr: 1\n",
    }
    edits, notes = plan(tmp_path, files)
    assert edits == {"a.yaml": {"loader.batch_size": "46", "trainer.steps": "5"}}
    for name, why in (
        ("batch.yaml", "holds batch_size, but not trainer.steps: add one, or say where it is"),
        ("sweep.yaml", "hydra.params.batch_size is 'choice(1, 2)', not a number"),
        ("two.yaml", "batch_size occurs 2 times"),
    ):
        assert any(f"left alone: {tmp_path / name}: {why}" in note for note in notes), name
    with pytest.raises(InputError, match=r"batch\.yaml: holds batch_size, but not trainer\.steps"):
        keys = {"batch_size": "batch_size", "accumulation": "trainer.steps"}
        values = NewValues([], {"batch_size": 46, "accumulation": 5}, keys)
        plan_edits(config_files([str(tmp_path), str(tmp_path / "batch.yaml")]), values, ())


def test_batch_and_accumulation_may_have_a_file_each(tmp_path: Path) -> None:
    edits, _ = plan(tmp_path, {"data.yaml": "batch_size: 1\n", "trainer.yaml": "trainer: {steps: 1}\n"})
    assert edits == {"data.yaml": {"batch_size": "46"}, "trainer.yaml": {"trainer.steps": "5"}}


@pytest.mark.parametrize(
    "text", ["batch_size:«»\nb: 1\n", "a:\n  batch_size:«»   # c\n\n# d\n  b: 1\n", "a: 1\nbatch_size:«»\n"]
)
def test_an_empty_value_is_filled_in_where_it_stands(text: str, tmp_path: Path) -> None:
    before, after = text.replace("«»", ""), text.replace("«»", " 8")
    assert edit_text(tmp_path / "a.yaml", before, {"batch_size": 8}).after == after


@pytest.mark.parametrize(
    ("files", "values", "message"),
    [
        ({"a.yaml": "lr: 1\n"}, {}, "holds none of trainer.steps, batch_size, n_positives, n_negatives: add one"),
        ({"a.yaml": "batch_size: 1\n"}, {}, "accumulation 5: .* no file holds trainer.steps: add one, or say where"),
        ({"06.yaml": "n_negatives: 1"}, {}, "holds none of"),
        ({"a.yaml": CONFIG}, {"lowered": ("n_negatives",)}, "n_negatives 24 of 01: the batch needs it, and no file"),
        ({"a.yaml": CONFIG}, {"given": ("n_positives",)}, "n_positives 48 of 01: .*no file holds n_positives"),
        ({"a.txt": ""}, {}, "no file of .yaml, .yml, .toml"),
    ],
)
def test_files_without_a_place_for_what_is_needed_are_refused(tmp_path: Path, files, values, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(tmp_path, files, **values)


def test_a_file_that_is_given_itself_must_be_there_and_hold_a_value(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file or folder"):
        config_files([str(tmp_path / "nowhere.yaml")])
    values = NewValues([chosen("32x2", 8, variables={"m": 1})], {"batch_size": 4}, {"batch_size": "b", "m": "m"})
    for text, message in (
        ("lr: 1", "a.yaml: holds none of b, m: add one"),
        ("[", "a.yaml: is not one YAML"),
    ):
        path = write(tmp_path, "a.yaml", text)
        with pytest.raises(InputError, match=message):
            plan_edits(config_files([str(path), str(tmp_path)]), values, ())


def test_a_backup_is_never_written_over_and_permissions_and_links_stay(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to("a.yaml")
    backups = [apply_edits([edited(link, {"n": value})])[0] for value in (2, 3, 4)]
    assert [backup.name for backup in backups] == ["a.yaml.backup", "a.yaml.backup.1", "a.yaml.backup.2"]
    assert [file.read_text() for file in (*backups, path)] == ["n: 1\n", "n: 2\n", "n: 3\n", "n: 4\n"]
    assert link.is_symlink() and {os.stat(file).st_mode & 0o777 for file in (*backups, path)} == {0o640}
    assert apply_edits([edited(path, {"n": 4})]) == []


def test_a_full_disk_leaves_every_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")

    def full(file: object, content: bytes) -> None:
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr(safe_files, "write_through", full)
    with pytest.raises(ExecutionError, match="here: cannot be written: No space left on device"):
        apply_edits([edited(path, {"n": 2})])
    assert path.read_text() == "n: 1\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.yaml", "a.yaml.backup"]
