"""The main program of a ``Child``: ``python -m tuner.execution.child_main PIPE CONTENT``.

The main thread runs the users' programs, since some of them handle signals or start processes. Another thread runs
the trials, and a third one listens to the study and ends the process when that is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pickle import dumps, loads
from queue import SimpleQueue

from tuner.execution.actor import Worker
from tuner.execution.mapped_arrays import unpack
from tuner.trial import Placement


def main(descriptor: int, content: int) -> None:
    """Runs trials until the study ends."""
    connection: Connection[bytes, bytes] = Connection(descriptor)
    # Else a trial's child process would keep the pipe open, and the study would not notice the end of this process.
    os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=connection.close)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a crash loses what is in the buffer
    inherited, search_path = loads(connection.recv_bytes())  # noqa: S301  # from the study's process
    os.environ.pop("PYTHONPATH", None)
    if inherited is not None:
        os.environ["PYTHONPATH"] = inherited
    sys.path[:] = search_path
    from tuner.training.program import use_main_thread

    programs = use_main_thread()
    placements: SimpleQueue[Placement] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, placements), daemon=True, name="study").start()
    threading.Thread(target=_follow, args=(connection, content, placements), daemon=True, name="trials").start()
    programs.work()


def _listen(connection: Connection[bytes, bytes], placements: SimpleQueue[Placement]) -> None:
    from tuner.training.program import deliver

    try:
        while True:
            said = loads(connection.recv_bytes())  # noqa: S301
            if isinstance(said, Placement):
                placements.put(said)
            else:
                deliver(*said)
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)  # this process with its trial's child processes
    except BaseException:
        _fail()


def _follow(connection: Connection[bytes, bytes], content: int, placements: SimpleQueue[Placement]) -> None:
    try:
        worker = Worker(*unpack(content), is_child=True)
        while True:
            for event in worker.run(placements.get()):
                connection.send_bytes(dumps(event))
    except BaseException:
        _fail()


def _fail() -> None:
    """Ends the process with the traceback of the exception."""
    try:
        traceback.print_exc()
    finally:  # also if the trial has closed its output
        os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
