from __future__ import annotations

import errno
import io
import re

import pytest
from rich.console import Console

from tests.support.attempts import attempt
from tests.support.generated_study import OBJECTIVES
from tuner.reporting.progress import StudyProgress
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial


class Closed(io.StringIO):
    """A terminal whose window was closed, and how often somebody tried to write there."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_closed_does_not_keep_an_ending_study_from_waiting_for_checkpoints() -> None:
    closed, later = Closed(), Closed()
    console = Console(file=closed, force_terminal=True)
    progress = StudyProgress(console, trials=2, requests=[], objectives=OBJECTIVES, budget_bytes=GB)
    progress.stopping(2, 10.0)
    console = Console(file=io.StringIO(), force_terminal=True)
    with StudyProgress(console, trials=2, requests=[], objectives=OBJECTIVES, budget_bytes=GB) as progress:
        console.file = later
        progress.stopping(2, 10.0)
    assert closed.tries > 0 and later.tries > 0, "nothing was shown"


CPU = Device("", "cpu", 0, "a CPU", GB, GB, cores=1)


def placement(name: str, epoch_seconds: float | None = None) -> Placement:
    trial = Trial(name, "toy", name, {"epochs": 4}, 0)
    return Placement(trial, MemoryEstimate("traced", epoch_seconds=epoch_seconds), CPU, 0.5, GB // 2, threads=1)


class Piped:
    """A study whose output is no terminal, and whose clock is set by hand."""

    def __init__(self, *placements: Placement) -> None:
        self.now, self.file = 0.0, io.StringIO()
        console = Console(file=self.file, width=250)
        requests = [Request(placed.trial, placed.estimate, placed.limit_bytes) for placed in placements]
        of_day = {"clock": lambda: self.now, "stamp": lambda: "12:31:05 "}
        self.progress = StudyProgress(console, 2, requests, OBJECTIVES, GB, phase="starting Ray", **of_day)

    def said_at(self, now: float) -> list[str]:
        """What a tick at this time prints."""
        self.now = now
        before = len(self.file.getvalue())
        self.progress.tick()
        return self.file.getvalue()[before:].splitlines()


def test_a_pipe_gets_a_line_with_the_time_where_nothing_else_was_printed_for_long() -> None:
    both = placement("a"), placement("b")
    piped = Piped(*both)
    assert piped.said_at(40) == [], "nothing runs yet"
    for placed in both:
        piped.progress.started(placed)
    assert piped.said_at(41) == ["12:31:05 starting Ray, 41 s so far"]
    piped.progress.reported(EpochReport("a", 0, 4))
    piped.now = 50
    piped.progress.reported(EpochReport("a", 1, 4, {"val_loss": 0.5}))
    assert piped.said_at(60) == [
        "12:31:05 0/2 done, 2 running (a 1/4 0.5000, b starting) · best so far val_loss 0.5000 (a, epoch 1) · "
        "about 19 s left · memory reserved 1.0 of 1.0 GB"
    ]
    assert piped.said_at(69) == []
    piped.progress.note("something else")
    assert piped.said_at(78) == []
    assert len(piped.said_at(79)) == 1


def best_in(line: str) -> str:
    return line.split(" · ")[1]


def test_the_best_so_far_never_gets_worse_and_counts_reports_of_trials_that_run_or_have_ended() -> None:
    both = placement("a"), placement("b")
    progress = Piped(*both).progress
    for placed in both:
        progress.started(placed)

    def said(trial: str, epoch: int, loss: float) -> str:
        progress.reported(EpochReport(trial, epoch, 4, {"val_loss": loss}))
        return best_in(progress._summary(list(progress._running.values())))

    assert said("a", 1, 0.5) == said("a", 2, 0.9) == said("b", 1, 0.7) == "best so far val_loss 0.5000 (a, epoch 1)"
    progress.finished(Outcome(both[0].trial, "diverged", both[0]), None)
    assert said("b", 2, 0.6) == "best so far val_loss 0.5000 (a, epoch 1)"
    assert said("b", 3, 0.4) == "best so far val_loss 0.4000 (b, epoch 3)"
    progress.finished(Outcome(both[1].trial, "completed", both[1], {"val_loss": 0.4}, 4), None)
    assert progress._best == {"toy": (0.4, "b")}


def test_what_a_trial_reported_that_breaks_a_constraint_is_not_the_best() -> None:
    console = Console(file=io.StringIO(), width=250)
    progress = StudyProgress(console, 3, [], OBJECTIVES, GB, rows=lambda: [attempt(name="c", val_loss=0.3)])
    placed = placement("e")
    progress.started(placed)
    progress.reported(EpochReport("e", 1, 4, {"val_loss": 0.1}))
    progress.finished(Outcome(placed.trial, "infeasible", placed, {"val_loss": 0.1}, 1), None)
    assert best_in(progress._summary([])) == "best so far val_loss 0.3000 (c)"


def test_trials_of_earlier_sessions_count_and_in_the_end_the_best_trial_is_named() -> None:
    earlier = [attempt(trial_id="c", name="c", val_loss=0.3), attempt(trial_id="d", name="d", val_loss=None)]
    console = Console(file=io.StringIO(), width=250)
    progress = StudyProgress(console, 1, [], OBJECTIVES, GB, rows=lambda: earlier)
    placed = placement("e")
    progress.started(placed)
    progress.reported(EpochReport("e", 1, 4, {"val_loss": 0.1}))
    assert best_in(progress._summary(list(progress._running.values()))) == "best so far val_loss 0.1000 (e, epoch 1)"
    progress.finished(Outcome(placed.trial, "pruned", placed, {"val_loss": 0.1}, 1), None)
    assert best_in(progress._summary([])) == "best val_loss 0.3000 (c)"
    earlier[:] = [attempt(trial_id="e", name="e", status="pruned", val_loss=0.1)]
    assert best_in(progress._summary([])) == "best val_loss 0.1000 (e, pruned)"


def test_a_pipe_gets_fewer_lines_the_longer_a_study_takes() -> None:
    piped = Piped()
    piped.progress.started(placement("a"))
    lines = sum(len(piped.said_at(second)) for second in range(0, 36_000))
    assert 100 < lines < 250


def test_a_terminal_gets_no_such_lines() -> None:
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=True)
    progress = StudyProgress(console, 2, [], OBJECTIVES, GB, clock=lambda: now[0])
    progress.started(placement("a"))
    now[0] = 99
    progress.tick()
    assert file.getvalue() == ""


def screen(width: int) -> list[str]:
    """The live table of two trials with long names on a terminal of this width."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    names = [f"learning-rate-and-width-{hidden}" for hidden in (64, 128)]
    placements = [placement(name) for name in names]
    progress = StudyProgress(console, 2, [], OBJECTIVES, GB, clock=lambda: 0.0)
    for placed in placements:
        progress.started(placed)
        progress.reported(EpochReport(placed.trial.trial_id, 1, 4, {"val_loss": 0.5}))
    with console.capture() as shown:
        console.print(progress._render())
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize(("width", "heads"), [(60, 4), (80, 5), (120, 5)])
def test_a_live_table_never_cuts_names_nor_metrics(width: int, heads: int) -> None:
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen(width)]
    assert max(map(len, lines)) <= width
    head = next(number for number, line in enumerate(lines) if line.startswith("trial"))
    assert len(lines[head].split()) == heads
    for name, line in zip(("64", "128"), lines[head + 1 :], strict=False):
        assert re.search(rf"-{name} .* 0.5000$", line)
