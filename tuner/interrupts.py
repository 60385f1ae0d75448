"""Ctrl-C and its kin, made orderly: a study stops between two events, never in the middle of writing one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# Ctrl-C; a batch system's time limit; a terminal that is closed.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupt:
    """Remembers that the user or the system asked for an end."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if an end was asked for: called where nothing is half done."""
        if self.requested:
            raise KeyboardInterrupt


@contextmanager
def orderly(interrupt: Interrupt) -> Iterator[None]:
    """Within this block the signals only set ``interrupt.requested``; elsewhere than in the main thread, nothing."""

    def remember(*_: Any) -> None:
        interrupt.requested = True

    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
        yield
        return
    with ExitStack() as previous:
        for number in SIGNALS:
            previous.callback(signal.signal, number, signal.signal(number, remember))
        yield
