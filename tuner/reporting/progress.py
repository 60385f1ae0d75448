"""The progress of a study: a live table, or without a terminal a line now and then; and a line as an attempt ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tuner.errors import printable
from tuner.placement.retry import Retry
from tuner.reporting.console import make_table, print_text
from tuner.reporting.texts import MOST_OF_ERROR, rough
from tuner.trial import (
    ACCUMULATION,
    EVALUATION_PARTS,
    GB,
    DeviceLost,
    EpochReport,
    Objective,
    Outcome,
    Placement,
    Trial,
    shrunk,
    title,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


QUIET_SECONDS = 30.0  # after so long without a line, what is not a terminal gets one about the study
MOST_BEGUN = 0.9  # of an epoch that is not reported yet counts as done
NAMED = 4  # so many running trials are named in it

Running = Sequence[tuple[Placement, EpochReport | None]]  # running trials with their last reports


@dataclass(eq=False)
class StudyProgress:
    """Shows the trials of a running study. The context manager starts and stops the live table."""

    console: Console  # the live table is shown on a terminal only
    trials: int
    epochs: int  # of all trials together, for the remaining time; 0 if unknown
    objectives: Mapping[str, Objective]  # what trials are compared by, by workload
    budget_bytes: int  # the memory for trials on all devices
    several_seeds: bool = field(default=False, kw_only=True)  # show each trial's seed
    # How long all epochs together are expected to take one after another; 0 if unknown.
    training_seconds: float = field(default=0.0, kw_only=True)
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    _running: dict[str, tuple[Placement, EpochReport | None]] = field(default_factory=dict, init=False)
    _heard: dict[str, float] = field(default_factory=dict, init=False)  # when a trial started, or last reported
    _best: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)  # value and name, by workload
    _began: float = field(init=False)
    _printed: float = field(init=False)
    _done: int = field(default=0, init=False)
    _work_done: float = field(default=0.0, init=False)  # of trials that have ended: epochs, or their expected seconds
    _live: Live | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began = self._printed = self.clock()

    def __enter__(self) -> Self:
        """Starts the live table, on a terminal."""
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=self._render, console=self.console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the live table. Printed lines stay."""
        if self._live:
            with suppress(OSError):  # as in ``note``
                self._live.stop()

    def started(self, placement: Placement) -> None:
        """A trial has been placed."""
        self._heard[placement.trial.trial_id] = self.clock()
        self._running[placement.trial.trial_id] = (placement, None)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        self._heard[report.trial_id] = self.clock()
        placement, _ = self._running[report.trial_id]
        self._running[report.trial_id] = (placement, report)

    def finished(self, outcome: Outcome, retry: Retry | None) -> None:
        """An attempt has ended: prints its line, with its retry if there is one."""
        trial = outcome.trial
        self._running.pop(trial.trial_id, None)
        if not retry:
            self._done += 1
            self._work_done += trial.epochs * self._epoch_work(outcome.placement)
        objective = self.objectives[trial.workload]
        value = outcome.metrics.get(objective.metric)
        if value is not None:
            name = title(trial.workload, trial.name, several=False, seed=self._seed(trial))
            best = self._best.setdefault(trial.workload, (value, name))
            if objective.better(value, than=best[0]):
                self._best[trial.workload] = value, name
        result = f"{objective.metric} {value:.4f}" if value is not None else _reason(outcome)
        peak = "" if outcome.peak_bytes is None else f", peak {outcome.peak_bytes / GB:.2f} GB"
        if self._has_line(outcome):
            self.note(
                f"[{self._done}/{self.trials}] {self._title(trial)} {outcome.status}: {result} "
                f"({outcome.epochs} epochs, {outcome.seconds:.1f} s{peak}){_what_follows(outcome, retry)}"
            )

    def device_lost(self, event: DeviceLost) -> None:
        """A device is gone."""
        self.note(f"{event.device.label} is lost: {event.reason}")

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends: running trials have this time to write checkpoints, or cannot because of ``fault``."""
        if fault:
            self.note(f"ending: running trials cannot be asked for checkpoints: {fault}")
            return
        whose = f"{trials} running trials have" if trials > 1 else "the running trial has"
        self.note(f"ending: {whose} {seconds:g} s to write checkpoints; an interrupt (Ctrl-C) does not wait for that")

    def tick(self) -> None:
        """Time has passed: prints a line about the study if none was printed for long and there is no live table."""
        if self._running and not self.console.is_terminal and self.clock() - self._printed >= QUIET_SECONDS:
            self.note(self._summary(list(self._running.values()), named=True))

    def note(self, line: str) -> None:
        """Prints a line above the table."""
        self._printed = self.clock()
        with suppress(OSError):  # the terminal may be closed; the study must still end properly
            print_text(self.console, line)

    def _has_line(self, outcome: Outcome) -> bool:
        """Whether a line is printed for an attempt."""
        return True

    def _title(self, trial: Trial) -> str:
        return title(trial.workload, trial.name, several=len(self.objectives) > 1, seed=self._seed(trial))

    def _seed(self, trial: Trial) -> int | None:
        return trial.seed if self.several_seeds else None

    def _render(self) -> RenderableType:
        """The live table: a line about the study, then a row for each running trial."""
        from rich.console import Group
        from rich.text import Text

        running = list(self._running.values())  # a copy, as the display's thread draws while trials start and end
        summary = Text(printable(self._summary(running)), style="bold")
        metrics = " or ".join(dict.fromkeys(each.metric for each in self.objectives.values()))
        table = make_table(("trial", "device", "memory", "epoch", metrics), left=("trial", "device"))
        for placement, report in running:
            value = report.metrics.get(self.objectives[placement.trial.workload].metric) if report else None
            table.add_row(
                Text(printable(self._title(placement.trial))),
                placement.device.label,
                f"{placement.limit_bytes / GB:.2f} GB",
                _epochs(report),
                "" if value is None else f"{value:.4f}",
            )
        return Group(summary, table) if running else summary

    def _summary(self, running: Running, *, named: bool = False) -> str:
        """A line about the study; with the names of running trials if they are not in a table below it."""
        reserved = sum(placement.limit_bytes for placement, _ in running)
        names = [f"{self._title(placement.trial)} {_epochs(report)}" for placement, report in running[:NAMED]]
        names += [f"{len(running) - NAMED} more"] if len(running) > NAMED else []
        which = f" ({', '.join(names)})" if named and names else ""
        return (
            f"{self._done}/{self.trials} done, {len(running)} running{which} · {self._best_text()} · memory reserved "
            f"{reserved / GB:.1f} of {self.budget_bytes / GB:.1f} GB · {self._time_left(running)}"
        )

    def _best_text(self) -> str:
        bests = [
            f"{self.objectives[each].metric} {value:.4f} ({name})" for each, (value, name) in list(self._best.items())
        ]
        return f"best {', '.join(bests)}" if bests else "no result yet"

    def _share_done(self, running: Running) -> float:
        """The share of all epochs' time that is done, from 0 to 1; of all trials where their epochs are unknown."""
        if not self.epochs:
            return self._done / max(1, self.trials)
        done = sum(self._work(placement, report) for placement, report in running)
        return min(1.0, (self._work_done + done) / (self.training_seconds or self.epochs))

    def _work(self, placement: Placement, report: EpochReport | None) -> float:
        """What a running trial has done; where times are known, with a part of its epoch that is not reported yet."""
        seconds, epoch = self._epoch_work(placement), report.epoch if report else 0
        begun = self.clock() - self._heard[placement.trial.trial_id] if self.training_seconds else 0.0
        return epoch * seconds + min(begun, MOST_BEGUN * seconds) * (epoch < placement.trial.epochs)

    def _epoch_work(self, placement: Placement | None) -> float:
        """What an epoch of a trial counts: its expected seconds, or the mean; 1 where they are unknown."""
        if not self.training_seconds:
            return 1.0
        own = placement.estimate.epoch_seconds if placement else None
        return own or self.training_seconds / self.epochs

    def _time_left(self, running: Running) -> str:
        """The remaining time, by what the work so far took."""
        share = self._share_done(running)
        elapsed = self.clock() - self._began
        if share <= 0:
            return f"{elapsed:.0f} s so far"
        # After the last epoch the test is left.
        return f"about {rough(max(1.0, elapsed * (1 - share) / share))} left"


def _epochs(report: EpochReport | None) -> str:
    if report is None:
        return "starting"
    return f"{report.epoch}/{report.epochs}" if report.epochs else str(report.epoch)


def _reason(outcome: Outcome) -> str:
    return printable(f"{outcome.phase}: {outcome.error}" if outcome.phase else outcome.error, MOST_OF_ERROR)


def _what_follows(outcome: Outcome, retry: Retry | None) -> str:
    """A text about the retry of an attempt, or about giving up if it ran out of memory; else empty."""
    if not retry:
        if outcome.status != "out_of_memory" or not outcome.placement:
            return ""
        given = outcome.placement
        had = f"{given.host_bytes / GB:.2f} GB of RAM" if outcome.short_of else f"{given.limit_bytes / GB:.2f} GB"
        return f"; given up after attempt {outcome.trial.attempt}, with {had}"
    now_has = f"{retry.request.need_bytes / GB:.2f} GB"
    if outcome.short_of:
        now_has = f"{retry.request.host_bytes / GB:.2f} GB of RAM"
    given_now = f" with {now_has}" if outcome.status == "out_of_memory" else ""
    words = {ACCUMULATION: "micro-batches", EVALUATION_PARTS: "chunks of an evaluation"}
    now, before = (shrunk(trial.config) for trial in (retry.request.trial, outcome.trial))
    smaller = "".join(f" in {words[key]} of 1/{now[key]}" for key in now if now[key] != before.get(key))
    wait = f" in {retry.delay_seconds:.0f} s, or when nothing else runs" if retry.delay_seconds >= 1 else ""
    return f"; again{given_now}{smaller}{wait}"
