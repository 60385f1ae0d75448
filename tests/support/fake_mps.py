"""In the place of NVIDIA's control program for MPS: as much of it as a study uses.

``FAKE_MPS`` may be "fails" (the daemon ends at once), "hangs" (it answers nothing), "serverless" (it starts no
server) or "stays" (it does not quit).
``FAKE_MPS_LOG`` is a file that gets a line of JSON for each daemon, server and command.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NAME = "nvidia-cuda-mps-control"
MODE = os.environ.get("FAKE_MPS", "")


def install(folder: Path) -> None:
    """Puts it into a folder as an executable."""
    folder.mkdir(exist_ok=True)
    program = folder / NAME
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" "$@"\n')
    program.chmod(0o755)


def note(**said: object) -> None:
    if path := os.environ.get("FAKE_MPS_LOG"):
        with Path(path).open("a") as log:
            log.write(json.dumps(said) + "\n")


def serve(pipes: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    variables = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    note(daemon=os.getpid(), variables=variables, modes=[oct(pipes.stat().st_mode), oct(pipes.parent.stat().st_mode)])
    if MODE == "fails":
        sys.exit("Another instance of this daemon is already running")
    while MODE == "hangs":
        time.sleep(1)
    (pipes / f"{NAME}.pid").write_text(str(os.getpid()))
    servers: list[int] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(pipes / "control"))
        listening.listen()
        while True:
            with listening.accept()[0] as caller:
                command = caller.recv(1000).decode().strip()
                note(command=command)
                if command.startswith("start_server") and MODE == "serverless":
                    (Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "server.log").write_text("Failed to start\n")
                elif command.startswith("start_server"):
                    # It is left by what has started it, and in a session of its own.
                    left = ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
                    servers.append(int(subprocess.run(left, stdout=subprocess.PIPE, check=True).stdout))
                    note(server=servers[-1])
                answers = {"get_server_list": "\n".join(map(str, servers)), "get_server_status": "ACTIVE"}
                caller.sendall(answers.get(command.split()[0], "").encode())
            if command == "quit" and MODE != "stays":
                for server in servers:
                    os.kill(server, signal.SIGKILL)
                return


def ask(pipes: Path) -> None:
    while MODE == "hangs":
        time.sleep(1)
    with socket.socket(socket.AF_UNIX) as called:
        try:
            called.connect(str(pipes / "control"))
        except OSError:
            sys.exit(1)
        called.sendall(sys.stdin.readline().encode())
        print(called.makefile().read())


if __name__ == "__main__":
    (serve if sys.argv[1:] == ["-f"] else ask)(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]))
