"""The log of a study's decisions: what was decided of which trial, and the numbers it was decided by.

What ``logging.getLogger("tuner.decisions")`` is told goes into a file of the study's folder. The environment variable
``TUNER_LOG=debug``, or ``--debug`` in a terminal, shows it as well, and so does a program that logs at that level.
"""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from tuner.decisions.policies import LOG
from tuner.errors import printable
from tuner.machine.safe_files import not_following

VARIABLE = "TUNER_LOG"
FORMAT = "%(asctime)s %(message)s"


class DecisionLog(logging.Handler):
    """Keeps what is decided until there is a folder, and then writes it to a file there.

    What cannot be written is lost: a full disk or a closed terminal ends no study.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._kept: list[str] | None = []  # the lines so far; None once there was a folder
        self._file: TextIO | None = None
        self._shown = sys.stderr if os.environ.get(VARIABLE, "").lower() == "debug" else None

    def __enter__(self) -> Self:
        """Begins to take what is decided."""
        LOG.setLevel(logging.DEBUG)
        LOG.propagate = logging.getLogger().isEnabledFor(logging.DEBUG)
        LOG.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Takes no more, and closes the file."""
        LOG.removeHandler(self)
        if self._file:
            with suppress(OSError):
                self._file.close()

    def open(self, path: Path) -> None:
        """Writes what was kept, and all that follows, to this file."""
        kept, self._kept = self._kept or [], None
        with suppress(OSError):
            self._file = open(path, "a", opener=not_following)  # noqa: SIM115  # closed at the end of the block
            self._file.writelines(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, or keeps it."""
        line = printable(self.format(record)) + "\n"
        if self._kept is not None:
            self._kept.append(line)
        for stream in filter(None, (self._shown, self._file)):
            with suppress(OSError, ValueError):
                stream.write(line)
                stream.flush()
