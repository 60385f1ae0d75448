from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.datasets import trees as module
from tuner.datasets.swc import Tree
from tuner.datasets.trees import TreeData, build, load_trees, split
from tuner.errors import DataError

# y: a root with two children of which the second has two.
Y = Tree(
    np.array([[1.0, 1, 1], [1, 1, 3], [1, 5, 1], [4, 5, 1], [1, 5, 4]]),
    np.array([4.0, 2, 2, 1, 1]),
    np.array([-1, 0, 0, 2, 2]),
)
DOT = Tree(np.full((1, 3), 7.0), np.ones(1), np.array([-1]))


def swc(tree: Tree) -> str:
    rows = zip(tree.position.tolist(), tree.radius.tolist(), tree.parent.tolist(), strict=True)
    return "".join(
        f"{n} 3 {x} {y} {z} {r} {p + 1 if p >= 0 else -1}\n" for n, ((x, y, z), r, p) in enumerate(rows, 1)
    )


@pytest.fixture
def swc_folder(tmp_path: Path) -> Path:
    """Two classes of two trees."""
    folder = tmp_path / "cells"
    for number in range(4):
        path = folder / "ab"[number % 2] / f"{number}.swc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(swc(Tree(Y.position * (number + 1), Y.radius, Y.parent)))
    return folder


def assert_equal(one: TreeData, other: TreeData) -> None:
    for field in fields(TreeData):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None), field.name


# ------------------------------------------------------------------------------------------------ arrays


def test_positions_are_from_the_root_in_mean_edges() -> None:
    data = build([Y, DOT], np.array([0, 1]), "two", ("a", "b"))
    assert data.position[:5].tolist() == pytest.approx(np.array(Y.position - 1) / 3)  # edges of 2, 4, 3 and 3
    assert data.position[5].tolist() == [0, 0, 0]
    assert (data.first.tolist(), data.parent.tolist()) == ([0, 5, 6], [-1, 0, 0, 2, 2, -1])


def test_features_are_those_documented() -> None:
    data = build([Y], np.array([0]), "one", ("",))
    assert data.features[:, 0].tolist() == [1, 0, 0, 0, 0]
    expected = [
        [0, 4 / 3, 0, 0, 0],
        [0, 2 / 3, 1, 2 / 3, 2 / 3],
        [0, 2 / 3, 1, 4 / 3, 4 / 3],
        [0, 1 / 3, 2, 7 / 3, 5 / 3],
        [0, 1 / 3, 2, 7 / 3, 5 / 3],
    ]
    np.testing.assert_allclose(data.features[:, 1:], np.log1p(expected)[:, 1:], rtol=1e-6)


def test_features_tell_nothing_of_descendants() -> None:
    cut = Tree(Y.position[:3], Y.radius[:3], Y.parent[:3])  # node 2 is a leaf here
    moved = Tree(Y.position + np.array([[0], [0], [0], [9], [9]]), Y.radius * [1, 1, 1, 8, 8], Y.parent)
    whole, short, other = (module._features(tree, 3.0) for tree in (Y, cut, moved))
    assert np.array_equal(whole[:3], short)
    assert np.array_equal(whole[:3], other[:3])
    assert (whole[3:] != other[3:]).any(axis=1).all()


def test_descendants_end_where_the_array_says(trees: TreeData) -> None:
    for tree in range(len(trees)):
        rows = slice(trees.first[tree], trees.first[tree + 1])
        parent, end = trees.parent[rows], trees.end[rows]
        below = np.eye(len(parent), dtype=bool)
        for node in range(1, len(parent)):
            below[:, node] |= below[:, parent[node]]
        assert (end == np.arange(len(parent)) + below.sum(axis=1)).all()


def test_each_tree_has_its_own_paths(trees: TreeData) -> None:
    for tree in range(len(trees)):
        path = trees.path[:, trees.first_path[tree] : trees.first_path[tree + 1]]
        nodes = trees.first[tree + 1] - trees.first[tree]
        assert (path[:, -nodes:] == np.arange(nodes)).all()
        assert 0 <= path.min() <= path.max() == nodes - 1


@pytest.mark.parametrize("copies", [1, 3])
def test_trees_of_one_node_alone_simply_work(copies: int) -> None:
    data = build([DOT] * copies, np.zeros(copies, dtype=np.int64), "dots", ("",))
    assert data.path.tolist() == [[0] * copies] * 4
    assert np.isfinite(data.features).all()


# ------------------------------------------------------------------------------------------------ split


def test_the_split_takes_every_tree_once() -> None:
    data = split(build([Y] * 40, np.zeros(40, dtype=np.int64), "forty", ("",)), seed=1)
    assert [len(data.train), len(data.validation), len(data.test)] == [28, 6, 6]
    assert sorted([*data.train, *data.validation, *data.test]) == list(range(40))


def test_the_split_depends_on_the_seed_alone(trees: TreeData) -> None:
    assert_equal(split(trees, 3), split(trees, 3))
    assert split(trees, 3).test.tolist() != split(trees, 4).test.tolist()


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_trees_are_refused(count: int) -> None:
    data = build([Y] * count, np.zeros(count, dtype=np.int64), "few", ("",))
    with pytest.raises(DataError, match=f"few holds {count} trees: give three or more"):
        split(data, 0)


def test_three_trees_are_enough() -> None:
    data = split(build([Y, Y, DOT], np.zeros(3, dtype=np.int64), "three", ("",)), 0)
    assert [len(data.train), len(data.validation), len(data.test)] == [1, 1, 1]


# ------------------------------------------------------------------------------------------------ folders


def test_a_folder_becomes_trees_with_labels(swc_folder: Path) -> None:
    data = load_trees(str(swc_folder), seed=0)
    assert (data.name, data.classes, data.label.tolist(), data.bad) == ("cells", ("a", "b"), [0, 0, 1, 1], 0)
    assert len(data.parent) == 20


def test_synthetic_trees_need_no_folder() -> None:
    assert len(load_trees("synthetic", seed=0)) == 80


def test_bad_files_are_refused_or_left_out_and_counted(swc_folder: Path) -> None:
    (swc_folder / "a" / "bad.swc").write_text("1 1 0 0 0 nan -1\n")
    with pytest.raises(DataError, match=r"bad\.swc, line 1: expected .* nan.*skip_bad=True leaves such files out"):
        load_trees(str(swc_folder), seed=0)
    for _ in range(2):  # built, and from the cache
        data = load_trees(str(swc_folder), seed=0, skip_bad=True)
        assert (len(data), data.bad) == (4, 1)
    with pytest.raises(DataError, match=r"bad\.swc, line 1"):
        load_trees(str(swc_folder), seed=0)


def test_a_huge_and_a_tiny_tree_are_loaded_together(swc_folder: Path) -> None:
    lines = (f"{n} 3 {n % 7} {n % 11} {n % 13} 1 {n // 2 or -1}" for n in range(1, 100_001))
    (swc_folder / "a" / "huge.swc").write_text("\n".join(lines))
    (swc_folder / "b" / "tiny.swc").write_text("1 1 0 0 0 1 -1\n")
    data = load_trees(str(swc_folder), seed=0)
    assert sorted(np.diff(data.first))[0] == 1
    assert sorted(np.diff(data.first))[-1] == 99_999  # one node of the 100,000 has one child
    assert np.isfinite(data.features).all()


# ------------------------------------------------------------------------------------------------ cache


def entries() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"]).glob("tuner/TreeData/*"))


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch, swc_folder: Path) -> TreeData:
    """A folder that has been loaded once, and can be read no more."""
    data = load_trees(str(swc_folder), seed=0)

    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("the files were read again")

    monkeypatch.setattr(module, "read_folder", fail)
    return data


def test_a_second_load_reads_no_file(no_reading: TreeData, swc_folder: Path) -> None:
    assert_equal(load_trees(str(swc_folder), seed=0), no_reading)
    assert_equal(load_trees(str(swc_folder), seed=1), split(no_reading, 1))  # the split is not in the cache
    assert len(entries()) == 1


def test_cached_arrays_are_mapped_and_not_read(no_reading: TreeData, swc_folder: Path) -> None:
    data = load_trees(str(swc_folder), seed=0)
    assert isinstance(data.position, np.memmap)
    assert data.position.filename == entries()[0] / "position.npy"
    assert not data.position.flags.writeable


def test_another_level_of_labels_is_read_anew(swc_folder: Path) -> None:
    (swc_folder / "a").rename(swc_folder / "a-before")
    (swc_folder / "b" / "a").mkdir()
    (swc_folder / "a-before").rename(swc_folder / "b" / "a" / "x")
    for file in sorted((swc_folder / "b").glob("*.swc")):
        (swc_folder / "b" / "c").mkdir(exist_ok=True)
        file.rename(swc_folder / "b" / "c" / file.name)
    assert load_trees(str(swc_folder), seed=0).classes == ("b",)
    assert load_trees(str(swc_folder), seed=0, label_level=2).classes == ("a", "c")
    assert len(entries()) == 2


@pytest.mark.parametrize("change", ["content", "new", "gone"])
def test_a_changed_folder_is_read_anew(change: str, no_reading: TreeData, swc_folder: Path) -> None:
    file = swc_folder / "a" / "0.swc"
    if change == "content":
        file.write_text(file.read_text().replace("2", "3"))
        os.utime(file, ns=(0, 0))
    elif change == "new":
        (swc_folder / "b" / "9.swc").write_text(swc(Y))
    else:
        file.unlink()
    with pytest.raises(AssertionError, match="read again"):
        load_trees(str(swc_folder), seed=0)


def test_the_new_content_is_what_comes(swc_folder: Path) -> None:
    load_trees(str(swc_folder), seed=0)
    (swc_folder / "a" / "0.swc").write_text("1 1 0 0 0 1 -1\n")
    assert np.diff(load_trees(str(swc_folder), seed=0).first).tolist() == [1, 5, 5, 5]


@pytest.mark.parametrize("damage", ["truncated", "no header", "empty", "zeros", "gone", "about", "no about"])
def test_a_damaged_entry_is_built_again(damage: str, swc_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_trees(str(swc_folder), seed=0)
    (entry,) = entries()
    file = entry / ("about.json" if "about" in damage else "position.npy")
    content = file.read_bytes()
    file.unlink()  # not written over: it is mapped
    if damage not in ("gone", "no about"):
        left = {"truncated": content[:-8], "no header": content[:5], "zeros": bytes(len(content)), "about": b"{}"}
        file.write_bytes(left.get(damage, b""))
    assert_equal(load_trees(str(swc_folder), seed=0), data)
    monkeypatch.setattr(module, "read_folder", None)
    assert_equal(load_trees(str(swc_folder), seed=0), data)


def test_what_was_built_is_mapped_at_once(swc_folder: Path) -> None:
    assert isinstance(load_trees(str(swc_folder), seed=0).position, np.memmap)


def test_an_entry_that_another_process_has_put_there_meanwhile_stays(
    swc_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = module.read_folder

    def slow(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "read_folder", read)
        load_trees(str(swc_folder), seed=0)
        before.extend(path.stat() for path in sorted(entries()[0].iterdir()))
        return read(*arguments, **options)

    before: list[os.stat_result] = []
    monkeypatch.setattr(module, "read_folder", slow)
    load_trees(str(swc_folder), seed=0)
    (entry,) = entries()
    assert [path.stat() for path in sorted(entry.iterdir())] == before


def test_generated_trees_have_no_levels() -> None:
    with pytest.raises(DataError, match="label_level 2: generated trees are in no folders: leave it out"):
        load_trees("synthetic", seed=0, label_level=2)


def test_without_a_place_for_a_cache_trees_are_still_loaded(
    swc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert len(load_trees(str(swc_folder), seed=0)) == 4


def test_nothing_half_written_stays_behind(swc_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full)
    assert len(load_trees(str(swc_folder), seed=0)) == 4
    assert entries() == []


def test_an_entry_knows_name_and_classes(no_reading: TreeData) -> None:
    assert json.loads((entries()[0] / "about.json").read_text()) == {
        "name": "cells",
        "classes": ["a", "b"],
        "bad": 0,
        "notes": [],
    }
