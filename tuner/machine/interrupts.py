"""Ctrl-C and its kin, made orderly: a study stops between two events, never in the middle of writing one."""

from __future__ import annotations

import _thread
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

# Ctrl-C; a batch system's time limit; a terminal that is closed.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


IMPORT_SECONDS = 0.05  # how often is looked whether a module that was being imported as a signal came is there
INSISTED = 3  # so many signals end a study that hangs in something of which it cannot be asked to stop


class TimeLimitReached(Exception):
    """The time that the user has given is over."""


class Interrupt:
    """Remembers that the user or the system asked for an end, and when the user's time is over.

    Attributes:
        signals: how often an end was asked for.
    """

    def __init__(self, time_limit_seconds: float | None = None) -> None:
        """Begins to count.

        Args:
            time_limit_seconds: from now on; None for no limit.
        """
        self.signals = 0
        self._deadline = math.inf if time_limit_seconds is None else time.monotonic() + time_limit_seconds

    @property
    def requested(self) -> bool:
        """Whether an end was asked for."""
        return self.signals > 0

    def check(self) -> None:
        """Ends what runs if it is to end: called where nothing is half done.

        Raises:
            KeyboardInterrupt: an end was asked for.
            TimeLimitReached: the time is over.
        """
        self.check_signals()
        if time.monotonic() >= self._deadline:
            raise TimeLimitReached

    def check_signals(self) -> None:
        """Raises KeyboardInterrupt if an end was asked for; whether the time is over does not matter."""
        if self.requested:
            raise KeyboardInterrupt

    def seconds_left(self, most: float) -> float:
        """How long something may be waited for until the time is over, in seconds; at most ``most``."""
        return max(0.0, min(most, self._deadline - time.monotonic()))

    def remember(self, *_: Any) -> None:
        """A handler of signals: only counts them, unless the user insists."""
        self.signals += 1
        if self.signals >= INSISTED:
            raise KeyboardInterrupt


class Immediate(Interrupt):
    """Does not wait for an end where something can be broken off at any moment.

    Modules are imported to their end first: many, torch among them, could not be imported again in this process,
    which may be a notebook's.
    """

    def __init__(self, time_limit_seconds: float | None = None) -> None:
        """Begins to count, as ``Interrupt``."""
        super().__init__(time_limit_seconds)
        self._armed = False
        self._imports = 0  # that are under way around what can be broken off
        self._reminded = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block a signal raises KeyboardInterrupt where it comes; one that has come before, as it begins."""
        self.check_signals()
        self._imports = _imports(sys._getframe())
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def remember(self, *called: Any) -> None:
        """A handler of signals."""
        if self._reminded:
            self._reminded = False
        else:
            super().remember()
        if not self._armed:
            return
        number, frame = called
        if _imports(frame) > self._imports:
            timer = threading.Timer(IMPORT_SECONDS, self._remind, [number])
            timer.daemon = True
            timer.start()
            return
        self._armed = False  # a second one must not break off what the first one began
        raise KeyboardInterrupt

    def _remind(self, number: int) -> None:
        if self._armed:
            self._reminded = True
            ident = threading.main_thread().ident
            if ident is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(ident, number)  # wakes it, too
            else:
                _thread.interrupt_main(signal.Signals(number))


def _imports(frame: FrameType | None) -> int:
    """How many frames from this one on are of Python's own import of modules."""
    number = 0
    while frame:
        number += frame.f_code.co_filename.startswith("<frozen importlib._bootstrap")
        frame = frame.f_back
    return number


@contextmanager
def orderly(interrupt: Interrupt) -> Iterator[None]:
    """Within this block the signals only ask ``interrupt`` for an end; elsewhere than in the main thread, nothing.

    A signal that was ignored before, as under ``nohup``, stays ignored.
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
        yield


def take_back() -> None:
    """Puts Python's handlers of the signals on top again, where a library in C has put its own; nothing elsewhere.

    Ray's core has one of SIGTERM that calls the one before it, and ends the process three seconds later.
    """
    if _in_main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    """Python allows handlers nowhere else."""
    return threading.current_thread() is threading.main_thread()
