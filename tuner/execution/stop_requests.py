"""How trials that run are asked to end, on whatever machine they run: by files beside their checkpoints.

A worker's process is busy with its trial and can be called by nobody; a second thread to be told in would change what
its memory is. On a machine that does not see the folder a trial trains to its end.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tuner.errors import ExecutionError

STOP = "stop"


class EndRequests:
    """Two kinds: all trials are to *stop*, with a checkpoint, as their study ends; one is *pruned* for good.

    The file that stops all is there from the start, and written to as the study ends: a network file system may
    remember for a minute that a file was not there, but looks anew at the content of one that is opened.
    """

    def __init__(self, folder: Path | None) -> None:
        """Reads and writes nothing yet.

        Args:
            folder: where the study's checkpoints are; without one nobody can be asked, and nobody is.
        """
        self._folder = folder

    def reset(self) -> None:
        """Asks nobody to stop, whatever an earlier run has left.

        Raises:
            ExecutionError: the file cannot be written.
        """
        self._write(b"")

    def stop_all(self) -> None:
        """Asks every trial that looks to write a checkpoint and end.

        Raises:
            ExecutionError: the file cannot be written.
        """
        self._write(b"stop\n")

    def stop_asked(self) -> bool:
        """Whether all were asked to stop."""
        if self._folder is None:
            return False
        try:
            return bool((self._folder / STOP).read_bytes())
        except OSError:
            return False

    def prune(self, trial_id: str) -> None:
        """Asks a trial to end; one that cannot be told trains on."""
        if self._folder is not None:
            with suppress(OSError):
                self._prune_file(self._folder, trial_id).touch()

    def prune_asked(self, trial_id: str) -> bool:
        """Whether this trial was asked to end."""
        return self._folder is not None and self._prune_file(self._folder, trial_id).exists()

    def forget_prune(self, trial_id: str) -> None:
        """Asks it no more: it has ended, or begins again."""
        if self._folder is not None:
            with suppress(OSError):
                self._prune_file(self._folder, trial_id).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the file that stops all, once no trial looks; what cannot be removed ``reset`` empties."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / STOP).unlink()

    @staticmethod
    def _prune_file(folder: Path, trial_id: str) -> Path:
        return folder / f"{trial_id}.prune"

    def _write(self, content: bytes) -> None:
        if self._folder is None:
            return
        path = self._folder / STOP
        try:
            path.write_bytes(content)
        except OSError as error:
            raise ExecutionError(f"{path} cannot be written: {error.strerror}") from error
