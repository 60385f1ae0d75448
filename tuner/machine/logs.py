"""The files in which processes leave their output, and their bound."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tuner.machine.atomic_files import not_following
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
    """Appends all that this process prints in the block to a file; nothing changes if that cannot be opened.

    Whole descriptors are redirected. So a logging handler that was made earlier writes there as well, and so do
    libraries in C, processes that the block starts and Python's report of a crash.
    """
    kept: dict[int, int] = {}
    if log is not None:
        _flush()
        with suppress(OSError), open_log(log) as file:
            kept = {each: os.dup(each) for each in OUTPUTS}
            for each in OUTPUTS:
                os.dup2(file.fileno(), each)
    try:
        yield
    finally:
        if kept:
            _flush()
        for each, before in kept.items():
            os.dup2(before, each)
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
        with suppress(Exception):  # the trial may have closed it, or put an object of its own there
            stream.flush()


def shorten(log: Path | None) -> None:
    """Keeps the last half of ``LOG_BYTES`` of a file that has grown beyond that.

    Whoever writes to it goes on, as it has opened the file for appending; lines that come meanwhile may be lost.
    """
    with suppress(OSError):  # it is gone, or the disk is full: the trial matters more
        if log is None or log.stat().st_size <= LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(REMOVED + kept)
