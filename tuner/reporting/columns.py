"""Tables as lines of text, within a terminal's width.

Where a table is too wide, the columns that can be spared are left out first. If it is too wide even so, some columns
follow in a block below. Nothing is cut.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from rich.cells import cell_len

GAP = "  "


@dataclass(frozen=True)
class TextColumn:
    """A column of a table."""

    head: str
    texts: Sequence[str]
    left: bool = False  # aligned to the left, as words are
    spared: int = 0  # columns of low numbers are left out first; 0 never
    names: bool = False  # its texts are names of rows, with which each block begins

    @cached_property
    def size(self) -> int:
        """Its width on a terminal, where some characters are as wide as two."""
        return max(map(cell_len, (self.head, *self.texts)))

    def cells(self) -> list[str]:
        """Head and texts, each of the same length."""
        gaps = [(text, " " * (self.size - cell_len(text))) for text in (self.head, *self.texts)]
        return [text + gap if self.left else gap + text for text, gap in gaps]


def table_lines(columns: Sequence[TextColumn], width: int | None = None, elsewhere: str = "") -> list[str]:
    """The lines of a table: its head and rows, further blocks alike, and the names of columns that were left out.

    Args:
        columns: in their order; their heads differ.
        width: of the terminal; None for lines of any length.
        elsewhere: what shows the columns that were left out.
    """
    kept, left_out = list(columns), list[str]()
    for column in sorted(filter(attrgetter("spared"), columns), key=attrgetter("spared")):
        if width is not None and _width(kept) > width:
            kept.remove(column)
            left_out.append(column.head)
    lines = [GAP.join(cells).rstrip() for block in _blocks(kept, width) for cells in zip(*block, strict=True)]
    if left_out:
        shown_by = f" (shown by {elsewhere})" if elsewhere else ""
        lines += textwrap.wrap(
            f"left out, as lines are too long: {', '.join(left_out)}{shown_by}", width or 0, break_on_hyphens=False
        )
    return lines


def _width(columns: Sequence[TextColumn]) -> int:
    return sum(column.size for column in columns) + len(GAP) * (len(columns) - 1)


def _blocks(columns: Sequence[TextColumn], width: int | None) -> list[list[list[str]]]:
    """The cells of each column, in blocks that fit the terminal. Each has the names and at least one other column."""
    names = [column for column in columns if column.names]
    blocks: list[list[TextColumn]] = [[]]
    for column in columns:
        others = [other for other in blocks[-1] if not other.names]
        if others and width is not None and not column.names and _width([*blocks[-1], column]) > width:
            blocks.append([*names])
        blocks[-1].append(column)
    return [[column.cells() for column in block] for block in blocks]
