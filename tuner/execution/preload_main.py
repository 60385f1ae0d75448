"""The main program of a preloaded process: ``python -m tuner.execution.preload_main JSON``.

It has a single thread and no CUDA context, and two stages. The first imports torch. The second, a fork of it, imports
everything else. If a module there starts a thread or uses CUDA, the first makes the forks, and each of them imports
the rest by itself.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from tuner.execution import child_main
from tuner.execution.preload import ANSWER, REQUEST, TORCH, Setting, user_of
from tuner.machine.processes import adopt_descendants, children, end_tree, time_made

IDLE_SECONDS = 60.0  # without a first connection, as whoever started it was killed
SPOILT = 3  # the second stage's exit code if it cannot fork


class Server:
    """Makes forks for the processes that are connected to it."""

    def __init__(self, listener: socket.socket) -> None:
        """Serves nobody yet."""
        self._listener, self._poll = listener, select.poll()
        self._links: dict[int, socket.socket] = {}
        self._forks: dict[int, tuple[int, float, socket.socket]] = {}  # by pidfd: id, when it was made, link
        self._others = children(os.getpid())  # forks of a second stage that was killed

    def serve(self) -> None:
        """Returns after the last connection has ended."""
        self._child_ended = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # modules may have set it
        self._poll.register(self._listener, select.POLLIN)
        timeout_ms: float | None = IDLE_SECONDS * 1000
        while ready := self._poll.poll(timeout_ms):
            for descriptor, event in ready:
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._forks:
                    self._ended(descriptor)
                else:
                    self._asked(self._links[descriptor], gone=bool(event & select.POLLHUP))
            timeout_ms = None if self._links else 0

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        if user_of(link) == os.getuid():
            self._links[link.fileno()] = link
            self._poll.register(link, select.POLLIN)
        else:
            link.close()

    def _asked(self, link: socket.socket, *, gone: bool) -> None:
        """Makes a fork, or ends those of a process that is gone."""
        if not gone:
            _, descriptors, _, _ = socket.recv_fds(link, len(REQUEST), 4)
            self._fork(link, *descriptors)
            return
        for pid, made, its in self._forks.values():
            if its is link:
                end_tree(pid, made, leads=True)
        self._poll.unregister(link)
        self._links.pop(link.fileno()).close()

    def _fork(self, link: socket.socket, text: int, output: int, *descriptors: int) -> None:
        pid = -1
        with suppress(OSError):  # no memory or no process is left: who asks starts one itself
            pid = os.fork()
        if pid == 0:
            self._become(text, output, *descriptors)
        for descriptor in (text, output, *descriptors):
            os.close(descriptor)
        if pid < 0:
            link.shutdown(socket.SHUT_RDWR)
            return
        pidfd, made = os.pidfd_open(pid), time_made(pid)
        self._forks[pidfd] = pid, made, link
        self._poll.register(pidfd, select.POLLIN)
        _send(link, pid, made)

    def _become(self, text: int, output: int, *descriptors: int) -> NoReturn:
        """Makes this fork the process that was asked for."""
        try:
            os.setsid()
            signal.signal(signal.SIGCHLD, self._child_ended or signal.SIG_DFL)
            for number in (1, 2):
                os.dup2(output, number)
            for link in (self._listener, *self._links.values()):
                link.close()
            for number in (output, *self._forks):
                os.close(number)
            with open(text, "rb") as file:
                Setting(**json.load(file)).apply()
            if numpy := sys.modules.get("numpy"):  # as random as in a new process
                numpy.random.seed()
            child_main.main(*descriptors)
        except BaseException:
            child_main.fail()
        child_main.leave(0)

    def _ended(self, pidfd: int) -> None:
        """Tells the exit code of a fork, and ends what it has left."""
        pid, _, link = self._forks.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for orphan in {*children(os.getpid())} - {*self._others, *(fork for fork, *_ in self._forks.values())}:
            end_tree(orphan, time_made(orphan), leads=False)
            os.waitpid(orphan, os.WNOHANG)
        _send(link, code, 0.0)


def _send(link: socket.socket, *answer: float) -> None:
    with suppress(OSError):  # who asked is gone, as ``poll`` will say
        link.send(ANSWER.pack(*answer))


def keep_configuration() -> None:
    """Has torch say how it was built without asking CUDA, which counts the GPUs then: no fork could use one of them.

    PyG's import reads that. A fork asks it instead.
    """
    if torch := sys.modules.get(TORCH):
        read, write = os.pipe()
        if os.fork() == 0:
            with suppress(Exception):
                os.write(write, torch.__config__.show().encode())
            os._exit(0)
        os.close(write)
        with open(read) as told:
            if text := told.read():
                torch.__config__.show = lambda: text
        os.wait()


def main(number: int, imports: Sequence[str], search_path: Sequence[str], cuda: bool) -> None:
    """Imports and serves, in one or two stages."""
    adopt_descendants()
    listener = socket.socket(fileno=number)
    first = [name for name in imports if name == TORCH]
    child_main.import_all(first, search_path)
    if first != imports:
        if (second := os.fork()) == 0:
            if cuda:
                keep_configuration()
            child_main.import_all(imports, search_path)
            if not child_main.can_fork(cuda=cuda):
                os._exit(SPOILT)
        elif os.waitpid(second, 0)[1] == 0:
            os._exit(0)
    gc.freeze()  # so that collections neither look at torch's objects nor copy their pages
    Server(listener).serve()
    os._exit(0)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
