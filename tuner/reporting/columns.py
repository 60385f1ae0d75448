"""Tables as lines of text, within a terminal's width.

Names and hyperparameters are never cut. Where a table is too wide, what names have in common at their beginning is
left out first, then the columns that can be spared. If it is too wide even so, some columns follow in a block below.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from os.path import commonprefix

from rich.cells import cell_len, set_cell_size

GAP = "  "
LEAST_OF_ERROR = 12  # the characters to which an error is shortened before its column is left out
SEPARATED = re.compile(r".*(?:[ ,;/_=:]|(?<!\de)(?<!=)-)")  # not by a number's sign, as in 1e-05


@dataclass(frozen=True)
class TextColumn:
    """A column of a table."""

    head: str
    texts: Sequence[str]
    left: bool = False  # aligned to the left, as words are
    spared: int = 0  # columns of low numbers are left out first; 0 never
    may_be_cut: bool = False  # its texts may be shortened before it is left out
    names: bool = False  # its texts are names of rows, with which each block begins

    @cached_property
    def size(self) -> int:
        """Its width on a terminal, where some characters are as wide as two."""
        return max(map(cell_len, (self.head, *self.texts)))

    def cells(self) -> list[str]:
        """Head and texts, each of the same length."""
        gaps = [(text, " " * (self.size - cell_len(text))) for text in (self.head, *self.texts)]
        return [text + gap if self.left else gap + text for text, gap in gaps]

    def cut(self, size: int) -> TextColumn:
        """This column with its texts shortened to this width."""
        texts = [text if cell_len(text) <= size else f"{set_cell_size(text, size - 1)}…" for text in self.texts]
        return replace(self, texts=texts)


def table_lines(columns: Sequence[TextColumn], width: int | None = None, elsewhere: str = "") -> list[str]:
    """The lines of a table: its head and rows, further blocks alike, and the names of columns that were left out.

    Args:
        columns: in their order; their heads differ.
        width: of the terminal; None for lines of any length.
        elsewhere: what shows the columns that were left out.
    """
    names = [column for column in columns if column.names]
    others = [column for column in columns if not column.names]
    order = {column.head: number for number, column in enumerate(columns)}
    left_out: list[str] = []

    def fits() -> bool:
        return width is None or _width([*names, *others]) <= width

    if not fits():
        names = [replace(column, texts=without_common_beginning(column.texts)) for column in names]
    for column in sorted(filter(attrgetter("spared"), others), key=attrgetter("spared")):
        if fits():
            break
        place = others.index(column)
        room = (width or 0) - _width([*names, *others]) + column.size
        if column.may_be_cut and room >= max(LEAST_OF_ERROR, cell_len(column.head)):
            others[place] = column.cut(room)
        else:
            del others[place]
            left_out.append(column.head)
    kept = sorted([*names, *others], key=lambda column: order[column.head])
    blocks = [kept] if fits() else _blocks(names, others, width)
    lines = [line for block in blocks for line in _joined(block)]
    if left_out:
        shown_by = f" (shown by {elsewhere})" if elsewhere else ""
        lines += textwrap.wrap(
            f"left out, as lines are too long: {', '.join(left_out)}{shown_by}", width or 0, break_on_hyphens=False
        )
    return lines


def without_common_beginning(names: Sequence[str]) -> list[str]:
    """Names without the words that all of them begin with; unchanged if that saves nothing."""
    found = SEPARATED.match(commonprefix(names))  # noqa: RUF071 - of any texts, not of paths
    common = len(found[0]) if found else 0
    return [f"…{name[common:]}" for name in names] if common > 1 and len(set(names)) > 1 else list(names)


def _width(columns: Sequence[TextColumn]) -> int:
    return sum(column.size for column in columns) + len(GAP) * (len(columns) - 1)


def _blocks(names: Sequence[TextColumn], others: Sequence[TextColumn], width: int | None) -> list[list[TextColumn]]:
    """The columns in blocks that fit the terminal. Each block has the names and at least one other column."""
    blocks = [[*names]]
    for column in others:
        if width is not None and len(blocks[-1]) > len(names) and _width([*blocks[-1], column]) > width:
            blocks.append([*names])
        blocks[-1].append(column)
    return blocks


def _joined(block: Sequence[TextColumn]) -> list[str]:
    return [GAP.join(cells).rstrip() for cells in zip(*(column.cells() for column in block), strict=True)]
