"""Writes files so that a kill at any moment leaves whole ones, never through a link; and refuses to read a pipe.

``write_through`` and ``move`` return when the disk has what they wrote. ``replacing`` does not wait for the disk.
"""

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

IRREGULAR = "it is a pipe or a device; give a file"
PARTIAL = ".partial"  # the suffix of a file that is being written
MOST_BYTES = 256 * 2**20  # of a file that is read as a whole and holds no data set


def regular(path: Path, most_bytes: int | None = None) -> Path:
    """The path, if it is a regular file of at most ``most_bytes``: reading a pipe or a device would never end.

    Raises ``OSError`` if there is no such file, it is no regular file, or it is too large; ``strerror`` says which.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, IRREGULAR, str(path))
    if most_bytes is not None and status.st_size > most_bytes:
        text = f"it has {status.st_size / 2**20:,.0f} MB, more than {most_bytes / 2**20:,.0f}"
        raise OSError(errno.EFBIG, text, str(path))
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """The file to write in the block; it replaces ``path`` at the end, and is removed if the block raises."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    except BaseException:
        _discard(partial)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file as a whole. If an OSError is raised, the old content is still there."""
    partial = path.with_name(path.name + PARTIAL)
    write_file(partial, content)
    try:
        move(partial, path)
    except OSError:
        _discard(partial)
        raise


def write_file(path: Path, content: bytes) -> None:
    """Writes a file that nobody reads until it is complete. If an OSError is raised, the file is removed."""
    try:
        path.unlink(missing_ok=True)
        with path.open("xb", buffering=0) as file:  # "x": a link that was made meanwhile is not followed
            write_through(file, content)
        sync_folder(path.parent)
    except OSError:
        _discard(path)
        raise


def append_file(path: Path, content: bytes) -> None:
    """Appends to a file. If an OSError is raised, a part may have been written."""
    with open(path, "ab", buffering=0, opener=not_following) as file:
        write_through(file, content)


def not_following(path: str, flags: int) -> int:
    """An ``opener`` for ``open`` that raises an OSError where the file is a symbolic link, a pipe or a device."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # a pipe would wait for its other end
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, IRREGULAR, path)


def write_through(file: io.FileIO, content: bytes) -> None:
    """Writes all content at the file's position and waits until the disk has it.

    If an OSError is raised, a part may have been written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def move(source: Path, target: Path) -> None:
    """Renames a whole file within its folder and waits until the disk has the new name."""
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file or a folder if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _discard(path: Path) -> None:
    with suppress(OSError):  # the caller raises another error
        path.unlink(missing_ok=True)
