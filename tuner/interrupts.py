"""Ctrl-C and its kin, made orderly: a study stops between two events, never in the middle of writing one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# Ctrl-C; a batch system's time limit; a terminal that is closed.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


INSISTED = 3  # so many signals end a study that hangs in something of which it cannot be asked to stop


class Interrupt:
    """Remembers that the user or the system asked for an end."""

    def __init__(self) -> None:
        self._signals = 0

    @property
    def requested(self) -> bool:
        """Whether an end was asked for."""
        return self._signals > 0

    def check(self) -> None:
        """Raises KeyboardInterrupt if an end was asked for: called where nothing is half done."""
        if self.requested:
            raise KeyboardInterrupt

    def remember(self, *_: Any) -> None:
        """A handler of signals: only counts them, unless the user insists."""
        self._signals += 1
        if self._signals >= INSISTED:
            raise KeyboardInterrupt


class Immediate(Interrupt):
    """Does not wait for an end where something can be broken off at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self._armed = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block a signal raises KeyboardInterrupt where it comes; one that has come before, as it begins."""
        self.check()
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def remember(self, *_: Any) -> None:
        """A handler of signals."""
        super().remember()
        if self._armed:
            self._armed = False  # a second one must not break off what the first one began
            raise KeyboardInterrupt


@contextmanager
def orderly(interrupt: Interrupt) -> Iterator[None]:
    """Within this block the signals only ask ``interrupt`` for an end; elsewhere than in the main thread, nothing.

    A signal that was ignored before, as under ``nohup``, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
        yield
        return
    with ExitStack() as previous:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler is not signal.SIG_IGN:
                signal.signal(number, interrupt.remember)
                previous.callback(signal.signal, number, handler)
        yield
