"""A process that has imported torch and what else trials need, of which their processes are forks.

There is one for a study on each machine. It listens at an abstract socket (unix(7)), so nothing is left of it, and
ends with the last process that is connected to it. See ``preload_main``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from struct import Struct
from typing import IO, Any

import psutil

from tuner.machine.caps import thread_variables, worker_environment
from tuner.machine.processes import end_tree, has_pidfds, time_made
from tuner.trial import Device

TORCH, PYTHONPATH = "torch", "PYTHONPATH"
COMPILER = "torch._dynamo"  # which the first steps on a GPU import, and torch's optimizers do
PEER = Struct("iII")  # ``struct ucred`` of unix(7): process, user and group
ANSWER = Struct("id")  # a fork's id and when it was made, and at its end the exit code
REQUEST = b"f"  # it comes with the descriptor of its text
WAITING = 128  # connections, while torch is imported
END_SECONDS = 1.0
# torch then asks NVML whether there is a GPU, as a fork cannot use CUDA once it was asked.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
LOST = -9  # the exit code of a fork whose end nobody has seen
GONE = b"tuner: the process that imports for all trials ended before it had; each process imports by itself\n"
OWN = Path("/proc/self")
SCORE = OWN / "oom_score_adj"


@dataclass(frozen=True)
class Launch:
    """What a study's processes for trials start from."""

    study: str = field(default_factory=lambda: secrets.token_hex(16))  # by which its preloaded process is found
    # The study's own on its machine; where None, that of the process that starts them.
    environ: Mapping[str, str] | None = None
    search_path: Sequence[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # further ones of the environment
    imports: tuple[str, ...] = ()  # the modules that trials need, which a process imports before their code

    def preload(self, device: Device, threads: int) -> Preload:
        """The process for trials on this device with this number of CPU threads each."""
        environ = os.environ if self.environ is None else self.environ
        root, inherited = str(Path(__file__).parents[2]), environ.get(PYTHONPATH)
        # Not the current folder, in which a file may have the name of a standard module.
        given, here = (inherited or "").split(os.pathsep), os.getcwd()
        searched = [path for path in given if path and os.path.realpath(path) != here]
        environment = {
            **environ,
            **worker_environment(device, environ),
            **thread_variables(threads),
            **self.variables,
            PYTHONPATH: os.pathsep.join([root, *searched]),
        }
        paths = [path for path in self.search_path or sys.path if isinstance(path, str)]  # Python skips others
        cuda = device.kind == "cuda"
        imports = dict.fromkeys([*((TORCH, COMPILER) if cuda else ()), *self.imports])
        return Preload(self.study, environment, inherited, list(imports), paths, cuda)

    def end(self) -> None:
        """Ends what this process has started, once nothing of the study is connected to it any more."""
        for process in _started.pop(self.study, []):
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.end()


@dataclass(frozen=True)
class Preload:
    """How a study's preloaded process is started, and found by what it has read and imported as it started."""

    study: str
    environment: Mapping[str, str]
    inherited: str | None  # the user's ``PYTHONPATH``
    imports: Sequence[str]
    search_path: Sequence[str]
    cuda: bool  # whether trials are on GPUs

    def link(self) -> socket.socket | None:
        """A connection to the process, which is started if there is none; None where no process can be forked."""
        if not has_pidfds():
            return None
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(self._address)
            except OSError as error:
                link.close()
                if not isinstance(error, ConnectionRefusedError) or not self._start():
                    return None
                continue
            if user_of(link) == os.getuid():
                return link
            link.close()
            return None

    @property
    def _address(self) -> bytes:
        # Ray's own variables differ from worker to worker, and nothing that is imported here reads them.
        variables = {name: value for name, value in self.environment.items() if not name.startswith("RAY_")}
        spaces = [os.readlink(space) for space in sorted((OWN / "ns").iterdir())]
        text = json.dumps([self.study, variables, self.imports, spaces, (OWN / "cgroup").read_text()], sort_keys=True)
        return f"\0tuner-{hashlib.sha256(text.encode()).hexdigest()}".encode()

    def _start(self) -> bool:
        """Starts it, unless another process has just done so; false if it cannot be started."""
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self._address)
            except OSError as error:
                return error.errno == errno.EADDRINUSE
            listener.listen(WAITING)
            text = json.dumps([listener.fileno(), self.imports, self.search_path, self.cuda])
            silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            command = [sys.executable, "-P", "-m", "tuner.execution.preload_main", text]
            environment = {NVML_CHECK: "1", **self.environment}
            try:
                process = Spawned(command, pass_fds=[listener.fileno()], env=environment, **silent)
            except OSError:
                return False
        _started.setdefault(self.study, []).append(process)
        return True


_started: dict[str, list[Spawned]] = {}  # by this process, for each study


@dataclass(frozen=True)
class Setting:
    """What a fork takes over from the process that asks for it."""

    environment: Mapping[str, str]
    folder: str
    nice: int
    score: int  # by which the kernel chooses whom it kills where memory runs out
    files: Sequence[int]  # the limits of open files, of which Ray raises the first

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Setting:
        """This process's, but with these environment variables."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(environment, os.getcwd(), os.nice(0), int(SCORE.read_text()), files)

    def apply(self) -> None:
        """Sets it for this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        with suppress(OSError):  # only root may be less nice
            os.nice(self.nice - os.nice(0))
        with suppress(OSError):  # nor may others be killed later
            SCORE.write_text(str(self.score))
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files[0], self.files[1]))


class Spawned(subprocess.Popen[bytes]):
    """A new process, which leads a session."""

    abandoned = False

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """Starts it."""
        super().__init__(command, start_new_session=True, **options)  # Ctrl-C is for the study, which saves first
        self._made = time_made(self.pid)

    def end(self) -> None:
        """Kills it with its descendants."""
        end_tree(self.pid, self._made, leads=True)
        self.wait()


class Fork:
    """A process that a ``Preload`` forks, which leads a session. It is used as ``Spawned`` is."""

    def __init__(self, link: socket.socket, setting: Setting, descriptors: Sequence[int], output: IO[bytes]) -> None:
        """Asks for one, which has copies of these descriptors for ``child_main.main``, and this output."""
        self._link, self._pid, self._made = link, 0, 0.0
        self._code: int | None = None
        self.abandoned = False  # whether the process that forks is gone
        with open(os.memfd_create("setting"), "w+b") as file:
            file.write(json.dumps(asdict(setting)).encode())
            file.seek(0)
            with suppress(OSError):  # it is gone, as ``wait`` notices
                socket.send_fds(link, [REQUEST], [file.fileno(), output.fileno(), *descriptors])

    @property
    def pid(self) -> int:
        """Its id, for which this waits; 0 if it will never be made."""
        if not self._pid and not self.abandoned:
            self._pid, self._made = self._answer() or (0, 0.0)
        return self._pid

    def poll(self) -> int | None:
        """Its exit code if it has ended."""
        if self._code is None and self._answers() and (not self.pid or self._answers()):
            self._take(0)
        return self._code

    def wait(self) -> int:
        """Waits for its end, and returns its exit code; ``LOST`` if the process that forked it is gone."""
        if self._code is None:
            self._take(None)
        assert self._code is not None
        return self._code

    def _take(self, seconds: float | None) -> None:
        """Its exit code; where the process that forked it is gone, once it has ended within these seconds."""
        if ended := self._answer() if self.pid else None:
            self._code = ended[0]
        elif not self.pid or self._ends(seconds):
            self._code = LOST

    def _ends(self, seconds: float | None) -> bool:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            descriptor = os.pidfd_open(self.pid)
            try:
                return time_made(self.pid) != self._made or bool(select.select([descriptor], [], [], seconds)[0])
            finally:
                os.close(descriptor)
        return True

    def end(self) -> None:
        """Kills it with its descendants."""
        if not self._pid and not self.abandoned and not self._answers():  # it is still to be made
            self._link.shutdown(socket.SHUT_RDWR)
            self.abandoned, self._code = True, LOST
        elif self.pid:
            end_tree(self.pid, self._made, leads=True)
            self.wait()

    def _answers(self) -> bool:
        return bool(select.select([self._link], [], [], 0)[0])

    def _answer(self) -> tuple[int, float] | None:
        with suppress(OSError):
            if len(data := self._link.recv(ANSWER.size, socket.MSG_WAITALL)) == ANSWER.size:
                return ANSWER.unpack(data)
        self.abandoned = True
        return None


class Processes:
    """Starts the processes of one ``Child``, one after another: forks, or new ones where nothing can be forked."""

    def __init__(self, preload: Preload) -> None:
        """Connects to the preloaded process, and starts it if need be."""
        self._preload, self._link = preload, preload.link()
        self._last: Fork | None = None

    def start(self, descriptors: Sequence[int], output: IO[bytes]) -> Fork | Spawned:
        """A process that runs ``child_main.main`` with copies of these descriptors."""
        if self._last and self._last.abandoned and self._link:
            self.close()
            self._link = self._preload.link() if self._last.pid else None
            if self._link is None:
                output.write(GONE)
        environment = self._preload.environment
        if self._link:
            self._last = Fork(self._link, Setting.here(environment), descriptors, output)
            return self._last
        command = [sys.executable, "-P", "-m", "tuner.execution.child_main", *map(str, descriptors)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return Spawned(command, pass_fds=descriptors, env=environment, **streams)

    def close(self) -> None:
        """Ends the connection."""
        if self._link:
            self._link.close()


def user_of(link: socket.socket) -> int:
    """The id of the user at the other end."""
    return int(PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1])
