"""How processes ended: their exit codes and signals, in words."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

from tuner.trial import GB

SHARED_MEMORY = Path("/dev/shm")  # nothing is written there
# ``ioctl(pidfd, PIDFD_GET_INFO)`` of linux/pidfd.h, version 0 of ``struct pidfd_info``: 64 bytes, of which the first
# 8 are a mask of what is asked for and told, and the last 4 the status that ``wait`` returns. It tells about any
# process that one can see, and since Linux 6.15 how it ended.
INFO = struct.Struct("<Q52xi")
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
EXIT = 1 << 3
REAPED_SECONDS = 0.5  # the kernel tells it once the process's parent has asked, or does not want to know


class ProcessExit:
    """The end of a process that is not this one's child."""

    def __init__(self, pid: int) -> None:
        """Holds on to the process, so that another one with its id is not taken for it."""
        self._descriptor = -1
        with suppress(OSError, AttributeError):  # it has ended, or this is no Linux
            self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        """Lets go of the process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def text(self) -> str:
        """How it ended, see ``exit_text``; empty if it has not, or if the kernel does not tell."""
        deadline = time.monotonic() + REAPED_SECONDS
        while self._descriptor >= 0:
            try:
                told = fcntl.ioctl(self._descriptor, GET_INFO, INFO.pack(EXIT, 0))
            except OSError:  # a kernel before 6.13, or the process has not been reaped
                told = bytes(INFO.size)
            mask, status = INFO.unpack(told)
            if mask & EXIT:
                return exit_text(os.waitstatus_to_exitcode(status))
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return ""


def exit_text(code: int) -> str:
    """What an exit code of ``subprocess`` says: ``ended with exit code 3``; of a signal if it is negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return signal_text(signal.Signals(-code).name)
    except ValueError:  # real-time signals have no names
        return signal_text(f"signal {-code}")


def signal_text(name: str) -> str:
    """``was killed by SIGSEGV``, and for SIGBUS what mostly causes it."""
    said = f"was killed by {name}"
    if name != "SIGBUS" or not SHARED_MEMORY.is_dir():
        return said
    space = shutil.disk_usage(SHARED_MEMORY)
    return f"{said}: {SHARED_MEMORY} may be full ({space.free / GB:.2f} of {space.total / GB:.2f} GB free)"
