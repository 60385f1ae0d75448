"""The log files of processes, which are kept short."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tuner.machine.safe_files import not_following
from tuner.trial import MB

LOG_BYTES = 8 * MB
REMOVED = b"[earlier output was removed]\n"
OUTPUTS = (1, 2)  # the descriptors of standard output and standard error


def open_log(log: Path) -> BinaryIO:
    """Opens a file for appending, in a folder that is made on first use; raises OSError."""
    log.parent.mkdir(exist_ok=True)
    return open(log, "ab", opener=not_following)


@contextmanager
def output_in(log: Path | None) -> Iterator[None]:
    """Appends what this process prints in the block to a file, unless that cannot be opened.

    The descriptors are redirected, so earlier logging handlers, C libraries, child processes and Python's report of a
    crash write there as well.
    """
    kept: dict[int, int] = {}
    if log is not None:
        _flush()
        with suppress(OSError), open_log(log) as file:
            kept = {descriptor: os.dup(descriptor) for descriptor in OUTPUTS}
            for descriptor in OUTPUTS:
                os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        if kept:
            _flush()
        for descriptor, before in kept.items():
            os.dup2(before, descriptor)
            os.close(before)


def remove_empty(logs: Path | None) -> None:
    """Removes the empty files of a folder of logs, and the folder if nothing is left."""
    with suppress(OSError):
        for log in logs.glob("*.log") if logs else ():
            if log.stat().st_size == 0:
                log.unlink()
        if logs:
            logs.rmdir()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the trial may have closed or replaced it
            stream.flush()


def shorten(log: Path | None) -> None:
    """Cuts a file that has grown beyond ``LOG_BYTES`` to its last half of that.

    Its writer, which appends, goes on. Lines that come meanwhile may be lost.
    """
    with suppress(OSError):  # it is gone, or the disk is full
        if log is None or log.stat().st_size <= LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(REMOVED + kept)
