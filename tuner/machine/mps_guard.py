"""Starts MPS control daemons and ends them with its study: ``python -m tuner.machine.mps_guard SECONDS UUID …``.

It ends when its standard input does, or when the process that has started it is gone: a fork of the study could
hold the other end of its input. It writes one line of JSON: ``pipes``, the folder of each GPU's daemon, and
``failed``, why a GPU has none.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from tuner.errors import one_line
from tuner.machine.mps import CONTROL, LOGS, MEMORY_LIMIT, PIPES
from tuner.machine.private_folder import NAME_LENGTH, SOCKET_BYTES, private_folder, usable_bases
from tuner.machine.process_trees import adopt_descendants, end_tree, time_made

COMMAND_SECONDS = 2.0  # for the daemon to answer a command
QUIT_SECONDS = 3.0  # for it to end when it is asked to
LOOK_SECONDS = 0.05
ALIVE_SECONDS = 1.0  # between two looks at whether the study lives
LONGEST_PATH = "/00/pipe/nvidia-cuda-mps-control.pid"  # of what lies in the private folder; its sockets' are shorter
# Of a server's states (get_server_status) those in which it takes no clients.
NOT_READY = ("INITIALIZING", "FAULT")


class Daemon:
    """The control daemon of one GPU, with its server."""

    def __init__(self, uuid: str, folder: Path) -> None:
        """Starts it, with its pipes and logs in this new folder."""
        self.pipes, self._logs = folder / "pipe", folder / "log"
        for made in (folder, self.pipes, self._logs):
            made.mkdir(mode=0o700)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != MEMORY_LIMIT},
            PIPES: str(self.pipes),
            LOGS: str(self._logs),
            "CUDA_VISIBLE_DEVICES": uuid,  # and not a number, which clients would count anew
        }
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [CONTROL, "-f"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._created = time_made(self._process.pid)
        self._asked_for_server = False

    def ready(self, seconds: float) -> bool:
        """Whether its server takes clients now. Each of its commands is given up after this time.

        Its server is started before there are clients, as it refuses them while it starts (troubleshooting guide,
        "Server Initialization in Progress").
        """
        servers = self._ask("get_server_list", seconds)
        if servers is not None and not self._asked_for_server:
            self._asked_for_server = self._ask(f"start_server -uid {os.getuid()}", seconds) is not None
        if not servers or not servers.strip():
            return False
        state = self._ask(f"get_server_status {servers.split()[0]}", seconds)
        return state is not None and not any(word in state for word in NOT_READY)

    def fault(self, *, late: bool) -> str:
        """Why it has no server that takes clients, if it has ended or it is too ``late``; empty otherwise."""
        code = self._process.poll()
        if code is None and not late:
            return ""
        missing = "started no server in time" if self._asked_for_server else "did not answer in time"
        return ": ".join(
            filter(None, [f"{CONTROL} {missing if code is None else f'ended with {code}'}", self._said()])
        )

    def _said(self) -> str:
        """The last line that it or its server has written; empty without one."""
        for path in (self._output, self._logs / "server.log", self._logs / "control.log"):
            with suppress(OSError):
                if lines := path.read_text(errors="replace").splitlines():
                    return one_line(lines[-1], 200)
        return ""

    def end(self) -> None:
        """Asks it to end with its server, and kills it if it does not."""
        if self._process.poll() is not None:
            return
        if self._asked_for_server and self._ask("quit", COMMAND_SECONDS) is not None:
            with suppress(subprocess.TimeoutExpired):  # it waits for clients
                self._process.wait(QUIT_SECONDS)
        end_tree(self._process.pid, self._created, leads=True)
        self._process.wait()

    def _ask(self, command: str, seconds: float) -> str | None:
        """What it answers to a command; None if it does not."""
        try:
            done = subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError):
            return None
        return done.stdout if done.returncode == 0 else None


def main(seconds: float, uuids: Sequence[str]) -> None:
    """Keeps a daemon for each GPU until the study has ended."""
    parent, asked = os.getppid(), list[int]()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))

    def gone(wait_seconds: float) -> bool:
        ready, _, _ = select.select([0], [], [], wait_seconds)
        return bool(asked or (ready and not os.read(0, 1)) or os.getppid() != parent)

    adopt_descendants()  # such as a server that its daemon leaves; what it holds counts as the study's
    bases = usable_bases(SOCKET_BYTES - len(LONGEST_PATH) - 1 - NAME_LENGTH)
    with ExitStack() as ending:
        ready: dict[str, Daemon] = {}
        failed = dict.fromkeys(uuids, "no folder with a short path can be written: set TMPDIR")
        try:
            for base in bases[:1]:
                folder = ending.enter_context(private_folder(base))
                ending.callback(_end_rest)
                waiting = {uuid: Daemon(uuid, folder / str(number)) for number, uuid in enumerate(uuids)}
                for daemon in waiting.values():
                    ending.callback(daemon.end)
                ready, failed = _wait(waiting, time.monotonic() + seconds, gone)
        except OSError as error:
            failed = dict.fromkeys(uuids, one_line(error))
        pipes = {uuid: str(daemon.pipes) for uuid, daemon in ready.items()}
        with suppress(BrokenPipeError):
            print(json.dumps({"pipes": pipes, "failed": failed}), flush=True)
        while not gone(ALIVE_SECONDS):
            pass


def _wait(
    waiting: dict[str, Daemon], deadline: float, gone: Callable[[float], bool]
) -> tuple[dict[str, Daemon], dict[str, str]]:
    """The daemons that are ready by then, and why others are not; those are ended."""
    ready: dict[str, Daemon] = {}
    failed: dict[str, str] = {}
    while waiting and not gone(LOOK_SECONDS):
        for uuid, daemon in list(waiting.items()):
            left = deadline - time.monotonic()
            if fault := daemon.fault(late=left <= 0):
                failed[uuid] = fault
                daemon.end()
            elif daemon.ready(min(left, COMMAND_SECONDS)):
                ready[uuid] = daemon
            else:
                continue
            del waiting[uuid]
    return ready, failed


def _end_rest() -> None:
    """Kills what the daemons have left."""
    rest = psutil.Process().children(recursive=True)
    for process in rest:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(rest, QUIT_SECONDS)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
