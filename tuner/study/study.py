"""A study from its options to its results: the only file that knows the order of the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import option
from tuner.execution.loop import Executor
from tuner.integrations.trackers.selection import choose_trackers
from tuner.machine.interrupts import Immediate, orderly
from tuner.records.row_queries import best_first
from tuner.records.study_folder import check_unused
from tuner.records.study_record import UNKNOWN, read_study
from tuner.reporting.console import in_notebook, make_console
from tuner.reporting.notebook import import_quietly
from tuner.spec.settings import Settings
from tuner.study.advice import Figures
from tuner.study.auto_batch import packed_uniformly, size_batches
from tuner.study.beginning import (
    describe_study,
    earlier_attempts,
    open_folder,
    plan_left,
    print_beginning,
    print_monitoring,
    print_needs,
)
from tuner.study.ending import how_to_continue, learn_from, print_end, write_report
from tuner.study.live_search import LiveSearch
from tuner.study.planning import to_trials, usable
from tuner.study.result import StudyResult
from tuner.study.resume import description, with_batches_of
from tuner.study.running import Running, ray_executor, run_to_the_end
from tuner.trial import is_auto
from tuner.workloads.task import Selection, load_tasks, metrics_of


def run_study(
    selections: Sequence[Selection],
    settings: Settings,
    *,
    label: str,
    command: str,
    options: Mapping[str, Any] | None = None,
    shows_end: bool = False,
    executor: Executor | None = None,
    returns_table: bool = False,
    from_python: bool = False,
    live: LiveSearch | None = None,
) -> StudyResult:
    """Runs every configuration and writes the results as they come.

    Args:
        selections: what to try of each workload, in the order in which trials are numbered.
        settings: how.
        label: ends the default folder's name: the mode.
        command: what the user called, for ``study.json``.
        options: the options of ``tune run`` that make this study, with which ``--resume`` makes it again.
        shows_end: print tables, advice and how to repeat the best trial.
        executor: what runs the trials; Ray by default.
        returns_table: the caller returns a table that a notebook shows, so that none is printed there.
        from_python: the user called a function, so that advice names its parameters.
        live: suggests trials as others end; those in ``selections`` are what it suggested before.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
        KeyboardInterrupt: after everything that was finished has been written. A limit of time ends a study in the
            same way, but raises nothing.
    """
    settings.check()
    trackers = choose_trackers(settings.tensorboard, settings.mlflow, settings.wandb)
    if in_notebook():
        import_quietly()
    interrupt = Immediate(settings.time_limit_seconds)
    console = make_console()
    resumed = settings.resume
    study = read_study(Path(resumed), option("resume", resumed)) if resumed else UNKNOWN
    if settings.resume and not settings.dry_run:
        check_unused(Path(settings.resume))  # a plan of what cannot begin would be for nothing
    trials = to_trials(selections, settings)
    if study.auto_batch or any(is_auto(trial.config) for trial in trials):
        settings = packed_uniformly(settings)
    trials = with_batches_of(study, trials)
    tasks = load_tasks(selections)
    described = description(tasks, trials, settings.seed, settings.seeds, settings.data_seed)
    attempts = earlier_attempts(settings, study, described)
    executor = executor or ray_executor(settings)
    with orderly(interrupt), closing(executor):
        with interrupt.at_once():  # nothing is written yet, and the user's own code may be stuck
            devices = usable(executor.devices(settings.device), settings)
        if settings.auto_memory and not settings.dry_run:
            # Starting Ray and estimating take seconds, so they overlap. Broken off, it would leave a Ray that nobody
            # closes.
            executor.prepare(devices)
        with interrupt.at_once():
            sized = size_batches(tasks, trials, devices, settings)
            plan, requests, misfits = plan_left(tasks, sized.estimates, trials, attempts, devices, settings, live)
            tried = live.trials if live else sized.trials
            estimates = live.estimates if live else sized.estimates
            print_beginning(console, plan, requests, attempts, tasks, sized, live)
            if settings.dry_run:
                print_needs(console, tasks, requests)
                return StudyResult(plan, estimates.raw)
            print_monitoring(console, plan, requests)
            if requests:
                trackers.connect()
        interrupt.check_signals()  # one that came where Python drops exceptions
        folder = open_folder(settings, tasks, label, len(attempts), console)
        with closing(folder):
            described = replace(described, command=command, options=options)
            study = describe_study(folder, study, described, tried, sized, plan, tasks, settings, live)
            running = Running(tasks, requests, misfits, estimates, plan, folder, settings, tried, live, study)
            broken = run_to_the_end(running, executor, console, interrupt, trackers)
            attempts = folder.attempts()
        result = StudyResult(
            plan,
            (live.estimates if live else estimates).raw,
            best_first(folder.rows(), metrics_of(tasks)),
            folder.path,
            {name: task.workload for name, task in tasks.items()},
        )
        if settings.auto_memory and settings.calibration:
            learn_from(result, settings, console)
        page = write_report(console, result, metrics_of(tasks), study) if settings.report else None
        with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
            if shows_end:
                figures = Figures(result.trials, attempts, plan, settings, metrics_of(tasks), from_python)
                print_end(console, result, figures, study, page, tables=not (returns_table and in_notebook()))
            if live and not broken and (early := live.ended_early()):
                console.print(early, markup=False, soft_wrap=True)
            if broken:
                console.print(how_to_continue(folder.path, study), markup=False, soft_wrap=True)
        if isinstance(broken, KeyboardInterrupt):
            raise broken
    return result
