"""Reads neuron reconstructions from SWC files, and reduces them to root, branch points and leaves.

A line is ``id type x y z radius parent``; the root's parent is -1 (Cannon et al., J. Neurosci. Methods 84, 1998).
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.texts import filled_lines, line_fault, unexpected
from tuner.errors import DataError, option

COLUMNS = ("id", "type", "x", "y", "z", "radius", "parent")
_MARKED = re.compile(r"\S+\s*[,;]")  # a line whose fields are between commas or semicolons in place of blanks
_FIELD_END = re.compile(r"\s+"), re.compile(r"[,;]")
EXPECTED = f"the numbers {' '.join(COLUMNS)}, all finite, id and parent whole"


@dataclass(frozen=True, eq=False)
class Tree:
    """A geometric tree with its nodes in preorder, so that a node's descendants are the rows after it."""

    position: NDArray[np.float64]  # (N, 3) in the file's unit (µm)
    radius: NDArray[np.float64]  # (N,)
    parent: NDArray[np.int64]  # (N,); -1 for the root, which is row 0

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.parent)


class SwcFolder(NamedTuple):
    """The trees of a folder of reconstructions."""

    files: list[Path]  # of the trees, in order
    trees: list[Tree]  # reduced
    labels: NDArray[np.int64]  # (T,) each tree's index into ``classes``
    classes: tuple[str, ...]  # the names of the sub-folders; an empty name for trees that are in none
    bad: list[str]  # the faults of the files that were left out


def find_files(folder: Path) -> list[Path]:
    """The .swc files of a folder and its sub-folders, sorted; raises ``DataError`` if there is none."""
    if not folder.is_dir():
        what = f"{str(folder)!r} is not a folder" if folder.exists() else f"no folder {str(folder)!r}"
        raise DataError(f"{what}: give {option('data')} the folder of SWC files, or 'synthetic'")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".swc" and path.is_file())
    if not files:
        raise DataError(f"no .swc file in {str(folder)!r}: give the folder of SWC files, or 'synthetic'")
    return files


def read_folder(
    folder: Path, *, skip_bad: bool = False, label_level: int = 1, largest_tree: bool = False
) -> SwcFolder:
    """Reads and reduces every reconstruction in a folder and its sub-folders.

    A tree's label is the name of its sub-folder at level ``label_level``; level 1 is directly in ``folder``. Raises
    ``DataError`` with line and reason for the first invalid file, or for a file that is in no folder of a level above
    1. With ``skip_bad`` invalid files are left out, and the error is raised if no file is left.
    """
    files, trees, bad, paths = [], [], [], find_files(folder)
    labels = [_label(path.relative_to(folder), label_level) for path in paths]
    for path in paths:
        try:
            trees.append(reduce_tree(read_swc(path, largest_tree=largest_tree)))
            files.append(path)
        except DataError as error:
            if not skip_bad:
                raise DataError(f"{error.text}; {option('skip_bad', True)} leaves such files out") from error
            bad.append(error.text)
    if not trees:
        raise DataError(f"none of the {len(bad)} .swc files in {str(folder)!r} can be used: {bad[0]}")
    kept = set(files)
    names = [label for path, label in zip(paths, labels, strict=True) if path in kept]
    classes, numbers = np.unique(names, return_inverse=True)
    return SwcFolder(files, trees, numbers.astype(np.int64), tuple(map(str, classes)), bad)


def _label(path: Path, level: int) -> str:
    """The name of a file's folder of this level; ``path`` is relative to the data's folder."""
    folders = path.parts[:-1]
    if level > max(1, len(folders)):
        raise DataError(
            f"label_level {level}: {str(path)!r} is in {len(folders)} folder{'s' * (len(folders) != 1)} within the "
            f"data's: give {option('overrides', f'label_level={max(1, len(folders))}')}, or move it"
        )
    return folders[level - 1] if folders else ""


def read_swc(path: Path, *, largest_tree: bool = False) -> Tree:
    """Reads all nodes of a reconstruction, or with ``largest_tree`` those of the tree with the most nodes.

    Raises ``DataError`` if a number is not finite, a parent is missing, there is a cycle, no root, or more than one.
    """
    lines = [(number, line.partition("#")[0].strip()) for number, line in filled_lines(path)]
    rows = [(number, _FIELD_END[bool(_MARKED.match(line))].split(line)) for number, line in lines if line]
    if not rows:
        raise DataError(f"{path} holds no node: every line is empty or a comment")
    return _tree(path, _table(path, rows), np.array([number for number, _ in rows]), largest_tree)


def reduce_tree(tree: Tree) -> Tree:
    """Keeps root, branch points and leaves. The parent of each is its nearest kept ancestor."""
    children = np.bincount(tree.parent[1:], minlength=len(tree))
    kept = children != 1
    kept[0] = True
    # In preorder a parent comes before its child, so its nearest kept ancestor is known already.
    nearest = np.where(kept, np.arange(len(tree)), -1)
    for node in np.flatnonzero(~kept).tolist():
        nearest[node] = nearest[tree.parent[node]]
    number = np.cumsum(kept) - 1
    parent = np.full(int(kept.sum()), -1, dtype=np.int64)
    parent[1:] = number[nearest[tree.parent[kept][1:]]]
    return Tree(tree.position[kept], tree.radius[kept], parent)


def _table(path: Path, rows: list[tuple[int, list[str]]]) -> NDArray[np.float64]:
    """The seven columns of all lines as numbers."""
    table = []
    for number, words in rows:
        try:
            table.append(_row(words))
        except ValueError as error:
            raise unexpected(path, number, " ".join(words), EXPECTED) from error
    return np.array(table)


def _row(words: list[str]) -> list[float]:
    row = [float(word) for word in words[: len(COLUMNS)]]
    whole = all(number.is_integer() and abs(number) < 2**53 for number in row[::6])
    if len(row) < len(COLUMNS) or not whole or not all(map(math.isfinite, row)):
        raise ValueError(row)
    return row


def _tree(path: Path, table: NDArray[np.float64], lines: NDArray[np.int64], largest_tree: bool) -> Tree:
    ids, parents = table[:, 0].astype(np.int64), table[:, 6].astype(np.int64)
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    if (twice := np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])).size:
        raise line_fault(path, lines[order[twice[0] + 1]], f"id {sorted_ids[twice[0]]} is used twice")
    if sorted_ids[0] > 0:  # Vaa3D gives a root the parent 0
        parents[parents == 0] = -1
    roots = np.flatnonzero(parents < 0)
    if not len(roots):
        raise DataError(f"{path}, no root: a node with parent -1; a tree has one")
    if len(roots) > 1 and not largest_tree:
        remedy = f"{option('largest_tree', True)} keeps the largest of {len(roots)}"
        raise line_fault(path, lines[roots[1]], f"a second root; a tree has one: {remedy}")
    place = np.minimum(np.searchsorted(sorted_ids, parents), len(ids) - 1)
    if (orphans := np.flatnonzero((sorted_ids[place] != parents) & (parents >= 0))).size:
        raise line_fault(path, lines[orphans[0]], f"parent {parents[orphans[0]]} is not in the file")
    parent = np.where(parents < 0, -1, order[place])
    trees = [preorder(parent, root) for root in roots.tolist()]
    if sum(len(rows) for rows, _ in trees) < len(parent):
        missing = np.setdiff1d(np.arange(len(parent)), np.concatenate([rows for rows, _ in trees]))[0]
        raise line_fault(path, lines[missing], f"id {ids[missing]} is on or below a cycle")
    rows, renumbered = max(trees, key=lambda tree: len(tree[0]))
    return Tree(table[rows, 2:5], table[rows, 5], renumbered)


def preorder(parent: NDArray[np.int64], root: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The nodes below the root in preorder, and each one's parent as a position in that order.

    ``parent`` is -1 for the root.
    """
    order = np.argsort(parent, kind="stable")
    first = np.searchsorted(parent[order], np.arange(-1, len(parent) + 1)).tolist()
    children = order.tolist()
    visited, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        visited.append(node)
        waiting.extend(reversed(children[first[node + 1] : first[node + 2]]))
    rows = np.array(visited, dtype=np.int64)
    number = np.full(len(parent), -1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    return rows, np.where(parent[rows] < 0, -1, number[parent[rows]])
