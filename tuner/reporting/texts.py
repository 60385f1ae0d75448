"""Values as text for people, and tables as lines of text within a terminal's width.

Where a table is too wide, the columns that can be spared are left out first. If it is still too wide, some columns
follow in a block below. Nothing is cut.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from rich.cells import cell_len

from tuner.errors import printable
from tuner.records.attempts import CONFIG
from tuner.records.row_queries import is_metric
from tuner.reporting.figures.chart import thinned
from tuner.trial import GB
from tuner.values import label

MEMORY_VIEWER = "https://docs.pytorch.org/memory_viz"  # draws snapshots of PyTorch's allocator
MOST_OF_ERROR = 400  # the characters that a terminal shows of an error; the journal has them all
GB_DIGITS = dict.fromkeys(("estimated_memory_gb", "peak_memory_gb", "peak_ram_gb"), 2)
DECIMALS = 4  # of a metric
MOST_DECIMALS = 12
LARGE = 1000
DIGITS = {"duration_s": 1, "gpu_fraction": 3, **GB_DIGITS}  # by column
BARS = "▁▂▃▄▅▆▇█"
GAP = "  "  # between columns
LEAST_CUT = 30  # characters of a column whose texts are cut


def metric_text(value: float, decimals: int = DECIMALS) -> str:
    """A metric with four decimals, or in four significant digits where these would say too little or be too long.

    A large whole number, such as of parameters, has none.
    """
    if abs(value) >= LARGE and _is_ordinary(value) and value == round(value):
        return f"{value:.0f}"
    return f"{value:.{decimals}f}" if value == 0 or _is_ordinary(value) else f"{value:.{DECIMALS}g}"


def decimals_apart(values: Iterable[object]) -> int:
    """The decimals of ``metric_text`` for values side by side: more where four would not tell them apart."""
    ordinary = [value for value in values if isinstance(value, float) and _is_ordinary(value)]
    spread = max(ordinary, default=0.0) - min(ordinary, default=0.0)
    return min(1 - math.floor(math.log10(spread)), MOST_DECIMALS) if 0 < spread < 10**-DECIMALS else DECIMALS


def _is_ordinary(value: float) -> bool:
    return 1e-3 <= abs(value) < 1e9


def value_text(column: str, value: object, decimals: int = DECIMALS) -> str:
    """A value as a line of printable characters; ``decimals`` are those of a metric."""
    if value is None and not column.startswith(CONFIG):
        return ""
    if isinstance(value, float):
        if is_metric(column):
            return metric_text(value, decimals)
        digits = DIGITS.get(column)
        return f"{value:.6g}" if digits is None else f"{value:.{digits}f}"
    text = label(value)
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def number_text(value: object) -> str:
    """A number with three significant digits, or more if it is whole; another value as it is.

    Zeros at the end stay where digits were left out: 0.8701 is ``0.870``, and 0.87 is ``0.87``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return label(value)
    if abs(value) < 10**6 and (isinstance(value, int) or abs(value) >= 1000):
        return f"{value:.0f}"
    short = f"{value:.3g}"
    whole = math.isclose(float(short), value, rel_tol=1e-9)
    return short if whole or "e" in short else f"{value:#.3g}".removesuffix(".")


def with_error(mean: float, half_width: float | None, *, signed: bool = False) -> str:
    """A mean with half the width of its interval, which has two significant digits: ``0.8512 ± 0.0034``."""
    sign = "+" if signed else ""
    if not half_width:
        return f"{sign * (mean > 0)}{number_text(mean)}"
    if not 1e-9 <= half_width < 1e9 or abs(mean) >= 1e9:
        return f"{mean:{sign}.6g} ± {half_width:.2g}"
    decimals = max(0, 1 - math.floor(math.log10(half_width)))
    return f"{mean:{sign}.{decimals}f} ± {half_width:.{decimals}f}"


def count_text(count: int, what: str) -> str:
    """A number with its noun: ``1 trial``, ``3 trials``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def counted(words: Iterable[str]) -> str:
    """How often each word occurs: ``3 completed, 1 pruned``."""
    return ", ".join(f"{count:,} {word}" for word, count in Counter(words).items())


def labelled(label: str, text: str) -> str:
    """A text with its label in a column before its first line; empty without a text."""
    return "\n".join(f"{'' if number else label:<10} {line}" for number, line in enumerate(text.splitlines()))


def gb_text(size_bytes: float, digits: int = 2) -> str:
    """A size: ``0.39 GB``."""
    return f"{size_bytes / GB:.{digits}f} GB"


def gb_span(least_bytes: float, most_bytes: float) -> str:
    """Two sizes: ``0.39 to 0.52 GB``, or ``0.39 GB`` where they read the same."""
    least, most = gb_text(least_bytes), gb_text(most_bytes)
    return most if least == most else f"{least.removesuffix(' GB')} to {most}"


def gb_of_ranks(ranks: int, each_bytes: int) -> str:
    """The memory of a trial: ``1.50 GB``, or ``2 x 1.50 GB`` for its ranks."""
    return f"{ranks} x " * (ranks > 1) + gb_text(each_bytes)


def sparkline(values: Sequence[float], most: int = 60) -> str:
    """Values as a line of bars, of very many only some, evenly spaced, with the last one."""
    shown = thinned(values, most)
    low, high = min(shown), max(shown)
    return "".join(BARS[round((value - low) / (high - low or 1) * (len(BARS) - 1))] for value in shown)


def duration(seconds: float) -> str:
    """Seconds in the two largest units: ``42 s``, ``3 min 5 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rough(seconds: float) -> str:
    """An estimate of seconds with at most two digits: ``0.04 s``, ``3 s``, ``36 s``, ``2 min``, ``1.5 h``."""
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{float(f'{max(seconds, 0.01):.2g}'):g} s"


@dataclass(frozen=True)
class TextColumn:
    """A column of a table."""

    head: str
    texts: Sequence[str]
    left: bool = False  # aligned to the left, as words are
    spared: int = 0  # columns of low numbers are left out first; 0 never
    names: bool = False  # its texts are names of rows, with which each block begins
    is_cut: bool = False  # whether its texts may be cut to what the terminal has left for them

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
    kept, left_out = [_cut(column, columns, width) for column in columns], list[str]()
    for column in sorted(filter(attrgetter("spared"), kept), key=attrgetter("spared")):
        if width is not None and _width(kept) > width:
            kept.remove(column)
            left_out.append(column.head)
    lines = [GAP.join(cells).rstrip() for block in _blocks(kept, width) for cells in zip(*block, strict=True)]
    if left_out:
        shown_by = f" (shown by {elsewhere})" if elsewhere else ""
        lines += textwrap.wrap(
            f"left out for lack of width: {', '.join(left_out)}{shown_by}", width or 0, break_on_hyphens=False
        )
    return lines


def _cut(column: TextColumn, columns: Sequence[TextColumn], width: int | None) -> TextColumn:
    """The column cut to what a terminal has left beside those that stay, or beside the names alone."""
    if not column.is_cut or width is None:
        return column
    others = [other for other in columns if not (other.spared or other.is_cut)]
    rooms = [width - _width(some) - len(GAP) for some in (others, [other for other in others if other.names])]
    room = rooms[0] if rooms[0] >= LEAST_CUT else max(rooms[1], LEAST_CUT)
    return replace(column, texts=[printable(text, room) for text in column.texts])


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
