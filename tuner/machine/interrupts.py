"""Lets signals such as Ctrl-C end a study between two events, but never during a write."""

import _thread
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

# Ctrl-C, a batch system's time limit, and a closed terminal.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
IMPORT_SECONDS = 0.05  # how often to check whether an interrupted import has finished
INSISTED = 3  # the number of signals that end a study at once
_before: dict[int, Any] = {}  # the handlers before ours, which forks of this process have again


_mask = threading.local()  # ``before``: the signals that a thread had blocked before it forks


def _hold() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _begin() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _release()


if hasattr(os, "register_at_fork"):  # a signal that comes meanwhile waits for its handler
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_begin)


class TimeLimitReached(Exception):
    """The user's time limit is over."""


class Interrupt:
    """Counts the signals that requested an end, and knows the user's time limit."""

    def __init__(self, time_limit_seconds: float | None = None) -> None:
        self.signals = 0  # the number of requests
        self._deadline = math.inf if time_limit_seconds is None else time.monotonic() + time_limit_seconds

    @property
    def requested(self) -> bool:
        """Whether an end was requested."""
        return self.signals > 0

    def check(self) -> None:
        """Raises KeyboardInterrupt if an end was requested, and TimeLimitReached if the time is over."""
        self.check_signals()
        if time.monotonic() >= self._deadline:
            raise TimeLimitReached

    def check_signals(self) -> None:
        """Raises KeyboardInterrupt if an end was requested. The time limit is ignored."""
        if self.requested:
            raise KeyboardInterrupt

    def seconds_left(self, most: float) -> float:
        """The seconds until the time is over, at most ``most``."""
        return max(0.0, min(most, self._deadline - time.monotonic()))

    def remember(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """Handles a signal: counts it, and raises KeyboardInterrupt if the user insists."""
        self.signals += 1
        if self.signals >= INSISTED:
            raise KeyboardInterrupt


class Immediate(Interrupt):
    """Ends a block at once, but lets an import finish first.

    Many modules, such as torch, cannot be imported again in the same process, which may be a notebook's.
    """

    def __init__(self, time_limit_seconds: float | None = None) -> None:
        super().__init__(time_limit_seconds)
        self._armed = False
        self._imports = 0  # the depth of imports around the block
        self._reminded = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A signal raises KeyboardInterrupt at once in the block. An earlier signal does so at its start."""
        self.check_signals()
        self._imports = _imports(sys._getframe())
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def remember(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """Handles a signal: ends the block, or waits for an import to end."""
        if self._reminded:
            self._reminded = False
        else:
            super().remember(number, frame)
        if not self._armed:
            return
        if _imports(frame) > self._imports:
            timer = threading.Timer(IMPORT_SECONDS, self._remind, [number])
            timer.daemon = True
            timer.start()
            return
        self._armed = False  # a second signal must not interrupt the work of the first one
        raise KeyboardInterrupt

    def _remind(self, number: int) -> None:
        if self._armed:
            self._reminded = True
            ident = threading.main_thread().ident
            if ident is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(ident, number)  # also wakes the thread
            else:
                _thread.interrupt_main(signal.Signals(number))


def _imports(frame: FrameType | None) -> int:
    """The number of frames of Python's import system on the stack."""
    number = 0
    while frame:
        number += frame.f_code.co_filename.startswith("<frozen importlib._bootstrap")
        frame = frame.f_back
    return number


@contextmanager
def orderly(interrupt: Interrupt) -> Iterator[None]:
    """Signals in the block only request an end from ``interrupt``. Outside the main thread nothing changes.

    A signal that was ignored before, for example under ``nohup``, stays ignored. What the block forks, such as a
    trial's ``multiprocessing.Pool``, has the handlers of before, as without a study.
    """
    if not _in_main_thread():
        yield
        return
    with ExitStack() as previous:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler is not signal.SIG_IGN:
                signal.signal(number, interrupt.remember)
                previous.callback(signal.signal, number, handler)
                if number not in _before:  # else a command's own handler is in between
                    _before[number] = handler
                    previous.callback(_before.pop, number)
        yield


def end_on_signals() -> None:
    """Signals end a command as Ctrl-C does, with 130 and one line. One that was ignored before stays ignored."""
    for number in SIGNALS:
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
            signal.signal(number, _end)
            _before.setdefault(number, handler or signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; a module that is being imported may drop that, so there the process ends at once."""
    if not _imports(frame):
        raise KeyboardInterrupt
    os.write(2, b"error: interrupted\n")
    os._exit(130)


def take_back() -> None:
    """Installs Python's signal handlers again after a C library has replaced them.

    Ray's handler of SIGTERM calls the previous one and ends the process three seconds later.
    """
    if _in_main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    """Whether this is the main thread, the only one in which Python allows signal handlers."""
    return threading.current_thread() is threading.main_thread()
