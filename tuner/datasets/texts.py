"""Text files in any encoding, compressed or not, and faults of data files, each in one line: file, line, reason."""

from __future__ import annotations

import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tuner.errors import DataError, one_line
from tuner.machine.safe_files import regular

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zip": "zip", ".xz": "xz", ".zst": "zstd"}
ENCODINGS = ("utf-8", "utf-16", "latin-1")  # tried in this order; UTF-16 needs a byte-order mark, latin-1 fits all
MARKS = ("\ufeff", "\xef\xbb\xbf")  # a byte-order mark, also as latin-1 has it
LONGEST = 60  # characters of a line that are shown
PACKED = (EOFError, ImportError, lzma.LZMAError, zipfile.BadZipFile, zlib.error)  # what unpacking raises
NO_TABLES = ("readme", "licen")  # what names of texts begin with that come along


def unpacked(path: Path) -> Path:
    """The name that a file has without its compression, in lower case."""
    name = Path(path.name.lower())
    return name.with_suffix("") if name.suffix in COMPRESSED else name


def compression_of(path: Path) -> str | None:
    """The compression that the name of a file says, as pandas calls it."""
    return COMPRESSED.get(path.suffix.lower())


@contextmanager
def opened(path: Path, encoding: str | None = None) -> Iterator[IO[str]]:
    """The text of a file; raises ``DataError`` if it cannot be opened or unpacked."""
    from pandas.io.common import get_handle  # type: ignore[import-not-found]  # pandas-stubs has it not

    options: Any = {"is_text": False, "compression": compression_of(path)}
    encoding = encoding or encoding_of(path)
    with reading(path), regular(path).open("rb") as file:
        try:
            handles = get_handle(file, "rb", **options)
        except ValueError as error:
            raise DataError(f"{path} cannot be read: {one_line(error, 200)}: unpack it") from error
        with handles:
            yield TextIOWrapper(cast(BinaryIO, handles.handle), encoding=encoding)


def encoding_of(path: Path) -> str:
    """The first of ``ENCODINGS`` that fits the whole file."""
    for encoding in ENCODINGS[:-1]:
        with suppress(UnicodeError), opened(path, encoding) as file:
            while file.read(2**20):
                pass
            return encoding
    return ENCODINGS[-1]


def numbered(file: IO[str]) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers from 1 and without a byte-order mark."""
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, line.removeprefix(MARKS[0]).removeprefix(MARKS[1])


def first_line(path: Path, file: IO[str]) -> tuple[int, str]:
    """The first of these lines, empty if there is none; raises ``DataError`` if it is not of a text."""
    number, line = next(numbered(file), (1, ""))
    if re.search("[\0-\x08]", line):
        raise DataError(f"{path} is not text (compressed, or in UTF-16?): unpack it, or save it as UTF-8")
    return number, line


def filled_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file that are not blank, without their ends."""
    with opened(path) as file:
        for number, line in numbered(file):
            yield number, line.rstrip("\r\n")


def separator_of(line: str) -> str:
    """The mark between the fields of a line; empty for blanks."""
    mark = "::" if "::" in line else max("\t;|,", key=line.count)
    return mark if mark in line else ""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error of opening or unpacking in the block into a ``DataError`` that names the file."""
    try:
        yield
    except (OSError, *PACKED) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or one_line(error)}") from error


def line_fault(path: Path, number: int, text: str) -> DataError:
    """The error for a line of a file; lines count from 1."""
    return DataError(f"{path}, line {number}: {text}")


def unexpected(path: Path, number: int, line: str, expected: str) -> DataError:
    """The error for a line that is not what is expected."""
    return line_fault(path, number, f"expected {expected}, but got {shown(line)}; fix or remove it")


def shown(line: str) -> str:
    """The beginning of a line, quoted."""
    return repr(line if len(line) <= LONGEST else line[:LONGEST] + "…")


class RowFault(ValueError):
    """What is wrong with a row, which is counted from 0 in its chunk."""

    def __init__(self, row: int, reason: str) -> None:
        """Keeps the row for whoever knows the file."""
        super().__init__(reason)
        self.row = row
