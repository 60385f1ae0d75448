"""Ends processes together with all their descendants."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

STAT = Path("/proc/self/stat")
# Without /proc, two readings of a creation time differ if the system's clock was set in between.
CLOCK_SECONDS = 10.0
ROUNDS = 10  # of searching for processes that were started meanwhile
END_SECONDS = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def own_process() -> tuple[int, float, bool]:
    """This process as ``end_tree`` takes it: its id, ``time_made``, and whether it leads its process group."""
    own = os.getpid()
    return own, time_made(own), os.getpgrp() == own


def time_made(pid: int) -> float:
    """The creation time of a process of this machine, which tells it from a later process with the same id.

    It is in ticks since the boot: field 22 of proc_pid_stat(5). Without ``/proc`` it is in seconds by the system's
    clock. Raises ``psutil.NoSuchProcess``.
    """
    if not STAT.exists():
        return psutil.Process(pid).create_time()
    try:
        stat = (STAT.parents[1] / str(pid) / STAT.name).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return float(stat.rpartition(b")")[2].split()[19])  # field 2, its name, may have blanks and brackets


def end_tree(pid: int, created: float, leads: bool) -> None:
    """Kills a process of this machine with all its descendants, and waits a little for their end.

    If it has ended already and did lead its process group, the rest of the group is killed: while it exists, no other
    group can have its id. A process with another ``time_made`` is not touched.
    """
    try:
        root = psutil.Process(pid)
        if abs(time_made(pid) - created) > (0.0 if STAT.exists() else CLOCK_SECONDS):
            return
        leads = os.getpgid(pid) == pid
    except (psutil.Error, ProcessLookupError):
        if leads:
            _kill_group(pid)
        return
    found = _stopped(root)
    if leads:
        _kill_group(pid)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + END_SECONDS
    while any(map(_runs, found)) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_with_parent() -> None:
    """Has this process killed when its parent ends. Only on Linux."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_descendants() -> None:
    """Makes this process the parent of its descendants whose parents end. Elsewhere than on Linux it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kills all processes that this one and its descendants have started, also those in sessions of their own."""
    for process in _stopped(psutil.Process()):
        with suppress(psutil.Error):
            process.kill()


def _stopped(root: psutil.Process) -> list[psutil.Process]:
    """A process, unless it is this one, and its descendants, suspended, so that none of them starts another one."""
    found: dict[int, psutil.Process] = {}
    for _ in range(ROUNDS):
        new = [root] if not found and root.pid != os.getpid() else []
        with suppress(psutil.Error):
            new += [process for process in root.children(recursive=True) if process.pid not in found]
        if not new:
            break
        for process in new:
            found[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill_group(pid: int) -> None:
    if pid != os.getpgrp():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
