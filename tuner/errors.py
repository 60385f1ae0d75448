"""Errors that a user can mend, each told in one line: what was wrong, the value, the remedy.

TunerError                 anything that tuner refuses or gives up on, on purpose
├── InputError             an argument, a configuration or a path that cannot be used (exit code 2)
│   ├── DataError          a data file that cannot be read or understood
│   └── WorkloadError      a workload's method raises, or returns what cannot be used
└── ExecutionError         the machinery below the trials failed (Ray did not start, a disk is full)
"""

from __future__ import annotations


class TunerError(Exception):
    """Base of every error that tuner raises on purpose; its text is one line for the user."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython, and so a notebook, shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InputError(TunerError, ValueError):
    """What the user gave cannot be used. Nothing has been written when this is raised."""

    exit_code = 2


class DataError(InputError):
    """A data set is missing, broken or of an unknown format; names the file and, if known, the line."""


class WorkloadError(InputError):
    """A workload's method raises, or returns what cannot be used: names the method and the remedy."""


class ExecutionError(TunerError, RuntimeError):
    """The run itself cannot go on, through no fault of a trial."""
