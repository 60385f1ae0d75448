"""Which rows of results are shown, in what order and with which columns; pure.

A row has a value in each of the CSV's columns, and in the column ``study``; None is what is missing.

    condition = column operator value
    operator  = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"

A column is called by its own name, a hyperparameter also without ``config/``; where both are columns, such as
``epochs``, the plain name wins. A value stands with or without quotes.

- A number is compared with a value that reads as a number, and text with the value as it was typed. A number and a
  value that is none are unequal, and neither is less than the other; where a column holds numbers alone, such a value
  is refused. Texts are ordered by their characters.
- ``~`` holds where the text, or the number as it is printed, contains the value, in capitals or not.
- What is missing is unequal to any value, and no other operator holds for it. The value "" stands for what is
  missing: ``error!=""`` are the rows that have an error.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InputError, ParameterError, did_you_mean, option
from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, CONFIG, STUDY, Attempt
from tuner.trial import ConfigValue

# What the table calls columns whose own names are long; conditions and options take these names, too.
SHORT = {"duration_s": "seconds", "estimated_memory_gb": "estimated_gb", "peak_memory_gb": "peak_gb"}
EXAMPLE = 'such as "hidden_dim>=64" or "error~memory"'

_CONDITION = re.compile(
    r"\s*([^=!<>~]+?)\s*(==|!=|<=|>=|=|<|>|~)\s*(\"[^\"]*\"|'[^']*'|[^=!<>~\"'\s].*?)\s*", re.DOTALL
)
_WHOLE = re.compile(r"[+-]?\d{1,18}")  # longer ones are as good as decimal
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """What must hold for a row to be shown."""

    column: str  # its own name
    operator: str  # one of those in the module's text
    value: str  # what the column is compared with, as it was typed, without quotes

    def holds(self, row: Attempt) -> bool:
        """Whether a row is one of those that are asked for."""
        found = row.value(self.column)
        if found is None or not self.value:
            same = found is None and not self.value
            return {"=": same, "==": same, "!=": not same}.get(self.operator, False)
        if self.operator == "~":
            return self.value.casefold() in str(found).casefold()
        value = self.value if isinstance(found, str) else to_value(self.value)
        if isinstance(found, str) != isinstance(value, str):
            return self.operator == "!="
        return _COMPARE[self.operator](found, value)


@dataclass(frozen=True)
class Order:
    """A column to sort by."""

    column: str  # its own name
    descending: bool = False  # largest first; what is missing comes last either way


def to_value(text: str) -> int | float | str:
    """What a text says: a whole number, a decimal number, or else itself.

    A number has digits, at most one point and perhaps an exponent: "nan", "inf" and "1_000" are texts.
    """
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """A condition as the user typed it.

    Args:
        text: such as ``hidden_dim>=64``; nothing of it is executed.
        columns: those that there are.

    Raises:
        InputError: it is no comparison, or of a column that is not there.
    """
    found = _CONDITION.fullmatch(text)
    if not found:
        rule = f"expected a column, one of = != < <= > >= ~ and a value, {EXAMPLE}"
        raise ParameterError("where", text, rule)
    column, sign, value = found.groups()
    quoted = value[0] in "\"'"
    return Condition(find_column(column, columns, option("where", text)), sign, value[1:-1] if quoted else value)


def check_number(condition: Condition, rows: Sequence[Attempt], text: str) -> None:
    """Refuses to compare a column of numbers with a word, which no row could meet.

    Args:
        condition: of one column.
        rows: all there are.
        text: the condition as it was typed, for messages.

    Raises:
        InputError: every value of the column is a number, and the condition's is none.
    """
    if condition.operator == "~" or not condition.value or not isinstance(to_value(condition.value), str):
        return
    values = [value for row in rows if (value := row.value(condition.column)) is not None]
    if values and not any(isinstance(value, str) for value in values):
        raise ParameterError("where", text, f"{condition.column} holds numbers, and {condition.value!r} is none")


def parse_order(text: str, columns: Sequence[str]) -> Order:
    """A column to sort by: ``COLUMN``, ``-COLUMN``, ``COLUMN:asc`` or ``COLUMN:desc``.

    Raises:
        InputError: there is no such column.
    """
    name, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc"):
        raise ParameterError("sort", text, "expected COLUMN, -COLUMN, COLUMN:asc or COLUMN:desc")
    descending = direction == "desc" or (name.startswith("-") and not direction)
    return Order(find_column(name.removeprefix("-"), columns, option("sort", text)), descending)


def parse_columns(names: str | Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns that are asked for, by their own names, each once.

    Args:
        names: a list, or a text with commas between them.
        columns: those that there are.

    Raises:
        InputError: one of them is not there or empty, or none is asked for.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if not listed or not all(listed):
        given = ",".join(listed)
        raise ParameterError(
            "columns", given, "expected names with commas between them, such as name,status,val_rmse"
        )
    return list(dict.fromkeys(find_column(name, columns, option("columns")) for name in listed))


def find_column(name: str, columns: Sequence[str], where: str) -> str:
    """The column that a name means: one of that name, a hyperparameter, or one that has a shorter name in the table.

    Args:
        name: what the user typed.
        columns: those that there are.
        where: what the name was part of, for messages.

    Raises:
        InputError: there is none; the text says which are close.
    """
    if column := _meant(name, columns):
        return column
    known = [head(column, columns) for column in columns]
    names = dict.fromkeys([*known, *(column for column in columns if not column.startswith(CONFIG))])
    hint = did_you_mean(name, names, f"there are {', '.join(known)}", most=3)
    raise InputError(f"{where}: no column {name!r}: {hint}")


def head(column: str, columns: Sequence[str]) -> str:
    """What the table calls a column: a name by which ``find_column`` finds it."""
    short = SHORT.get(column, column.removeprefix(CONFIG))
    return short if _meant(short, columns) == column else column


def best_first(rows: Sequence[Attempt], metrics: Mapping[str, str]) -> list[Attempt]:
    """Each workload's completed rows with the smallest of its metric first, then its others.

    Args:
        rows: of the study.
        metrics: what a workload's trials are compared by, by workload, in their order.
    """
    order = list(metrics)

    def rank(row: Attempt) -> tuple[int, bool, float]:
        return order.index(row.workload), row.status != "completed", row.number(metrics[row.workload])

    return sorted(rows, key=rank)


def sort_rows(rows: Sequence[Attempt], orders: Sequence[Order]) -> list[Attempt]:
    """The rows by the first column, those that are equal in it by the second, and so on; else in the order given.

    Numbers come before texts, and what is missing last.
    """
    found = list(rows)
    for order in reversed(orders):
        there = [(value, row) for row in found if (value := row.value(order.column)) is not None]
        there.sort(key=lambda each: _rank(each[0]), reverse=order.descending)
        found = [row for _, row in there] + [row for row in found if row.value(order.column) is None]
    return found


def metric_columns(rows: Sequence[Attempt], metric: str) -> list[str]:
    """The metric that trials are compared by and its like on the test split, where any row has them."""
    names = (metric, metric.replace("val_", "test_"))
    return [name for name in names if any(row.value(name) is not None for row in rows)]


def default_columns(rows: Sequence[Attempt], columns: Sequence[str], metric: str) -> list[str]:
    """What is shown of one workload's rows where nothing else is asked for: what came out, and what was tried.

    Seeds, attempts, errors and hyperparameters are among them where they tell rows apart.

    Args:
        rows: all of the workload's, also those that are not shown.
        columns: those that there are.
        metric: what they are compared by.
    """
    study = [STUDY] if _differs(rows, STUDY) else []
    tried = [column for column in columns if column.startswith(CONFIG) and _differs(rows, column)]
    seed = ["seed"] if _differs(rows, "seed") else []
    attempts = ["attempts"] if any(row.attempts > 1 for row in rows) else []
    error = ["error"] if any(row.error for row in rows) else []
    came_out = ["epochs", "duration_s", "estimated_memory_gb", "peak_memory_gb"]
    return [
        *study,
        "name",
        *seed,
        "status",
        *attempts,
        *metric_columns(rows, metric),
        *came_out,
        *tried,
        *error,
    ]


def is_metric(column: str) -> bool:
    """Whether a column is none of those that every study has, nor a hyperparameter."""
    return column not in (STUDY, *BEFORE_METRICS, *AFTER_METRICS) and not column.startswith(CONFIG)


def _meant(name: str, columns: Sequence[str]) -> str | None:
    own = next((column for column, short in SHORT.items() if short == name), name)
    return next((each for each in (name, CONFIG + name, own) if each in columns), None)


def _differs(rows: Sequence[Attempt], column: str) -> bool:
    return len({row.value(column) for row in rows}) > 1


def _rank(value: ConfigValue) -> tuple[bool, ConfigValue]:
    return isinstance(value, str), value
