"""How processes ended: their exit codes and signals as text."""

import fcntl
import os
import shutil
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

from tuner.trial import GB

# ``ioctl(pidfd, PIDFD_GET_INFO)`` of linux/pidfd.h, version 0 of ``struct pidfd_info``: 64 bytes, of which the first
# 8 are a mask of the requested and returned fields, and the last 4 the status that ``wait`` returns. It works for any
# visible process, and since Linux 6.15 returns how it ended.
INFO = struct.Struct("<Q52xi")
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
EXIT = 1 << 3
REAPED_SECONDS = 0.5  # the kernel returns it once the parent has reaped the process
SHARED = Path("/dev/shm")  # in which the workers of data loaders keep their batches
LITTLE_BYTES = GB  # a few workers' batches of large images; docker gives a container 64 MB
MORE_SHARED = "start the container with --shm-size=8g, or use num_workers=0"


class ProcessExit:
    """The end of a process that is not this one's child."""

    def __init__(self, pid: int) -> None:
        """Opens the process, so that a later one with the same id is not taken for it."""
        self._descriptor = -1
        with suppress(OSError, AttributeError):  # it has ended, or this is no Linux
            self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def text(self) -> str:
        """How it ended, see ``exit_text``; empty if it runs, or if the kernel does not report it."""
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
    """The text for an exit code of ``subprocess``: ``ended with exit code 3``, or the signal if it is negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return signal_text(signal.Signals(-code).name)
    except ValueError:  # real-time signals have no names
        return signal_text(f"signal {-code}")


def signal_text(name: str) -> str:
    """The text ``was killed by SIGSEGV``; for SIGBUS with its most common cause."""
    said = f"was killed by {name}"
    if name != "SIGBUS" or not SHARED.is_dir():
        return said
    return f"{said}: {SHARED} may be full ({shutil.disk_usage(SHARED).free / GB:.2f} GB free)"
