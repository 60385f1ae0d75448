"""What a command does before it has anything to print: rich's spinner at the bottom of the terminal names the phase.

Only a command ``begin``s it, so a Python program that calls tuner does not see it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from typing import TYPE_CHECKING, Any, TextIO

from tuner.reporting.console import is_dumb

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

LONG_SECONDS = 3.0

_shown: tuple[Live, Spinner] | None = None


class Watched:
    """A stream that removes the spinner before anything is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text where the spinner was."""
        hide()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def begin(text: str) -> None:
    """Shows the first phase of a command, if standard error is a terminal that has the spinner's characters."""
    global _shown
    if _shown is None and sys.stderr is not None and sys.stderr.isatty() and not is_dumb():
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        console, spinner = Console(file=sys.stderr), Spinner("dots")
        if console.encoding.startswith("utf"):
            # ``console.status`` would redirect what is printed to standard output, such as a CSV, to this console.
            live = Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            _shown = live, spinner
            sys.stderr = Watched(sys.stderr)
            if sys.stdout is not None:  # also a pipe, such as one to ``tee``: it may end in the same terminal
                sys.stdout = Watched(sys.stdout)
    show(text)


def show(text: str) -> None:
    """Names the phase that begins now, until something is printed. Does nothing if no command shows phases."""
    if _shown:
        live, spinner = _shown
        spinner.update(text=text)
        with suppress(OSError):  # the terminal is closed
            live.start(refresh=True)


@contextmanager
def lasting(text: str, console: Console) -> Iterator[None]:
    """Shows a phase that may last. Where nothing else shows it, the console says so after ``LONG_SECONDS``."""
    show(text)
    timer = Timer(LONG_SECONDS, console.print, [text])
    timer.daemon = True
    if not _shown:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def estimating(number: int, of: int) -> None:
    """Shows which configuration is being estimated, and how many there are."""
    show(f"estimating memory, {number} of {of}")


def hide() -> None:
    """Removes the spinner."""
    if _shown:
        with suppress(OSError):
            _shown[0].stop()


@contextmanager
def silent() -> Iterator[None]:
    """Shows no phase in the block, in which a search estimates while the study's table is on the screen."""
    global _shown
    hide()
    shown, _shown = _shown, None
    try:
        yield
    finally:
        _shown = shown
