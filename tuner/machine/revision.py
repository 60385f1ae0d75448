"""Which code it is: the revision in a folder, and a digest of source."""

import hashlib
import inspect
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECONDS = 2.0  # git checks every file for changes, which takes long on a slow disk
DESCRIBE = ("describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12")


def git_revision(folder: Path) -> str:
    """The abbreviated commit that is checked out in the folder, with ``+`` if tracked files were changed.

    Empty if the folder is in no git repository, git is not installed, or it takes longer than two seconds.
    """
    # It writes nothing into the repository, and starts no program that the repository names as its monitor.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *DESCRIBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def source_digest(sources: Iterable[Any]) -> str:
    """A digest of the source of files, classes and functions; empty if that of one cannot be read."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sources:
        try:
            text = source.read_bytes() if isinstance(source, Path) else inspect.getsource(source).encode()
        except (OSError, TypeError):
            return ""
        digest.update(text)
    return digest.hexdigest()
