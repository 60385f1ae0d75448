"""A running study in a notebook: a bar that is updated in place, and a line for each trial that does not complete."""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Self

from tuner.reporting.console import print_text
from tuner.reporting.progress import StudyProgress
from tuner.trial import Outcome

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

REFRESH_SECONDS = 0.25


def import_quietly() -> None:
    """Imports tqdm before Ray and PyTorch Geometric do: in a notebook without ipywidgets it would warn."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


class NotebookProgress(StudyProgress):
    """Shows a progress bar that is updated in place, and a line for each trial that does not complete."""

    _display: DisplayHandle | None = None
    _drawn = 0.0
    _ended = False

    def note(self, line: str) -> None:
        """Prints a line below the bar."""
        print_text(self.console, line)

    def __enter__(self) -> Self:
        """Shows the bar, unless there are no trials left."""
        from IPython.display import display

        if self.requests or self.trials:
            self._display = display(self._bundle(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        """Shows the final state."""
        self._ended = True
        self._update()

    def tick(self) -> None:
        """Time or an event has passed."""
        self._update()

    def _has_line(self, outcome: Outcome) -> bool:
        return outcome.status != "completed"

    def _update(self) -> None:
        """Draws the bar, at most once in ``REFRESH_SECONDS``."""
        if self._display and (self._ended or self.clock() - self._drawn >= REFRESH_SECONDS):
            self._drawn = self.clock()
            self._display.update(self._bundle(), raw=True)  # type: ignore[no-untyped-call]

    def _bundle(self) -> dict[str, str]:
        """The bar as HTML and as plain text."""
        running = list(self._running.values())
        share, left = self._share_done(running), self._time_left()
        seconds = f"{self.clock() - self._began:.0f} s in all" if self._ended else left
        text = f"{self._done_text()} trials ended · {self._best_text()} · {seconds}"
        bar = f'<progress max="1" value="{share:.4f}" style="width:16em"></progress>'
        return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
