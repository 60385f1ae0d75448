"""Reads measured rows from a CSV or from Python as columns of numbers."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tuner.errors import InputError
from tuner.hyperparameters import LOOP_OPTIONS
from tuner.machine.regular_files import MOST_BYTES, regular
from tuner.trial import ACCUMULATION

if TYPE_CHECKING:
    import pandas as pd

    Rows = str | Path | Sequence[Mapping[str, object]] | pd.DataFrame

MEMORY = ("memory_gb", "peak_memory_gb")
CONFIG = "config/"  # the prefix of hyperparameters in a study's results.csv


@dataclass(frozen=True)
class Measured:
    """Measured columns with a number for every row."""

    memory_gb: list[float]  # in GB of 2**30 bytes
    variables: dict[str, list[float]]  # the columns whose values differ
    constants: dict[str, float]  # the values of the other columns
    left_out: list[str]  # a line for each omitted column or row, with the reason
    source: str  # the file's name, for messages
    batch_is_step: bool = False  # the source's batch was an optimizer step's; here it is a micro-batch


class _Row(NamedTuple):
    """A row and its name in messages."""

    where: str
    values: Mapping[str, object]


def read_rows(rows: Rows, batch: str) -> Measured:
    """Reads measured rows from a CSV file, mappings or a DataFrame; ``batch`` is the batch's column.

    The memory is in the column ``memory_gb`` or ``peak_memory_gb``; other columns are variables. From a study's
    ``results.csv``, only completed rows and hyperparameters are used, and the batch is divided by the accumulation.

    Raises:
        InputError: the file or a column is missing, or a value is not a number of 0 or more.
    """
    if isinstance(rows, (str, Path)):
        source, records = str(rows), _read_csv(Path(rows))
    else:
        source, records = "rows", _listed(rows)
    if not records:
        raise InputError(f"{source}: has no rows")
    names = list(dict.fromkeys(name for row in records for name in row.values))
    memory, *others = [name for name in MEMORY if name in names] or [""]
    if not memory:
        close = difflib.get_close_matches(MEMORY[0], names, n=1)
        hint = f"is it {close[0]}? rename it" if close else f"columns are {', '.join(names)}"
        raise InputError(f"{source}: the column {MEMORY[0]} is missing ({hint})")
    prefix = CONFIG if any(name.startswith(CONFIG) for name in names) else ""
    left_out = [f"{name}: the memory is that of {memory}" for name in others]
    if prefix:
        completed = _completed(records, source)
        if len(completed) < len(records):
            left_out.append(f"rows that are not completed: {len(records) - len(completed)}")
        records = [_filled(row) for row in completed]
    columns = {
        name.removeprefix(prefix): _column(records, name, source, positive=name == CONFIG + ACCUMULATION)
        for name in names
        if name.startswith(prefix) and name not in MEMORY
    }
    parts = columns.pop(ACCUMULATION, [])
    if parts and prefix and batch in columns:
        columns[batch] = [size / number for size, number in zip(columns[batch], parts, strict=True)]
        left_out.append(f"{ACCUMULATION}: {batch} is divided by it")
    elif parts:
        left_out.append(f"{ACCUMULATION}: is no variable of the memory")
    constants = {name: column[0] for name, column in columns.items() if len(set(column)) == 1}
    return Measured(
        memory_gb=_column(records, memory, source, positive=True),
        variables={name: column for name, column in columns.items() if name not in constants},
        constants=constants,
        left_out=left_out,
        source=source,
        batch_is_step=bool(prefix),
    )


def _listed(rows: object) -> list[_Row]:
    listed = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise InputError(f"rows: must be a CSV file, a list of mappings or a DataFrame, not {type(rows).__name__}")
    found = []
    for number, row in enumerate(listed, 1):
        if not isinstance(row, Mapping):
            raise InputError(f"rows: row {number}: must be a mapping, not {row!r}")
        found.append(_Row(f"row {number}", {str(name): value for name, value in row.items()}))
    return found


def _read_csv(path: Path) -> list[_Row]:
    try:
        with regular(path, MOST_BYTES).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="")
            rows = [_Row(f"line {reader.line_num}", values) for values in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for row in rows:
        if isinstance(row.values.get(""), list):
            raise InputError(f"{path}: {row.where}: has more values than there are columns")
    return rows


def _completed(rows: Sequence[_Row], source: str) -> list[_Row]:
    """The completed rows of a study."""
    kept = [row for row in rows if row.values.get("status", "completed") == "completed"]
    workloads = dict.fromkeys(str(row.values.get("workload")) for row in kept)
    if not kept:
        raise InputError(f"{source}: none of its {len(rows)} rows is completed")
    if len(workloads) > 1:
        raise InputError(f"{source}: has rows of {' and '.join(workloads)}: give those of one workload")
    return kept


def _filled(row: _Row) -> _Row:
    """A study's row with the defaults of the training loop's options, as the file has only other values."""
    given = {name: row.values.get(CONFIG + name) for name in LOOP_OPTIONS}
    blank = [name for name, value in given.items() if value in (None, "") or value != value]  # pandas has NaN for it
    return _Row(row.where, {**row.values, **{CONFIG + name: LOOP_OPTIONS[name].default for name in blank}})


def _column(rows: Iterable[_Row], name: str, source: str, *, positive: bool = False) -> list[float]:
    return [_number(row.values.get(name), f"{source}: {row.where}: {name}", positive) for row in rows]


def _number(value: object, what: str, positive: bool) -> float:
    if value is None or value == "":
        raise InputError(f"{what} is blank: fill it in, or leave the row or the column out")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what} = {value!r:.40}: is not a number; leave the row or the column out") from error
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        least = "more than 0" if positive else "0 or more"
        raise InputError(f"{what} = {value!r}: must be a finite number of {least}")
    return number
