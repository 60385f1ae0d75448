"""Processes: how they end with all that they have started, free ports for them, and their log files, kept short."""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from tuner.machine.safe_files import not_following
from tuner.trial import GB, LOOPBACK, MB

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
STAT = Path("/proc/self/stat")
# Without /proc, two readings of a creation time differ if the system's clock was set in between.
CLOCK_SECONDS = 10.0
ROUNDS = 10  # of searching for processes that were started meanwhile
END_SECONDS = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
# The commands of Python's, joblib's and torch's processes that remove shared memory. They end by themselves, after
# those for which they do that.
CLEANER = re.compile(r"from [\w.]+\.resource_tracker import main;.*|.*/torch_shm_manager")

LOG_BYTES = 8 * MB
REMOVED = b"[earlier output was removed]\n"
OUTPUTS = (1, 2)  # the descriptors of standard output and standard error


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


def has_pidfds() -> bool:
    """Whether the end of a process can be waited for beside other things: on Linux since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


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
    text = f"was killed by {name}"
    if name != "SIGBUS" or not SHARED.is_dir():
        return text
    return f"{text}: {SHARED} may be full ({shutil.disk_usage(SHARED).free / GB:.2f} GB free)"


def own_process() -> tuple[int, float, bool]:
    """This process for ``end_tree``: its id, ``time_made``, and whether it leads its process group."""
    pid = os.getpid()
    return pid, time_made(pid), os.getpgrp() == pid


def time_made(pid: int) -> float:
    """The creation time of a process of this machine; a later process with the same id has another.

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
    stopped = _kill(_stopped(root))
    if leads:
        _kill_group(pid)
    deadline = time.monotonic() + END_SECONDS
    while any(map(_runs, stopped)) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_with_parent() -> None:
    """Has this process killed when its parent ends. Only on Linux."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_descendants() -> None:
    """Makes this process the parent of its descendants whose parents end. Elsewhere than on Linux it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(spared: Collection[int] = ()) -> None:
    """Kills all processes that this one and its descendants have started, also those in sessions of their own.

    The ``spared`` are left alone.
    """
    _kill(_stopped(psutil.Process(), spared))


def children(pid: int) -> list[int]:
    """The ids of a process's children; none without ``/proc``."""
    found: list[int] = []
    for file in (STAT.parents[1] / str(pid) / "task").glob("*/children"):
        with suppress(OSError):  # the thread or process has ended
            found += map(int, file.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """The ids of a process's descendants; none without ``/proc``."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def _kill(processes: list[psutil.Process]) -> list[psutil.Process]:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    return processes


def _cleans(process: psutil.Process) -> bool:
    """Whether a process removes the shared memory of others that have ended."""
    with suppress(psutil.Error):
        return any(map(CLEANER.fullmatch, process.cmdline()))
    return False


def _stopped(root: psutil.Process, spared: Collection[int] = ()) -> list[psutil.Process]:
    """A process, unless it is this one, and its descendants, suspended, so that none of them starts another one."""
    suspended: dict[int, psutil.Process] = {}
    for _ in range(ROUNDS):
        new = [root] if not suspended and root.pid != os.getpid() else []
        with suppress(psutil.Error):
            new += [process for process in root.children(recursive=True) if process.pid not in suspended]
        new = [process for process in new if process.pid not in spared and not _cleans(process)]
        if not new:
            break
        for process in new:
            suspended[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(suspended.values())


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill_group(group: int) -> None:
    if group == os.getpgrp():
        return
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == group and not _cleans(process):
                process.kill()


def free_port(address: str = LOOPBACK) -> int:
    """A free port at this machine's address."""
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])


def port_answers(address: str, timeout_seconds: float) -> bool:
    """Whether anything listens at "HOST:PORT"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
    except OSError:
        return False
    return True


def open_log(log: Path) -> BinaryIO:
    """Opens a file for appending, in a folder that is made on first use; raises OSError."""
    log.parent.mkdir(exist_ok=True)
    return open(log, "ab", opener=not_following)


@contextmanager
def output_in(log: Path | None) -> Iterator[None]:
    """Appends what this process prints in the block to a file, unless that cannot be opened.

    The descriptors are redirected, so earlier logging handlers, C libraries, child processes and Python's report of a
    crash write there as well.
    """
    kept: dict[int, int] = {}
    if log is not None:
        _flush()
        with suppress(OSError), open_log(log) as file:
            kept = {descriptor: os.dup(descriptor) for descriptor in OUTPUTS}
            for descriptor in OUTPUTS:
                os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        if kept:
            _flush()
        for descriptor, before in kept.items():
            os.dup2(before, descriptor)
            os.close(before)


def remove_empty(logs: Path | None) -> None:
    """Removes the empty files of a folder of logs, and the folder if nothing is left."""
    with suppress(OSError):
        for log in logs.glob("*.log") if logs else ():
            if log.stat().st_size == 0:
                log.unlink()
        if logs:
            logs.rmdir()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the trial may have closed or replaced it
            stream.flush()


def shorten(log: Path | None) -> None:
    """Cuts a file that has grown beyond ``LOG_BYTES`` to its last half of that.

    Its writer, which appends, goes on. Lines that come meanwhile may be lost.
    """
    with suppress(OSError):  # it is gone, or the disk is full
        if log is None or log.stat().st_size <= LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(REMOVED + kept)
