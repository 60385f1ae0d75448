"""What a command does before it has anything to print: a line at the bottom of the terminal that names the phase.

It needs the standard library alone, as it is shown while torch is imported. A Python program that calls tuner
does not see it: only a command ``begin``s it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_SECONDS = 0.1
CLEAR = "\r\x1b[K"


def frame(seconds: float) -> str:
    """The spinner's picture at this time."""
    return FRAMES[int(seconds / FRAME_SECONDS) % len(FRAMES)]


class Spinner:
    """A line that is drawn again and again by a thread, until something else is to be printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._lock = threading.Lock()
        self._hidden = threading.Event()
        self._hidden.set()

    def show(self, text: str) -> None:
        """Names the phase."""
        self._text = text
        if self._hidden.is_set():
            self._hidden = threading.Event()
            threading.Thread(target=self._spin, args=(self._hidden,), daemon=True).start()
        self._draw(self._hidden)

    def hide(self) -> None:
        """Removes the line."""
        with self._lock:
            if not self._hidden.is_set():
                self._hidden.set()
                self._write(CLEAR)

    def _spin(self, hidden: threading.Event) -> None:
        while not hidden.wait(FRAME_SECONDS):
            self._draw(hidden)

    def _draw(self, hidden: threading.Event) -> None:
        with self._lock:
            if not hidden.is_set():
                line = f"{frame(time.monotonic())} {self._text}"
                self._write(CLEAR + line[: shutil.get_terminal_size().columns - 1])  # a longer one fills the screen

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is closed
            self._hidden.set()


class Watched:
    """A stream before which the line is removed: whoever prints need not know of it."""

    def __init__(self, stream: TextIO, spinner: Spinner) -> None:
        self._stream, self._spinner = stream, spinner

    def write(self, text: str) -> int:
        """Writes a text where the line was."""
        self._spinner.hide()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_spinner: Spinner | None = None


def begin(text: str) -> None:
    """Shows the first phase of a command, if standard error is a terminal that has the characters."""
    global _spinner
    if _spinner is None and sys.stderr is not None and _can_show(sys.stderr):
        _spinner = Spinner(sys.stderr)
        sys.stderr = Watched(sys.stderr, _spinner)
        if sys.stdout is not None:  # also where it is a pipe, such as one to ``tee``: it may end in the same terminal
            sys.stdout = Watched(sys.stdout, _spinner)
    show(text)


def _can_show(stream: TextIO) -> bool:
    encoding = (getattr(stream, "encoding", None) or "").lower()
    return stream.isatty() and encoding.startswith("utf") and not is_dumb()


def is_dumb() -> bool:
    """Whether the terminal obeys no codes such as ``CLEAR``, as that of a shell in Emacs."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def show(text: str) -> None:
    """Names the phase that begins now, until something is printed; nothing where no command shows phases."""
    if _spinner:
        _spinner.show(text)


def estimating(number: int, of: int) -> None:
    """Shows that this one of so many configurations is estimated."""
    show(f"estimating memory, {number} of {of}")


def hide() -> None:
    """Removes the line, as the command ends."""
    if _spinner:
        _spinner.hide()


@contextmanager
def silent() -> Iterator[None]:
    """Shows no phase in the block: a search estimates while the study's table stands there."""
    global _spinner
    hide()
    spinner, _spinner = _spinner, None
    try:
        yield
    finally:
        _spinner = spinner
