"""Runs a study's trials."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.decisions.events import Opened
from tuner.errors import DevicesLost, TunerError, spelled
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.executor import Executor
from tuner.execution.loop import EndedEarly, StudyLoop
from tuner.execution.stall_detector import StallDetector
from tuner.execution.stop_requests import StopRequests
from tuner.integrations.trackers.adapter import Trackers
from tuner.machine.interrupts import Immediate, TimeLimitReached
from tuner.records.files import MACHINE
from tuner.records.machine_log import recording
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import StudyRecord
from tuner.reporting import phases
from tuner.reporting.console import in_notebook
from tuner.reporting.progress import NotebookProgress, StudyProgress
from tuner.spec.settings import Settings
from tuner.study.prepare import Steering, Study, own_bytes
from tuner.study.recorder import Recorder
from tuner.trial import KNOWN

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class RunContext:
    """What a study runs with."""

    executor: Executor  # runs trials
    console: Console  # shows them
    interrupt: Immediate  # ends the study early
    trackers: Trackers  # are told of them


def execute(
    study: Study, steering: Steering, folder: StudyFolder, record: StudyRecord, context: RunContext
) -> KeyboardInterrupt | TimeLimitReached | EndedEarly | DevicesLost | None:
    """Runs the trials. Whatever happens, every trial has a row in the end.

    Returns:
        The interruption, the time limit, the decision or the loss that ended the study early; None if none did.

    Raises:
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    try:
        if study.requests:
            context.trackers.open(folder.path, record, steering.engine.state.reported)
        _run(study, steering, folder, context)
    except (KeyboardInterrupt, TimeLimitReached, EndedEarly, DevicesLost) as error:
        return error
    return None


def _run(study: Study, steering: Steering, folder: StudyFolder, context: RunContext) -> None:
    settings, source, engine = study.settings, steering.source, steering.engine
    paused = {ended.trial.trial_id for ended in engine.state.paused}  # their next attempts are not known yet
    ready = [request for request in study.requests if request.trial.trial_id not in paused]
    progress = (NotebookProgress if in_notebook() else StudyProgress)(
        context.console,
        0 if study.spec.is_endless else study.count,
        study.requests,
        study.objectives,
        sum(study.plan.budgets),
        several_seeds=settings.seeds > 1,
        phase=context.executor.starting,
        rows=folder.rows,
    )
    recorder = Recorder(study, steering, ready, folder, progress, context.trackers)
    source.open(folder.path, engine.state)
    stalls = StallDetector(settings.trial_timeout_seconds)
    loop = StudyLoop(
        engine,
        steering.packer,
        context.executor,
        recorder,
        context.interrupt,
        stalls=stalls,
        constraints=settings.limited_by,
        known=[name for name in settings.metric if name in KNOWN],
        more=lambda: source.left,
        most_workers=settings.most_workers,
    )
    try:
        with (
            phases.silent(),
            progress,
            recording(folder.path / MACHINE, study.plan.devices if study.requests else ()),
        ):
            for event in source.begun:
                recorder.hear(engine.state, event)
            if study.requests:
                context.interrupt.check()
                with context.interrupt.at_once():  # Ray takes seconds to start
                    context.executor.open(study.tasks, study.plan, folder.checkpoints)
                own_process_bytes = own_bytes(settings, study.devices)
                loop.take(Opened(study.plan, tuple(steering.feedback.begin(ready, own_process_bytes))))
                name, alone = str(folder.path.absolute()), settings.in_process
                with closing(DeviceArbiter(name, study.plan, takes_rest=alone)) as loop.arbiter:
                    loop.run()
            else:
                StopRequests(folder.checkpoints).remove()  # a run that was killed at its very end has left it
    except BaseException as error:
        with suppress(TunerError):  # that the rows cannot be written either would hide why
            recorder.close(_cause(error, settings))
        raise
    recorder.close("")


def _cause(error: BaseException, settings: Settings) -> str:
    """Why a study ended before its trials, in a few words."""
    if isinstance(error, TimeLimitReached):
        return f"time limit of {settings.time_limit_text} reached"
    if isinstance(error, (EndedEarly, DevicesLost)):
        return f"the study ended ({spelled(str(error))})"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "the study broke off"
