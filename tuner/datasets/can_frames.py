"""Reads CAN frames from text in any form of ``can_forms.py``, from parquet, and from what python-can reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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

from tuner.datasets.arrays import joined, starts
from tuner.datasets.can_forms import (
    MARKS,
    MOST_BYTES,
    NO_BYTE,
    NO_FLAG,
    NOT_SAID,
    PYTHON_CAN,
    Form,
    LabelColumn,
    are_decimal,
    byte_value,
    bytes_of,
    dlc_value,
    flag_value,
    form_of,
    identifier_value,
    named_columns,
)
from tuner.datasets.texts import RowFault, first_line, line_fault, opened, reading, shown, unpacked
from tuner.errors import DataError, one_line, option
from tuner.machine.safe_files import regular

T = TypeVar("T")
Columns = Mapping[str, pa.Array]  # by the keys of ``can_forms.NAMES``

CHUNK = 2**23
ROWS = 2**18
# What python-can reads.
LOGGED = {
    **{".asc": "Vector ASC", ".blf": "Vector BLF", ".trc": "PEAK TRC", ".mf4": "ASAM MF4"},
    ".db": "python-can's SQLite",
}
NO_FLAGS, LABELLED = "no flags, so normal", "by the label"  # what is told of a file, beside what was left out
DECIMAL_BYTES, HEX_BYTES = (f"columns of bytes read as {base} numbers" for base in ("decimal", "hexadecimal"))
DECIMAL_IDS = "column of IDs read as decimal numbers"
KIND = "attacks: "  # precedes the flag of attacks in what is told
MOST_KINDS = 100


@dataclass(frozen=True, eq=False)
class Frames:
    """N frames in order of time."""

    time: NDArray[np.float64]  # (N,) seconds
    identifier: NDArray[np.int32]  # (N,)
    data: NDArray[np.uint8]  # (N, 8); missing bytes are 0
    injected: NDArray[np.bool_ | np.int16]  # (N,) 0 for normal frames, else the number of the kind of attack

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.time)

    def take(self, rows: NDArray[np.int64] | slice) -> Frames:
        """Some of the frames."""
        return Frames(self.time[rows], self.identifier[rows], self.data[rows], self.injected[rows])


def in_order(parts: Sequence[Frames]) -> Frames:
    """All frames sorted by time, with a stable order for equal times."""
    every = joined(parts)
    return every.take(np.argsort(every.time, kind="stable"))


def read(path: Path, label: LabelColumn, told: Counter[str]) -> Frames:
    """The frames of a file of any form; see ``read_frames``. ``told`` counts what there is to say of it."""
    kind = unpacked(path).suffix
    if kind in LOGGED:
        return read_logged(path, LOGGED[kind], told)
    return read_parquet(path, label, told) if kind == ".parquet" else read_frames(path, label, told)


def _whole(parts: Sequence[Frames], path: Path, form: Form, unread: Sequence[str], told: Counter[str]) -> Frames:
    told.update({f"column {name!r} not read": 1 for name in unread} | ({LABELLED: 1} if form.label else {}))
    if not sum(map(len, parts)):
        raise DataError(f"{path} holds no frame; read as {form.name}")
    every = in_order(parts)
    if form.label and form.label.normal is None and every.injected.all():
        rule = f"no value of its column {form.label.column!r} is known as normal"
        raise DataError(f"{path}: {rule}: give {option('normal', 'VALUE')}, the value of normal frames")
    return every


def read_logged(path: Path, form: str, told: Counter[str]) -> Frames:
    """The data frames of a file that python-can reads, an extra; raises ``DataError`` if it cannot."""
    rows = []
    try:
        import can
    except ImportError:
        remedy = f"install packtuner[can], or convert it with `python -m can.logconvert {path.name} {path.stem}.log`"
        raise DataError(f"{path} is {form}: {remedy}") from None
    try:
        with reading(path), can.LogReader(regular(path)) as messages:
            for message in messages:
                kind = "error" if message.is_error_frame else "remote" if message.is_remote_frame else ""
                if kind:
                    told[f"{kind} frames left out"] += 1
                else:
                    rows.append((message.timestamp, message.arbitration_id, bytes(message.data)))
    except DataError:
        raise
    except Exception as error:  # of any kind, for a damaged file
        raise DataError(f"{path}: python-can cannot read it as {form}: {one_line(error, 200)}") from error
    told[NO_FLAGS] += 1
    parts = []
    if rows:
        time, identifier, data = zip(*rows, strict=True)
        payload, _ = _payload(list(data), np.arange(len(rows)), told)
        flags = np.zeros(len(rows), dtype=np.int16)
        parts = [Frames(np.array(time), np.array(identifier, dtype=np.int32), payload, flags)]
    return _whole(parts, path, Form(form), (), told)


def read_frames(
    path: Path, label: LabelColumn = NOT_SAID, told: Counter[str] | None = None, *, chunk: int = CHUNK
) -> Frames:
    """The frames of a text file, of which ``chunk`` characters are read at a time. One without flags has no attacks.

    ``label`` says which column of a table has the flags. Raises ``DataError`` with file, line and the form that the
    file was taken for, if there is no frame or a row is invalid.
    """
    parts, told = [], Counter() if told is None else told
    with opened(path) as file:
        number, first = first_line(path, file)
        if first.strip() == PYTHON_CAN:
            return read_logged(path, "python-can's CSV", told)
        form = form_of(first, f"{path}, line {number}", label)
        lines = [first] if first and not form.has_header else []
        number += form.has_header
        while lines := lines + file.readlines(chunk):
            parts.append(_of_lines(lines, path, number, form, told))
            number, lines = number + len(lines), []
    return _whole(parts, path, form, form.columns.unread, told)


def _of_lines(lines: list[str], path: Path, first: int, form: Form, told: Counter[str]) -> Frames:
    """The frames of a chunk of lines. Blank lines are skipped; ``first`` is the number of the first line."""
    rows = pa.array(lines)
    used = compute.invert(compute.utf8_is_space(rows))
    for kind, pattern in form.left_out.items():
        others = compute.match_substring_regex(rows, pattern)
        told[f"{kind} frames left out"] += compute.sum(others).as_py() or 0
        used = compute.and_not(used, others)
    rows, numbers = compute.utf8_rtrim(rows.filter(used), "\n"), first + np.flatnonzero(used)
    if not len(rows):
        return Frames(*(np.zeros(shape, kind) for shape, kind in ((0, "f8"), (0, "i4"), ((0, 8), "u1"), (0, "i2"))))
    try:
        return _of_rows(rows, numbers, form, told)
    except RowFault as fault:
        remedy, text = "fix or remove the line", str(fault)
        if first <= 2 and not _is_form(rows, form):
            remedy = "convert it to another form, or remove the file if it is not a recording"
            remedy += " (docs/examples/kd_gat.md has the forms)"
        if (form.has_header or form.pattern) and (flag := re.match("flag '([^']+)'", text)):
            field = rf"(?:^|\W){re.escape(flag[1])}(?:\W|$)"
            if compute.sum(compute.match_substring_regex(rows, field)).as_py() > 1:  # no damage: others have it, too
                remedy = _labels() if form.has_header else "give each line a flag of this kind"
        text = f"{text}, in {shown(rows[fault.row].as_py())}; read as {form.name}: {remedy}"
        raise line_fault(path, int(numbers[fault.row]), text) from fault


def _is_form(rows: pa.Array, form: Form) -> bool:
    """Whether the first row can be read in this form; else all rows may be of another one."""
    with suppress(RowFault):
        return len(_of_rows(rows[:1], np.zeros(1, dtype=np.int64), form, Counter())) > 0
    return False


def _labels() -> str:
    """The remedy for values of a label that are not known."""
    return f"give {option('label', 'COLUMN')}, if all values but the normal ones are attacks"


def _of_rows(rows: pa.Array, numbers: NDArray[np.int64], form: Form, told: Counter[str]) -> Frames:
    if not form.pattern:
        return _of_columns(*_cells(rows, form), numbers, told, form)
    fields = compute.extract_regex(rows, form.pattern)
    if fields.null_count:
        raise RowFault(int(np.argmax(fields.is_null())), "its fields are not those of its form (cut off?)")
    columns = dict(zip(fields.type.names, fields.flatten(), strict=True))
    return _of_columns(columns | {"data": compute.utf8_trim_whitespace(columns["data"])}, [], numbers, told, form)


def _cells(rows: pa.Array, form: Form) -> tuple[dict[str, pa.Array], list[pa.Array]]:
    """The columns of the rows of a table, and those of single bytes.

    Rows may have fewer fields than there are names, or empty ones, where they have fewer bytes; and more, where each
    byte has a field. The fields behind the bytes count from the end of a row.
    """
    (place, single, _), width = form.columns, form.width
    if len(single) == 1:  # it stands for all bytes
        place, single = {**place, "data": single[0]}, []
    if form.separator:
        fields = compute.split_pattern(rows, form.separator)
    else:
        fields = compute.utf8_split_whitespace(compute.utf8_trim_whitespace(rows))
    values = compute.utf8_trim(fields.flatten(), MARKS)
    begin, count = fields.offsets.to_numpy()[:-1], compute.list_value_length(fields).to_numpy()
    first, last = (single[0], single[-1]) if single else (place["data"], place["data"])
    adjacent = not single or len(single) == last - first + 1
    if (cut_off := count < (first if adjacent else width)).any():
        raise RowFault(int(np.argmax(cut_off)), "its fields are not those of its form (cut off?)")
    shift = count - width if adjacent else np.zeros(len(count), dtype=np.int64)
    if adjacent and (flag := place.get("flag", 0)) > last:  # what is empty behind the flag fills the row up
        index = np.arange(len(values))
        filled = np.maximum.accumulate(np.where(compute.not_equal(values, "").to_numpy(False), index, 0))
        found = filled[np.maximum(begin + flag + shift, 0)] - begin - flag
        shift = np.where(shift == 0, 0, found) if form.has_header and not single else found
    values = pa.concat_arrays([values, pa.array([""])])

    def cell(column: int) -> pa.Array:
        at = column + shift * (column > last)
        there = (at < count) & (at >= (first if column > last else 0))
        return values.take(pa.array(np.where(there, begin + at, len(values) - 1)))

    columns = {key: cell(index) for key, index in place.items()}
    if single:
        missing = [pa.array(index > last + shift) for index in single]
        return columns, [compute.if_else(none, "", cell(index)) for none, index in zip(missing, single, strict=True)]
    sizes = np.maximum(1 + shift, 0)
    offsets = starts(sizes)
    taken = values.take(pa.array(np.arange(offsets[-1]) + np.repeat(begin + first - offsets[:-1], sizes)))
    data = compute.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken), " ")
    return columns | {"data": compute.utf8_rtrim_whitespace(data)}, []


def read_parquet(
    path: Path, label: LabelColumn = NOT_SAID, told: Counter[str] | None = None, *, rows: int = ROWS
) -> Frames:
    """The frames of a parquet file, whose columns are recognised by their names; ``rows`` are read at a time.

    Whole numbers are IDs and bytes themselves; texts have them in hexadecimal digits. Raises ``DataError`` with file
    and row if there is no frame, or a row or a column is invalid.
    """
    parts, row, told = list[Frames](), 1, Counter() if told is None else told
    with reading(path):
        try:
            file = parquet.ParquetFile(regular(path))
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            place, single, unread = named_columns(names, label)
            form = Form("parquet", has_header=True, label=label if label.in_table(names) else None)
            for batch in file.iter_batches(rows, columns=[names[index] for index in (*place.values(), *single)]):
                cells = {name: _plain(batch.column(name), name) for name in batch.schema.names}
                columns = {key: cells[names[index]] for key, index in place.items()}
                if not single and pa.types.is_string(columns["data"].type):
                    spaced = compute.replace_substring_regex(columns["data"], r"[\s,:;\[\]-]+", " ")
                    columns["data"] = compute.utf8_trim(spaced, " ")
                single_cells, numbers = [cells[names[index]] for index in single], row + np.arange(len(batch))
                parts.append(_of_columns(columns, single_cells, numbers, told, form))
                row += len(batch)
        except (ValueError, KeyError, pa.ArrowException) as error:  # a KeyError is of two columns of one name
            where = f"in row {row + error.row:,} " if isinstance(error, RowFault) else ""
            remedy = "" if "label" in str(error) else ": rename, fix or convert it"
            remedy = f": {_labels()}" if str(error).startswith("flag") else remedy
            raise DataError(f"{path}: read as parquet, but {where}{one_line(error)}{remedy}") from error
    return _whole(parts, path, form, unread, told)


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


def _of_columns(
    columns: Columns, cells: Sequence[pa.Array], number: NDArray[np.int64], told: Counter[str], form: Form
) -> Frames:
    """The frames of rows with these numbers, whose bytes are in a column or in ``cells``."""
    flags = _distinct(columns["flag"], partial(flag_value, label=form.label)) if "flag" in columns else None
    if cells:
        byte = partial(byte_value, decimal=_are_decimal(cells, columns["identifier"], told))
        values = np.stack([_numbers(cell, byte) for cell in cells], axis=1)
        filled = np.logical_and.accumulate(values != NO_BYTE, axis=1)
        data, length = np.zeros((len(values), MOST_BYTES), dtype=np.uint8), filled.sum(axis=1)
        data[:, : len(cells)] = np.where(filled, values, 0)
    else:
        data, length = _payload(*_distinct(columns["data"], partial(bytes_of, most=form.most_bytes)), told)
    if "length" in columns:
        dlc = _numbers(columns["length"], dlc_value if form.most_bytes == MOST_BYTES else lambda text: int(str(text)))
        if form.has_header:  # columns of one width may have bytes beyond a frame's length
            data = np.where(np.arange(MOST_BYTES) < dlc[:, None], data, 0).astype(np.uint8)
            length = np.minimum(length, dlc)
        if (wrong := np.flatnonzero(dlc != length)).size:
            count, expected = length[wrong[0]], dlc[wrong[0]]
            cut_off = " (cut off?)" if count < expected else ""
            raise RowFault(int(wrong[0]), f"{count} bytes, but a DLC of {expected}{cut_off}")
    identifier = _numbers(columns["identifier"], partial(identifier_value, decimal=DECIMAL_IDS in told))
    time = _seconds(columns["time"]) if "time" in columns else number.astype(np.float64)
    return Frames(time, identifier.astype(np.int32), data, _injected(*flags or ([(NO_FLAG, "")], number * 0), told))


def _are_decimal(cells: Sequence[pa.Array], identifier: pa.Array, told: Counter[str]) -> bool:
    """Whether the bytes in ``cells`` are decimal; the first rows of a file decide it, and also for its IDs."""
    if not told.keys() & {DECIMAL_BYTES, HEX_BYTES}:
        words, ids = (
            {word for cell in some if pa.types.is_string(cell.type) for word in cell.unique().to_pylist() if word}
            for some in (cells, [identifier])
        )
        told.update({DECIMAL_BYTES if are_decimal(words) else HEX_BYTES: 1} if words else {})
        if DECIMAL_BYTES in told and all(re.fullmatch("0|[1-9][0-9]*", word) for word in ids):
            told[DECIMAL_IDS] = 1
    return DECIMAL_BYTES in told


def _injected(flags: Sequence[tuple[int, str]], index: NDArray[np.int64], told: Counter[str]) -> NDArray[np.int16]:
    """The numbers of the kinds of attack of frames with these flags; ``told`` has each by ``KIND`` and the flag."""
    number = np.array([flag for flag, _ in flags])[index]
    told.update({NO_FLAGS: 1} if number[0] == NO_FLAG else {})
    if (other := np.flatnonzero(number // 2 != number[0] // 2)).size:
        flag = flags[index[other[0]]][1]
        raise RowFault(int(other[0]), f"flag {flag!r:.40} is not of the first row's kind (cut off?)")
    told.update({f"{KIND}{flags[value][1]}": 1 for value in np.unique(index[number % 2 == 1]).tolist()})
    if len(kinds := kinds_told(told)) > MOST_KINDS:
        raise RowFault(0, f"its label has over {MOST_KINDS} values besides those of normal frames")
    return np.array([1 + kinds.index(word) if flag % 2 else 0 for flag, word in flags], dtype=np.int16)[index]


def kinds_told(told: Counter[str]) -> list[str]:
    """The flags of the attacks of a recording; ``Frames.injected`` has their numbers from 1."""
    return [what.removeprefix(KIND) for what in told if what.startswith(KIND)]


def _seconds(column: pa.Array) -> NDArray[np.float64]:
    unit = 1.0
    if pa.types.is_timestamp(column.type):
        column, unit = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()), 1e6
    elif pa.types.is_string(column.type):
        column = compute.replace_substring(compute.utf8_trim(column, MARKS), ",", ".")
    try:
        seconds = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / unit
    except pa.ArrowInvalid:  # slower, but it says where
        texts = column.to_pandas()
        seconds = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
        if np.isnan(seconds[0]):  # dates
            since = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True) - pd.Timestamp(0, tz="UTC")
            seconds = since.dt.total_seconds().to_numpy(np.float64)
    if (bad := np.flatnonzero(~np.isfinite(seconds))).size:
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


def _payload(
    values: list[bytes], index: NDArray[np.int64], told: Counter[str]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first bytes (N, 8) of rows, and how many each row has."""
    padded = b"".join(value[:MOST_BYTES].ljust(MOST_BYTES, b"\0") for value in values)
    data = np.frombuffer(padded, dtype=np.uint8).reshape(-1, MOST_BYTES)[index]
    length = np.array([len(value) for value in values], dtype=np.int64)[index]
    told[f"frames of CAN FD of which {MOST_BYTES} bytes are read"] += int((length > MOST_BYTES).sum())
    return data, length
