from __future__ import annotations

import errno
import io

from rich.console import Console

from tests.support.generated_study import OBJECTIVES
from tuner.reporting.progress import StudyProgress
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Outcome, Placement, Trial


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


CPU = Device("", "cpu", 0, "a CPU", GB, GB, cores=1)


def placement(name: str, epoch_seconds: float | None = None) -> Placement:
    trial = Trial(name, "toy", name, {"epochs": 4}, 0)
    return Placement(trial, MemoryEstimate("traced", epoch_seconds=epoch_seconds), CPU, 0.5, GB // 2, threads=1)


class Piped:
    """A study whose output is no terminal, and whose clock is set by hand."""

    def __init__(self, **times: float) -> None:
        self.now, self.file = 0.0, io.StringIO()
        console = Console(file=self.file, width=250)
        self.progress = StudyProgress(console, 2, 8, OBJECTIVES, GB, clock=lambda: self.now, **times)

    def said_at(self, now: float) -> list[str]:
        """What a tick at this time prints."""
        self.now = now
        before = len(self.file.getvalue())
        self.progress.tick()
        return self.file.getvalue()[before:].splitlines()


def test_a_pipe_gets_a_line_where_nothing_else_was_printed_for_half_a_minute() -> None:
    piped = Piped()
    assert piped.said_at(40) == [], "nothing runs yet"
    piped.progress.started(placement("a"))
    piped.progress.started(placement("b"))
    piped.progress.reported(EpochReport("a", 1, 4))
    (line,) = piped.said_at(41)
    assert line == (
        "0/2 done, 2 running (a 1/4, b starting) · no result yet · memory reserved 1.0 of 1.0 GB · about 4.8 min left"
    )
    assert piped.said_at(70) == []
    piped.progress.note("something else")
    assert piped.said_at(99) == []
    assert len(piped.said_at(100)) == 1


def test_a_terminal_gets_no_such_lines() -> None:
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=True)
    progress = StudyProgress(console, 2, 8, OBJECTIVES, GB, clock=lambda: now[0])
    progress.started(placement("a"))
    now[0] = 99
    progress.tick()
    assert file.getvalue() == ""


def test_before_the_first_epoch_the_time_that_is_left_is_what_was_expected() -> None:
    piped = Piped(training_seconds=300)
    piped.progress.started(placement("a", 50))
    piped.progress.reported(EpochReport("a", 0, 4))
    assert piped.said_at(40)[0].endswith("about 4.3 min left"), "300 s in all"
    assert piped.said_at(90)[0].endswith("about 8.5 min left"), "twice as slow, and 45 s done at most"
    piped.progress.reported(EpochReport("a", 1, 4))
    assert piped.said_at(120)[0].endswith("about 5.5 min left"), "80 of 300 s of work took 120 s"


def test_when_all_epochs_have_ended_some_time_is_left_for_the_test() -> None:
    piped = Piped(training_seconds=300)
    piped.progress.started(placement("a", 50))
    piped.progress.started(placement("b", 25))
    for name in "ab":
        piped.progress.reported(EpochReport(name, 4, 4))
    assert piped.said_at(290)[0].endswith("about 1 s left")


def test_epochs_of_long_trials_count_more_where_times_are_known() -> None:
    piped = Piped(training_seconds=400)
    long, short = placement("long", 75), placement("short", 25)
    piped.progress.started(long)
    piped.progress.started(short)
    piped.now = 100
    piped.progress.finished(Outcome(long.trial, "completed", long, {"val_loss": 1.0}, 4, 100.0), None)
    assert piped.said_at(100) == []
    (line,) = piped.said_at(150)
    assert line.endswith("about 36 s left"), "of 400 s of work 300 are done, and most of an epoch of 25"
