"""Reads CAN frames from parquet files whose columns are numbers, texts, bytes or lists of bytes; needs pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_faults import LARGEST_ID, MOST_BYTES
from tuner.datasets.can_forms import FLAGS, named_columns, words_of
from tuner.datasets.can_frames import Bad, Column, Frames, Index, Text, flags, hexadecimal, in_order, without_0x
from tuner.errors import DataError, install_command, one_line
from tuner.machine.regular_files import regular

if TYPE_CHECKING:
    import pyarrow as pa

OLDEST = 15  # earlier versions of pyarrow unpickle types that a file brings along (CVE-2023-47248)
ROWS = 2**18  # that are read at a time


def read_parquet(path: Path) -> Frames:
    """The frames of a parquet file, whose columns are found by their names as those of a text.

    Whole numbers are IDs and bytes themselves; texts have them in hexadecimal digits. Raises ``DataError`` with file
    and row if pyarrow is missing, there is no frame, or a row or a column is invalid.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        install = install_command("pyarrow", extra="parquet")
        raise DataError(f"{path}: parquet needs pyarrow: {install}, or give the recording as CSV") from error
    if int(pa.__version__.split(".")[0]) < OLDEST:
        raise DataError(f"{path}: pyarrow {pa.__version__} is too old to be safe: install {OLDEST} or later")
    parts, row = list[Frames](), 1
    try:
        with parquet.ParquetFile(regular(path)) as file:
            place, bytes_at = named_columns(file.schema_arrow.names)
            if len(bytes_at) > MOST_BYTES:
                raise ValueError(f"it has {len(bytes_at)} columns of a byte, more than {MOST_BYTES}")
            wanted = {key: file.schema_arrow.names[index] for key, index in place.items() if index is not None}
            data = [file.schema_arrow.names[index] for index in bytes_at]
            for batch in file.iter_batches(ROWS, columns=[*wanted.values(), *data]):
                columns = {key: _plain(batch.column(name), name) for key, name in wanted.items()}
                parts.append(_frames(columns, [_plain(batch.column(name), name) for name in data], row))
                row += len(batch)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or one_line(error)}") from error
    except (ValueError, KeyError, pa.ArrowException) as error:  # a KeyError is of two columns of one name
        raise DataError(f"{path}: read as parquet, but {one_line(error)}: rename, mend or convert it") from error
    if not sum(map(len, parts)):
        raise DataError(f"{path} holds no frame; read as parquet")
    return in_order(parts)


def _plain(column: pa.Array, name: str) -> pa.Array:
    """A column without its dictionary; raises ``ValueError`` for types other than this module reads."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    known = pa.types.is_primitive(kind) or _is_text(kind) or _is_bytes(kind)
    if not known and not (any(each(kind) for each in lists) and pa.types.is_integer(kind.value_type)):
        raise ValueError(f"column {name!r} is of type {kind}, not of numbers, texts, bytes or lists of whole numbers")
    return column


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    known = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary
    return any(each(kind) for each in known)


def _frames(columns: dict[str, pa.Array], cells: list[pa.Array], first: int) -> Frames:
    """The frames of a batch; ``first`` is the number of its first row."""
    count = len(columns["identifier"])
    identifier, wrong = _numbers(columns["identifier"], 8)
    _refuse(wrong | (identifier < 0) | (identifier > LARGEST_ID), "ID", columns["identifier"], first)
    if "data" in columns:
        data, length = _payload(columns["data"], first)
    else:
        data, length = _of_cells(cells, first)
    if "length" in columns:
        dlc, wrong = _numbers(columns["length"], 2)
        _refuse(wrong | (dlc > MOST_BYTES) | (dlc < 0) | (length < dlc), "DLC", columns["length"], first)
        data[np.arange(MOST_BYTES) >= dlc[:, None]] = 0
    injected = np.zeros(count, dtype=bool)
    if "flag" in columns:
        injected, wrong = _flags(columns["flag"])
        _refuse(wrong, "flag", columns["flag"], first)
    time = first + np.arange(count, dtype=np.float64)
    if "time" in columns:
        time = _seconds(columns["time"])
        _refuse(~np.isfinite(time), "time", columns["time"], first)
    return Frames(time, identifier.astype(np.int32), data, injected)


def _refuse(bad: Bad, what: str, column: pa.Array, first: int) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{what} {column[row].as_py()!r:.60} of row {first + row:,} is none")


def _numbers(column: pa.Array, digits: int) -> tuple[Index, Bad]:
    """Whole numbers, or texts of up to so many hexadecimal digits, and which are neither."""
    import pyarrow as pa

    if _is_text(column.type) or _is_bytes(column.type):
        text, fields = _strings(column)
        return hexadecimal(text, without_0x(text, fields), 1, digits)
    missing: Bad = column.is_null().to_numpy(zero_copy_only=False)
    return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), missing


def _seconds(column: pa.Array) -> NDArray[np.float64]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        since = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False)
        return np.asarray(since.to_numpy(zero_copy_only=False) / 1e6)
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _flags(column: pa.Array) -> tuple[Bad, Bad]:
    import pyarrow as pa

    if _is_bytes(column.type):
        column = column.cast(pa.large_binary()).cast(pa.large_string())
    if _is_text(column.type):
        words = words_of(next((each for each in column.unique().to_pylist() if each), "")) or FLAGS[0]
        return flags(*_strings(column), words)
    numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers == 1, (numbers != 0) & (numbers != 1)


def _payload(column: pa.Array, first: int) -> tuple[NDArray[np.uint8], Index]:
    """The bytes (N, 8) of a column that has all of a frame's, and how many each frame has."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if _is_text(column.type):
        packed = compute.replace_substring_regex(column, r"[\s,:;\-\[\]]", "")
        text, (start, width) = _strings(packed)
        length, wrong = width // 2, (width % 2 > 0) | (width > 2 * MOST_BYTES)
        data = np.zeros((len(start), MOST_BYTES), dtype=np.uint8)
        for place in range(MOST_BYTES):
            inside = place < length
            value, bad = hexadecimal(text, (start + 2 * place, np.where(inside, 2, 0)), 2, 2)
            wrong |= inside & bad
            data[:, place] = np.where(inside & ~bad, value, 0)
        _refuse(wrong, "data", column, first)
        return data, length
    if not _is_bytes(column.type):
        column = column.cast(pa.large_list(pa.uint8()))
        if column.flatten().null_count:
            raise ValueError("a list of bytes has a missing one")
        offsets, text = column.offsets.to_numpy(), column.values.fill_null(0).to_numpy(zero_copy_only=False)
        text = text if len(text) else np.zeros(1, dtype=np.uint8)
        start, width = offsets[:-1], np.diff(offsets)
    else:
        text, (start, width) = _strings(column)
    _refuse(width > MOST_BYTES, "data", column, first)
    places = np.arange(MOST_BYTES)
    inside = places < width[:, None]
    return np.where(inside, text[np.minimum(start[:, None] + places, len(text) - 1)], 0).astype(np.uint8), width


def _of_cells(cells: list[pa.Array], first: int) -> tuple[NDArray[np.uint8], Index]:
    """The same of columns of a byte each, of which the last ones may be empty."""
    data = np.zeros((len(cells[0]), MOST_BYTES), dtype=np.uint8)
    filled = np.zeros((len(cells[0]), MOST_BYTES), dtype=bool)
    for place, cell in enumerate(cells):
        missing = cell.is_null().to_numpy(zero_copy_only=False)
        if _is_text(cell.type):
            missing |= _strings(cell)[1][1] == 0
        value, wrong = _numbers(cell, 2)
        _refuse(~missing & (wrong | (value < 0) | (value > 255)), "byte", cell, first)
        data[:, place] = np.where(missing, 0, value)
        filled[:, place] = ~missing
    return data, np.logical_and.accumulate(filled, axis=1).sum(axis=1)


def _strings(column: pa.Array) -> tuple[Text, Column]:
    """The characters of a column of texts or bytes, and where each value stands in them."""
    import pyarrow as pa

    column = column.cast(pa.large_binary())
    _, offsets, characters = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    text: Any = np.frombuffer(characters, dtype=np.uint8) if characters else b""
    return text if len(text) else np.zeros(1, dtype=np.uint8), (ends[:-1], np.diff(ends))
