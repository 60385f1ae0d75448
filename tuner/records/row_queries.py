"""Selects, sorts and names the rows and columns of results that are shown.

A row has a value in each of the CSV's columns and in the column ``study``. None means missing.

A hyperparameter's name may omit ``config/``. If there is also a fixed column of that name, such as ``epochs``, the
fixed column is meant. Conditions are those of ``tuner.values``; if a column has only numbers, a text is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import InputError, ParameterError, did_you_mean, option
from tuner.objective import Objective
from tuner.records.attempts import AFTER_METRICS, BEFORE_METRICS, BLANK, CONFIG, STUDY, Attempt, is_blank
from tuner.trial import FRONT, ConfigValue
from tuner.values import Condition, is_number, label, parse_condition

# Short names of columns in the table; conditions and options accept them, too.
SHORT = {"duration_s": "seconds", "estimated_memory_gb": "estimated_gb", "peak_memory_gb": "peak_gb"}


@dataclass(frozen=True)
class Order:
    """A column to sort by."""

    column: str  # its full name
    descending: bool = False  # largest first; missing values come last in any case


def parse_where(text: str, columns: Sequence[str], rows: Sequence[Attempt] = ()) -> Condition:
    """A condition such as ``hidden_dim>=64`` with the full name of its column.

    Raises:
        InputError: the text is no condition, there is no such column, or it compares one of numbers with a text.
    """
    condition = parse_condition("where", text, lambda name: find_column(name, columns, option("where", text)))
    values = [value for row in rows if not is_blank(value := row.value(condition.name, BLANK))]
    is_text = condition.fault and condition.operator != "~" and condition.value
    if is_text and values and all(map(is_number, values)):
        raise ParameterError("where", text, condition.fault)
    return condition


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
    heads = [head(column, columns) for column in columns]
    names = dict.fromkeys([*heads, *(column for column in columns if not column.startswith(CONFIG))])
    hint = did_you_mean(name, names, f"there are {', '.join(heads)}", most=3)
    raise InputError(f"{where}: no column {name!r}: {hint}")


def head(column: str, columns: Sequence[str]) -> str:
    """The name of a column in the table; ``find_column`` accepts it."""
    short = SHORT.get(column, column.removeprefix(CONFIG))
    return short if _resolve(short, columns) == column else column


def sort_rows(rows: Sequence[Attempt], orders: Sequence[Order]) -> list[Attempt]:
    """The rows sorted by the first column, then by the second, and so on; the sort is stable.

    Numbers come before texts and all else, and missing values last.
    """
    result = list(rows)
    for order in reversed(orders):
        blank = [row for row in result if is_blank(row.value(order.column, BLANK))]
        present = [row for row in result if not is_blank(row.value(order.column, BLANK))]
        present.sort(key=lambda row: _rank(row.value(order.column)), reverse=order.descending)
        result = present + blank
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
    return [key for key in keys if _differs(rows, key)]


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
    long_name = next((column for column, short in SHORT.items() if short == name), name)
    return next((column for column in (name, CONFIG + name, long_name) if column in columns), None)


def _differs(rows: Sequence[Attempt], column: str) -> bool:
    first = repr(rows[0].value(column, BLANK))  # ``True`` and ``1`` differ, too
    return any(repr(row.value(column, BLANK)) != first for row in rows)


def _rank(value: ConfigValue) -> tuple[int, float | str]:
    return (0, value) if is_number(value) else (1, label(value))
