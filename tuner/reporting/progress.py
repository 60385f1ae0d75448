"""The progress of a study: a live table on a terminal, an occasional line elsewhere, and a line for each attempt.

A notebook has a bar that is updated in place, and a line for each trial that does not complete.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Self

from tuner.decisions.events import Retried
from tuner.decisions.seconds import TimeLeft
from tuner.errors import joined, printable
from tuner.hyperparameters import shrunk
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.ranking import best_of, stands
from tuner.reporting.console import print_text
from tuner.reporting.texts import (
    MOST_OF_ERROR,
    TextColumn,
    count_text,
    gb_of_ranks,
    gb_text,
    metric_text,
    rough,
    table_lines,
)
from tuner.trial import ACCUMULATION, EVALUATION_PARTS, GB, EpochReport, Outcome, Placement, Request, Trial, title

if TYPE_CHECKING:
    from IPython.display import DisplayHandle
    from rich.console import Console, RenderableType
    from rich.live import Live

# A pipe or file gets a line about the study after this share of the time so far, within these bounds in seconds.
QUIET_SHARE, QUIET_LEAST, QUIET_MOST = 0.05, 10.0, 300.0
NAMED = 4  # the maximum number of running trials that this line names

Running = Sequence[tuple[Placement, EpochReport | None]]  # running trials with their last reports


@dataclass(eq=False)
class StudyProgress:
    """Shows the trials of a running study. The context manager starts and stops the live table."""

    console: Console  # the live table is shown on a terminal only
    trials: int  # 0 if their number is unknown
    requests: Sequence[Request]  # the trials that are known before the first one, for the remaining time
    objectives: Mapping[str, Objective]  # what trials are compared by, by workload
    budget_bytes: int  # the memory for trials on all devices
    several_seeds: bool = field(default=False, kw_only=True)  # show each trial's seed
    phase: str = field(default="starting", kw_only=True)  # what happens before the first trial begins
    rows: Callable[[], Sequence[Attempt]] = field(default=list, kw_only=True)  # of ended trials
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    stamp: Callable[[], str] = field(default=lambda: time.strftime("%H:%M:%S "), kw_only=True)  # of a piped line
    _running: dict[str, tuple[Placement, EpochReport | None]] = field(default_factory=dict, init=False)
    # The best value so far and whose it is, by workload. It counts though a trial ends otherwise than completed.
    _best: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)
    _began: float = field(init=False)
    _printed: float = field(init=False)
    _done: int = field(default=0, init=False)
    _left: TimeLeft = field(init=False)
    _live: Live | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began = self._printed = self.clock()
        self._left = TimeLeft(self.requests, self.trials)
        self._recall()

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
        self._left.started(placement, self.clock())
        self._running[placement.trial.trial_id] = (placement, None)

    def reported(self, report: EpochReport) -> None:
        """A trial has begun to train, or finished an epoch."""
        self._left.reported(report, self.clock())
        placement, _ = self._running[report.trial_id]
        self._running[report.trial_id] = (placement, report)
        trial = placement.trial
        if not self.objectives[trial.workload].last:
            self._count(trial.workload, report.metrics, f"{self._name(trial)}, epoch {report.epoch}")

    def finished(self, outcome: Outcome, retry: Retried | None) -> None:
        """An attempt has ended. Prints its result, and its retry if there is one."""
        trial = outcome.trial
        if outcome.status == "infeasible" and not outcome.placement:  # it was suggested beside the trials that count
            return
        self._running.pop(trial.trial_id, None)
        if outcome.status == "completed":
            self._count(trial.workload, outcome.metrics, self._name(trial), again=True)
        elif outcome.status == "infeasible":  # what it reported counts no more
            self._best.clear()
            self._recall()
        self._left.finished(outcome, retry.request if retry else None, self.clock())
        self._done += not retry
        objective = self.objectives[trial.workload]
        value = outcome.metrics.get(objective.metric)
        if self._has_line(outcome):
            names = [one.metric for one in objective.all if one.metric in outcome.metrics]
            metrics = ", ".join(f"{name} {metric_text(outcome.metrics[name])}" for name in names)
            result = metrics if value is not None else _reason(outcome)
            peak = "" if outcome.peak_bytes is None else f", peak {gb_text(outcome.peak_bytes)}"
            epochs = f"{count_text(outcome.epochs, 'epoch')}, " if outcome.epochs or value is None else ""
            took = f"{epochs}{outcome.seconds:.1f} s{peak}"
            what = f"{self._title(trial)} {outcome.status}: {result} ({took}){_what_follows(outcome, retry)}"
            self.note(f"[{self._done_text()}] {what}")

    def paused(self, outcome: Outcome, request: Request) -> None:
        """A member of a population has its next checkpoint, and waits for its turn."""
        trial = outcome.trial
        self._running.pop(trial.trial_id, None)
        behind = replace(request, trial=replace(request.trial, begun=outcome.epochs))
        self._left.finished(outcome, behind, self.clock())
        value = outcome.metrics.get(self.objectives[trial.workload].metric)
        if value is not None and self._has_line(outcome):
            metric = f"{self.objectives[trial.workload].metric} {metric_text(value)}"
            self.note(f"{self._title(trial)} paused after {count_text(outcome.epochs, 'epoch')}: {metric}")

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study is ending. Running trials have ``seconds`` to write checkpoints, unless ``fault`` prevents it."""
        if fault:
            self.note(f"ending: running trials cannot be asked for checkpoints: {fault}")
            return
        whose = f"{trials} running trials have" if trials > 1 else "the running trial has"
        self.note(f"ending: {whose} {seconds:g} s to write checkpoints; an interrupt (Ctrl-C) does not wait for that")

    def tick(self) -> None:
        """Time has passed. Without a live table, prints a line about the study if the last line is long ago."""
        quiet = min(max(QUIET_SHARE * (self.clock() - self._began), QUIET_LEAST), QUIET_MOST)
        if self._running and not self.console.is_terminal and self.clock() - self._printed >= quiet:
            self.note(self._summary(list(self._running.values()), named=True))

    def note(self, line: str) -> None:
        """Prints a line above the table, with the time of day where there is no table."""
        self._printed = self.clock()
        with suppress(OSError):  # the terminal may be closed; the study must still end properly
            print_text(self.console, line if self.console.is_terminal else f"{self.stamp()}{line}")

    def _has_line(self, outcome: Outcome) -> bool:
        """Whether a line is printed for an attempt."""
        return True

    def _title(self, trial: Trial) -> str:
        return self._name(trial, several=len(self.objectives) > 1)

    def _recall(self) -> None:
        """Counts the trials that have ended, now or in an earlier session."""
        for row in self.rows():
            if stands(row, self.objectives[row.workload]):
                self._count(row.workload, row.metrics, self._whose(row))

    def _count(self, workload: str, metrics: Mapping[str, float | None], whose: str, *, again: bool = False) -> None:
        """Counts a value if it is the best so far; ``again`` is for one that may have been reported before."""
        objective = self.objectives[workload]
        value, (best, _) = metrics.get(objective.metric), self._best.get(workload, (objective.worst, ""))
        if value is not None and (objective.better(value, than=best) or (again and value == best)):
            self._best[workload] = value, whose

    def _whose(self, row: Attempt) -> str:
        return self._name(row) + ("" if row.status == "completed" else f", {row.status}")

    def _name(self, trial: Trial | Attempt, *, several: bool = False) -> str:
        return title(trial.workload, trial.name, several=several, seed=trial.seed if self.several_seeds else None)

    def _render(self) -> RenderableType:
        """The live table: a line about the study, then a row for each running trial."""
        from rich.console import Group
        from rich.text import Text

        running = list(self._running.values())  # a copy, as the display's thread draws while trials start and end
        summary = Text(printable(self._summary(running)), style="bold")
        if not running:
            return summary
        head, *lines = self._table(running)
        return Group(summary, Text(head, style="bold"), Text("\n".join(lines)))

    def _table(self, running: Running) -> list[str]:
        """A line for each running trial, below a head."""
        metrics = " or ".join(dict.fromkeys(objective.metric for objective in self.objectives.values()))
        names = [printable(self._title(placement.trial)) for placement, _ in running]
        memory = [gb_of_ranks(len(placement.all), placement.limit_bytes) for placement, _ in running]
        columns = [
            TextColumn("trial", names, left=True, names=True),
            TextColumn("device", [placement.label for placement, _ in running], left=True, spared=2),
            TextColumn("memory", memory, spared=1),
            TextColumn("epoch", [_epochs(report) for _, report in running]),
            TextColumn(printable(metrics), [self._value(placement, report) for placement, report in running]),
        ]
        return table_lines(columns, self.console.width)

    def _value(self, placement: Placement, report: EpochReport | None) -> str:
        value = report.metrics.get(self.objectives[placement.trial.workload].metric) if report else None
        return "" if value is None else metric_text(value)

    def _summary(self, running: Running, *, named: bool = False) -> str:
        """A line about the study; ``named`` adds the running trials, for where no table shows them."""
        if not self._done and not any(report for _, report in running):
            return f"{self.phase}, {self.clock() - self._began:.0f} s so far"
        reserved = sum(place.limit_bytes for placement, _ in running for place in placement.all)
        names = [
            joined(self._title(placement.trial), _epochs(report), self._value(placement, report), by=" ")
            for placement, report in running[:NAMED]
        ]
        names += [f"{len(running) - NAMED} more"] if len(running) > NAMED else []
        which = f" ({', '.join(names)})" if named and names else ""
        parts = [
            f"{self._done_text()} done, {len(running)} running{which}",
            self._best_text(),
            self._time_left(),
            f"memory reserved {reserved / GB:.1f} of {self.budget_bytes / GB:.1f} GB",
        ]
        line = " · ".join(parts)
        return line if len(line) <= self.console.width or named else " · ".join(parts[:-1])

    def _best_text(self) -> str:
        """Each workload's best value so far with its trial's name, and the epoch of a report; in the end the best."""
        bests, over = dict(self._best), self._done == self.trials > 0
        for key, objective in self.objectives.items() if over else ():
            if best := best_of([row for row in self.rows() if row.workload == key], objective):
                bests[key] = best.number(objective.metric), self._whose(best)
        texts = [
            f"{self.objectives[key].metric} {metric_text(value)} ({name})" for key, (value, name) in bests.items()
        ]
        so_far = " so far" * (not over)
        return f"best{so_far} {', '.join(texts)}" if texts else "no result yet"

    def _share_done(self, running: Running) -> float:
        """The completed share of the study, from 0 to 1. Running trials count by their epochs."""
        begun = sum(report.epoch / report.epochs for _, report in running if report and report.epochs)
        return min(1.0, (self._done + begun) / self.trials) if self.trials else 0.0

    def _done_text(self) -> str:
        return f"{self._done}/{self.trials}" if self.trials else str(self._done)

    def _time_left(self) -> str:
        """The remaining time, or the elapsed time while the former is unknown."""
        seconds = self._left.seconds(self.clock()) if self.trials else None
        if seconds is None:
            return f"{self.clock() - self._began:.0f} s so far"
        return f"about {rough(max(1.0, seconds))} left"  # after the last epoch the test is left


def _epochs(report: EpochReport | None) -> str:
    if report is None:
        return "starting"
    return f"{report.epoch}/{report.epochs}" if report.epochs else str(report.epoch)


def _reason(outcome: Outcome) -> str:
    return printable(f"{outcome.phase}: {outcome.error}" if outcome.phase else outcome.error, MOST_OF_ERROR)


def _what_follows(outcome: Outcome, retry: Retried | None) -> str:
    """What happens after an attempt: its retry, or giving up when it ran out of memory; else empty."""
    if not retry:
        if outcome.status != "out_of_memory" or not outcome.placement:
            return ""
        given = outcome.placement
        had = f"{gb_text(given.host_bytes)} of RAM" if outcome.short_of else gb_text(given.limit_bytes)
        return f"; given up after attempt {outcome.trial.attempt}, with {had}"
    request = retry.request
    now_has = f"{gb_text(request.host_bytes)} of RAM" if outcome.short_of else gb_text(request.need_bytes)
    given_now = f" with {now_has}" if outcome.status == "out_of_memory" else ""
    words = {ACCUMULATION: "micro-batches", EVALUATION_PARTS: "chunks of an evaluation"}
    now, before = (shrunk(trial.config) for trial in (request.trial, outcome.trial))
    smaller = "".join(f" in {words[key]} of 1/{now[key]}" for key in now if now[key] != before.get(key))
    wait = f" in {retry.delay_seconds:.0f} s, or when nothing else runs" if retry.delay_seconds >= 1 else ""
    return f"; again{given_now}{smaller}{wait}"


def import_quietly() -> None:
    """Imports tqdm before Ray and PyTorch Geometric do: in a notebook without ipywidgets it would warn."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


@dataclass(eq=False)
class NotebookProgress(StudyProgress):
    """Shows a progress bar that is updated in place, and a line for each trial that does not complete."""

    refresh_seconds: float = field(default=0.25, kw_only=True)  # the least time between two updates of the bar
    _display: DisplayHandle | None = field(default=None, init=False)
    _drawn: float = field(default=0.0, init=False)
    _ended: bool = field(default=False, init=False)

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
        """Draws the bar, at most once in ``refresh_seconds``."""
        if self._display and (self._ended or self.clock() - self._drawn >= self.refresh_seconds):
            self._drawn = self.clock()
            self._display.update(self._bundle(), raw=True)  # type: ignore[no-untyped-call]

    def _bundle(self) -> dict[str, str]:
        """The bar as HTML and as plain text."""
        running = list(self._running.values())
        share, time_left = self._share_done(running), self._time_left()
        seconds = f"{self.clock() - self._began:.0f} s in all" if self._ended else time_left
        text = f"{self._done_text()} trials ended · {self._best_text()} · {seconds}"
        bar = f'<progress max="1" value="{share:.4f}" style="width:16em"></progress>'
        return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
