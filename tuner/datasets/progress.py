"""A bar in a terminal while a large file is read or downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: float | None, *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Yields a function that sets the bar to a number of bytes. The bar is shown on stderr, in terminals only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda completed: bar.update(task, completed=completed)
