"""Private folders for sockets, logs and locks that live as long as one of our processes."""

import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tuner-"
NAME_LENGTH = len(PREFIX) + 8  # with what mkdtemp adds
SOCKET_BYTES = 107 if sys.platform == "linux" else 103  # the longest path of a socket (unix(7))
MARK = ".removed-with-its-process"  # only folders with this file are removed
LOOK_SECONDS = 0.005  # between two looks at a lock
REMOVALS, REMOVAL_SECONDS = 20, 0.1  # processes that are ending may still write there


def usable_bases(longest: int, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders with paths of at most ``longest`` bytes in which private ones can be made, the best first.

    ``$RAY_TMPDIR`` and ``$TMPDIR`` come first, as the user or the cluster chose them. ``$XDG_RUNTIME_DIR`` comes
    last: it is held in RAM, and removed when the user logs out.
    """
    named = [environ.get("RAY_TMPDIR"), environ.get("TMPDIR"), "/tmp", environ.get("XDG_RUNTIME_DIR")]
    bases = [Path(name).absolute() for name in named if name]
    return [
        base
        for base in dict.fromkeys(bases)
        if len(os.fsencode(base)) <= longest and base.is_dir() and os.access(base, os.W_OK | os.X_OK)
    ]


@contextmanager
def private_folder(base: Path) -> Iterator[Path]:
    """A new folder of mode 0700 in ``base`` for the block; raises OSError if it cannot be made.

    It is removed at the end. Folders that killed processes left are removed by the next process: a folder in use is
    locked, and the kernel frees the lock.
    """
    _remove_left_over(base)
    path, descriptor = _make(base)
    try:
        yield path
    finally:
        _remove(path)
        os.close(descriptor)


def _make(base: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with suppress(OSError):  # some network file systems do not lock folders; nobody removes it there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            (path / MARK).touch()
            return path, descriptor
        os.close(descriptor)  # another process has removed it before it was locked


def _remove_left_over(base: Path) -> None:
    for path in base.glob(f"{PREFIX}{'?' * 8}"):
        with suppress(OSError):  # it is another user's, or in use
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and (path / MARK).is_file():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    for _ in range(REMOVALS):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(REMOVAL_SECONDS)


@contextmanager
def locked(name: str, seconds: float) -> Iterator[Path]:
    """This user's folder, with a lock that one process at a time has for its block.

    The lock's file is removed at the end, and the folder if it is empty. Raises ``OSError`` if other users can use
    the folder or have made it, or if the lock is held for ``seconds``.
    """
    end = time.monotonic() + seconds
    while (descriptor := _try_to_lock(name)) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"the lock {name} was held for {seconds:g} s")
        time.sleep(LOOK_SECONDS)
    folder = users_folder()
    try:
        yield folder
    finally:
        (folder / name).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):
            folder.rmdir()


def _try_to_lock(name: str) -> int | None:
    """The descriptor that holds the lock; None if another process holds it, or has just removed the file."""
    try:
        path = users_folder() / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def users_folder() -> Path:
    """This user's folder; an OSError is raised if other users can use it or have made it."""
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}"
    with suppress(FileExistsError):  # it may be removed now: the caller tries again
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not private")
    return folder
