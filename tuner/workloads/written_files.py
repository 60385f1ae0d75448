"""Which files in the current folder the trials of a script write, since trials overwrite each other's."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps

from tuner.errors import option

MOST_OF_TRIAL = 20
MOST = 10_000  # of a study


@dataclass(frozen=True)
class Wrote:
    """What a trial says at its end: the files in the current folder that it has written, by their paths there."""

    paths: tuple[str, ...]


@dataclass
class WrittenFiles:
    """The files of a study's trials."""

    _writers: dict[str, str] = field(default_factory=dict)  # the first trial that wrote each, by path
    _told: bool = False

    def shared(self, trial: str, wrote: Wrote) -> str:
        """Takes a trial's files; says once if another one has written one of them."""
        for path in wrote.paths:
            if len(self._writers) < MOST:
                self._writers.setdefault(path, trial)
            first = self._writers.get(path, trial)
            if first != trial and not self._told:
                self._told = True
                remedy = f"give {option('cwd', 'trial')}, or {{trial_dir}} among the arguments"
                return f"{first} and {trial} both wrote {path}: to give each trial its own folder, {remedy}"
        return ""


@contextmanager
def writing(own_folder: str) -> Iterator[set[str]]:
    """Yields a set that gets the files which this process writes below the current folder while the block runs.

    Files in ``own_folder`` and files that are appended to do not count. It is for a process that runs one trial, as
    Python's audit hooks stay.
    """
    folder, paths, active = os.getcwd(), set[str](), True

    def add(path: str | bytes) -> None:
        full = os.path.abspath(os.fsdecode(path))
        within = full.startswith(os.path.join(folder, "")) and not full.startswith(os.path.join(own_folder, ""))
        if within and "__pycache__" not in full and len(paths) < MOST_OF_TRIAL:
            paths.add(os.path.relpath(full, folder))

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if not active:
            return
        written = event == "open" and _overwrites(arguments[2])
        path = arguments[0] if written else arguments[1] if event == "os.rename" else None
        if isinstance(path, (str, bytes)):
            add(path)

    sys.addaudithook(hear)
    if torch := sys.modules.get("torch"):  # which opens files without Python
        setattr(torch, "save", _saving(getattr(torch, "save"), add))  # noqa: B009, B010
    try:
        yield paths
    finally:
        active = False


def _overwrites(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR)) and not flags & os.O_APPEND


def _saving(save: Callable[..., None], add: Callable[[str], None]) -> Callable[..., None]:
    @wraps(save)
    def saved(obj: object, f: object, *arguments: object, **named: object) -> None:
        if isinstance(f, (str, os.PathLike)):
            add(os.fspath(f))
        save(obj, f, *arguments, **named)

    return saved
