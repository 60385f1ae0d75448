"""NVIDIA's Multi-Process Service (MPS), by which kernels of several processes run on a GPU at the same time.

Facts are from https://docs.nvidia.com/deploy/mps: "When to Use MPS" (limitations, error containment, memory limit),
"Architecture", and the appendix on environment variables. It has not run on a real GPU yet, and is off by default.

Each GPU has its own control daemon, since a fatal error on one GPU makes a server refuse new clients on all its GPUs.
A guard (``mps_guard``), a process beside the study, starts the daemons and ends them with the study, also if that is
killed.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tuner.machine.holders import memory_now
from tuner.machine.process_trees import end_tree, time_made
from tuner.trial import MB, Device, Outcome

CONTROL = "nvidia-cuda-mps-control"
SOCKET = "control"  # in the folder for pipes, while a daemon runs
USUAL_PIPES = "/tmp/nvidia-mps"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
# The environment of a process that is no client, even beside a daemon of the user's: "If the connection attempt
# fails, the program continues to run as it normally would without MPS" (nvidia-cuda-mps-control(1)).
NO_CLIENT = {PIPES: os.devnull}
START_SECONDS = 10.0  # for the daemons, with their servers
ANSWER_SECONDS = 5.0  # beyond that, for the guard to give up daemons
END_SECONDS = 20.0  # for the guard to end them
SEARCH_PATH = "PYTHONPATH"
# Texts of errors 805 to 810 (cudaGetErrorString), which the server or a neighbour causes.
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

    Another user's daemon would make the study wait until that user's clients have ended.
    """
    folder = Path(environ.get(PIPES) or USUAL_PIPES)
    try:
        owner = (folder / SOCKET).stat().st_uid
    except OSError:
        return ""
    return str(folder) if owner in (0, os.getuid()) else ""


def denied_by_limit(device: Device, requested_bytes: int | None) -> bool:
    """Whether this process is a client whose limit has refused an allocation: the GPU has room for it."""
    return MEMORY_LIMIT in os.environ and memory_now(device, ()).free_bytes >= (requested_bytes or 0)


class MpsClients:
    """The workers of one GPU, as clients of its MPS daemon. Without a daemon's folder it has none."""

    def __init__(self, pipes: str = "", *, limited: bool = True) -> None:
        """``pipes`` is the daemon's folder. A ``limited`` client has no more memory than its first trial's share."""
        self._pipes = pipes
        self._limited = limited
        self._limits: dict[object, float] = {}  # in bytes, by client; a worker that has ended stays in it
        self._without: Mapping[str, str] = {}  # the environment of a worker that is no client

    def limit(self, worker: object) -> float:
        """The largest share that a worker can be given."""
        return self._limits.get(worker, math.inf)

    def variables(self, limit_bytes: int) -> dict[str, str]:
        """The environment variables of a new worker, which it must have before it first uses CUDA.

        CUDA's own allocations, such as its context, count ("MPS Device Memory Limit"). The client sees one GPU, so
        that it is number 0. The limit is rounded up to whole MiB: a trial meets torch's cap first, whose error says
        more.
        """
        if not self._pipes:
            return dict(self._without)
        limit = {MEMORY_LIMIT: f"0={-(-limit_bytes // MB)}M"} if self._limited else {}
        return {PIPES: self._pipes, **limit}

    def add(self, worker: object, limit_bytes: int) -> None:
        """Notes a new worker, which was made with these ``variables``."""
        if self._pipes:
            self._limits[worker] = limit_bytes if self._limited else math.inf

    def may_keep(self, worker: object) -> bool:
        """Whether a worker can have another trial: a client cannot after a fatal error on its GPU."""
        return bool(self._pipes) or worker not in self._limits

    def judge(self, worker: object, outcome: Outcome) -> Outcome:
        """A worker's outcome as MPS explains it: a fatal error of one client is that of all clients on the GPU.

        New workers of the GPU are then no clients. Nor are they where a client died or was killed as it trained,
        which "can leave the MPS server and other MPS clients in an undefined state" (MPS, "Limitations").
        """
        told = f"{outcome.error} {outcome.traceback}"
        shared = outcome.status == "failed" and any(sign in told for sign in (*SERVER_ERRORS, *FATAL_ERRORS))
        if worker not in self._limits or not (shared or outcome.lost == "worker" or outcome.status == "stalled"):
            return outcome
        left = LEFT if self._pipes else ""
        self._pipes, self._without = "", NO_CLIENT
        error = "; ".join(filter(None, [outcome.error, SHARED_ERROR if shared else "", left]))
        return replace(outcome, lost="worker" if shared else outcome.lost, error=error)


class MpsDaemons:
    """The control daemons of a study, with private folders. Nothing is changed on the GPUs."""

    def __init__(self) -> None:
        self.pipes: dict[str, str] = {}  # the folder of each GPU's daemon, by the GPU's UUID
        self._guard: subprocess.Popen[bytes] | None = None
        self._created = 0.0

    def start(self, devices: Sequence[Device], seconds: float = START_SECONDS) -> dict[Device, str]:
        """Starts a daemon and its server for each GPU.

        Returns:
            The reason, for each GPU on which that failed within ``seconds``. It is used without MPS.
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
        stdout = self._guard.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], seconds + ANSWER_SECONDS)
        answer = stdout.readline() if ready else b""
        said = json.loads(answer) if answer else {}
        self.pipes = said.get("pipes", {})
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
        self._guard.stdout.close()
        self._guard, self.pipes = None, {}
