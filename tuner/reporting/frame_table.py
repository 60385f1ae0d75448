"""A study's trials as a table in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from tuner.records.attempts import Attempt
from tuner.records.row_queries import default_columns, head
from tuner.reporting.figures.chart import count_text
from tuner.reporting.tables import value_text

SHOWN_ROWS = 60
TEXTS = ("name", "status", "error")


def trials_html(rows: Sequence[Attempt], known: Sequence[str], metric: str, best: int | None, folder: str) -> str:
    """The rows in their order with the columns that matter, as HTML.

    Args:
        rows: the trials of one workload, with None for what is missing; the first of them are shown.
        known: all columns.
        metric: what trials are compared by.
        best: which row is the best, and stands out; None where none is.
        folder: the study's.
    """
    shown = [column for column in default_columns(rows, known, metric) if column in known]
    heads = "".join(_cell("th", column, head(column, known)) for column in shown)
    lines = [
        "".join(_cell("td", column, value_text(column, row.value(column))) for column in shown)
        for row in rows[:SHOWN_ROWS]
    ]
    bold = ' style="font-weight:bold"'
    body = "".join(f"<tr{bold if place == best else ''}>{line}</tr>" for place, line in enumerate(lines))
    return (
        '<div style="overflow-x:auto"><table class="dataframe">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p>{escape(_summary(rows, metric, best, folder))}</p>"
    )


def _cell(tag: str, column: str, text: str) -> str:
    side = "left" if column in TEXTS else "right"
    return f'<{tag} style="text-align:{side};white-space:nowrap">{escape(text)}</{tag}>'


def _summary(rows: Sequence[Attempt], metric: str, best: int | None, folder: str) -> str:
    counts = Counter(row.status for row in rows)
    text = f"{count_text(len(rows), 'trial')}: {', '.join(f'{count} {status}' for status, count in counts.items())}"
    if best is not None:
        text += f" · best: {rows[best].name}, {metric} {rows[best].number(metric):.4f}"
    if len(rows) > SHOWN_ROWS:
        text += f" · the first {SHOWN_ROWS} are shown"
    return text + (f" · {folder}" if folder else "")
