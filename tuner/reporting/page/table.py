"""All trials as an HTML table, with the very texts of ``results.csv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, Attempt, columns
from tuner.reporting.figures.axes import varying
from tuner.reporting.seeds import has_seeds

NAME, SEED, STATUS = "name", "seed", "status"
THEN = ("attempts", "epochs", "duration_s", "peak_memory_gb", "estimated_memory_gb", "device")  # after what was tried
LAST = ("error",)


def trials_table(rows: Sequence[Attempt], metrics: Mapping[str, str]) -> str:
    """The rows as a ``<table>``; columns with the same value in every row have the class ``same``.

    Args:
        rows: as they are to stand.
        metrics: what trials are compared by, by workload: these columns stand next to the name.
    """
    listed = ordered_columns(rows, metrics)
    classes = {key: cell_classes(key, rows) for key in listed}
    heads, lines = [_header(key, classes[key], listed) for key in listed], [_line(row, listed) for row in rows]
    caption = "All trials, the best first; the columns are those of results.csv"
    return f"<style>{_column_styles(classes.values())}</style>{sortable_table('trials', caption, heads, lines)}"


def ordered_columns(rows: Sequence[Attempt], metrics: Mapping[str, str]) -> list[str]:
    """The CSV's columns: the name, metrics and status, what was tried, then the others.

    The seed stands by the name where there are several. So a phone shows the figures without being scrolled.
    """
    all_ = columns(rows)
    own = [key for key in dict.fromkeys(metrics.values()) if key in all_]
    fixed = {*BEFORE_METRICS, *AFTER_METRICS}
    tests = [key.replace("val_", "test_") for key in own if key.startswith("val_")]
    tests = [key for key in tests if key in all_ and key not in fixed]
    first = [NAME, *([SEED] if has_seeds(rows) else []), *own, *tests, STATUS, *varying(rows), *THEN]
    first = [key for key in dict.fromkeys(first) if key in all_ and key not in LAST]
    return [*first, *(key for key in all_ if key not in first and key not in LAST), *LAST]


def cell_text(value: Any) -> str:
    """A value as the CSV has it."""
    return "" if value is None else str(value)


def cell_classes(key: str, rows: Sequence[Attempt]) -> str:
    """The CSS classes of a column's cells: ``n`` of numbers, ``s`` where all are the same."""
    texts = {cell_text(row.value(key)) for row in rows}
    same = "s" if len(texts) == 1 and key not in (NAME, STATUS) and len(rows) > 1 else ""
    numbers = all(isinstance(row.value(key), (int, float, type(None))) for row in rows)
    return " ".join(filter(None, (same, "n" if numbers and texts != {""} else "")))


def _header(key: str, classes: str, listed: Sequence[str]) -> str:
    plain = key.removeprefix("config/")
    label = key if plain != key and plain in listed else plain
    return head_cell(key, label, classes)


def sortable_table(name: str, caption: str, heads: Iterable[str], lines: Iterable[str]) -> str:
    """A table of such heads and rows, which vendor/sortable.min.js sorts: first ascending, blank cells last."""
    body = "\n".join(lines)
    return (
        f'<table id="{name}" class="sortable asc n-last"><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )


def head_cell(key: str, label: str, kind: str) -> str:
    """A column's head with the button that sorts by it; ``kind`` are the CSS classes of its cells."""
    kind = f' class="{kind}"' if kind else ""
    return (
        f'<th scope="col" data-column="{escape(key)}"{kind}>'
        f'<button type="button">{escape(label)}<span class="arrow" aria-hidden="true"></span></button></th>'
    )


def _column_styles(classes: Iterable[str]) -> str:
    """What the classes mean for the cells of the trials' table, so that not every cell must have them."""
    numbered = [(f"td:nth-child({place})", kind.split()) for place, kind in enumerate(classes, 1)]
    numbers = [f"#trials {cell}" for cell, kinds in numbered if "n" in kinds]
    same = [f"#trials:not(.every) {cell}" for cell, kinds in numbered if "s" in kinds]
    return f"{','.join(numbers)} {{ text-align: right }} {','.join(same)} {{ display: none }}"


def _line(row: Attempt, listed: Sequence[str]) -> str:
    cells = []
    for key in listed:
        text = escape(cell_text(row.value(key)))
        if key == NAME:
            cells.append(f'<th scope="row">{text}</th>')
        elif key == STATUS:
            cells.append(f'<td><span class="status {text}">{text}</span>')
        else:
            cells.append(f"<td>{text}")
    return f'<tr data-trial="{escape(str(row.trial_id))}">{"".join(cells)}</tr>'
