"""Processes for one trial after another: a ``Child``, and the ``Worker`` that holds one on Ray.

Messages to and from a ``Child`` go through pipes: one for placements, and one of each trial for events and answers.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from pickle import dumps, loads
from typing import Any, BinaryIO, cast

from tuner.execution.mapped_arrays import opened
from tuner.execution.nodes import ObjectRef, oom_kills
from tuner.execution.own_folders import Elsewhere, NodeFolder
from tuner.execution.preload import Processes
from tuner.execution.sent_files import Piece
from tuner.execution.weights import WeightsLost
from tuner.execution.worker import WORKER, TrialOptions, WorkerEvent
from tuner.execution.worker_failures import at_cap, lost_outcome
from tuner.machine.holders import status
from tuner.machine.processes import adopt_descendants, end_descendants, end_tree, exit_text, open_log
from tuner.trial import Began, Device, EpochReport, Outcome, Placement, Question, Status

TOGETHER_SECONDS = 0.01  # events that follow within it are sent together


@dataclass(frozen=True)
class ProcessEnd:
    """A trial's process has ended, with an exit code as ``subprocess`` has them.

    ``spent`` says that no further trial is taken, and ``error`` why none could be begun.
    """

    code: int
    spent: bool = False
    error: str = ""


@dataclass
class _Run:
    """A trial of a ``Child``."""

    placement: Placement
    log: Path | None  # the file with its output
    own_bytes: int
    warm: bool  # whether the process has served another trial before
    kills: int  # ``oom_kills`` before it
    started: float  # by the monotonic clock
    began: Began | None = None  # its process
    report: EpochReport | None = None  # the last one
    end: ProcessEnd | None = None
    completed: bool = False
    reusable: bool = False


class Child:
    """A process that runs trials one after another on a device. It ends with this process, whatever happens.

    With ``TrialOptions.fresh`` each trial is a fork of it, else all trials run in it, until one is retried or leaves
    it unfit for others. See ``child_main``.
    """

    def __init__(self, tasks: BinaryIO, device: Device, threads: int, options: TrialOptions) -> None:
        """Starts the process for trials of these tasks on this device, with this number of CPU threads each.

        ``tasks`` are packed by ``pack``; the file is closed with this object.
        """
        self._tasks = tasks
        preload = options.launch.preload(device, threads)
        self._processes, self._paths = Processes(preload), (preload.inherited, preload.search_path)
        self._first, self._fresh = (device, threads, options), options.fresh
        self._log = options.log(WORKER)  # for output between trials
        self._trial: Connection[bytes, bytes] | None = None  # of the last trial
        self._run: _Run | None = None
        self._start()

    def _start(self) -> None:
        self._connection, its = Pipe()
        with its, open_log(self._log) if self._log else open(os.devnull, "ab") as output:
            descriptors = its.fileno(), self._tasks.fileno()
            self._process = self._processes.start(descriptors, output)
        self._send(self._connection, (*self._paths, *self._first))

    def run(self, placement: Placement, log: Path | None = None, own_bytes: int = 0) -> None:
        """Starts a trial once the last one's process has ended; ``receive`` returns its events.

        ``log`` is the file with its output. ``own_bytes`` are what this process takes of its share.
        """
        warm, trial = self._run is not None, placement.trial
        retry = trial.attempt > 1 and not trial.begun  # a member of a population goes on
        if (retry and warm and not self._fresh) or self._is_spent():
            self.end()
            self._start()
            warm = False
        self._run = _Run(placement, log, own_bytes, warm, oom_kills(), time.monotonic())
        self._trial, its = Pipe()
        with its, suppress(OSError, RuntimeError):  # ``receive`` says that the process has ended
            self._send(self._connection, replace(placement, limit_bytes=placement.limit_bytes - own_bytes))
            send_handle(self._connection, its.fileno(), 0)  # the id of its process is for Windows

    def _is_spent(self) -> bool:
        """Whether the process takes no further trial, or has died unnoticed."""
        spent = self._run is not None and (self._end_of_trial().spent or not (self._fresh or self._run.reusable))
        return spent or self._process.poll() is not None

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a question of the running trial."""
        if self._trial is not None:
            self._send(self._trial, (trial_id, answer))

    def receive(self, timeout_seconds: float | None = None) -> WorkerEvent | None:
        """The trial's next event; None if there is none within this time. Every trial has an ``Outcome``."""
        assert self._trial is not None and self._run is not None
        ready, run = wait((self._trial, self._connection), timeout_seconds), self._run
        if not ready:
            return None
        with suppress(EOFError, OSError):  # the process has ended, or closed its output
            if self._trial in ready or self._trial.poll():
                event = self._heard(cast("WorkerEvent", loads(self._trial.recv_bytes())))  # noqa: S301  # our own
                last = isinstance(event, (bytes, WeightsLost)) or (isinstance(event, Outcome) and not run.completed)
                if last and not (self._fresh or run.reusable):
                    self.end()
                return event
        if run.completed:
            return WeightsLost("the worker ended before it sent them")
        end = self._end_of_trial()
        unmade = self._process.abandoned and not self._process.pid
        if (run.warm or unmade) and not run.began and end.spent and not end.error:  # it had died before the trial
            self.run(run.placement, run.log, run.own_bytes)
            return None
        failed = f"could not begin: {end.error}" if end.error else exit_text(end.code)
        where = (
            f": its output is in {run.log.name}" if run.log and run.log.exists() and run.log.stat().st_size else ""
        )
        outcome = self.lost(f"the trial's process {failed}{where}", max(0, -end.code))
        if run.warm and not self._fresh and run.report is None and outcome.status == "failed":
            return replace(outcome, lost="worker")  # an earlier trial may have broken the process
        return outcome

    def _heard(self, event: WorkerEvent) -> WorkerEvent:
        """An event of the trial's process, with what this process takes beside it."""
        run = self._run
        assert run is not None
        if isinstance(event, Began):
            run.began = event
        elif isinstance(event, EpochReport):
            event = run.report = replace(event, memory_bytes=_more(event.memory_bytes, run.own_bytes))
        elif isinstance(event, Outcome):
            run.completed, run.reusable = event.status == "completed", event.reusable
            return replace(event, placement=run.placement, peak_bytes=_more(event.peak_bytes, run.own_bytes))
        return event

    @property
    def seconds_to_begin(self) -> float:
        """How long the trial has not begun; 0 once it has."""
        assert self._run is not None
        return 0.0 if self._run.began else time.monotonic() - self._run.started

    def lost(self, error: str, number: int = 0) -> Outcome:
        """The outcome of a trial whose process has ended without one, by the signal of this number unless it is 0.

        As after the loss of a Ray worker, a signal may have had nothing to do with the trial.
        """
        run = self._run
        assert run is not None
        placement, report = run.placement, run.report
        killed = number == signal.SIGKILL and oom_kills() > run.kills
        status: Status = "out_of_memory" if killed or at_cap(placement, report) else "failed"
        text = "the kernel killed it, as the machine ran out of memory" if killed else error
        return replace(
            lost_outcome(placement, report, run.started, status, text),
            lost="worker" if number else "",
            peak_bytes=report.memory_bytes if report else None,
            host_peak_bytes=report.host_peak_bytes if report else None,
            short_of="RAM" if killed and placement.device.kind == "cuda" else "",
        )

    def _end_of_trial(self) -> ProcessEnd:
        """Waits for the end of the trial's process."""
        assert self._run is not None and self._trial is not None
        if self._run.end is None:
            try:
                self._run.end = cast("ProcessEnd", loads(self._connection.recv_bytes()))  # noqa: S301
            except (EOFError, OSError):
                self._run.end = ProcessEnd(self._process.wait(), spent=True)
            self._trial.close()
        return self._run.end

    def end(self) -> None:
        """Kills the process with its descendants."""
        for connection in filter(None, (self._connection, self._trial)):
            connection.close()
        if self._run and self._run.began and self._run.end is None:  # the group of the trial, too
            end_tree(self._run.began.pid, self._run.began.created, self._run.began.leads)
        self._process.end()

    def close(self) -> None:
        """Ends the process. It is not started again."""
        self.end()
        self._processes.close()
        self._tasks.close()

    def _send(self, connection: Connection[bytes, bytes], message: object) -> None:
        with suppress(OSError):  # ``receive`` raises that the process has ended
            connection.send_bytes(dumps(message))


def run_in(child: Child, placement: Placement, log: Path | None) -> Iterator[list[WorkerEvent]]:
    """Runs a trial in a process beside this one, with the events of ``run_trial``: those that are there, in a list.

    This process's own memory counts as a part of the trial's, without files that both map. ``log`` is the file with
    the trial's output. An outcome is the last one of its list.
    """
    child.run(placement, log, status().get("RssAnon", 0) if placement.device.kind == "cpu" else 0)
    while True:
        events = _received(child)
        yield events
        if not isinstance(last := events[-1], (Began, EpochReport, Question, Outcome)):
            return
        if isinstance(last, Outcome) and last.status != "completed":
            return


def _received(child: Child) -> list[WorkerEvent]:
    """At least one event, and those that follow at once, as Ray takes a millisecond for each message."""
    events: list[WorkerEvent] = []
    until = None
    while (event := child.receive(None if until is None else max(0.0, until - time.monotonic()))) or not events:
        if isinstance(event, Outcome):
            return [*events, replace(event, reusable=True)]
        events += [event] if event is not None else []
        if isinstance(event, (Question, bytes, WeightsLost)):  # the trial waits for an answer, or has ended
            break
        until = until or time.monotonic() + TOGETHER_SECONDS
    return events


def _more(size: int | None, own_bytes: int) -> int | None:
    return None if size is None else size + own_bytes


class Worker:
    """Holds a ``Child`` for one trial after another on ``device``, on Ray. It loads neither torch nor users' code."""

    def __init__(self, tasks: Path | list[Any], device: Device, threads: int, options: TrialOptions) -> None:
        """Starts the process for trials of all tasks, whose data workers share."""
        adopt_descendants()  # so that they are ended with this process
        atexit.register(end_descendants)
        self._device, self._folder = device, NodeFolder(options)
        self._child = Child(opened(tasks), device, threads, self._folder.options)

    def run(
        self, placement: Placement, given: Sequence[ObjectRef] = ()
    ) -> Iterator[Sequence[WorkerEvent | Piece | Elsewhere]]:
        """Streams lists of a trial's events, see ``run_in`` and ``NodeFolder``. The trial's output goes to its log.

        The study keeps that file short, and removes it at the end if it is empty.
        """
        log = self._folder.options.log(placement.log)
        yield from self._folder.run(
            placement, given, run_in(self._child, replace(placement, device=self._device), log)
        )

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers the question of a running trial. It is called in another thread than the trial's."""
        self._child.answer(trial_id, answer)

    def ping(self) -> None:
        """Returns if the process is alive."""
