"""Rows as a DataFrame with the types of their values, and the rows of a table that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.records.attempts import CONFIG, FIXED, STUDY, TEXTS, Attempt, columns, parse_attempt

if TYPE_CHECKING:
    import pandas as pd

MISSING = float("nan")
LARGEST = 2**63  # whole numbers of a column are smaller


def frame_of(rows: Sequence[Attempt], names: Sequence[str] | None = None) -> pd.DataFrame:
    """Rows as a DataFrame with these columns, by default those of the CSV.

    Whole numbers and booleans stay these where some are missing (``Int64``, ``boolean``), and texts are as pandas has
    them. Columns of anything else but numbers are of objects: there None is a value of a hyperparameter, one that is
    absent is NaN, and a text that is blank is empty.
    """
    import pandas as pd

    names = columns(rows) if names is None else names
    return pd.DataFrame({name: _column([_cell(row, name) for row in rows]) for name in names}, columns=list(names))


def _cell(row: Attempt, name: str) -> object:
    value: object = row.value(name, MISSING)
    return "" if value is MISSING and name in TEXTS else value


def _column(values: Sequence[object]) -> pd.Series:
    import pandas as pd

    present = [value for value in values if value is not MISSING]
    kinds, gaps = set(map(type, present)), len(present) < len(values)
    if kinds == {bool}:
        kind = "boolean" if gaps else "bool"
    elif kinds == {int} and all(isinstance(value, int) and -LARGEST <= value < LARGEST for value in present):
        kind = "Int64" if gaps else "int64"
    elif kinds == {str}:
        return pd.Series(list(values))  # as pandas has texts
    else:
        kind = "float64" if kinds <= {int, float} and (float in kinds or not kinds) else "object"
    filled = [pd.NA if value is MISSING else value for value in values] if kind in ("boolean", "Int64") else values
    return pd.Series(list(filled), dtype=kind)


def attempts_of(table: pd.DataFrame) -> list[Attempt]:
    """The rows of a table of trials that a user gives, without hyperparameters; its missing columns are blank.

    Raises:
        InputError: a value has a wrong type.
    """
    names = [name for name in table.columns if not str(name).startswith(CONFIG)]
    plain = table[names].astype(object)
    lines = plain.where(plain.notna(), None).to_dict("records")
    return [_of_table({str(key): value for key, value in line.items()}, number) for number, line in enumerate(lines)]


def _of_table(line: Mapping[str, object], number: int) -> Attempt:
    """The attempt in a table's row. Missing columns get defaults; of unknown columns only numbers are metrics."""
    whole = {"seed": 0, "attempts": 1, "epochs": 0}
    blank = {**whole, "trial_id": f"row{number}", "workload": "-", "duration_s": 0, "estimated_memory_gb": 0}
    cells = {
        key: value
        for key, value in line.items()
        if value is not None
        and key != STUDY
        and (isinstance(value, (int, float)) or (key in FIXED and not (isinstance(value, str) and value == "")))
    }
    # pandas turns whole numbers into decimal ones in a column with gaps.
    cells |= {key: int(value) for key in whole if isinstance(value := cells.get(key), float)}
    return replace(parse_attempt({**blank, **cells}, f"row {number}"), study=str(line.get(STUDY) or ""))
