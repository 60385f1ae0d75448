"""Measured rows, from a CSV or from Python, as columns of numbers that a footprint can be fitted to."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.trial import ACCUMULATION, LOOP_OPTIONS

if TYPE_CHECKING:
    import pandas as pd

MEMORY = ("memory_gb", "peak_memory_gb")
CONFIG = "config/"  # begins the hyperparameters' columns in a study's results.csv


@dataclass(frozen=True)
class Measured:
    """Columns of numbers, one of each for every row.

    Attributes:
        memory_gb: what was measured, in GB of 2**30 bytes.
        variables: the columns whose values differ, by name.
        constants: the value of those that do not.
        left_out: what was not used, and why, a line each.
        source: the file's name, for messages.
        batch_is_step: whether the rows say the samples of an optimizer step; what is here are those of one of its
            batches.
    """

    memory_gb: list[float]
    variables: dict[str, list[float]]
    constants: dict[str, float]
    left_out: list[str]
    source: str
    batch_is_step: bool = False


def read_rows(rows: str | Path | Sequence[Mapping[str, Any]] | pd.DataFrame, batch: str) -> Measured:
    """Reads measured rows.

    Args:
        rows: a CSV file, or its rows as mappings or a DataFrame. One column is the memory, ``memory_gb`` or
            ``peak_memory_gb``; the others are variables. Of a study's ``results.csv`` the completed rows count, and
            of its columns the hyperparameters; its batch is divided by the accumulation.
        batch: the column of the batch.

    Raises:
        InputError: there is no such file, a column is missing, or a value is not a number of 0 or more.
    """
    source, records = _records(rows)
    if not records:
        raise InputError(f"{source}: has no rows")
    names = list(dict.fromkeys(name for _, row in records for name in row))
    memory, *others = [name for name in MEMORY if name in names] or [""]
    if not memory:
        close = difflib.get_close_matches(MEMORY[0], names, n=1)
        hint = f"is it {close[0]}? rename it" if close else f"columns are {', '.join(names)}"
        raise InputError(f"{source}: the column {MEMORY[0]} is missing ({hint})")
    prefix = CONFIG if any(name.startswith(CONFIG) for name in names) else ""
    left_out = [f"{name}: the memory is that of {memory}" for name in others]
    if prefix:
        records, incomplete = _completed(records, source)
        left_out += incomplete
    of_interest = [name for name in names if name.startswith(prefix) and name not in MEMORY]
    columns = {
        name.removeprefix(prefix): _column(records, name, source, positive=name == CONFIG + ACCUMULATION)
        for name in of_interest
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


def _records(rows: Any) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
    """What to call the rows, and each with what to call it."""
    if isinstance(rows, (str, Path)):
        return str(rows), _read_csv(Path(rows))
    listed = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise InputError(f"rows: must be a CSV file, a list of mappings or a DataFrame, not {type(rows).__name__}")
    numbered = [(f"row {number}", row) for number, row in enumerate(listed, 1)]
    for where, row in numbered:
        if not isinstance(row, Mapping):
            raise InputError(f"rows: {where}: must be a mapping, not {row!r}")
    return "rows", [(where, {str(name): value for name, value in row.items()}) for where, row in numbered]


def _read_csv(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="")
            records: list[tuple[str, Mapping[str, Any]]] = [(f"line {reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for where, row in records:
        if isinstance(row.get(""), list):
            raise InputError(f"{path}: {where}: has more values than there are columns")
    return records


def _completed(
    records: list[tuple[str, Mapping[str, Any]]], source: str
) -> tuple[list[tuple[str, Mapping[str, Any]]], list[str]]:
    """The completed rows of a study, and how many others there are."""
    kept = [each for each in records if each[1].get("status", "completed") == "completed"]
    workloads = dict.fromkeys(str(row.get("workload")) for _, row in kept)
    if not kept:
        raise InputError(f"{source}: none of its {len(records)} rows is completed")
    if len(workloads) > 1:
        raise InputError(f"{source}: has rows of {' and '.join(workloads)}: give those of one workload")
    others = len(records) - len(kept)
    return [_filled(each) for each in kept], [f"rows that are not completed: {others}"] if others else []


def _filled(record: tuple[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """A study's row, with the defaults of the training loop's options, which it has only where they are others."""
    where, row = record
    blank = {f"{CONFIG}{name}": spec.default for name, spec in LOOP_OPTIONS.items() if _blank(row.get(CONFIG + name))}
    return where, {**row, **blank}


def _blank(value: Any) -> bool:
    return value is None or value == "" or value != value  # pandas has NaN for it


def _column(
    records: Iterable[tuple[str, Mapping[str, Any]]], name: str, source: str, *, positive: bool = False
) -> list[float]:
    return [_number(row.get(name), f"{source}: {where}: {name}", positive) for where, row in records]


def _number(value: Any, what: str, positive: bool) -> float:
    if value is None or value == "":
        raise InputError(f"{what} is blank: fill it in, or leave the row or the column out")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} = {value!r}: is not a number; leave the row or the column out") from error
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        least = "more than 0" if positive else "0 or more"
        raise InputError(f"{what} = {value!r}: must be a finite number of {least}")
    return number
