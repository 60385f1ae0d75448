"""A process for trials that the study starts itself, without Ray, and its messages through a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from pickle import dumps, loads
from typing import cast

from tuner.execution.lost_trials import at_cap, lost_outcome
from tuner.execution.mapped_arrays import pack
from tuner.execution.nodes import oom_kills
from tuner.execution.worker import TrialOptions, WeightsLost, WorkerEvent
from tuner.machine.caps import worker_environment
from tuner.machine.logs import open_log
from tuner.machine.peak import resident_bytes
from tuner.machine.process_exits import exit_text
from tuner.machine.process_trees import end_tree, time_made
from tuner.trial import Device, EpochReport, Outcome, Placement
from tuner.workloads.task import Tasks

END_SECONDS = 5.0  # for a process that is asked to end
SEARCH_PATH = "PYTHONPATH"


class ChildDied(Exception):
    """The process has ended without an outcome, as the text says; ``signal`` is what ended it, 0 for none."""

    def __init__(self, text: str, signal: int = 0) -> None:
        super().__init__(text)
        self.signal = signal


class Child:
    """A process that runs trials one after another on a device. It ends with this process, whatever happens."""

    def __init__(
        self,
        tasks: Tasks,
        device: Device,
        threads: int,
        options: TrialOptions,
        variables: Mapping[str, str],
        log: Path | None,
    ) -> None:
        """Starts the process. Its output goes to the file ``log``, if there is one."""
        ours, its = Pipe()
        self._connection = ours
        root = str(Path(__file__).parents[2])
        inherited = os.environ.get(SEARCH_PATH)
        environment = {
            **os.environ,
            **worker_environment(device),
            **variables,
            SEARCH_PATH: os.pathsep.join(filter(None, [root, inherited])),
        }
        output = open_log(log or Path(os.devnull))
        with its, output, pack((tasks, device, threads, options)) as content:
            descriptors = its.fileno(), content.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.execution.child_main", *map(str, descriptors)],
                pass_fds=descriptors,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the study, which then asks for a checkpoint
            )
        self._created = time_made(self._process.pid)
        self._send((inherited, list(sys.path)))

    def run(self, placement: Placement) -> None:
        """Starts a trial; ``receive`` returns its events."""
        self._send(placement)

    def answer(self, trial_id: str, answer: object) -> None:
        """Answers a question of a trial."""
        self._send((trial_id, answer))

    def receive(self, timeout_seconds: float | None = None) -> WorkerEvent | None:
        """The next event; None if there is none within this time.

        Raises:
            ChildDied: the process has ended.
        """
        try:
            if timeout_seconds is not None and not self._connection.poll(timeout_seconds):
                return None
            return cast("WorkerEvent", loads(self._connection.recv_bytes()))  # noqa: S301  # it comes from our process
        except (EOFError, OSError):
            self._connection.close()
            code = self._process.wait()
            raise ChildDied(f"the trial's process {exit_text(code)}", max(0, -code)) from None

    def end(self) -> None:
        """Ends the process with its descendants."""
        self._connection.close()  # it ends when it notices that
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
                if number == signal.SIGKILL:
                    return

    def kill(self) -> None:
        """Kills the process at once, with all its descendants."""
        end_tree(self._process.pid, self._created, leads=True)
        self.end()

    def _send(self, message: object) -> None:
        with suppress(OSError):  # ``receive`` raises that the process has ended
            self._connection.send_bytes(dumps(message))


def run_apart(tasks: Tasks, placement: Placement, threads: int, options: TrialOptions) -> Iterator[WorkerEvent]:
    """Runs a trial in a new process beside this one, with the events of ``run_trial``.

    This process's own memory counts as a part of the trial's.
    """
    own = resident_bytes().get("resident", 0) if placement.device.kind == "cpu" else 0
    name, started = placement.trial.workload, time.monotonic()
    log = options.log(placement.trial.trial_id)
    child = Child({name: tasks[name]}, placement.device, threads, options, {}, log)
    report: EpochReport | None = None
    kills, completed = oom_kills(), False
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
        yield outcome_of_death(
            died, placement, report, started, kills, f": its output is in {log.name}" if log else ""
        )
    finally:
        child.end()


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
