"""Writes files so that a kill at any moment leaves whole ones, and never through a symbolic link.

``write_through`` and ``move`` return when the disk has what they wrote. ``replacing`` does not wait for the disk.
"""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"  # the suffix of a file that is being written


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
    """An ``opener`` for ``open`` that raises an OSError where the file is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_through(file: io.FileIO, content: bytes) -> None:
    """Writes all content at the file's position and waits until the disk has it.

    If an OSError is raised, a part may have been written.
    """
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
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


def _discard(path: Path) -> None:
    with suppress(OSError):  # the caller raises another error
        path.unlink(missing_ok=True)
