"""Runs a study's trials, and decides what follows each of them."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tuner.errors import TunerError
from tuner.estimation.feedback import StudyFeedback
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.loop import Correction, Decisions, Executor, run_trials
from tuner.execution.stall_detector import StallDetector
from tuner.execution.stop_requests import StopRequests
from tuner.integrations.trackers.adapter import Trackers
from tuner.machine.interrupts import Immediate, TimeLimitReached
from tuner.placement.packing import Packer, Plan, host_need_bytes, is_tight, need_bytes
from tuner.placement.retry import Retry, next_attempt
from tuner.placement.throughput import WorkerCount
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS, MACHINE
from tuner.records.machine_log import recording
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import StudyRecord
from tuner.reporting import phases
from tuner.reporting.console import in_notebook
from tuner.reporting.notebook import NotebookProgress
from tuner.reporting.progress import StudyProgress
from tuner.spec.settings import Settings
from tuner.study.executors import starting
from tuner.study.planning import Estimates
from tuner.study.recorder import Recorder
from tuner.study.resume import ended
from tuner.study.stages import Placed
from tuner.study.steering import Pruning, Steering
from tuner.trial import GB, Device, EpochReport, Outcome, Request, shrunk
from tuner.workloads.task import smaller

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Surroundings:
    """What a study runs with."""

    executor: Executor  # runs trials
    console: Console  # shows them
    interrupt: Immediate  # ends the study early
    trackers: Trackers  # are told of them


def execute(
    study: Placed, folder: StudyFolder, record: StudyRecord, around: Surroundings
) -> KeyboardInterrupt | TimeLimitReached | None:
    """Runs the trials. Whatever happens, every trial has a row in the end.

    Returns:
        The interruption or the time limit that ended the study early; None if none did.

    Raises:
        ExecutionError: Ray does not start, every device is lost, or the folder can no longer be written.
    """
    try:
        if study.requests:
            around.trackers.open(folder.path, record)
        _run(study, folder, record, around)
    except (KeyboardInterrupt, TimeLimitReached) as error:
        return error
    return None


def _run(study: Placed, folder: StudyFolder, record: StudyRecord, around: Surroundings) -> None:
    requests, settings = study.requests, study.settings
    number = len(requests) + len(study.misfits) + (study.live.left if study.live else 0)
    progress = (NotebookProgress if in_notebook() else StudyProgress)(
        around.console,
        number,
        requests,
        study.objectives,
        sum(study.plan.budgets),
        several_seeds=settings.seeds > 1,
        phase=starting(around.executor),
    )
    described = study.optuna.described if study.optuna else None
    recorder = Recorder(folder, progress, requests, around.trackers, settings.scheduler_name, described)
    feedback = _feedback(study.estimates, folder)
    before = ended(study.attempts, [*requests, *study.misfits])
    pruning = Pruning(study.objectives, settings, study.live.searcher if study.live else None)
    pruning.begin(study.tried, before, list(read_epochs(folder.path / EPOCHS)))
    steering = Steering(study, record, folder, recorder, feedback, pruning)
    decisions = _decisions(study, feedback, pruning, steering)
    if study.optuna:
        study.optuna.begin(folder.path, before)
        decisions = replace(decisions, answer=study.optuna.answer, ended=study.optuna.ended)
    try:
        with phases.silent(), progress, recording(folder.path / MACHINE, study.plan.devices if requests else ()):
            for request in study.misfits:
                steering.misfit(request)
            if requests:
                around.interrupt.check()  # Ray takes seconds to start
                around.executor.open(study.tasks, study.plan, folder.checkpoints)
                corrected, packer = feedback.begin(requests), Packer(study.plan)
                stalls = StallDetector(settings.trial_timeout_seconds)
                name, alone = str(folder.path.absolute()), settings.in_process
                with closing(DeviceArbiter(name, study.plan, takes_rest=alone)) as arbiter:
                    run_trials(
                        corrected,
                        packer,
                        around.executor,
                        recorder,
                        decisions,
                        around.interrupt,
                        arbiter,
                        stalls,
                        _counts(study.plan) if settings.adaptive_workers else {},
                    )
            else:
                StopRequests(folder.checkpoints).remove()  # a run that was killed at its very end has left it
    except BaseException as error:
        if study.optuna:
            study.optuna.close()
        cause = _cause(error, settings)
        with suppress(TunerError):  # that the rows cannot be written either would hide why
            recorder.close(cause)
        raise
    recorder.close("")


def _counts(plan: Plan) -> dict[Device, WorkerCount]:
    """The controllers of how many trials run at once on each GPU."""
    counts = zip(plan.devices, plan.at_first, plan.slots, strict=True)
    return {
        device: WorkerCount(first, most, device.cores)
        for device, first, most in counts
        if device.kind == "cuda" and most
    }


def _cause(error: BaseException, settings: Settings) -> str:
    """Why a study ended before its trials, in a few words."""
    if isinstance(error, TimeLimitReached):
        return f"time limit of {settings.time_limit_text} reached"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "the study broke off"


def _feedback(estimates: Estimates, folder: StudyFolder) -> StudyFeedback:
    """What is known of the trials' memory, also from attempts of a resumed study."""
    feedback = StudyFeedback(estimates.raw, estimates.known, need_bytes, estimates.known_in_ram, host_need_bytes)
    trials = {request.trial.trial_id: request.trial for request in estimates.requests}
    for line in read_epochs(folder.path / EPOCHS):
        if line.trial_id in trials and line.memory_gb is not None:
            said = EpochReport(line.trial_id, line.epoch, 0, memory_bytes=int(line.memory_gb * GB))
            feedback.report(trials[line.trial_id], said)
    for row in folder.attempts():
        if not shrunk(row.config) and row.trial_id in trials:
            feedback.learn(trials[row.trial_id], row.result)
    return feedback


def _decisions(study: Placed, feedback: StudyFeedback, pruning: Pruning, steering: Steering) -> Decisions:
    """The decisions that the loop delegates: retries, corrected estimates, suggestions and pruning."""
    policy = study.settings.retry_policy
    jitter = Random(study.settings.seed)

    def try_again(request: Request, outcome: Outcome, whole_bytes: int) -> Retry | None:
        return next_attempt(
            request,
            outcome.result,
            policy,
            whole_bytes=whole_bytes,
            whole_ram_bytes=study.plan.largest_ram_budget,
            smaller=partial(smaller, study.tasks),
            random=jitter.random,
        )

    def learn(outcome: Outcome) -> Correction | None:
        given = outcome.placement
        if given and is_tight(given.estimate, given.limit_bytes):
            return None  # its peak is what there was, and not what another trial like it would take
        return feedback.correct if feedback.learn(outcome.trial, outcome.result) else None

    def learn_report(request: Request, report: EpochReport) -> Correction | None:
        return feedback.correct if feedback.report(request.trial, report) else None

    return Decisions(
        try_again, learn, steering.suggest, pruning.stops, learn_report=learn_report, ended=steering.ended
    )
