"""The console that a study prints to: a terminal, a notebook, a pipe or a file."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from tuner.errors import Spelling, in_python, printable, spelled

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 250  # the width in columns of a file or a pipe, so that lines are not wrapped


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")  # a terminal's IPython has none


def is_dumb() -> bool:
    """Whether the terminal ignores control codes, as that of a shell in Emacs does."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def make_console(spelling: Spelling = in_python) -> Console:
    """A console for the terminal or for plain lines of any length; ``spelling`` is how texts name parameters."""
    from rich.console import Console

    class SpellingConsole(Console):
        """A console that spells parameters for its reader."""

        def print(self, *objects: object, **options: Any) -> None:
            """Prints texts with their parameters spelled."""
            super().print(
                *(printable(spelled(item, spelling)) if isinstance(item, str) else item for item in objects),
                **options,
            )

    # A notebook gets plain lines, too. It sets FORCE_COLOR, which rich takes for a terminal of 80 columns. A dumb
    # terminal gets them, as rich draws no live table there. The :a: of a name is no emoji.
    plain = in_notebook() or is_dumb()
    console = SpellingConsole(
        highlight=False, emoji=False, force_jupyter=False, force_terminal=False if plain else None
    )
    if line_width(console) is None:
        console.width = WIDE
    return console


def line_width(console: Console) -> int | None:
    """The width of a terminal, or the one in the variable COLUMNS; None for lines of any length, as in a pipe."""
    given_width = os.environ.get("COLUMNS", "").isdigit() and not in_notebook()  # rich has read it
    return console.width if console.is_terminal or given_width else None


def print_wrapped(console: Console, text: str) -> None:
    """Prints a text without markup, whose lines a terminal breaks between words."""
    console.print(text, markup=False, highlight=False, soft_wrap=line_width(console) is None)


def print_text(console: Console, text: str) -> None:
    """Prints a text without markup and without wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
