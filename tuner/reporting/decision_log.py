"""The log of a study's decisions: what was decided of which trial, and the numbers it was decided by.

What ``logging.getLogger("tuner.decisions")`` is told goes into a file of the study's folder. The environment variable
``TUNER_LOG=debug``, or ``--debug`` in a terminal, shows it as well, and so does a program that logs at that level.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from tuner.machine.atomic_files import not_following

LOGGER = logging.getLogger("tuner.decisions")
VARIABLE = "TUNER_LOG"
FORMAT = "%(asctime)s %(message)s"


class DecisionLog(logging.Handler):
    """Keeps what is decided until there is a folder, and then writes it to a file there.

    What cannot be written is lost: a full disk or a closed terminal ends no study.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: list[str] = []
        self._files: list[TextIO] = [sys.stderr] if os.environ.get(VARIABLE, "").lower() == "debug" else []
        self._opened = False

    def __enter__(self) -> Self:
        """Begins to take what is decided."""
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.propagate = logging.getLogger().isEnabledFor(logging.DEBUG)
        LOGGER.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Takes no more, and closes the file."""
        LOGGER.removeHandler(self)
        for file in self._files[-1:] if self._opened else ():
            with suppress(OSError):
                file.close()

    def open(self, path: Path) -> None:
        """Writes what was kept, and all that follows, to this file."""
        with suppress(OSError):
            self._files.append(open(path, "a", opener=not_following))  # noqa: SIM115  # closed at the end of the block
            self._opened = True
            self._files[-1].writelines(self._lines)
        self._lines.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, or keeps it."""
        line = self.format(record) + "\n"
        if not self._opened:
            self._lines.append(line)
        for file in self._files:
            with suppress(OSError, ValueError):
                file.write(line)
                file.flush()
