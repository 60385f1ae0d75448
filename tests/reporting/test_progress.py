from __future__ import annotations

import errno
import io

from rich.console import Console

from tests.support.generated_study import OBJECTIVES
from tuner.reporting.progress import StudyProgress
from tuner.trial import GB


class Closed(io.StringIO):
    """A terminal whose window was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_closed_does_not_keep_an_ending_study_from_waiting_for_checkpoints() -> None:
    console = Console(file=Closed(), force_terminal=True)
    progress = StudyProgress(console, trials=2, epochs=8, objectives=OBJECTIVES, budget_bytes=GB)
    progress.stopping(2, 10.0)
    console = Console(file=io.StringIO(), force_terminal=True)
    with StudyProgress(console, trials=2, epochs=8, objectives=OBJECTIVES, budget_bytes=GB) as progress:
        console.file = Closed()
        progress.stopping(2, 10.0)
