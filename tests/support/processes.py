"""Whether a process still runs."""

from __future__ import annotations

import time

import psutil


def runs(pid: int) -> bool:
    """Whether a process has not ended.

    One that has lost its parent stays a zombie where the container's first process does not ask for exit codes.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_soon(*pids: int, seconds: float = 10) -> bool:
    """Whether these processes end within some seconds: the kernel may still be ending what was killed."""
    began = time.monotonic()
    while any(map(runs, pids)) and time.monotonic() - began < seconds:
        time.sleep(0.02)
    return not any(map(runs, pids))
