"""The journal of a study, and the writing of files so that a kill at any moment leaves whole ones.

Everything that tuner writes into a study's folder passes through ``write_through`` (content) and ``move`` (names).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.machine import atomic_files
from tuner.records.attempts import BEFORE_METRICS, Attempt, parse_attempt

NUMBERED = 8  # so many damaged lines are named by their numbers


class Journal:
    """One line for each attempt, on disk the moment that it is known; one process at a time may write it.

    Attributes:
        rows: every line, in order, those appended included.
    """

    def __init__(self, path: Path) -> None:
        """Opens the journal, or begins it, and locks it until it is closed or the process ends, however it ends.

        Raises:
            InputError: a line holds what tuner never writes.
            BlockingIOError: another process has it open.
            OSError: it cannot be read or written.
        """
        self._path = path
        self._file = _open_locked(path)
        try:
            atomic_files.sync_folder(path.parent)
            content = self._file.readall()
            self.rows, self._damaged = _parse(content, path)
        except BaseException:
            self._file.close()
            raise
        self._end = len(content)

    def mend(self) -> list[str]:
        """Moves lines that are not whole to ``<name>.corrupt``, and says so, one text for each.

        The copy comes first, so that nothing is lost if the process is killed between the two.

        Raises:
            OSError: one of the files cannot be written.
        """
        if not self._damaged:
            return []
        aside = self._path.with_name(f"{self._path.name}.corrupt")
        atomic_files.append_file(aside, b"".join(line.content.rstrip(b"\n") + b"\n" for line in self._damaged))
        for line in reversed(self._damaged):
            if line.start + len(line.content) == self._end:
                self._cut(line.start)
            else:  # written over in place: a new file under the same name would not be the one that is locked
                self._file.seek(line.start)
                atomic_files.write_through(self._file, b" " * (len(line.content) - 1))
        notes = [f"{self._path}: line {line.number} is not whole; moved to {aside.name}" for line in self._damaged]
        self._damaged = []
        return notes

    def append(self, row: Attempt) -> None:
        """Writes a line; it is on disk when this returns, and not there at all if it raises.

        Raises:
            OSError: the disk is full, or the file can no longer be written.
        """
        line = (json.dumps(row.to_line()) + "\n").encode()
        self._file.seek(self._end)
        try:
            atomic_files.write_through(self._file, line)
        except OSError:
            self._cut(self._end)
            raise
        self._end += len(line)
        self.rows.append(row)

    @property
    def closed(self) -> bool:
        """Whether it has been closed, and another process may write it."""
        return self._file.closed

    def close(self) -> None:
        """Lets other processes write it."""
        self._file.close()

    def _cut(self, end: int) -> None:
        os.ftruncate(self._file.fileno(), end)
        os.fsync(self._file.fileno())
        self._end = end


def read_attempts(
    path: Path, workloads: Collection[str] = (), *, some: bool = False
) -> tuple[list[Attempt], list[str]]:
    """The lines of a journal, which another process may be writing, and a note if any are not whole.

    Changes nothing; a journal that is not there has no lines.

    Args:
        path: the journal.
        workloads: those of its study, where they are known.
        some: refuse a journal that has lines, and none that is whole.

    Raises:
        InputError: it cannot be read, or a line holds what tuner never writes, or is of another workload.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    rows, damaged = _parse(content, path, workloads)
    if some and damaged and not rows:
        raise InputError(
            f"{path}: {_not_whole(damaged)}, and there is no other; restore it from a copy, or go on with the study, "
            "which sets them aside"
        )
    return rows, [f"{path}: {_not_whole(damaged)}; left out"] if damaged else []


@dataclass(frozen=True)
class _Damaged:
    """A line that is no attempt: cut off by a kill, or changed since."""

    number: int
    start: int
    content: bytes


def _parse(content: bytes, path: Path, workloads: Collection[str] = ()) -> tuple[list[Attempt], list[_Damaged]]:
    rows, damaged, start = [], [], 0
    for number, line in enumerate(io.BytesIO(content), 1):
        where = f"{path}, line {number}"
        row = _to_attempt(line, where)
        if row and workloads and row.workload not in workloads:
            raise InputError(f"{where}: workload is {row.workload!r}; the study is of {', '.join(workloads)}")
        if row:
            rows.append(row)
        elif line.strip():  # a blank one is where a damaged one was
            damaged.append(_Damaged(number, start, line))
        start += len(line)
    return rows, damaged


def _not_whole(damaged: Sequence[_Damaged]) -> str:
    """Which lines are damaged, in words."""
    if len(damaged) == 1:
        return f"line {damaged[0].number} is not whole"
    more = ", …" * (len(damaged) > NUMBERED)
    return f"{len(damaged)} lines ({', '.join(str(line.number) for line in damaged[:NUMBERED])}{more}) are not whole"


def _to_attempt(line: bytes, where: str) -> Attempt | None:
    """The attempt of a line; None for one that is not whole, or is no attempt at all."""
    if not line.endswith(b"\n"):
        return None
    try:
        values = json.loads(line)
    except RecursionError as error:
        raise InputError(f"{where}: is nested too deep") from error
    except ValueError:
        return None
    if not isinstance(values, dict) or not any(column in values for column in BEFORE_METRICS):
        return None
    return parse_attempt(values, where)


def _open_locked(path: Path) -> io.FileIO:
    # Not opened for appending: Linux would then write even what has a place of its own to the end.
    file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it with the process, kill -9 or not
    except BaseException:
        file.close()
        raise
    return file
