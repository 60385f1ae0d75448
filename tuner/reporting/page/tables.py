"""The page's tables: all trials with the values of ``results.csv``, and configurations over their seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tuner.errors import printable
from tuner.objective import Objective
from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, BLANK, CONFIG, Attempt, columns, is_blank
from tuner.records.row_queries import varying
from tuner.records.seed_statistics import has_seeds
from tuner.reporting.page.parts import compact, json_block
from tuner.reporting.result_tables import average_columns
from tuner.reporting.texts import MOST_OF_ERROR, number_text
from tuner.trial import FRONT, ConfigValue
from tuner.values import is_number, label, value_key

# The columns after the hyperparameters.
THEN = ("attempts", "epochs", "duration_s", "peak_memory_gb", "estimated_memory_gb", "device")
NUMBERS, SAME = "n", "s"  # CSS classes of columns with numbers, and with one value in all rows

MOST_CELLS, LEAST_ROWS = 150_000, 40  # of a table: some 2 MB
EXACT = 2**53  # whole numbers below it are the same in a browser
Cell = str | int | float | None | list[str]  # see conditions.js


@dataclass(frozen=True)
class Column:
    """A column of a table: its name in conditions and scripts, its head and its CSS classes."""

    key: str
    head: str
    classes: Sequence[str] = ()


def most_rows(rows: Sequence[Attempt]) -> int:
    """How many of these rows a table lists at most, so that a page stays small enough for a browser."""
    return max(MOST_CELLS // len(columns(rows)), LEAST_ROWS)


def trials_table(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> str:
    """All trials in the given order; the metrics of their ``objectives`` are next to the name."""
    listed = ordered_columns(rows, objectives)
    heads = {key: key.removeprefix(CONFIG) for key in listed}
    shown = [
        Column(key, key if heads[key] != key and heads[key] in listed else heads[key], _classes(key, rows))
        for key in listed
    ]
    lines = [[row.trial_id, *(to_cell(row.value(key, BLANK)) for key in listed)] for row in rows]
    caption = "All trials, the best first; the columns are those of results.csv, with three significant digits"
    return _sortable("trials", "Table of all trials", caption, shown, lines)


def ordered_columns(rows: Sequence[Attempt], objectives: Mapping[str, Objective]) -> list[str]:
    """The CSV's columns: name, metrics, status, varying hyperparameters, then the others, and errors last.

    So a phone shows the results without scrolling. If there are several seeds, the seed is next to the name.
    """
    all_ = columns(rows)
    metrics = [one.metric for objective in objectives.values() for one in objective.all]
    tests = [key.replace("val_", "test_") for key in metrics if key.startswith("val_")]
    tests = [key for key in tests if key not in (*BEFORE_METRICS, *AFTER_METRICS)]
    seed = ["seed"] if has_seeds(rows) else []
    first = ["name", *seed, *metrics, FRONT, *tests, "status", *varying(rows), *THEN]
    return [key for key in dict.fromkeys([*first, *all_]) if key in all_ and key != "error"] + ["error"]


def configurations_table(rows: Sequence[Attempt], objective: Objective, name: str, title: str) -> tuple[str, str]:
    """A workload's configurations over several seeds, as ``tuner results`` shows them, and what is left out of them.

    ``name`` is the table's id, ``title`` its name for screen readers.
    """
    (names, *others), fewer = average_columns(rows, objective, varying(rows), most=most_rows(rows))
    shown = [Column("name", "name"), *(Column(column.head, column.head, [NUMBERS]) for column in others)]
    # Numbers with intervals are sorted by the number that they begin with, as a number that Python writes.
    cells = zip(
        names.texts,
        *([[text] if text[:1] in "+-0123456789" else text for text in column.texts] for column in others),
        strict=True,
    )
    caption = f"Configurations over their seeds, the best mean {objective.metric} first, with 95 % intervals"
    return _sortable(name, f"Table: {title}", caption, shown, [["", *line] for line in cells]), fewer


def values_text(rows: Iterable[Attempt], key: str) -> str:
    """The distinct values of these rows in a column."""
    values = (row.value(key, BLANK) for row in rows)
    return ", ".join(dict.fromkeys(number_text(value) for value in values if not is_blank(value)))


def _text(key: str, row: Attempt) -> str:
    """A value as in the CSV, but for the end of a long text."""
    return printable(label(row.value(key, BLANK)), MOST_OF_ERROR)


def _classes(key: str, rows: Sequence[Attempt]) -> list[str]:
    texts = {_text(key, row) for row in rows}
    same = len(texts) == 1 and key not in ("name", "status") and len(rows) > 1
    numbers = texts != {""} and all(isinstance(row.value(key, 0), (int, float)) for row in rows)
    return [SAME] * same + [NUMBERS] * numbers


def to_cell(value: ConfigValue) -> Cell:
    """A value as JSON, as conditions.js compares it; the end of a long text is left out."""
    if is_blank(value):
        return None
    if isinstance(value, str):
        return printable(value, MOST_OF_ERROR)
    text = label(value)
    if not is_number(value):
        return [printable(text, MOST_OF_ERROR), value_key(value)]
    same = math.isfinite(value) and (abs(value) < EXACT if isinstance(value, int) else value != round(value))
    return value if same else [text]


def _sortable(name: str, label: str, caption: str, shown: Sequence[Column], lines: Sequence[Sequence[Cell]]) -> str:
    """A table in a scrolling box, which table.js fills and sorts, first ascending, blank cells last.

    ``name`` is the table's id; screen readers read ``label`` for the box and ``caption`` for the table. Each line has
    the id of its trial, empty where it has none, and its cells.
    """
    heads = "".join(
        f'<th scope="col" data-column="{escape(column.key)}" class="{" ".join(column.classes)}">'
        f'<button type="button">{escape(column.head)}<span class="arrow" aria-hidden="true"></span></button></th>'
        for column in shown
    )
    content = {"keys": [column.key for column in shown], "heads": [column.head for column in shown], "rows": lines}
    places = {
        kind: [place for place, column in enumerate(shown, 1) if kind in column.classes] for kind in (NUMBERS, SAME)
    }
    right = ",".join(f"#{name} td:nth-child({place})" for place in places[NUMBERS])
    hidden = ",".join(f"#{name}:not(.every) td:nth-child({place})" for place in places[SAME])
    return (
        f"<div><style>{right} {{ text-align: right }} {hidden} {{ display: none }}</style>"
        f'<div class="scroll table" tabindex="0" role="region" aria-label="{escape(label)}">'
        f'<table id="{name}" class="sortable"><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody></tbody></table></div>{json_block('rows', compact(content))}"
        f'<button type="button" class="more" data-table="{name}" hidden></button></div>'
    )
