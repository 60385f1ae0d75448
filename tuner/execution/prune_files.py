"""How a running trial learns that it is not worth its further epochs: by a file beside its checkpoint.

So a worker needs no second thread to be told in. One on a machine without the folder trains its trial to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def prune_file(folder: Path, trial_id: str) -> Path:
    """The file whose existence asks a trial to end."""
    return folder / f"{trial_id}.prune"


def ask_to_prune(folder: Path | None, trial_id: str) -> None:
    """Asks a trial to end; one that cannot be told trains on."""
    if folder is not None:
        with suppress(OSError):
            prune_file(folder, trial_id).touch()


def forget_prune(folder: Path | None, trial_id: str) -> None:
    """Asks it no more: it has ended, or begins again."""
    if folder is not None:
        with suppress(OSError):
            prune_file(folder, trial_id).unlink(missing_ok=True)


def prune_asked(folder: Path | None, trial_id: str) -> Callable[[], bool]:
    """What a trial asks between its steps: whether it is to end; without a folder it never is."""
    if folder is None:
        return lambda: False
    return prune_file(folder, trial_id).exists
