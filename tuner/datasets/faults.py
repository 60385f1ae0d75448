"""Faults of data files, each in one line: the file, the line, what is wrong."""

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import DataError, one_line

LONGEST = 60  # characters of a line that are shown
PACKED = (EOFError, ImportError, lzma.LZMAError, zipfile.BadZipFile, zlib.error)  # what unpacking raises


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
