"""Edits of configuration files: only the intended values change, comments stay, and no kill leaves half of a file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.errors import ExecutionError, InputError
from tuner.machine import atomic_files
from tuner.sizing.config_edits.file_edit import ValueChange, apply_edits, edit_file, held

# Files as people have them: each value that is to change stands between « and ».
FILES: dict[str, tuple[str, dict[str, int | float]]] = {
    "plain.yaml": (
        "# the data\ndata_loader:\n  batch_size: «45»   # samples\n  workers: 45\ntraining:\n  trainer:\n"
        "    accumulate_grad_batches:   «5»# not a comment\n".replace("# not", " # not"),
        {"data_loader.batch_size": 64, "accumulate_grad_batches": 4},
    ),
    "windows.yml": (
        "\ufeffa:\r\n    batch_size:  «45» \r\n\r\n    other: [1,2 , 3]\r\n",
        {"batch_size": 64},
    ),
    "flow.yaml": (
        'loader: {batch_size: «45»,workers : 2, "n_negatives": «24»}   # }: {\nlist: [45, {n: 45}]',
        {"loader.batch_size": 64, "n_negatives": 8},
    ),
    "anchored.yaml": (
        "default: &default {lr: 1e-3,   decay: 0.1}\nstage:\n"
        "  <<: *default\n  'batch_size' : &bs   «45»\n  seed: 45\n",
        {"stage.batch_size": 64},
    ),
    "aliased.yaml": (
        "batch: &bs 45\ntrain:\n  batch_size: «*bs» # its own from now on\n",
        {"train.batch_size": 64},
    ),
    "texts.yaml": (
        '--- # one document\nnote: |\n  batch_size: 45\n\n  more: \'x\nquoted:  "batch_size: 45"\n'
        "folded: >-\n  a\n  b\n"
        '? batch_size\n: «"45"»\ntag: !env {n_negatives:  «0x18»}\n...\n',
        {"batch_size": 64, "n_negatives": 8},
    ),
    "list.yaml": (
        "stages:\n- name: one\n  n: «1_000»\n-   name: two\n    n:  3\n01:\n- - «7» \n  -   8\n",
        {"stages.0.n": 10, "01.0.0": 9},
    ),
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
    "texts.toml": (
        "note = \"\"\"\nbatch_size = 45\n\"\"\"\nraw = '''\n[stage]\n'''\n"
        "[[stage]]\nn = «1_000»\nlr = «5e-4» # small\n"
        "[[stage]]\nn = 1_000\nwhen = 1979-05-27T07:32:00Z\nflags = [true, 2.5]\n[other]\nbatch_size = '45'",
        {"stage.0.n": 10, "stage.0.lr": 1e-05},
    ),
}


def marked(text: str, values: Mapping[str, int | float]) -> tuple[str, str]:
    """The file, and what it must be once its values are changed, in their order."""
    kept, *spans = text.split("«")
    before = after = kept
    for span, value in zip(spans, values.values(), strict=True):
        old, rest = span.split("»")
        new = "1.0e-05" if value == 1e-05 else str(value)
        before += old + rest
        after += (f'"{new}"' if old[0] == '"' else new) + rest
    return before, after


def content(name: str, text: str) -> tuple[object, ...]:
    """What must stay: of TOML all; of YAML the tokens with their quotes, comments and line ends, but not spaces."""
    if name.endswith(".toml"):
        return (text,)
    tokens = [
        (type(token).__name__, getattr(token, "value", None), getattr(token, "style", None))
        for token in yaml.scan(text.removeprefix("\ufeff"))
        if isinstance(token, (yaml.ScalarToken, yaml.AliasToken, yaml.AnchorToken, yaml.TagToken))
        or type(token).__name__.startswith("Flow")
    ]
    comments = re.findall(r"(?:^|\s)#.*", text, flags=re.MULTILINE)
    ends = {end for end in ("\r\n", "\n") if end in text}
    return tokens, [comment.strip() for comment in comments], ends, text.startswith("\ufeff")


@pytest.mark.parametrize("name", FILES)
def test_nothing_but_the_values_changes(tmp_path: Path, name: str) -> None:
    text, values = FILES[name]
    before, after = marked(text, values)
    path = tmp_path / name
    path.write_bytes(before.encode())
    found = edit_file(path, values)
    assert (found.before, content(name, found.after)) == (before, content(name, after))
    assert len(found.changes) == len(values)
    assert path.read_bytes() == before.encode()
    (backup,) = apply_edits([found])
    assert (path.read_bytes(), backup.read_bytes()) == (found.after.encode(), before.encode())


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_aliases_follow_the_value_that_they_are_aliases_of(tmp_path: Path) -> None:
    text = "base: &base\n  n: &n 24\n  k: 1\na: *n\nb: {<<: *base, k: 2}\nc: *base\n"
    path = write(tmp_path, "a.yaml", text)
    found = edit_file(path, {"base.n": 8})
    assert found.after == text.replace("24", "8")
    assert found.changes == (
        ValueChange("base.n", "24", "8"),
        ValueChange("a", "*n", "8"),
        ValueChange("b.n", "24", "8"),
        ValueChange("c.n", "24", "8"),
    )
    assert yaml.safe_load(found.after)["b"] == {"n": 8, "k": 2}
    assert [each.key for each in edit_file(path, {"base.k": 5}).changes] == ["base.k", "c.k"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n:\n", "n: 8\n"),
        ("n:   # none\nm: 1\n", "n: 8 # none\nm: 1\n"),
        ("n: &a\nm: *a\n", "n: &a 8\nm: *a\n"),
        ("{n: , m: 1}", "{n: 8, m: 1}\n"),
        ("n: ~\n", "n: 8\n"),
        ("n: auto # x\n", "n: 8    # x\n"),
        ("n: 'auto'\n", "n: 8\n"),
        ("n: '7'\n", "n: '8'\n"),
        ("n: 010\n", "n: 8\n"),
        ("n: 08\n", "n: 8\n"),
        ("n: !!str 7\n", "n: '8'\n"),
        ("n: 8.0\n", "n: 8.0\n"),
        ("n: 8\n", "n: 8\n"),
    ],
)
def test_what_a_value_was_decides_how_it_is_written(tmp_path: Path, before: str, after: str) -> None:
    found = edit_file(write(tmp_path, "a.yaml", before), {"n": 8})
    assert found.after == after
    assert (found.diff() == "") == (found.changes == ()) == (before == after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n = '7'", "n = '8'"),
        ('n = "auto"', "n = 8"),
        ("n = 8", "n = 8"),
        ("n = true # x", "n = 8 # x"),
        ("n = 7.5 # x", "n = 8 # x"),
    ],
)
def test_toml_keeps_quotes_around_numbers_too(tmp_path: Path, before: str, after: str) -> None:
    assert edit_file(write(tmp_path, "a.toml", before), {"n": 8}).after == after


def test_a_comment_that_would_be_lost_is_a_reason_to_refuse(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\nlist: [1, # one\n  2]\n")
    with pytest.raises(InputError, match="a comment inside of brackets would be lost: move it, or change the file"):
        edit_file(path, {"n": 2})


@pytest.mark.parametrize(
    "text",
    [
        "# a\n\n---\n# b\nn: 1 # c\n\n# d\n",
        "a:\n    b:\n      - 1\n      - 2\n    c: {d: 1}\nn: 1\n",
        "a:\n- b: 1\n  c: 2\n- - 3\nn: 1\n",
        "a: >-\n  one\n  two\n\n  three\n# b\nc: |+\n  four\n\nn: 1\n",
        "a: &unused {b: 1}\nc: &d\ne: *d\nn: 1\n",
        "a: yes\nb: 0o17\nc: 1e3\nd: 2001-12-14\ne: !x {f: 1}\nn: 1\n",
        f"a: {'long ' * 100}end\nn: 1\n",
    ],
)
def test_a_regular_file_keeps_its_look(tmp_path: Path, text: str) -> None:
    assert edit_file(write(tmp_path, "a.yaml", text), {"n": 8}).after == text.replace("n: 1", "n: 8")


def test_a_difference_is_shown_as_patch_does(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "a: 1\nb: 2\nc: 3")
    assert (
        edit_file(path, {"c": 4}).diff() == f"--- {path}\n+++ {path}\n@@ -1,3 +1,3 @@\n a: 1\n b: 2\n-c: 3\n+c: 4\n"
    )


def test_small_numbers_are_numbers_to_every_parser(tmp_path: Path) -> None:
    for name, load in (("a.yaml", yaml.safe_load), ("a.toml", tomllib.loads)):
        text = edit_file(write(tmp_path, name, "n: 1" if name == "a.yaml" else "n = 1"), {"n": 1e-05}).after
        assert load(text) == {"n": 1e-05}  # type: ignore[operator]


def test_a_key_is_held_as_a_path_or_a_bare_name(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "a: &a {b: {c: 1}}\nd: {<<: *a}\n")
    assert held(path, ("a.b.c", "c", "a", "b", "b.c", "d.b", "e", "a.c")) == {"a.b.c", "c", "a", "b"}


def test_a_path_is_meant_before_a_bare_name(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\na: {n: 2}\n")
    assert edit_file(path, {"n": 3}).after == "n: 3\na: {n: 2}\n"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.yaml", "a: {n: 1}\nb: {n: 2}\n", r"n occurs 2 times \(a.n, b.n\): give .* as key='NAME=DOTTED.PATH'"),
        ("a.toml", "[a]\nn=1\n[b]\nn=2\n", r"n occurs 2 times \(a.n, b.n\): give .* as key='NAME=DOTTED.PATH'"),
        ("a.yaml", "", "holds no key n"),
        ("a.yaml", "a: {nn: 1}\n", "holds no key n; close to it: a.nn"),
        ("a.toml", "[a]\nnn=1\n", "holds no key n; close to it: a.nn"),
        ("a.yaml", "a: &a {n: {m: 1}}\nb: *a\nn: {x: 1}", "n is a mapping: give a key with a single value"),
        ("a.yaml", "n: [1]", "n is a list: give"),
        ("a.yaml", "n: ${oc.env:N}", r"n is \${oc.env:N}, not a number: change it by hand"),
        ("a.yaml", "m: &m '{{ n }}'\nn: *m", r"n is '{{ n }}', not a number"),
        ("a.toml", 'n="${N}"', r'n is "\${N}", not a number'),
        ("a.yaml", "n: |\n  1\n", "n is text of several lines: give"),
        ("a.toml", "[n]\nm=1", "n is a table: give"),
        ("a.toml", "n=[1]", "n is a list: give"),
        ("a.toml", 'n="""1"""', "n is text of several lines: give"),
        ("a.yaml", "n: 1\nn: 2\n", "line 2: the key n occurs twice in one mapping: keep one"),
        ("a.toml", "n=1\nn=2\n", "is not TOML: .*overwrite"),
        ("a.yaml", "--- \nn: 1\n---\nn: 2\n", "holds several YAML documents: give a file of one"),
        ("a.yaml", "n: [1\n", r"is not YAML: .*\(line 2\)"),
        ("a.yaml", "n: &n [*n]\n", "line 1: an alias is inside of what it stands for"),
        ("a.yaml", "n: \x00", "is not YAML"),
        ("a.toml", "n = [1", "is not TOML: Unclosed array"),
        ("a.yaml", "- " * 900 + "1", "is nested too deeply: give a simpler file"),
        ("a.toml", "n= " + "[" * 3_000 + "]" * 3_000, "is nested too deeply: give a simpler file"),
        ("a.json", '{"n": 1}', r"unknown kind of file '.json'; use .yaml, .yml, .toml"),
        ("a", "n: 1", "unknown kind of file ''"),
    ],
)
def test_what_cannot_be_changed_is_told_in_one_line(tmp_path: Path, name: str, text: str, fault: str) -> None:
    with pytest.raises(InputError, match=f"{name}: {fault}") as caught:
        edit_file(write(tmp_path, name, text), {"n": 8})
    assert "\n" not in str(caught.value)


def test_a_value_that_a_merge_key_brings_is_changed_where_it_is_written(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "base: &b {n: 1}\nstage: {<<: *b}\n")
    with pytest.raises(
        InputError, match=r"holds no key stage.n of its own: stage.n is base.n by an alias; change that"
    ):
        edit_file(path, {"stage.n": 2})


def test_aliases_of_aliases_have_an_end(tmp_path: Path) -> None:
    lines = [
        "a: &a [1,1,1,1,1,1,1,1,1,1]",
        *(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdef")),
    ]
    with pytest.raises(InputError, match="holds more than 100000 values"):
        held(write(tmp_path, "a.yaml", "\n".join(lines)), ["a"])


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a.yaml: there is no such file"):
        edit_file(tmp_path / "a.yaml", {"n": 1})
    (tmp_path / "b.yaml").write_bytes(b"n: \xff")
    with pytest.raises(InputError, match=r"b.yaml: is not UTF-8 text \(byte 4\)"):
        held(tmp_path / "b.yaml", ["n"])
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(InputError, match=r"c.yaml: cannot be read: Is a directory"):
        held(tmp_path / "c.yaml", ["n"])


def test_a_backup_is_never_written_over(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    backups = [apply_edits([edit_file(path, {"n": value})])[0] for value in (2, 3, 4)]
    assert [each.name for each in backups] == ["a.yaml.backup", "a.yaml.backup.1", "a.yaml.backup.2"]
    assert [each.read_text() for each in (*backups, path)] == ["n: 1\n", "n: 2\n", "n: 3\n", "n: 4\n"]
    assert len(list(tmp_path.iterdir())) == 4


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to("a.yaml")
    (backup,) = apply_edits([edit_file(link, {"n": 2})])
    assert (link.is_symlink(), path.read_text(), backup.name) == (True, "n: 2\n", "a.yaml.backup")
    assert [each.stat().st_mode & 0o7777 for each in (path, backup)] == [0o640, 0o640]


def test_what_does_not_change_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    inode = path.stat().st_ino
    assert apply_edits([edit_file(path, {"n": 1})]) == []
    assert (path.stat().st_ino, list(tmp_path.iterdir())) == (inode, [path])


def test_nothing_is_written_if_a_file_has_changed_since(tmp_path: Path) -> None:
    paths = [write(tmp_path, name, "n: 1\n") for name in ("a.yaml", "b.yaml")]
    edits = [edit_file(path, {"n": 2}) for path in paths]
    paths[1].write_text("n: 5\n")
    with pytest.raises(InputError, match=r"b.yaml: has changed since it was read: try again"):
        apply_edits(edits)
    assert [path.read_text() for path in paths] == ["n: 1\n", "n: 5\n"]
    assert sorted(tmp_path.iterdir()) == paths


def test_a_file_is_not_changed_twice_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    with pytest.raises(InputError, match=r"a.yaml: is to be changed twice: give each file once"):
        apply_edits([edit_file(path, {"n": 2}), edit_file(path, {"n": 3})])
    assert list(tmp_path.iterdir()) == [path]


def test_a_protected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.yaml", "n: 1\n")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write what is protected
    with pytest.raises(InputError, match=r"a.yaml: is write-protected: make it writable"):
        apply_edits([edit_file(path, {"n": 2})])


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path, name, "n: 1\n") for name in ("a.yaml", "b.yaml")]
    left = iter(range(3))

    def full(file: Any, content: bytes) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device", "here")
        file.write(content)

    monkeypatch.setattr(atomic_files, "write_through", full)
    with pytest.raises(ExecutionError, match="here: cannot be written: No space left on device; nothing is changed"):
        apply_edits([edit_file(path, {"n": 2}) for path in paths])
    assert [path.read_text() for path in paths] == ["n: 1\n"] * 2
    assert not list(tmp_path.glob(".*"))


STEPS = ((atomic_files, "write_through"), (os, "link"), (atomic_files, "sync_folder"), (atomic_files, "move"))


def die_at(number: int, stage: str) -> None:
    """Has this process end at its ``number``-th step of writing: before, within or after it."""
    steps = iter(range(number + 1_000))

    def dying(step: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: Any) -> None:
            here = next(steps) == number
            if here and stage == "before":
                os._exit(9)
            if here and stage == "within" and isinstance(arguments[-1], bytes):
                os.write(arguments[0].fileno(), arguments[1][: len(arguments[1]) // 2])
                os._exit(9)
            step(*arguments)
            if here:
                os._exit(9)

        return wrapped

    for module, name in STEPS:
        setattr(module, name, dying(getattr(module, name)))


def kills(work: Callable[[], object]) -> Iterator[int]:
    """Does something in children that are killed at one step after the other, until one comes to its end."""
    for number in range(1_000):
        for stage in ("before", "within", "after"):
            child = os.fork()
            if child == 0:
                die_at(number, stage)
                work()
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
                return
            yield number


def test_killed_at_any_moment_every_file_is_whole(tmp_path: Path) -> None:
    files = {"a.yaml": ("n: 1 # a\n", "n: 2 # a\n"), "b.toml": ("n = 1 # b\n", "n = 2 # b\n")}
    steps, states = 0, set()

    def begin() -> None:
        for path in tmp_path.iterdir():
            path.unlink()
        for name, (old, _) in files.items():
            write(tmp_path, name, old)

    begin()
    for _ in kills(lambda: apply_edits([edit_file(tmp_path / name, {"n": 2}) for name in files])):
        found = {name: (tmp_path / name).read_text() for name in files}
        assert all(text in files[name] for name, text in found.items())
        for name, (old, new) in files.items():
            backup = tmp_path / f"{name}.backup"
            assert backup.read_text() == old if backup.exists() else found[name] != new
        states.add(tuple(found.values()))
        steps += 1
        begin()
    assert (len(states), steps) == (3, 36)  # none, the first or both are new


def test_an_anchor_that_is_used_again_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text("a: &x 1\nb: *x\nc: &x 2\nbatch_size: 8\n")
    assert edit_file(path, {"batch_size": 9}).after == "a: &x 1\nb: *x\nc: &x 2\nbatch_size: 9\n"
