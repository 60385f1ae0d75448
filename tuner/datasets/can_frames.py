"""Reads CAN frames from text, a chunk at a time, whatever form ``can_forms.py`` says it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can_faults import LARGEST_ID, LONGEST_TIME, MOST_BYTES, fault, read_as, seconds
from tuner.datasets.can_forms import DELIMITERS, MARKS, Form, Layout, Words, form_of, layout_of
from tuner.datasets.spans import joined
from tuner.errors import DataError
from tuner.machine.regular_files import regular

Text = NDArray[np.uint8]
Index = NDArray[np.int64]
Bad = NDArray[np.bool_]
Column = tuple[Index, Index]  # the start and the length of a field in each row

CHUNK = 2**23  # the number of characters that are parsed at a time
LONGEST_WORD = 12  # of a flag
LONGEST_NAMES = 10_000  # characters of a first line
COMMA, LINE_FEED, RETURN, BLANK = b",\n\r "
BLANKS = np.frombuffer(b" \t\r\n", dtype=np.uint8)
# Delimiters become commas, and marks blanks.
TRANSLATED = bytes.maketrans((DELIMITERS + MARKS).encode(), b"," * len(DELIMITERS) + b" " * len(MARKS))
OTHERS = [each.encode() for each in f" {DELIMITERS}{MARKS}" if each != ","]
# The value of each character as a hexadecimal digit; 16 for other characters.
DIGITS = np.full(256, 16, dtype=np.int64)
for _value, _digit in enumerate("0123456789abcdef"):
    DIGITS[[ord(_digit), ord(_digit.upper())]] = _value
LOWER = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8)


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
    """The frames of a text file. A file without flags has no attacks.

    Raises ``DataError`` with file, line and the form that the file was taken for, if there is no frame or a row is
    invalid.
    """
    try:
        text = np.fromfile(regular(path), dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if 0 in text[:LONGEST_NAMES]:
        raise DataError(
            f"{path} is no text (compressed, in UTF-16, or of another program?): unpack it, or save it in UTF-8"
        )
    start, line = _next_row(text, 3 if text[:3].tobytes() == b"\xef\xbb\xbf" else 0, 1)
    first = _line_at(text, start)
    form, where = form_of(first), f"{path}, line {line}"
    if form.has_header:
        start, line = _next_row(text, start + len(first), line)
    layout = layout_of(form, first, _line_at(text, start), where)
    parts = []
    while start < len(text):
        end = _chunk_end(text, start)
        parts.append(_parse(text[start:end], path, line, form, layout))
        line += int(np.count_nonzero(text[start:end] == LINE_FEED))
        start = end
    if not sum(map(len, parts)):
        raise DataError(f"{path} holds no frame; {read_as(form)}")
    return in_order(parts)


def _next_row(text: Text, start: int, line: int) -> tuple[int, int]:
    """Where the next line begins that is not blank, and its number; the text's end if all are."""
    while start < len(text):
        block = text[start : start + 4096]
        filled = np.flatnonzero(~np.isin(block, BLANKS))
        skipped = block[: filled[0]] if filled.size else block
        line += int(np.count_nonzero(skipped == LINE_FEED))
        start += len(skipped)
        if filled.size:
            break
    return start, line


def _line_at(text: Text, start: int) -> str:
    return text[start : start + LONGEST_NAMES].tobytes().split(b"\n")[0].rstrip(b"\r").decode("latin-1")


def _chunk_end(text: Text, start: int) -> int:
    """The end of the last complete line of a chunk."""
    ends = np.flatnonzero(text[start : start + CHUNK] == LINE_FEED)
    whole = start + CHUNK >= len(text) or not ends.size
    return len(text) if whole else start + int(ends[-1]) + 1


def _with_commas(text: Text) -> Text:
    """The same lines with a comma in the place of every delimiter, and of the blanks between two fields."""
    raw = text.tobytes()
    if not any(each in raw for each in OTHERS):
        return text
    text = np.frombuffer(bytearray(raw.translate(TRANSLATED)), dtype=np.uint8)
    blank = text == BLANK
    around = np.concatenate([[False], blank, [False]])
    begins, ends = np.flatnonzero(blank & ~around[:-2]), np.flatnonzero(blank & ~around[2:])
    before = np.where(begins > 0, text[begins - 1], LINE_FEED)
    after = np.where(ends < len(text) - 1, text[np.minimum(ends + 1, len(text) - 1)], LINE_FEED)
    apart = ~np.isin(before, (COMMA, LINE_FEED)) & ~np.isin(after, (COMMA, RETURN, LINE_FEED))
    text[blank] = COMMA
    kept = ~blank
    kept[ends[apart]] = True
    found: Text = text[kept]
    return found if len(found) else np.frombuffer(b"\n", dtype=np.uint8)


class _Fields:
    """The fields of the rows of a text that has commas alone between them."""

    def __init__(self, text: Text) -> None:
        begins, ends = _rows(text)
        self.lines = np.flatnonzero(ends > begins)  # the lines that are not blank
        self.begins, self.ends = begins[self.lines], ends[self.lines]
        self.commas = np.flatnonzero(text == COMMA)
        self.first = np.searchsorted(self.commas, self.begins)
        self.count = np.searchsorted(self.commas, self.ends) - self.first + 1
        self.bounds = np.concatenate([self.commas, [len(text)]])
        self.stops: dict[int, Index] = {}  # where the fields of a number end, as the next ones need it, too

    def __getitem__(self, index: int | Index) -> Column:
        """A field of each row, by one number or by one for each; empty at the row's end if the row has fewer."""
        starts = (
            self.begins if isinstance(index, int) and index == 0 else np.minimum(self._stop(index - 1) + 1, self.ends)
        )
        return starts, self._stop(index) - starts

    def _stop(self, index: int | Index) -> Index:
        known = self.stops.get(index) if isinstance(index, int) else None
        if known is None:
            place = np.minimum(self.first + index, len(self.commas))
            known = np.where(self.count > index + 1, self.bounds[place], self.ends)
            if isinstance(index, int):
                self.stops[index] = known
        return known


def _parse(original: Text, path: Path, line: int, form: Form, layout: Layout) -> Frames:
    """The frames of complete lines; ``line`` is the number of the first one."""
    text = _with_commas(original)
    fields = _Fields(text)
    if layout.time is None:
        time, bad = (line + fields.lines).astype(np.float64), np.zeros(len(fields.lines), dtype=bool)
    else:
        time, bad = _times(text, fields[layout.time])
    identifier, wrong = hexadecimal(text, without_0x(text, fields[layout.identifier]), 1, 8)
    bad |= wrong | (identifier > LARGEST_ID)
    data, shown, wrong = _bytes(text, fields, layout)
    bad |= wrong
    behind, wrong = _behind(fields, layout.data + shown, layout.behind)
    bad |= wrong
    injected = np.zeros(len(bad), dtype=bool)
    flag = layout.flag if layout.flag_behind is None else behind + layout.flag_behind
    if flag is not None:
        injected, wrong = flags(text, fields[flag], layout.words)
        bad |= wrong
    if bad.any():
        number = int(fields.lines[np.argmax(bad)])
        row = original.tobytes().split(b"\n")[number].rstrip(b"\r")
        raise fault(path, line + number, row.decode("latin-1"), form, layout)
    return Frames(time, identifier.astype(np.int32), data, injected)


def _bytes(text: Text, fields: _Fields, layout: Layout) -> tuple[NDArray[np.uint8], Index, Bad]:
    """The bytes of each row, in how many fields it has them, and which rows' are invalid.

    A row has each byte in a field, or all in one.
    """
    cells = [fields[layout.data + place] for place in range(MOST_BYTES)]
    whole, width = cells[0]
    if layout.length is None:
        room = fields.count - layout.data - layout.behind
        packed = layout.packed & (width > 2) & (room > 0)
        filled = [(cell[1] > 0) & (place < room) for place, cell in enumerate(cells)]
        length = np.where(packed, width // 2, np.sum(np.logical_and.accumulate(filled), axis=0))
        bad = packed & (width > 2 * MOST_BYTES)
    else:
        length, bad = hexadecimal(text, fields[layout.length], 1, 2)
        bad |= length > MOST_BYTES
        packed = layout.packed & (width > 2) & (length > 0)
    any_packed = bool(packed.any())
    if any_packed:
        bad |= packed & (width != 2 * length)
    data = np.zeros((len(length), MOST_BYTES), dtype=np.uint8)
    for place, (start, own) in enumerate(cells):
        if any_packed:
            start, own = np.where(packed, whole + 2 * place, start), np.where(packed, 2, own)
        value, wrong = hexadecimal(text, (start, own), 2, 2)
        inside = place < length
        bad |= inside & wrong
        data[:, place] = np.where(inside & ~wrong, value, 0)
    return data, np.where(packed, 1, length), bad


def _behind(fields: _Fields, end: Index, behind: int) -> tuple[Index, Bad]:
    """The first field behind the bytes of each row, and which rows have other fields there than ``behind``.

    ``end`` is the field after the bytes. Empty fields fill a row up: there, or at the row's end.
    """
    padding = fields.count - end - behind
    if not padding.any():
        return end, np.zeros(len(end), dtype=bool)
    padding = np.maximum(padding, 0)
    there = (padding == 0) | (behind > 0) & (fields[end + padding][0] - fields[end][0] == padding)
    at_the_end = fields.ends - fields[fields.count - padding][0] == padding - 1
    return end + np.where(there, padding, 0), (fields.count < end + behind) | ~(there | at_the_end)


def flags(text: Text, column: Column, words: Words) -> tuple[Bad, Bad]:
    """Which flags say that a frame was injected, and which say neither that nor the contrary."""
    found = _hashed(text, column)
    normal, injected = (np.isin(found, _hashes(kind)) for kind in words)
    return injected, ~injected & ~normal


def _hashed(text: Text, column: Column) -> NDArray[np.uint64]:
    """A number for each word, whatever its capitals; 0 for longer ones than those that are known."""
    start, width = column
    word = np.zeros(len(start), dtype=np.uint64)
    for place in range(min(int(width.max(initial=0)), LONGEST_WORD)):
        letter = LOWER[text[np.minimum(start + place, len(text) - 1)]]
        word = np.where(place < width, word * np.uint64(257) + letter, word)
    return np.where(width <= LONGEST_WORD, word, np.uint64(0))


def _hashes(words: Sequence[str]) -> NDArray[np.uint64]:
    width = np.array([len(word) for word in words])
    text = np.frombuffer("".join(words).lower().encode(), dtype=np.uint8)
    return _hashed(text, (np.cumsum(width) - width, width))


def without_0x(text: Text, column: Column) -> Column:
    """Fields without the ``0x`` that they may begin with."""
    start, width = column
    second = LOWER[text[np.minimum(start + 1, len(text) - 1)]]
    marked = (width > 2) & (second == ord("x")) & (text[np.minimum(start, len(text) - 1)] == ord("0"))
    return (start + 2 * marked, width - 2 * marked) if marked.any() else column


def _rows(text: Text) -> tuple[Index, Index]:
    """The start and the end of each line, without line endings."""
    feeds = np.flatnonzero(text == LINE_FEED)
    if not len(feeds) or feeds[-1] != len(text) - 1:
        feeds = np.append(feeds, len(text))
    begins = np.concatenate([[0], feeds[:-1] + 1])
    returned = (feeds > begins) & (text[np.maximum(feeds - 1, 0)] == RETURN)
    return begins, feeds - returned


def _times(text: Text, column: Column) -> tuple[NDArray[np.float64], Bad]:
    """The times in seconds, and which fields are not numbers."""
    start, width = column
    widest = min(max(1, int(width.max(initial=1))), LONGEST_TIME)
    place = np.arange(widest)
    characters = text[np.minimum(start[:, None] + place, len(text) - 1)]
    written = np.where(place < width[:, None], characters, 0).astype(np.uint8).view(f"S{widest}")[:, 0]
    try:
        value = written.astype(np.float64)
    except ValueError:
        value = np.array([seconds(each) for each in written.tolist()])
    return value, ~np.isfinite(value) | (width > LONGEST_TIME)


def hexadecimal(text: Text, column: Column, fewest: int, most: int) -> tuple[Index, Bad]:
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
