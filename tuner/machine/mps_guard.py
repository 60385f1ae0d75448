"""Starts MPS control daemons and ends them with its study: ``python -m tuner.machine.mps_guard SECONDS UUID …``.

It ends when its standard input does, or when the process that has started it is gone, however that ended: a fork of
the study could hold the other end of its input. It writes one line of JSON: ``pipes``, the folder of each GPU's
daemon, and ``failed``, why a GPU has none.
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
from tuner.machine.process_trees import end_tree, time_made

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
        self.pipes, logs = folder / "pipe", folder / "log"
        for each in (folder, self.pipes, logs):
            each.mkdir(mode=0o700)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != MEMORY_LIMIT},
            PIPES: str(self.pipes),
            LOGS: str(logs),
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
        self._asked_for_server = self._ended = False

    def ready(self, seconds: float) -> bool:
        """Whether its server takes clients now. Each of its commands is given up after this time.

        Its server is started before there are clients, as it refuses them while it starts (troubleshooting guide,
        "Server Initialization in Progress").
        """
        servers = self._servers(seconds)
        if servers is not None and not self._asked_for_server:
            self._asked_for_server = self._ask(f"start_server -uid {os.getuid()}", seconds) is not None
        if not servers:
            return False
        state = self._ask(f"get_server_status {servers[0]}", seconds)
        return state is not None and not any(each in state for each in NOT_READY)

    def fault(self) -> str:
        """Why it has ended; empty while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        lines = self._output.read_text(errors="replace").splitlines()
        return f"{CONTROL} ended with {code}" + (f": {one_line(lines[-1], 200)}" if lines else "")

    def end(self) -> None:
        """Asks it to end, and kills what is left of it and of its servers."""
        if self._ended:
            return
        self._ended, made = True, {}
        if self._asked_for_server:  # else it has not answered yet
            for server in self._servers(COMMAND_SECONDS) or ():
                with suppress(psutil.NoSuchProcess):
                    made[server] = time_made(server)
            if self._ask("quit", COMMAND_SECONDS) is not None:
                with suppress(subprocess.TimeoutExpired):  # it waits for clients
                    self._process.wait(QUIT_SECONDS)
        for server, created in made.items():
            end_tree(server, created, leads=False)
        end_tree(self._process.pid, self._created, leads=True)
        self._process.wait()

    def _servers(self, seconds: float) -> list[int] | None:
        """The process ids of its servers; None if it does not answer."""
        said = self._ask("get_server_list", seconds)
        return None if said is None else [int(word) for word in said.split() if word.isdigit()]

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
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: asked.append(number))

    def gone(wait_seconds: float) -> bool:
        ready, _, _ = select.select([0], [], [], wait_seconds)
        return bool(asked or (ready and not os.read(0, 1)) or os.getppid() != parent)

    with ExitStack() as ending:
        failed: dict[str, str] = {}
        waiting: dict[str, Daemon] = {}
        bases = usable_bases(SOCKET_BYTES - len(LONGEST_PATH) - 1 - NAME_LENGTH)
        try:
            folder = ending.enter_context(private_folder(bases[0]))
            for number, uuid in enumerate(uuids):
                waiting[uuid] = Daemon(uuid, folder / str(number))
                ending.callback(waiting[uuid].end)
        except (OSError, IndexError) as error:
            reason = one_line(error) if bases else "no folder with a short path can be written: set TMPDIR"
            failed = {uuid: reason for uuid in uuids if uuid not in waiting}
        pipes = _wait(waiting, failed, time.monotonic() + seconds, gone)
        if not gone(0.0):
            with suppress(BrokenPipeError):
                print(json.dumps({"pipes": pipes, "failed": failed}), flush=True)
        while not gone(ALIVE_SECONDS):
            pass


def _wait(
    waiting: dict[str, Daemon], failed: dict[str, str], deadline: float, gone: Callable[[float], bool]
) -> dict[str, str]:
    """The folders of the daemons that are ready by then; ends the others and says in ``failed`` why."""
    pipes = {}
    while waiting and not gone(LOOK_SECONDS):
        for uuid, daemon in list(waiting.items()):
            left = deadline - time.monotonic()
            fault = daemon.fault() or ("" if left > 0 else f"{CONTROL} did not answer in time")
            if fault:
                failed[uuid] = fault
                daemon.end()
            elif daemon.ready(min(left, COMMAND_SECONDS)):
                pipes[uuid] = str(daemon.pipes)
            else:
                continue
            del waiting[uuid]
    return pipes


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
