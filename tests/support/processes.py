"""Whether a process still runs."""

from __future__ import annotations

import psutil


def runs(pid: int) -> bool:
    """Whether a process has not ended.

    One that has lost its parent stays a zombie where the container's first process does not ask for exit codes.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
