"""Checks files before they are read: reading a pipe or a device would never end."""

import errno
import stat
from pathlib import Path

MOST_BYTES = 256 * 2**20  # of a file that is read as a whole and holds no data set


def regular(path: Path, most_bytes: int | None = None) -> Path:
    """The path, if it is a regular file of at most ``most_bytes``.

    Raises:
        OSError: there is no such file, it is no regular file, or it is too large; ``strerror`` says which.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device; give a file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        text = f"it has {found.st_size / 2**20:,.0f} MB, and {most_bytes / 2**20:,.0f} are the most"
        raise OSError(errno.EFBIG, text, str(path))
    return path
