"""The log of a study's decisions: what was decided of which trial, and the numbers it was decided by.

Everything under ``logging.getLogger("tuner")`` goes into a file of the study's folder. The environment variable
``TUNER_LOG=debug``, or ``--debug`` in a terminal, shows it as well, and so does a program that logs at that level.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tuner.machine.atomic_files import not_following

VARIABLE = "TUNER_LOG"
FORMAT = "%(asctime)s %(message)s"


class _Quiet(logging.StreamHandler[TextIO]):
    """A handler that loses what it cannot write: a full disk or a closed terminal ends no study."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing is printed."""


@contextmanager
def decisions_logged(path: Path) -> Iterator[None]:
    """Logs what is decided in the block to a file, and to the standard error if that is asked for."""
    logger, formatter = logging.getLogger("tuner"), logging.Formatter(FORMAT)
    with ExitStack() as handlers:
        streams = [sys.stderr] if os.environ.get(VARIABLE, "").lower() == "debug" else []
        with suppress(OSError):
            streams.append(handlers.enter_context(open(path, "a", opener=not_following)))
        for stream in streams:
            handler = _Quiet(stream)
            handler.setFormatter(formatter)
            logger.addHandler(handler)
            handlers.callback(logger.removeHandler, handler)
        handlers.callback(logger.setLevel, logger.level)
        handlers.callback(setattr, logger, "propagate", logger.propagate)
        logger.propagate = logger.propagate and logger.isEnabledFor(logging.DEBUG)  # to a handler that takes all
        logger.setLevel(logging.DEBUG)
        yield
