"""A running study in a notebook: a bar that is updated in place, and a line for each trial that does not complete."""

from __future__ import annotations

import importlib
import time
import warnings
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

from tuner.reporting.progress import Progress
from tuner.trial import EpochReport, Outcome, Placement

if TYPE_CHECKING:
    from tuner.placement.retry import Retry

REFRESH_SECONDS = 0.25


def import_quietly() -> None:
    """Imports what would warn in a notebook without ipywidgets, which nothing here needs.

    That is tqdm, as Ray and PyTorch Geometric import it.
    """
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


class NotebookProgress(Progress):
    """Shows a bar that is updated where it stands; of the trials only those are told that do not complete."""

    _display: Any = None
    _drawn = 0.0
    _ended = False

    def __enter__(self) -> NotebookProgress:
        """Shows the bar, unless nothing is left to do."""
        from IPython.display import display

        if self._trials:
            self._display = display(self._bundle(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        """Shows how far the study has come."""
        self._ended = True
        self._update()

    def started(self, placement: Placement) -> None:
        """A trial has been given its place."""
        super().started(placement)
        self._update()

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        super().reported(report)
        self._update()

    def finished(self, outcome: Outcome, retry: Retry | None) -> None:
        """An attempt has ended."""
        super().finished(outcome, retry)
        self._update()

    def _tell(self, outcome: Outcome, line: str) -> None:
        """Shows the line of an attempt that did not complete."""
        if outcome.status != "completed":
            self._say(line)

    def _update(self) -> None:
        """Draws the bar again, unless that has just been done."""
        if self._display is None:
            return
        if self._ended or time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._display.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """The bar as HTML, and as text for what shows no HTML."""
        running = list(self._running.values())
        share, left = self._share_done(running), self._time_left(running)
        time_ = f"{time.monotonic() - self._began:.0f} s in all" if self._ended else left
        text = f"{self._done}/{self._trials} trials ended · {self._best_text()} · {time_}"
        bar = f'<progress max="1" value="{share:.4f}" style="width:16em"></progress>'
        return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
