"""NVIDIA's Multi-Process Service (MPS), with which kernels of several processes run on a GPU at the same time.

Facts are from https://docs.nvidia.com/deploy/mps: "When to Use MPS" (limitations, error containment, memory limit),
"Architecture", and the appendix on environment variables. Nobody has seen this module at work on a real GPU yet.

Each GPU has a control daemon of its own, as a fatal error on one GPU would make a server refuse new clients of all
its GPUs. A guard (``mps_guard``), a process beside the study, starts the daemons and ends them when the study ends,
also where that was killed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tuner.machine.holders import memory_now
from tuner.machine.process_trees import end_tree, time_made
from tuner.trial import MB, Device

CONTROL = "nvidia-cuda-mps-control"
SOCKET = "control"  # in the folder for pipes, while a daemon runs
USUAL_PIPES = "/tmp/nvidia-mps"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
# The environment of a process that is no client, also beside a daemon of the user's: "If the connection attempt
# fails, the program continues to run as it normally would without MPS" (nvidia-cuda-mps-control(1)).
NO_CLIENT = {PIPES: os.devnull}
START_SECONDS = 10.0  # for the daemons, with their servers
ANSWER_SECONDS = 5.0  # more than that, for the guard to give up daemons
END_SECONDS = 20.0  # for the guard to end them
SEARCH_PATH = "PYTHONPATH"
# What CUDA says of errors 805 to 810 (cudaGetErrorString), of which the server or a neighbour is the cause.
SERVER_ERRORS = (
    "MPS client",
    "MPS server",
    "resources required to support device connections have been exhausted",
)
# Errors after which a process must end: "To continue using CUDA, the process must be terminated and relaunched"
# (CUDA Runtime API, cudaError_t). One client's is reported to all clients on the GPU, without saying whose it was.
FATAL_ERRORS = (
    "an illegal memory access was encountered",
    "unspecified launch failure",
    "device-side assert triggered",
    "misaligned address",
    "an illegal instruction was encountered",
    "hardware stack error",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
)
SHARED_ERROR = "under MPS, a fatal error of one trial ends all trials on its GPU, so this one is tried once more"
LEFT = "new workers on the GPU run without MPS"


def control_program() -> str | None:
    """The path of NVIDIA's control program; None if it is not installed."""
    return shutil.which(CONTROL)


def users_daemon(environ: Mapping[str, str] = os.environ) -> str:
    """The folder for pipes of a daemon that the user or the administrator has started; empty without one.

    Another user's daemon would let the study wait until that user's clients have ended.
    """
    folder = Path(environ.get(PIPES) or USUAL_PIPES)
    try:
        owner = (folder / SOCKET).stat().st_uid
    except OSError:
        return ""
    return str(folder) if owner in (0, os.getuid()) else ""


def client_variables(pipes: str, limit_bytes: int | None) -> dict[str, str]:
    """The environment variables of a client whose CUDA allocations are limited in all; None for no limit.

    A process must have them before it first uses CUDA. CUDA's own allocations, such as its context, count ("MPS
    Device Memory Limit"). The client sees one GPU, so that it is number 0. The limit is rounded up to whole MiB: a
    trial meets torch's cap first, whose error says more.
    """
    limit = {} if limit_bytes is None else {MEMORY_LIMIT: f"0={-(-limit_bytes // MB)}M"}
    return {PIPES: pipes, **limit}


def denied_by_limit(device: Device, requested_bytes: int | None) -> bool:
    """Whether the limit of this process, a client, must have refused an allocation: the GPU has room for it."""
    return MEMORY_LIMIT in os.environ and memory_now(device, ()).free_bytes >= (requested_bytes or 0)


def may_be_a_neighbours(error: str) -> bool:
    """Whether the text of a client's error says that MPS ended it, or is of an error that all clients get."""
    return any(sign in error for sign in (*SERVER_ERRORS, *FATAL_ERRORS))


class MpsDaemons:
    """The control daemons of a study, with private folders. Nothing is changed on the GPUs."""

    def __init__(self) -> None:
        self.pipes: dict[str, str] = {}  # the folder of each GPU's daemon, by the GPU's UUID
        self._guard: subprocess.Popen[bytes] | None = None
        self._created = 0.0
        self._processes: list[tuple[int, float, bool]] = []  # the daemons and servers, as ``end_tree`` takes them

    def start(self, devices: Sequence[Device], seconds: float = START_SECONDS) -> dict[Device, str]:
        """Starts a daemon and its server for each GPU.

        Returns:
            Why a GPU has none, for those on which that failed within ``seconds``. They are used without MPS.
        """
        root, inherited = str(Path(__file__).parents[2]), os.environ.get(SEARCH_PATH)
        path = os.pathsep.join(filter(None, [root, inherited]))
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "tuner.machine.mps_guard", str(seconds), *(device.uuid for device in devices)],
            stdin=subprocess.PIPE,  # the guard ends when nobody has the other end any more
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, SEARCH_PATH: path},
            start_new_session=True,  # Ctrl-C is for the study, whose workers end before the daemons
        )
        self._created = time_made(self._guard.pid)
        assert self._guard.stdout is not None
        answer = _line(self._guard.stdout, seconds + ANSWER_SECONDS)
        said = json.loads(answer) if answer else {}
        self.pipes, self._processes = said.get("pipes", {}), said.get("processes", [])
        unsaid = "the process that starts it gave no answer"
        failed = {device: said.get("failed", {}).get(device.uuid, unsaid) for device in devices}
        return {device: reason for device, reason in failed.items() if device.uuid not in self.pipes}

    def close(self) -> None:
        """Ends the daemons with their servers and removes their folders."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.terminate()  # a fork of this process may still have the other end of its input
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(END_SECONDS)
        if self._guard.poll() is None:
            end_tree(self._guard.pid, self._created, leads=True)
            self._guard.wait()
        if self._guard.returncode:  # somebody has killed it
            for process in self._processes:
                end_tree(*process)
        self._guard.stdout.close()
        self._guard, self.pipes, self._processes = None, {}, []


def _line(stream: IO[bytes], seconds: float) -> bytes:
    """What a process writes until it ends a line; empty if it does not within this time."""
    deadline, found = time.monotonic() + seconds, b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        new = os.read(stream.fileno(), 2**16) if ready else b""
        if not new:
            return b""
        found += new
    return found
