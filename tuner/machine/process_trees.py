"""Ends processes together with all that they have started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil

# Two readings of when a process was made differ where the system's clock has been set meanwhile.
CLOCK_SECONDS = 10.0
ROUNDS = 10  # of looking for processes that were started meanwhile
END_SECONDS = 5.0


def own_process() -> tuple[int, float]:
    """This process's id, and when it was made, by which ``end_tree`` knows it."""
    return os.getpid(), psutil.Process().create_time()


def end_tree(pid: int, created: float) -> None:
    """Kills a process of this machine with all that it has started, and waits a little for its end.

    If it has ended by itself, what is left of its process group is killed: of that, nobody else can have its id. A
    process that has another age than ``created`` says is not touched.
    """
    try:
        root = psutil.Process(pid)
        if abs(root.create_time() - created) > CLOCK_SECONDS:
            return
        leads = os.getpgid(pid) == pid
    except (psutil.Error, ProcessLookupError):
        _kill_group(pid)
        return
    found = _stopped(root)
    if leads:
        _kill_group(pid)
    for each in found:
        with suppress(psutil.Error):
            each.kill()
    deadline = time.monotonic() + END_SECONDS
    while any(map(_runs, found)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _stopped(root: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants, stopped, so that none of them starts another one."""
    found: dict[int, psutil.Process] = {}
    for _ in range(ROUNDS):
        new = [root] if not found else []
        with suppress(psutil.Error):
            new += [each for each in root.children(recursive=True) if each.pid not in found]
        if not new:
            break
        for each in new:
            found[each.pid] = each
            with suppress(psutil.Error):
                each.suspend()
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    """Whether a process has not ended; its parent may not have asked for its exit code."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill_group(pid: int) -> None:
    if pid != os.getpgrp():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
