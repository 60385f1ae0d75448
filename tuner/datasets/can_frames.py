"""Reads CAN frames from text in any form of ``can_forms.py``, and from parquet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from tuner.datasets.arrays import joined
from tuner.datasets.can_forms import FLAGS, HCRL, MARKS, Form, form_of, named_columns
from tuner.datasets.faults import line_fault, reading, shown
from tuner.errors import DataError, one_line
from tuner.machine.safe_files import regular

T = TypeVar("T")
Columns = Mapping[str, pa.Array]  # by the keys of ``can_forms.NAMES``

CHUNK = 2**23
ROWS = 2**18
LARGEST_ID = 2**29 - 1  # of an extended frame
MOST_BYTES = 8
NO_BYTE = -1
NO_FLAG = -2  # even, like the numbers of normal frames


@dataclass(frozen=True, eq=False)
class Frames:
    """N frames in order of time."""

    time: NDArray[np.float64]  # (N,) seconds
    identifier: NDArray[np.int32]  # (N,)
    data: NDArray[np.uint8]  # (N, 8); missing bytes are 0
    injected: NDArray[np.bool_]  # (N,) whether the frame is part of an attack

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.time)

    def take(self, rows: NDArray[np.int64] | slice) -> Frames:
        """Some of the frames."""
        return Frames(self.time[rows], self.identifier[rows], self.data[rows], self.injected[rows])


class RowFault(ValueError):
    """What is wrong with a row, which is counted from 0 in its chunk."""

    def __init__(self, row: int, reason: str) -> None:
        """Keeps the row for whoever knows the file."""
        super().__init__(reason)
        self.row = row


def in_order(parts: Sequence[Frames]) -> Frames:
    """All frames sorted by time, with a stable order for equal times."""
    every = joined(parts)
    return every.take(np.argsort(every.time, kind="stable"))


def _whole(parts: Sequence[Frames], path: Path, form: str) -> Frames:
    if not sum(map(len, parts)):
        raise DataError(f"{path} holds no frame; read as {form}")
    return in_order(parts)


def read_frames(path: Path, *, chunk: int = CHUNK) -> Frames:
    """The frames of a text file, of which ``chunk`` characters are read at a time. One without flags has no attacks.

    Raises ``DataError`` with file, line and the form that the file was taken for, if there is no frame or a row is
    invalid.
    """
    parts = []
    with reading(path), regular(path).open(encoding="utf-8-sig", errors="replace") as file:
        filled = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
        number, first = next(filled, (1, ""))
        if "\0" in first:
            raise DataError(f"{path} is not text (compressed, or in UTF-16?): unpack it, or save it as UTF-8")
        form = form_of(first, f"{path}, line {number}")
        lines = [first] if first and not form.has_header else []
        number += form.has_header
        while lines := lines + file.readlines(chunk):
            parts.append(_of_lines(lines, path, number, form))
            number, lines = number + len(lines), []
    return _whole(parts, path, form.name)


def _of_lines(lines: list[str], path: Path, first: int, form: Form) -> Frames:
    """The frames of a chunk of lines. Blank lines are skipped; ``first`` is the number of the first line."""
    rows = pa.array(lines)
    filled = compute.invert(compute.utf8_is_space(rows))
    rows, numbers = compute.utf8_rtrim(rows.filter(filled), "\n"), first + np.flatnonzero(filled)
    try:
        return _of_rows(rows, numbers, form)
    except RowFault as fault:
        number, remedy = int(numbers[fault.row]), "fix or remove the line"
        if number == 1 and form.name == HCRL:  # it may be anything
            remedy += ", or remove the file if it is not a recording (docs/examples/kd_gat.md has the forms)"
        text = f"{fault}, in {shown(rows[fault.row].as_py())}; read as {form.name}: {remedy}"
        raise line_fault(path, number, text) from fault


def _of_rows(rows: pa.Array, numbers: NDArray[np.int64], form: Form) -> Frames:
    fields = compute.extract_regex(rows, form.pattern)
    if fields.null_count:
        raise RowFault(int(np.argmax(fields.is_null())), "its fields are not those of its form (cut off?)")
    columns = dict(zip(fields.type.names, fields.flatten(), strict=True))
    values, index = _distinct(columns.pop("rest"), lambda text: _of_rest(text, form))
    data, length = _payload([payload for payload, _ in values], index)
    if "length" in columns:
        _check_dlc(length, _numbers(columns["length"], _dlc))
    flags = np.array([flag for _, flag in values], dtype=np.int64)[index]
    return _frames(columns, data, numbers, flags)


def _of_rest(text: str, form: Form) -> tuple[bytes, int]:
    """The bytes and the flag of the end of a row."""
    data, flag = form.rest(text)
    return _bytes_of(data), _flag(flag) if flag else NO_FLAG


def _check_dlc(length: NDArray[np.int64], dlc: NDArray[np.int64]) -> None:
    wrong = np.flatnonzero(dlc != length)
    if wrong.size:
        count, expected = length[wrong[0]], dlc[wrong[0]]
        cut_off = " (cut off?)" if count < expected else ""
        raise RowFault(int(wrong[0]), f"{count} bytes, but a DLC of {expected}{cut_off}")


def read_parquet(path: Path, *, rows: int = ROWS) -> Frames:
    """The frames of a parquet file, whose columns are recognised by their names; ``rows`` are read at a time.

    Whole numbers are IDs and bytes themselves; texts have them in hexadecimal digits. Raises ``DataError`` with file
    and row if there is no frame, or a row or a column is invalid.
    """
    parts, row = list[Frames](), 1
    with reading(path):
        try:
            file = parquet.ParquetFile(regular(path))
            names = file.schema_arrow.names
            place, single = named_columns(names)
            if len(single) > MOST_BYTES:
                raise ValueError(f"it has {len(single)} columns of a byte, more than {MOST_BYTES}")
            for batch in file.iter_batches(rows, columns=[names[index] for index in (*place.values(), *single)]):
                cells = {name: _plain(batch.column(name), name) for name in batch.schema.names}
                columns = {key: cells[names[index]] for key, index in place.items()}
                parts.append(_of_columns(columns, [cells[names[index]] for index in single], row))
                row += len(batch)
        except (ValueError, KeyError, pa.ArrowException) as error:  # a KeyError is of two columns of one name
            where = f"in row {row + error.row:,} " if isinstance(error, RowFault) else ""
            text = f"{path}: read as parquet, but {where}{one_line(error)}: rename, fix or convert it"
            raise DataError(text) from error
    return _whole(parts, path, "parquet")


def _plain(column: pa.Array, name: str) -> pa.Array:
    """A column of numbers, texts or bytes. Dictionaries are decoded, and a list of bytes becomes bytes."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.dictionary_decode()
    if not pa.types.is_nested(kind):
        return column
    if not pa.types.is_integer(getattr(kind, "value_type", None) or pa.null()):
        raise ValueError(f"column {name!r} is of type {kind}, not of numbers, texts, bytes or lists of whole numbers")
    column = column.cast(pa.large_list(pa.uint8()))
    if column.flatten().null_count:
        raise ValueError(f"a list of bytes in column {name!r} has a missing byte")
    valid, offsets, _, values = column.buffers()
    return pa.Array.from_buffers(pa.large_binary(), len(column), [valid, offsets, values], offset=column.offset)


def _of_columns(columns: Columns, cells: Sequence[pa.Array], first: int) -> Frames:
    """The frames of rows whose bytes are in a column or in ``cells``; ``first`` is the number of the first row."""
    if cells:
        values = np.stack([_numbers(cell, _byte) for cell in cells], axis=1)
        filled = np.logical_and.accumulate(values != NO_BYTE, axis=1)
        data, length = np.zeros((len(values), MOST_BYTES), dtype=np.uint8), filled.sum(axis=1)
        data[:, : len(cells)] = np.where(filled, values, 0)
    else:
        column = columns["data"]
        if pa.types.is_string(column.type):
            column = compute.utf8_trim(compute.replace_substring_regex(column, r"[\s,:;\[\]-]+", " "), " ")
        data, length = _payload(*_distinct(column, _bytes_of))
    if "length" in columns:  # columns of one width may have more bytes than a frame
        dlc = _numbers(columns["length"], _dlc)
        _check_dlc(np.minimum(length, dlc), dlc)
        data[np.arange(MOST_BYTES) >= dlc[:, None]] = 0
    return _frames(columns, data, first + np.arange(len(data)), np.full(len(data), NO_FLAG))


def _frames(columns: Columns, data: NDArray[np.uint8], number: NDArray[np.int64], flags: NDArray[np.int64]) -> Frames:
    """Frames with these bytes. Rows without a time are in order; ``flags`` count if there is no column of them."""
    identifier = _numbers(columns["identifier"], _identifier)
    flags = _numbers(columns["flag"], _flag) if "flag" in columns else flags
    other = np.flatnonzero(flags // 2 != flags[:1] // 2)
    if other.size:
        raise RowFault(int(other[0]), "its flag is not of the first row's kind (cut off?)")
    time = _seconds(columns["time"]) if "time" in columns else number.astype(np.float64)
    return Frames(time, identifier.astype(np.int32), data, flags % 2 == 1)


def _seconds(column: pa.Array) -> NDArray[np.float64]:
    unit = 1.0
    if pa.types.is_timestamp(column.type):
        column, unit = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()), 1e6
    elif pa.types.is_string(column.type):
        column = compute.utf8_trim(column, MARKS)
    try:
        seconds = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / unit
    except pa.ArrowInvalid:  # slower, but it says where
        seconds = pd.to_numeric(column.to_pandas(), errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~np.isfinite(seconds))
    if bad.size:
        raise RowFault(int(bad[0]), f"time {column[int(bad[0])].as_py()!r:.40} is not a number of seconds")
    return np.asarray(seconds)


def _distinct(column: pa.Array, convert: Callable[[Any], T]) -> tuple[list[T], NDArray[np.int64]]:
    """What the distinct values of a column become, and the index of each row's value.

    Raises ``RowFault`` for the first value for which ``convert`` raises ``ValueError``.
    """
    words = column.dictionary_encode(null_encoding="encode")
    index, values = words.indices.to_numpy(), []
    for word in words.dictionary.to_pylist():
        try:
            values.append(convert(word))
        except ValueError as error:
            raise RowFault(int(np.argmax(index == len(values))), str(error)) from error
    return values, index


def _numbers(column: pa.Array, convert: Callable[[object], int]) -> NDArray[np.int64]:
    values, index = _distinct(column, convert)
    return np.array(values, dtype=np.int64)[index]


def _payload(values: list[bytes], index: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes (N, 8) of rows, and how many each row has."""
    padded = b"".join(value.ljust(MOST_BYTES, b"\0") for value in values)
    data = np.frombuffer(padded, dtype=np.uint8).reshape(-1, MOST_BYTES)[index]
    return data, np.array([len(value) for value in values], dtype=np.int64)[index]


# Single values: numbers, texts or bytes of parquet, and texts of a text file


def _text(value: object) -> str:
    return (value.decode("latin-1") if isinstance(value, bytes) else str(value)).strip(MARKS)


def _number(value: object, what: str, largest: int) -> int:
    if isinstance(value, (int, float)):
        number = int(value) if value % 1 == 0 else -1
    else:
        match = re.fullmatch("(?:0[xX])?([0-9a-fA-F]{1,8})", _text(value))
        number = int(match[1], 16) if match else -1
    if not 0 <= number <= largest:
        raise ValueError(f"{what} {value!r:.40} is not a hexadecimal number up to {largest:x}")
    return number


_identifier = partial(_number, what="ID", largest=LARGEST_ID)
_dlc = partial(_number, what="DLC", largest=MOST_BYTES)


def _byte(value: object) -> int:
    """A byte from its own column; ``NO_BYTE`` if the cell is empty."""
    return NO_BYTE if value is None or value == "" else _number(value, "byte", 255)


def _flag(value: object) -> int:
    word = _text(value).lower()
    if word not in FLAGS:
        raise ValueError(f"flag {value!r:.40} is neither normal (R, 0, Normal) nor injected (T, 1, Attack)")
    return FLAGS[word]


def _bytes_of(value: object) -> bytes:
    """A frame's bytes, of texts in two hexadecimal digits each, with a blank between any two or with none."""
    data = value
    if not isinstance(data, bytes):
        text = str(value)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if len(text) != 2 * len(data) and len(text) != 3 * len(data) - 1:
            raise ValueError(f"bytes {text!r:.40} are not of two hexadecimal digits each")
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes, more than {MOST_BYTES}")
    return data
