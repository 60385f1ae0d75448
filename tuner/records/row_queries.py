"""Selects, sorts and names the rows and columns of results that are shown.

A row has a value in each of the CSV's columns and in the column ``study``. None means missing.

    condition = column operator value
    operator  = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"

A hyperparameter's name may omit ``config/``. If there is also a fixed column of that name, such as ``epochs``, the
fixed column is meant. A value may have quotes, and nothing in it is ever executed.

- A number is compared with a value that is a number, and a text with the value as it was typed. A number and a text
  are unequal, and neither is less than the other. If a column has only numbers, a text is refused as a value.
- ``~`` holds if the text, or the number as it is printed, contains the value. Case is ignored.
- A missing value is unequal to every value, and no other operator holds for it. The value "" means missing:
  ``error!=""`` selects the rows that have an error.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InputError, ParameterError, did_you_mean, option
from tuner.objective import Objective
from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, CONFIG, STUDY, Attempt
from tuner.trial import FRONT, ConfigValue

# Short names of columns in the table; conditions and options accept them, too.
SHORT = {"duration_s": "seconds", "estimated_memory_gb": "estimated_gb", "peak_memory_gb": "peak_gb"}
EXAMPLE = 'such as "hidden_dim>=64" or "error~memory"'

_CONDITION = re.compile(
    r"\s*([^=!<>~]+?)\s*(==|!=|<=|>=|=|<|>|~)\s*(\"[^\"]*\"|'[^']*'|[^=!<>~\"'\s].*?)\s*", re.DOTALL
)
_WHOLE = re.compile(r"[+-]?\d{1,300}")  # longer numbers are read as decimal
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A condition that shown rows must meet."""

    column: str  # its full name
    operator: str  # see the module's docstring; "=" stands for "==", too
    value: str  # as it was typed, without quotes

    def holds(self, row: Attempt) -> bool:
        """Whether a row meets the condition."""
        actual = row.value(self.column)
        if actual is None or not self.value:
            same = actual is None and not self.value
            return {"=": same, "!=": not same}.get(self.operator, False)
        if self.operator == "~":
            return self.value.casefold() in str(actual).casefold()
        value = self.value if isinstance(actual, str) else to_value(self.value)
        if isinstance(actual, str) != isinstance(value, str):
            return self.operator == "!="
        return _COMPARE[self.operator](actual, value)


@dataclass(frozen=True)
class Order:
    """A column to sort by."""

    column: str  # its full name
    descending: bool = False  # largest first; missing values come last in any case


def to_value(text: str) -> int | float | str:
    """A text as a whole or decimal number, or itself if it is neither; "nan", "inf" and "1_000" are texts."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """A condition such as ``hidden_dim>=64``; nothing in it is executed.

    Raises:
        InputError: the text is not a comparison, or there is no such column.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        rule = f"expected a column, one of = != < <= > >= ~ and a value, {EXAMPLE}"
        raise ParameterError("where", text, rule)
    column, sign, value = match.groups()
    quoted = value[0] in "\"'"
    found = find_column(column, columns, option("where", text))
    return Condition(found, "=" if sign == "==" else sign, value[1:-1] if quoted else value)


def check_number(condition: Condition, rows: Sequence[Attempt], text: str) -> None:
    """Refuses to compare a column of numbers with a text; ``text`` is the whole condition as it was typed."""
    if condition.operator == "~" or not condition.value or not isinstance(to_value(condition.value), str):
        return
    values = [value for row in rows if (value := row.value(condition.column)) is not None]
    if values and not any(isinstance(value, str) for value in values):
        raise ParameterError(
            "where", text, f"{condition.column} holds numbers, and {condition.value!r} is not a number"
        )


def parse_order(text: str, columns: Sequence[str]) -> Order:
    """A column to sort by: ``COLUMN``, ``-COLUMN``, ``COLUMN:asc`` or ``COLUMN:desc``."""
    name, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc"):
        raise ParameterError("sort", text, "expected COLUMN, -COLUMN, COLUMN:asc or COLUMN:desc")
    descending = direction == "desc" or (name.startswith("-") and not direction)
    return Order(find_column(name.removeprefix("-"), columns, option("sort", text)), descending)


def parse_columns(names: str | Sequence[str], columns: Sequence[str]) -> list[str]:
    """The full names of columns, given as a list or as a text with commas; each appears once.

    Raises:
        InputError: there is no name, an empty one, or no such column.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if not listed or not all(listed):
        rule = "expected names with commas between them, such as name,status,val_rmse"
        raise ParameterError("columns", ",".join(listed), rule)
    return list(dict.fromkeys(find_column(name, columns, option("columns")) for name in listed))


def find_column(name: str, columns: Sequence[str], where: str) -> str:
    """The column with this name, hyperparameter's name or short name.

    Raises:
        InputError: there is none. The message begins with ``where`` and suggests similar names.
    """
    if column := _resolve(name, columns):
        return column
    known = [head(column, columns) for column in columns]
    names = dict.fromkeys([*known, *(column for column in columns if not column.startswith(CONFIG))])
    hint = did_you_mean(name, names, f"there are {', '.join(known)}", most=3)
    raise InputError(f"{where}: no column {name!r}: {hint}")


def head(column: str, columns: Sequence[str]) -> str:
    """The name of a column in the table; ``find_column`` accepts it."""
    short = SHORT.get(column, column.removeprefix(CONFIG))
    return short if _resolve(short, columns) == column else column


def sort_rows(rows: Sequence[Attempt], orders: Sequence[Order]) -> list[Attempt]:
    """The rows sorted by the first column, then by the second, and so on; the sort is stable.

    Numbers come before texts, and missing values last.
    """
    result = list(rows)
    for order in reversed(orders):
        present = [(value, row) for row in result if (value := row.value(order.column)) is not None]
        present.sort(key=lambda pair: _rank(pair[0]), reverse=order.descending)
        result = [row for _, row in present] + [row for row in result if row.value(order.column) is None]
    return result


def metric_columns(rows: Sequence[Attempt], objective: Objective, headline: Sequence[str] = ()) -> list[str]:
    """The objective's metric, its counterpart on the test split and the ``headline`` there, if any row has them.

    Those of its others follow the metric, and the front follows these.
    """
    compared = [one.metric for one in objective.all]
    tests = [name.replace("val_", "test_") for name in compared]
    names = dict.fromkeys(
        (*compared, *[FRONT] * bool(objective.others), *tests, *(f"test_{name}" for name in headline))
    )
    return [name for name in names if any(row.value(name) is not None for row in rows)]


def varying(rows: Sequence[Attempt]) -> list[str]:
    """The columns of the hyperparameters that have more than one value."""
    keys = dict.fromkeys(f"{CONFIG}{key}" for row in rows for key in row.config)
    first = {key: repr(rows[0].value(key)) for key in keys}
    return [key for key in keys if any(repr(row.value(key)) != first[key] for row in rows)]


def default_columns(
    rows: Sequence[Attempt], columns: Sequence[str], objective: Objective, headline: Sequence[str] = ()
) -> list[str]:
    """The columns of one workload's rows that are shown by default: results and varying hyperparameters.

    Seeds, attempts and errors are included if they differ between rows. ``rows`` are all rows of the workload.
    """
    study = [STUDY] if _differs(rows, STUDY) else []
    varied = [column for column in columns if column.startswith(CONFIG) and _differs(rows, column)]
    seed = ["seed"] if _differs(rows, "seed") else []
    attempts = ["attempts"] if any(row.attempts > 1 for row in rows) else []
    error = ["error"] if any(row.error for row in rows) else []
    used = ["epochs", "duration_s", "estimated_memory_gb", "peak_memory_gb"]
    metrics = metric_columns(rows, objective, headline)
    return [*study, "name", *seed, "status", *attempts, *metrics, *used, *varied, *error]


def is_metric(column: str) -> bool:
    """Whether a column is a metric: neither a fixed column nor a hyperparameter."""
    return column not in (STUDY, *BEFORE_METRICS, *AFTER_METRICS) and not column.startswith(CONFIG)


def _resolve(name: str, columns: Sequence[str]) -> str | None:
    own = next((column for column, short in SHORT.items() if short == name), name)
    return next((column for column in (name, CONFIG + name, own) if column in columns), None)


def _differs(rows: Sequence[Attempt], column: str) -> bool:
    return any(row.value(column) != rows[0].value(column) for row in rows)


def _rank(value: ConfigValue) -> tuple[bool, ConfigValue]:
    return isinstance(value, str), value
