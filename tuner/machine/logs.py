"""Bounds the files in which processes leave their output."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tuner.trial import MB

LOG_BYTES = 8 * MB
REMOVED = b"[earlier output was removed]\n"


def shorten(log: Path) -> None:
    """Keeps the last half of ``LOG_BYTES`` of a file that has grown beyond that.

    Whoever writes to it goes on, as it has opened the file for appending; lines that come meanwhile may be lost.
    """
    with suppress(OSError):  # it is gone, or the disk is full: the trial matters more
        if log.stat().st_size <= LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(REMOVED + kept)
