"""A process for trials that is started without Ray: messages go through pipes.

It has one pipe for placements, and each trial has another for its events and answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from pickle import dumps, loads
from typing import BinaryIO, cast

from tuner.execution.nodes import oom_kills
from tuner.execution.worker import TrialOptions, WeightsLost, WorkerEvent
from tuner.execution.worker_failures import at_cap, lost_outcome
from tuner.machine.caps import thread_variables, worker_environment
from tuner.machine.holders import status
from tuner.machine.logs import open_log
from tuner.machine.processes import end_tree, exit_text, time_made
from tuner.trial import Began, Device, EpochReport, Outcome, Placement

END_SECONDS = 5.0  # for a process that is asked to end
SEARCH_PATH = "PYTHONPATH"


@dataclass(frozen=True)
class ProcessEnd:
    """A trial's process has ended, with an exit code as of ``subprocess``.

    ``spent`` says that no further trial is taken, and ``error`` why none could be begun.
    """

    code: int
    spent: bool = False
    error: str = ""


class ChildDied(Exception):
    """The process has ended without an outcome, as the text says; ``signal`` is what ended it, 0 for none."""

    def __init__(self, text: str, signal: int = 0) -> None:
        super().__init__(text)
        self.signal = signal


class Child:
    """A process that runs trials one after another on a device. It ends with this process, whatever happens.

    With ``TrialOptions.fresh`` each trial is a fork of it, else all trials run in it. See ``child_main``.
    """

    def __init__(
        self,
        tasks: BinaryIO,
        device: Device,
        threads: int,
        options: TrialOptions,
        variables: Mapping[str, str],
        log: Path | None,
    ) -> None:
        """Starts the process.

        Args:
            tasks: the tasks, packed by ``pack``; it is closed with this object.
            device: where trials run.
            threads: the CPU threads of a trial.
            options: see ``TrialOptions``.
            variables: further environment variables of the process.
            log: the file for output between trials, if there is one.
        """
        self._tasks = tasks
        self._inherited = os.environ.get(SEARCH_PATH)
        root, given = str(Path(__file__).parents[2]), (self._inherited or "").split(os.pathsep)
        # Not the current folder, in which a file may have the name of a standard module.
        searched = [path for path in given if path and os.path.realpath(path) != os.getcwd()]
        self._environment = {
            **os.environ,
            **worker_environment(device),
            **thread_variables(threads),
            **variables,
            SEARCH_PATH: os.pathsep.join([root, *searched]),
        }
        self._first = device, threads, options
        self._log = log or Path(os.devnull)
        self._trial: Connection[bytes, bytes] | None = None  # of the last trial
        self._began: Began | None = None  # the process of that trial
        self._ended: ProcessEnd | None = None  # how that has ended
        self._start()

    def _start(self) -> None:
        self._connection, its = Pipe()
        with its, open_log(self._log) as output:
            descriptors = its.fileno(), self._tasks.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tuner.execution.child_main", *map(str, descriptors)],
                pass_fds=descriptors,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the study, which then asks for a checkpoint
            )
        self._created = time_made(self._process.pid)
        self._send(self._connection, (self._inherited, list(sys.path), *self._first))

    def run(self, placement: Placement) -> None:
        """Starts a trial once the last one's process has ended; ``receive`` returns its events."""
        if self._trial is not None and self._end_of_trial().spent:
            self.end()
            self._start()
        (self._trial, its), self._ended = Pipe(), None
        self._began = None
        with its, suppress(OSError, RuntimeError):  # ``receive`` raises that the process has ended
            self._send(self._connection, placement)
            send_handle(self._connection, its.fileno(), self._process.pid)

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a question of the running trial."""
        if self._trial is not None:
            self._send(self._trial, (trial_id, answer))

    def receive(self, timeout_seconds: float | None = None) -> WorkerEvent | None:
        """The next event; None if there is none within this time.

        Raises:
            ChildDied: the trial's process has ended.
        """
        assert self._trial is not None
        ready = wait((self._trial, self._connection), timeout_seconds)
        if not ready:
            return None
        with suppress(EOFError, OSError):  # the process has ended, or closed its output
            if self._trial in ready or self._trial.poll():
                event = cast("WorkerEvent", loads(self._trial.recv_bytes()))  # noqa: S301  # from our own process
                self._began = event if isinstance(event, Began) else self._began
                return event
        end = self._end_of_trial()
        failed = f"could not begin: {end.error}" if end.error else exit_text(end.code)
        raise ChildDied(f"the trial's process {failed}", max(0, -end.code))

    def _end_of_trial(self) -> ProcessEnd:
        """Waits for the end of the trial's process."""
        if self._ended is None:
            try:
                self._ended = cast("ProcessEnd", loads(self._connection.recv_bytes()))  # noqa: S301
            except (EOFError, OSError):
                self._ended = ProcessEnd(self._process.wait(), spent=True)
            assert self._trial is not None
            self._trial.close()
        return self._ended

    def end(self) -> None:
        """Ends the process with its descendants."""
        for connection in filter(None, (self._connection, self._trial)):
            connection.close()  # it ends when it notices that
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)  # it may not listen yet
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Ends the process for good."""
        self.end()
        self._tasks.close()

    def kill(self) -> None:
        """Kills the process at once, with all its descendants; for good."""
        self._kill()
        self.close()

    def _kill(self) -> None:
        if self._began is not None and self._ended is None:  # the group of the trial, too
            end_tree(self._began.pid, self._began.created, self._began.leads)
        end_tree(self._process.pid, self._created, leads=True)

    def _send(self, connection: Connection[bytes, bytes], message: object) -> None:
        with suppress(OSError):  # ``receive`` raises that the process has ended
            connection.send_bytes(dumps(message))


def run_in(child: Child, placement: Placement, log: Path | None) -> Iterator[WorkerEvent]:
    """Runs a trial in a process beside this one, with the events of ``run_trial``.

    This process's own memory counts as a part of the trial's, without files that both map. ``log`` is the file with
    the trial's output.
    """
    own = status().get("RssAnon", 0) if placement.device.kind == "cpu" else 0
    started, kills = time.monotonic(), oom_kills()
    report: EpochReport | None = None
    completed = False
    try:
        child.run(replace(placement, limit_bytes=placement.limit_bytes - own))
        while True:
            event = child.receive()
            if isinstance(event, EpochReport):
                event = report = replace(event, memory_bytes=_more(event.memory_bytes, own))
            elif isinstance(event, Outcome):
                event = replace(event, placement=placement, peak_bytes=_more(event.peak_bytes, own), reusable=True)
            if event is not None:
                yield event
            completed = completed or (isinstance(event, Outcome) and event.status == "completed")
            if isinstance(event, (bytes, WeightsLost)) or (isinstance(event, Outcome) and not completed):
                return
    except ChildDied as died:
        if completed:
            return  # without its weights
        where = f": its output is in {log.name}" if log else ""
        yield replace(outcome_of_death(died, placement, report, started, kills, where), reusable=True)


def outcome_of_death(
    died: ChildDied, placement: Placement, report: EpochReport | None, started: float, kills: int, where: str = ""
) -> Outcome:
    """The outcome of a trial whose process has ended without a word; ``kills`` is ``oom_kills`` before the trial.

    As after the loss of a Ray worker, a signal may have had nothing to do with the trial.
    """
    killed = died.signal == signal.SIGKILL and oom_kills() > kills
    return lost_outcome(
        placement,
        report,
        started,
        "out_of_memory" if killed or at_cap(placement, report) else "failed",
        "the kernel killed it, as the machine ran out of memory" if killed else f"{died}{where}",
        lost="worker" if died.signal else "",
        peak_bytes=report.memory_bytes if report else None,
        host_peak_bytes=report.host_peak_bytes if report else None,
        short_of="RAM" if killed and placement.device.kind == "cuda" else "",
    )


def _more(size: int | None, own: int) -> int | None:
    return None if size is None else size + own
