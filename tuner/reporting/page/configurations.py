"""Configurations over their seeds as an HTML table: what ``tune results`` says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from tuner.records.attempts import CONFIG, Attempt
from tuner.records.row_queries import metric_columns
from tuner.records.seed_statistics import Average, Interval, averages
from tuner.reporting.figures.axes import varying
from tuner.reporting.page.table import NAME, cell_classes, cell_text, head_cell, sortable_table
from tuner.reporting.seeds import interval_text, intervals
from tuner.reporting.study_view import mean_id

VERDICT = "verdict"
VERDICTS = {"=": "cannot be told from the best", "better": "better on common seeds"}  # the others are words already

Cells = Mapping[str, tuple[str, str]]  # by column the text, and what it is sorted by


def configurations_table(rows: Sequence[Attempt], metric: str, name: str) -> str:
    """A workload's configurations as a ``<table>``, the smallest mean first.

    Args:
        rows: the workload's trials, of several seeds.
        metric: what they are compared by.
        name: the table's id.
    """
    others = {key: intervals(rows, key) for key in metric_columns(rows, metric) if key != metric}
    tried = varying(rows)
    own: dict[str, list[Attempt]] = {}
    for row in rows:
        own.setdefault(row.name, []).append(row)
    lines = {}
    for each in averages(rows, metric):
        means = {f"mean {key}": by_name[each.name] for key, by_name in others.items()}
        values = {key: values_text(own[each.name], key) for key in tried}
        lines[mean_id(own[each.name][0])] = _cells(each, metric, means, values)
    numbers = {key: cell_classes(key, rows) for key in tried}
    classes = {key: numbers.get(key, "n") for key in next(iter(lines.values()))} | {NAME: "", VERDICT: "words"}
    heads = [head_cell(key, key.removeprefix(CONFIG), kind) for key, kind in classes.items()]
    caption = f"Configurations over their seeds, the smallest mean {metric} first; means have their 95 % intervals"
    return sortable_table(name, caption, heads, [_line(key, cells, classes) for key, cells in lines.items()])


def values_text(rows: Iterable[Attempt], key: str) -> str:
    """What these rows have in a column, each value once."""
    return ", ".join(dict.fromkeys(cell_text(row.value(key)) for row in rows))


def _cells(
    each: Average, metric: str, means: Mapping[str, Interval | None], values: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """A configuration's cells in their order: a phone shows the mean and the verdict without being scrolled."""
    verdict = VERDICTS.get(each.verdict, each.verdict)
    return {
        NAME: (each.name, each.name),
        f"mean {metric}": _mean(each.interval),
        VERDICT: (verdict, verdict),
        "to the best": _mean(each.difference, signed=True),
        "seeds": (f"{len(each.values)}/{each.seeds}", str(len(each.values))),
        **{key: _mean(mean) for key, mean in means.items()},
        **{key: (text, text) for key, text in values.items()},
    }


def _mean(interval: Interval | None, *, signed: bool = False) -> tuple[str, str]:
    return interval_text(interval, signed=signed), "" if interval is None else str(interval.mean)


def _line(key: str, cells: Cells, classes: Mapping[str, str]) -> str:
    name, _ = cells[NAME]
    listed = [f'<tr data-trial="{escape(key)}"><th scope="row">{escape(name)}</th>']
    for column, (text, value) in cells.items():
        if column != NAME:
            sorted_by = f' data-sort="{escape(value)}"' if value != text else ""
            kind = f' class="{classes[column]}"' if classes[column] else ""
            listed.append(f"<td{kind}{sorted_by}>{escape(text)}")
    return "".join(listed) + "</tr>"
