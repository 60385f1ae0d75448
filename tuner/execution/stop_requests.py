"""Asks running trials on all machines to end, by files beside their checkpoints.

A busy worker answers no calls, and a second thread would change its memory.
"""

from contextlib import suppress
from pathlib import Path

from tuner.errors import ExecutionError
from tuner.machine.safe_files import not_following, regular

STOP = "stop"


class StopRequests:
    """Requests that all trials stop with a checkpoint, or that a single trial is pruned.

    The file that stops all trials exists from the start, and is filled when the study ends: a network file system may
    cache for a minute that a file is missing, but not its content. Without a folder nothing is requested.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def reset(self) -> None:
        """Withdraws the stop request of an earlier run; an ExecutionError is raised if that fails."""
        self._write(b"")

    def stop_all(self) -> None:
        """Asks all trials to write a checkpoint and end; an ExecutionError is raised if that fails."""
        self._write(b"stop\n")

    def stop_requested(self) -> bool:
        """Whether all trials are asked to stop."""
        with suppress(OSError):
            return self._folder is not None and bool(regular(self._folder / STOP).read_bytes())
        return False

    def prune(self, trial_id: str) -> None:
        """Asks a trial to end. If that fails, it trains on."""
        if file := self._prune_file(trial_id):
            with suppress(OSError):
                file.touch()

    def prune_requested(self, trial_id: str) -> bool:
        """Whether this trial is asked to end."""
        file = self._prune_file(trial_id)
        return file is not None and file.exists()

    def forget_prune(self, trial_id: str) -> None:
        """Withdraws the request when the trial has ended or restarts."""
        if file := self._prune_file(trial_id):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the file that stops all trials. If that fails, ``reset`` will empty it."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / STOP).unlink()

    def _prune_file(self, trial_id: str) -> Path | None:
        return self._folder / f"{trial_id}.prune" if self._folder else None

    def _write(self, content: bytes) -> None:
        if self._folder is None:
            return
        path = self._folder / STOP
        try:
            with open(path, "wb", opener=not_following) as file:
                file.write(content)
        except OSError as error:
            raise ExecutionError(f"{path} cannot be written: {error.strerror}") from error
