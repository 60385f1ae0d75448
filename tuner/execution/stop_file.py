"""How trials learn that their study ends, on whatever machine they run: from a file beside their checkpoints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tuner.errors import ExecutionError

NAME = "stop"


class StopFile:
    """Empty while a study runs, and written to as it ends.

    It is not made only then: a network file system may remember for a minute that a file was not there, but looks
    anew at the content of one that is opened.
    """

    def __init__(self, folder: Path) -> None:
        """Reads and writes nothing yet.

        Args:
            folder: where the study's checkpoints are.
        """
        self._path = folder / NAME

    def reset(self) -> None:
        """Makes it, empty, whatever an earlier run has left.

        Raises:
            ExecutionError: it cannot be written.
        """
        self._write(b"")

    def ask(self) -> None:
        """Asks every trial that looks to write a checkpoint and end.

        Raises:
            ExecutionError: it cannot be written.
        """
        self._write(b"stop\n")

    def asked(self) -> bool:
        """Whether an end was asked for; never where this machine does not have the folder."""
        try:
            return bool(self._path.read_bytes())
        except OSError:
            return False

    def remove(self) -> None:
        """Removes it, once no trial looks any more; one that cannot be removed is emptied by the next run."""
        with suppress(OSError):
            self._path.unlink()

    def _write(self, content: bytes) -> None:
        try:
            self._path.write_bytes(content)
        except OSError as error:
            raise ExecutionError(f"{self._path} cannot be written: {error.strerror}") from error
