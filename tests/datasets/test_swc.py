from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tuner.datasets.swc import Tree, read_folder, read_swc, reduce_tree
from tuner.errors import DataError

# A root with a leaf and a branch point, which lies beyond a node that is neither and has two leaves.
GOOD = """# a comment
1 1 0 0 0 5 -1
2 3 1 0 0 1 1

3 3 0 2 0 1 1
4 3 0 3 0 1 3
5 3 1 4 0 1 4
6 3 -1 4 0 0.5 4
"""


def write(folder: Path, text: str, name: str = "a.swc") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def random_parents(size: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    random = np.random.default_rng(seed)
    return np.array([-1, *(random.integers(node) for node in range(1, size))])


def swc_of(parents: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    position = np.random.default_rng(0).normal(size=(len(parents), 3)).round(3)
    rows = zip(position.tolist(), parents.tolist(), strict=True)
    return "\n".join(
        f"{node} 3 {x} {y} {z} 1 {parent + 1 if parent >= 0 else -1}"
        for node, ((x, y, z), parent) in enumerate(rows, 1)
    )


def test_a_reconstruction_is_read_in_preorder(tmp_path: Path) -> None:
    tree = read_swc(write(tmp_path, GOOD))
    assert tree.parent.tolist() == [-1, 0, 0, 2, 3, 3]
    assert tree.position[3].tolist() == [0, 3, 0]
    assert tree.radius.tolist() == [5, 1, 1, 1, 1, 0.5]


def test_neither_the_order_of_lines_nor_their_numbers_matter(tmp_path: Path) -> None:
    text = "70 3 0 2 0 1 9\n9 1 0 0 0 5 -1\n20 3 1 0 0 1 9\n"
    tree = read_swc(write(tmp_path, text))
    assert tree.parent.tolist() == [-1, 0, 0]
    assert sorted(tree.position[:, :2].tolist()) == [[0, 0], [0, 2], [1, 0]]
    assert tree.radius[0] == 5


def test_more_columns_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    text = "\ufeff# saved on Windows\r\n1 1 0 0 0 5 -1 extra\r\n2 3 1 0 0 1 1 extra\r\n"
    assert len(read_swc(write(tmp_path, text))) == 2


@pytest.mark.parametrize("separator", ["\t", ",", ", ", " ;", "  "])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_fields_may_be_between_other_marks(separator: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "n.SWC"
    path.write_text(GOOD.replace(" ", separator) + "# made, by us\n", encoding=encoding)
    assert read_swc(path).position.tolist() == read_swc(write(tmp_path, GOOD)).position.tolist()


def test_decimal_commas_between_blanks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: expected the numbers id type"):
        read_swc(write(tmp_path, "1 1 0,5 0,5 0,5 1,5 -1\n"))


def test_descendants_are_the_rows_after_a_node(tmp_path: Path) -> None:
    parents = read_swc(write(tmp_path, swc_of(random_parents(200, seed=1)))).parent
    for node in range(200):
        below = {node}
        below.update(child for child in range(node + 1, 200) if _has_ancestor(parents, child, node))
        assert below == set(range(node, node + len(below)))


def _has_ancestor(parents: np.ndarray[tuple[int], np.dtype[np.int64]], node: int, ancestor: int) -> bool:
    while node > ancestor:
        node = int(parents[node])
    return node == ancestor


def test_root_branch_points_and_leaves_are_kept(tmp_path: Path) -> None:
    tree = reduce_tree(read_swc(write(tmp_path, GOOD)))
    assert tree.parent.tolist() == [-1, 0, 0, 2, 2]
    assert tree.position.tolist() == [[0, 0, 0], [1, 0, 0], [0, 3, 0], [1, 4, 0], [-1, 4, 0]]
    assert tree.radius.tolist() == [5, 1, 1, 1, 0.5]


@pytest.mark.parametrize("seed", range(5))
def test_a_reduced_tree_has_no_other_nodes(seed: int, tmp_path: Path) -> None:
    tree = read_swc(write(tmp_path, swc_of(random_parents(100, seed))))
    reduced = reduce_tree(tree)
    children = np.bincount(reduced.parent[1:], minlength=len(reduced))
    assert (children[1:] != 1).all()
    assert (children == 0).sum() == (np.bincount(tree.parent[1:], minlength=len(tree)) == 0).sum()
    again = reduce_tree(reduced)
    assert (again.parent == reduced.parent).all()


def test_an_unbranched_tree_is_reduced_to_its_ends() -> None:
    line = Tree(np.arange(30.0).reshape(10, 3), np.ones(10), np.arange(-1, 9))
    reduced = reduce_tree(line)
    assert reduced.parent.tolist() == [-1, 0]
    assert reduced.position.tolist() == [[0, 1, 2], [27, 28, 29]]


def test_a_tree_of_one_node_simply_works(tmp_path: Path) -> None:
    tree = reduce_tree(read_swc(write(tmp_path, "1 1 0 0 0 5 -1\n")))
    assert (len(tree), tree.parent.tolist()) == (1, [-1])


@pytest.mark.parametrize("shape", ["line", "binary"])
def test_a_tree_of_100_000_nodes_simply_works(shape: str, tmp_path: Path) -> None:
    node = np.arange(100_000)
    parents = node - 1 if shape == "line" else (node + 1) // 2 - 1
    lines = (f"{row + 1} 3 {row % 7} {row % 11} 0 1 {parents[row] + 1 or -1}" for row in node)
    tree = read_swc(write(tmp_path, "\n".join(lines)))
    assert len(tree) == 100_000
    assert len(reduce_tree(tree)) == (2 if shape == "line" else 99_999)


# ------------------------------------------------------------------------------------------------ what is refused

BAD = {
    "cycle": (GOOD.replace("4 3 0 3 0 1 3", "4 3 0 3 0 1 6"), "line 6: id 4 is on or below a cycle"),
    "own parent": (GOOD.replace("4 3 0 3 0 1 3", "4 3 0 3 0 1 4"), "line 6: id 4 is on or below a cycle"),
    "two roots": (GOOD.replace("3 3 0 2 0 1 1", "3 3 0 2 0 1 -1"), "line 5: a second root; a tree has one"),
    "no root": (GOOD.replace("5 -1", "5 6"), "no root: a node with parent -1; a tree has one"),
    "NaN radius": (
        GOOD.replace("0.5 4", "NaN 4"),
        "line 8: expected the numbers id .* finite, .*, but got '6 3 -1 4 0 NaN 4'; fix",
    ),
    "infinite position": (GOOD.replace("2 3 1 0 0", "2 3 1 inf 0"), "line 3: expected the numbers"),
    "no number": (GOOD.replace("0.5 4", "thin 4"), "line 8: expected the numbers"),
    "text": (
        "To whom it may concern: I have lost the file.\n",
        "line 1: expected the numbers id type x y z radius parent, .* but got 'To whom",
    ),
    "short text": ("\n# SWC\nhello\n", "line 3: expected the numbers"),
    "too few columns": (GOOD.replace("2 3 1 0 0 1 1", "2 3 1 0 0 1"), "line 3: expected the numbers"),
    "duplicate id": (GOOD.replace("4 3 0 3 0 1 3", "2 3 0 3 0 1 3"), "line 6: id 2 is used twice"),
    "missing parent": (GOOD.replace("4 3 0 3 0 1 3", "4 3 0 3 0 1 30"), "line 6: parent 30 is not in the file"),
    "broken id": (GOOD.replace("4 3 0 3 0 1 3", "4.5 3 0 3 0 1 3"), "line 6: .* id and parent whole, but got '4.5"),
    "huge parent": (GOOD.replace("0.5 4", "0.5 1e300"), "line 8: .* id and parent whole"),
    "only comments": ("# nothing\n\n# more\n", "holds no node: every line is empty or a comment"),
    "empty": ("", "holds no node: every line is empty or a comment"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_line_that_names_it(kind: str, tmp_path: Path) -> None:
    text, reason = BAD[kind]
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=reason) as caught:
        read_swc(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.swc"
    path.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(DataError, match=r"a\.swc, line 1: expected the numbers id "):
        read_swc(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.swc cannot be read: No such file"):
        read_swc(tmp_path / "gone.swc")


@pytest.mark.parametrize(("name", "reason"), [("gone", "no folder '.*gone'"), ("", "no .swc file in '.*'")])
def test_a_folder_without_reconstructions_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD, "notes.txt")
    with pytest.raises(DataError, match=f"{reason}: give .*the folder of SWC files, or 'synthetic'"):
        read_folder(tmp_path / name)


# ------------------------------------------------------------------------------------------------ folders


def test_sub_folders_are_labels(tmp_path: Path) -> None:
    for name in ("b/one.swc", "a/two.SWC", "b/three.swc"):
        write(tmp_path, GOOD, name)
    found = read_folder(tmp_path)
    assert sorted(path.name for path in found.files) == ["one.swc", "three.swc", "two.SWC"]
    assert [found.classes[label] for label in found.labels] == [path.parent.name for path in found.files]
    assert found.classes == ("a", "b")
    assert [len(tree) for tree in found.trees] == [5, 5, 5]


def test_without_sub_folders_there_is_one_nameless_class(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert read_folder(tmp_path).classes == ("",)


def test_the_first_bad_file_stops_reading_and_tells_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, BAD["cycle"][0], "bad.swc")
    with pytest.raises(DataError, match=r"bad\.swc, line 6: .* cycle; skip_bad=True leaves such files out"):
        read_folder(tmp_path)


def test_bad_files_are_left_out_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    for number, (text, _) in enumerate(BAD.values()):
        write(tmp_path, text, f"bad{number}.swc")
    found = read_folder(tmp_path, skip_bad=True)
    assert [path.name for path in found.files] == ["a.swc"]
    assert (len(found.trees), len(found.labels), len(found.bad)) == (1, 1, len(BAD))


def test_a_folder_of_nothing_but_bad_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, BAD["cycle"][0], "bad.swc")
    with pytest.raises(DataError, match=r"none of the 1 \.swc files in .* can be used: .*bad\.swc, line 6"):
        read_folder(tmp_path, skip_bad=True)


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("level", "classes", "labels"),
    [(1, ("basket", "pyramidal"), [0, 0, 1]), (2, ("Allen", "Markram"), [1, 0, 1]), (3, ("CNG version",), [0] * 3)],
)
def test_labels_are_the_names_of_one_level_of_folders(
    level: int, classes: tuple[str, ...], labels: list[int], tmp_path: Path
) -> None:
    for name in (
        "basket/Markram/CNG version/axon/a",
        "basket/Allen/CNG version/b",
        "pyramidal/Markram/CNG version/c",
    ):
        write(tmp_path, GOOD, f"{name}.swc")
    found = read_folder(tmp_path, label_level=level)
    order = [path.stem for path in found.files]
    assert (found.classes, [int(found.labels[order.index(name)]) for name in "abc"]) == (classes, labels)


def test_a_tree_in_no_folder_of_the_level_is_refused_but_for_the_first(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a/b/1.swc")
    write(tmp_path, GOOD, "2.swc")
    assert read_folder(tmp_path).classes == ("", "a")
    with pytest.raises(
        DataError, match=r"label_level 2: '2.swc' is in 0 folders within .*: give .*label_level=1.*, or"
    ):
        read_folder(tmp_path, label_level=2)
    (tmp_path / "2.swc").unlink()
    with pytest.raises(DataError, match=r"label_level 3: 'a/b/1.swc' is in 2 folders within the data's: give .*=2"):
        read_folder(tmp_path, label_level=3)


def test_the_largest_of_several_trees_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "two.swc").write_text("1 1 0 0 0 1 -1\n2 3 1 0 0 1 -1\n3 3 2 0 0 1 2\n4 3 3 0 0 1 3 # a comment\n")
    with pytest.raises(
        DataError, match=r"line 2: a second root; a tree has one: largest_tree=True keeps the largest"
    ):
        read_swc(tmp_path / "two.swc")
    assert read_swc(tmp_path / "two.swc", largest_tree=True).position[:, 0].tolist() == [1, 2, 3]
    (tmp_path / "two.swc").write_text("1 1 0 0 0 1 -1\n2 3 1 0 0 1 3\n3 3 2 0 0 1 2\n4 3 3 0 0 1 -1\n")
    with pytest.raises(DataError, match="line 2: id 2 is on or below a cycle"):
        read_swc(tmp_path / "two.swc", largest_tree=True)


def test_a_parent_0_is_none_where_no_node_has_this_id(tmp_path: Path) -> None:
    (tmp_path / "a.swc").write_text("1 1 0 0 0 1 0\n2 3 1 0 0 1 1\n")
    assert read_swc(tmp_path / "a.swc").parent.tolist() == [-1, 0]
    (tmp_path / "a.swc").write_text("0 1 0 0 0 1 -1\n1 3 1 0 0 1 0\n")
    assert read_swc(tmp_path / "a.swc").parent.tolist() == [-1, 0]
