"""Reads CAN frames from HCRL-style CSV files with rows of varying width: ``timestamp,hex ID,DLC,hex bytes,flag``."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.spans import joined
from tuner.errors import DataError
from tuner.machine.regular_files import regular

Column = tuple[NDArray[np.int64], NDArray[np.int64]]  # the start and the length of a field in each row

EXPECTED = "time,hex ID,DLC,bytes in hex,R or T"
LONGEST_TIME = 32  # the maximum number of characters
LARGEST_ID = 2**29 - 1  # of an extended frame
MOST_BYTES = 8
CHUNK = 2**23  # the number of characters that are parsed at a time
COMMA, LINE_FEED, RETURN = b",\n\r"
NORMAL, INJECTED = b"RT"
# The value of each character as a hexadecimal digit; 16 for other characters.
DIGITS = np.full(256, 16, dtype=np.int64)
for _value, _digit in enumerate("0123456789abcdef"):
    DIGITS[[ord(_digit), ord(_digit.upper())]] = _value


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


def in_order(parts: Sequence[Frames]) -> Frames:
    """All frames sorted by time, with a stable order for equal times."""
    every = joined(parts)
    return every.take(np.argsort(every.time, kind="stable"))


def read_frames(path: Path) -> Frames:
    """The frames of a file. A file without flags has no attacks.

    Raises ``DataError`` with file and line if there is no frame or a row is invalid.
    """
    try:
        text = np.fromfile(regular(path), dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    start, line = _after_header(text)
    flagged = _has_flag(text[start:])
    parts = []
    while start < len(text):
        end = _chunk_end(text, start)
        parts.append(_parse(text[start:end], path, line, flagged))
        line += int(np.count_nonzero(text[start:end] == LINE_FEED))
        start = end
    if not sum(map(len, parts)):
        raise DataError(f"{path} holds no frame: expected rows of {EXPECTED}")
    return in_order(parts)


def _after_header(text: NDArray[np.uint8]) -> tuple[int, int]:
    """The start and the line of the first row, after a byte-order mark and a line of column names."""
    mark = 3 if text[:3].tobytes() == b"\xef\xbb\xbf" else 0
    if text[mark : mark + 9].tobytes().lower() != b"timestamp":
        return mark, 1
    ends = np.flatnonzero(text == LINE_FEED)
    return (int(ends[0]) + 1, 2) if ends.size else (len(text), 1)


def _has_flag(text: NDArray[np.uint8]) -> bool:
    """Whether the first row ends with a flag, which decides for the file."""
    first = text[:1000].tobytes().lstrip().split(b"\n")[0].rstrip()
    return first.endswith((b",R", b",T"))


def _chunk_end(text: NDArray[np.uint8], start: int) -> int:
    """The end of the last complete line of a chunk."""
    ends = np.flatnonzero(text[start : start + CHUNK] == LINE_FEED)
    whole = start + CHUNK >= len(text) or not ends.size
    return len(text) if whole else start + int(ends[-1]) + 1


def _parse(text: NDArray[np.uint8], path: Path, line: int, flagged: bool) -> Frames:
    """The frames of complete lines; ``line`` is the number of the first one."""
    begins, ends = _rows(text)
    numbers = np.flatnonzero(ends > begins)
    begins, ends = begins[numbers], ends[numbers]
    commas = np.flatnonzero(text == COMMA)
    first = np.searchsorted(commas, begins)
    count = np.searchsorted(commas, ends) - first
    bounds = np.concatenate([commas, [len(text)]])

    def column(index: int) -> Column:
        """A field of each row; empty if the row has fewer fields."""
        if index == 0:
            starts = begins
        else:
            starts = np.where(count >= index, bounds[np.minimum(first + index - 1, len(commas))] + 1, ends)
        stops = np.where(count > index, bounds[np.minimum(first + index, len(commas))], ends)
        return starts, np.maximum(stops - starts, 0)

    time, bad = _times(text, column(0))
    identifier, wrong = _hexadecimal(text, column(1), 1, 8)
    bad |= wrong | (identifier > LARGEST_ID)
    length, wrong = _hexadecimal(text, column(2), 1, 1)
    bad |= wrong | (length > MOST_BYTES) | (count != length + 2 + flagged)
    data = np.zeros((len(begins), MOST_BYTES), dtype=np.uint8)
    for index in range(MOST_BYTES):
        value, wrong = _hexadecimal(text, column(3 + index), 2, 2)
        inside = index < length
        bad |= inside & wrong
        data[:, index] = np.where(inside & ~wrong, value, 0)
    flag = text[np.maximum(ends - 1, 0)] if flagged else np.full(len(begins), NORMAL)
    if flagged:
        bad |= (text[np.maximum(ends - 2, 0)] != COMMA) | ((flag != NORMAL) & (flag != INJECTED))
    if bad.any():
        row = int(np.argmax(bad))
        raise _fault(path, line + int(numbers[row]), text[begins[row] : ends[row]].tobytes(), flagged)
    return Frames(time, identifier.astype(np.int32), data, flag == INJECTED)


def _rows(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The start and the end of each line, without line endings."""
    feeds = np.flatnonzero(text == LINE_FEED)
    if not len(feeds) or feeds[-1] != len(text) - 1:
        feeds = np.append(feeds, len(text))
    begins = np.concatenate([[0], feeds[:-1] + 1])
    returned = (feeds > begins) & (text[np.maximum(feeds - 1, 0)] == RETURN)
    return begins, feeds - returned


def _times(text: NDArray[np.uint8], column: Column) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The times in seconds, and which fields are not numbers."""
    start, width = column
    widest = min(max(1, int(width.max(initial=1))), LONGEST_TIME)
    place = np.arange(widest)
    characters = text[np.minimum(start[:, None] + place, len(text) - 1)]
    written = np.where(place < width[:, None], characters, 0).astype(np.uint8).view(f"S{widest}")[:, 0]
    try:
        value = written.astype(np.float64)
    except ValueError:
        value = np.array([_seconds(each) for each in written.tolist()])
    return value, ~np.isfinite(value) | (width > LONGEST_TIME)


def _hexadecimal(
    text: NDArray[np.uint8], column: Column, fewest: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Numbers of ``fewest`` to ``most`` hexadecimal digits, and which fields are invalid."""
    start, width = column
    value = np.zeros(len(start), dtype=np.int64)
    bad = (width < fewest) | (width > most)
    for place in range(most):
        inside = place < width
        digit = DIGITS[text[np.minimum(start + place, len(text) - 1)]]
        bad |= inside & (digit > 15)
        value = np.where(inside, 16 * value + digit, value)
    return value, bad


def _seconds(field: bytes | str) -> float:
    try:
        return float(field)
    except ValueError:
        return np.nan


def _fault(path: Path, number: int, row: bytes, flagged: bool) -> DataError:
    text = row.decode("latin-1")
    shown = text if len(text) <= 60 else text[:60] + "…"
    reason = _reason(text.split(","), flagged)
    return DataError(f"{path}, line {number}: {reason}, in {shown!r}; a row is {EXPECTED}: mend or remove the line")


def _reason(fields: Sequence[str], flagged: bool) -> str:
    """The fault of a row that ``_parse`` has found invalid."""
    if len(fields) < 3:
        return f"{len(fields)} of at least 3 fields"
    time, identifier, dlc, *rest = fields
    if len(time) > LONGEST_TIME or not np.isfinite(_seconds(time)):
        return f"time {time[:LONGEST_TIME]!r} is not a number of seconds"
    if not _is_hexadecimal(identifier, range(1, 9)):
        return f"ID {identifier!r} is not a hexadecimal number"
    if int(identifier, 16) > LARGEST_ID:
        return f"ID {identifier!r} is over {LARGEST_ID:x}"
    if dlc not in tuple("012345678"):
        return f"DLC {dlc!r} is not a number from 0 to 8"
    return _reason_of_bytes(rest, int(dlc), flagged)


def _reason_of_bytes(rest: Sequence[str], length: int, flagged: bool) -> str:
    has_flag = bool(rest) and rest[-1] in ("R", "T")
    found = rest[: len(rest) - has_flag]
    if len(found) < length:
        return f"{len(found)} bytes, fewer than its DLC of {length} (cut off?)"
    wrong = next((each for each in found[:length] if not _is_hexadecimal(each, (2,))), None)
    if wrong is not None:
        return f"byte {wrong!r} does not have two hexadecimal digits"
    if len(found) == length:
        return "no flag, but the first row has one" if flagged else "a flag, but the first row has none"
    if len(found) == length + 1 and not has_flag:
        return f"flag {found[-1]!r} is neither R nor T"
    return f"{len(found)} bytes, more than its DLC of {length}"


def _is_hexadecimal(text: str, widths: Container[int]) -> bool:
    return len(text) in widths and all(DIGITS[ord(each)] < 16 for each in text)
