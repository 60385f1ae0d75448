"""Why a row of a CAN recording cannot be read: found once, for the row that ``can_frames.py`` has found invalid."""

from __future__ import annotations

import string
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from tuner.datasets.can_forms import FORMS, Form, Layout, fields_of, is_flag, words_of
from tuner.errors import DataError

LONGEST_TIME = 32  # the maximum number of characters
LARGEST_ID = 2**29 - 1  # of an extended frame
MOST_BYTES = 8


def fault(path: Path, number: int, row: str, form: Form, layout: Layout) -> DataError:
    """The error that names line, reason and form of an invalid row."""
    shown = row if len(row) <= 60 else row[:60] + "…"
    reason = _reason(fields_of(row), layout)
    remedy = "mend or remove the line"
    if number == 1 and form is FORMS[-1]:  # it may be anything
        remedy += ", or take the file away if it is no recording (docs/examples/kd_gat.md has the forms)"
    return DataError(f"{path}, line {number}: {reason}, in {shown!r}; {read_as(form)}: {remedy}")


def read_as(form: Form) -> str:
    """What a file was taken for."""
    return f"read as {form.name}, whose rows are {form.row}"


def seconds(field: bytes | str) -> float:
    """The number of seconds; NaN if it is none."""
    try:
        return float(field)
    except ValueError:
        return np.nan


def _reason(fields: Sequence[str], layout: Layout) -> str:
    if len(fields) < layout.data:
        return f"{len(fields)} of at least {layout.data} fields"
    if layout.time is not None:
        time = fields[layout.time]
        if len(time) > LONGEST_TIME or not np.isfinite(seconds(time)):
            return f"time {time[:LONGEST_TIME]!r} is not a number of seconds"
    written = fields[layout.identifier]
    identifier = written[2:] if len(written) > 2 and written[:2].lower() == "0x" else written
    if not _is_hexadecimal(identifier, range(1, 9)):
        return f"ID {written!r} is not a hexadecimal number"
    if int(identifier, 16) > LARGEST_ID:
        return f"ID {written!r} is over {LARGEST_ID:x}"
    if layout.flag is not None and not is_flag(fields[layout.flag], layout.words):
        return _wrong_flag(fields[layout.flag], layout)
    cells = list(fields[layout.data :])
    if layout.length is None:
        return _reason_of_bytes(cells, None, max(0, len(cells) - layout.behind), layout)
    dlc = fields[layout.length]
    if dlc not in tuple("012345678") and not (len(dlc) == 2 and dlc[0] == "0" and dlc[1] in "012345678"):
        return f"DLC {dlc!r} is not a number from 0 to 8"
    return _reason_of_bytes(cells, int(dlc), int(dlc), layout)


def _reason_of_bytes(cells: list[str], dlc: int | None, most: int, layout: Layout) -> str:
    """The fault of the bytes, of which there are ``most``, or of what stands behind them."""
    if layout.packed and most and len(cells[:1]) and len(cells[0]) > 2:
        whole = cells[0]
        if not _is_hexadecimal(whole, range(2, 2 * MOST_BYTES + 1, 2)):
            return f"bytes {whole[:32]!r} are not up to 8 with two hexadecimal digits each"
        if dlc is not None and len(whole) != 2 * dlc:
            return f"{len(whole) // 2} bytes, {'fewer' if len(whole) < 2 * dlc else 'more'} than its DLC of {dlc}"
        return _reason_behind(cells[1:], len(whole) // 2, layout)
    own = cells[:most]
    while own and (not own[-1] or (dlc is not None and is_flag(own[-1], layout.words))):
        own.pop()
    if dlc is not None and len(own) < dlc:
        return f"{len(own)} bytes, fewer than its DLC of {dlc} (cut off?)"
    if len(own) > MOST_BYTES:
        return f"{len(own)} bytes, more than 8"
    wrong = next((each for each in own if not _is_hexadecimal(each, (2,))), None)
    if wrong is not None:
        return f"byte {wrong!r} does not have two hexadecimal digits"
    return _reason_behind(cells[len(own) :], len(own), layout)


def _reason_behind(behind: list[str], shown: int, layout: Layout) -> str:
    """The fault of what stands behind so many bytes."""
    filled = [each for each in behind if each]
    flagged = layout.flag_behind is not None
    if flagged and not filled:
        return "no flag, but the first row has one"
    if not layout.behind and len(filled) == 1 and words_of(filled[0]):
        return "a flag, but the first row has none"
    more = sum(_is_hexadecimal(each, (2,)) for each in filled)
    if more and layout.length is None and flagged:
        return "no flag, but the first row has one"
    if more:
        return f"{shown + more} bytes, more than its DLC of {shown}"
    wrong = next((each for each in filled if not is_flag(each, layout.words)), None)
    if wrong is not None and (flagged or not layout.behind):
        return _wrong_flag(wrong, layout)
    return f"{len(behind)} fields behind the bytes and not {layout.behind}"


def _wrong_flag(word: str, layout: Layout) -> str:
    normal, injected = layout.words
    known = (normal[0], injected[0]) if injected else normal
    return f"flag {word[:32]!r} is neither {known[0]} nor {known[1]}"


def _is_hexadecimal(text: str, widths: Container[int]) -> bool:
    return len(text) in widths and all(each in string.hexdigits for each in text)
