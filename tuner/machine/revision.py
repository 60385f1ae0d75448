"""The revision of the code in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
