"""The journal of a study: ``attempts.jsonl``."""

import fcntl
import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError
from tuner.machine import safe_files
from tuner.machine.safe_files import regular
from tuner.records.attempts import BEFORE_METRICS, Attempt, parse_attempt
from tuner.records.checking import collecting_later
from tuner.records.study_record import UNKNOWN, StudyRecord

MOST_BYTES = 2**30  # about a million attempts
CUT = b" was cut off\n"  # the end of such a line, also where it is whole but for its end
NUMBERED = 8  # the maximum number of damaged lines that a message lists


class Journal:
    """A line for each attempt, synced to the disk at once. One process at a time may write it.

    ``rows`` has all lines in order.
    """

    def __init__(self, path: Path, study: StudyRecord = UNKNOWN) -> None:
        """Opens or creates the journal, and locks it until it is closed or the process ends.

        Raises:
            InputError: a line has a wrong value.
            BlockingIOError: another process has it open.
        """
        self._path = path
        self._file = open_locked(path)
        try:
            safe_files.sync_folder(path.parent)
            content = self._file.readall()
            self.rows, self._damaged = _parse(content, path, study)
        except BaseException:
            self._file.close()
            raise
        self._end = len(content)
        self._is_cut = bool(content) and not content.endswith(b"\n")

    def repair(self) -> list[str]:
        """Ends a line that a kill has cut off, and returns a note if there are incomplete lines, which stay."""
        if self._is_cut:
            self._write(CUT)
            self._is_cut = False
        return _left_out(self._path, self._damaged)

    def append(self, *rows: Attempt) -> None:
        """Appends lines and waits until the disk has them. If an OSError is raised, nothing has been appended."""
        self._write(_lines(rows))
        self.rows += rows

    @property
    def closed(self) -> bool:
        """Whether it is closed, so that another process may write it."""
        return self._file.closed

    def close(self) -> None:
        """Unlocks it. If the file was removed meanwhile, such as by a trial, it is written again."""
        if self.closed:
            return
        with self._file:
            if self.rows and os.fstat(self._file.fileno()).st_nlink == 0:
                safe_files.replace_file(self._path, _lines(self.rows))

    def _write(self, content: bytes) -> None:
        self._file.seek(self._end)
        try:
            safe_files.write_through(self._file, content)
        except OSError:
            os.ftruncate(self._file.fileno(), self._end)
            os.fsync(self._file.fileno())
            raise
        self._end += len(content)


def _lines(rows: Sequence[Attempt]) -> bytes:
    return "".join(json.dumps(row.to_line(exact=True)) + "\n" for row in rows).encode()


def read_attempts(path: Path, study: StudyRecord = UNKNOWN, *, some: bool = False) -> tuple[list[Attempt], list[str]]:
    """The lines of a journal that another process may be writing, and a note if any are incomplete.

    A missing journal has no lines.

    Args:
        path: the journal.
        study: the content of ``study.json``.
        some: refuse a journal that has only incomplete lines.

    Raises:
        InputError: the journal cannot be read, or a line has a wrong value or another workload.
    """
    try:
        content = regular(path, MOST_BYTES).read_bytes()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    rows, damaged = _parse(content, path, study)
    if some and damaged and not rows:
        raise InputError(
            f"{path}: {_incomplete(damaged)}, and there is no other; restore it from a copy, or resume the study"
        )
    return rows, _left_out(path, damaged)


@collecting_later()
def _parse(content: bytes, path: Path, study: StudyRecord) -> tuple[list[Attempt], list[int]]:
    """The attempts, and the numbers of lines that are none: a kill cut them off, or somebody changed them."""
    rows, damaged, workloads = [], [], study.workloads
    for number, line in enumerate(io.BytesIO(content), 1):
        where = f"{path}, line {number}"
        row = _to_attempt(line, where)
        if row and workloads and row.workload not in workloads:
            raise InputError(f"{where}: workload is {row.workload!r}; the study is of {', '.join(workloads)}")
        if row:
            typed = study.typed(row.config)
            rows.append(row if typed is row.config else replace(row, config=typed))
        elif line.strip():  # a blank line is where earlier versions had a damaged one
            damaged.append(number)
    return rows, damaged


def _left_out(path: Path, damaged: Sequence[int]) -> list[str]:
    return [f"{path}: {_incomplete(damaged)}; left out"] if damaged else []


def _incomplete(damaged: Sequence[int]) -> str:
    """The numbers of the damaged lines as text."""
    if len(damaged) == 1:
        return f"line {damaged[0]} is incomplete"
    more = ", …" * (len(damaged) > NUMBERED)
    return f"{len(damaged)} lines ({', '.join(map(str, damaged[:NUMBERED]))}{more}) are incomplete"


def _to_attempt(line: bytes, where: str) -> Attempt | None:
    """The attempt of a line; None if the line is incomplete or not an attempt."""
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


def open_locked(path: Path) -> io.FileIO:
    """The journal's file, locked until it is closed; a BlockingIOError is raised if another process has it open."""
    # Not opened for appending: Linux would then also write to the end what belongs at another position.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
    try:
        regular(path, MOST_BYTES)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, even by kill -9
    except BaseException:
        file.close()
        raise
    return file


def is_open(path: Path) -> bool:
    """Whether a process has the journal open; True where its file system does not tell."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
