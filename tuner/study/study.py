"""Runs a study: the order of the stages.

    specify ──► load ──► prepare ──► execute ──► show

``tuner.spec.specify`` is the first, ``prepare.py`` has the next two, ``execute.py`` and ``show.py`` the last.
"""

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from tuner.errors import DevicesLost, in_python
from tuner.estimation.estimators import with_contexts
from tuner.execution.executor import Executor
from tuner.integrations.trackers.selection import choose_trackers
from tuner.machine.first_use import remove_compiled_folder
from tuner.machine.interrupts import Immediate, orderly
from tuner.records.files import DECISIONS
from tuner.reporting import phases
from tuner.reporting.console import in_notebook, make_console
from tuner.reporting.decision_log import DecisionLog
from tuner.reporting.progress import import_quietly
from tuner.spec.spelling import in_terminal
from tuner.spec.study_spec import StudySpec
from tuner.study.execute import RunContext, execute
from tuner.study.executors import for_plan, make_executor, several_expected
from tuner.study.prepare import load, prepare
from tuner.study.result import StudyResult, learn_from
from tuner.study.show import show_end, show_live_page, show_monitoring, show_needs, show_plan
from tuner.study.study_json import open_folder, to_record
from tuner.workloads.packages import installed


def run_study(spec: StudySpec, executor: Executor | None = None) -> StudyResult:
    """Runs every configuration and writes the results as they come.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
        KeyboardInterrupt: after all finished work has been written. A time limit ends a study in the same way, but
            raises nothing.
    """
    settings = spec.settings
    trackers = choose_trackers(settings.tensorboard, settings.mlflow, settings.wandb)
    if in_notebook():
        import_quietly()
    interrupt = Immediate(settings.time_limit_seconds)
    console = make_console(in_python if spec.from_python else in_terminal)
    loaded = load(spec)
    if executor is None and not settings.in_process:
        from tuner.execution.mapped_arrays import check_sendable

        check_sendable(loaded.tasks)
    given, executor = executor, executor or make_executor(settings)
    with orderly(interrupt), ExitStack() as started:
        started.callback(remove_compiled_folder)
        decisions = started.enter_context(DecisionLog())
        started.enter_context(closing(executor))
        codes = [getattr(task.workload, "path", task.workload.code) for task in loaded.tasks.values()]
        executor.packages, executor.find_on_node = partial(installed, codes), with_contexts()
        with interrupt.at_once():  # nothing is written yet, and the user's own code may be stuck
            where = f"joining the cluster {settings.cluster}" if settings.cluster else "looking for devices"
            with phases.lasting(where, console):
                devices = executor.devices(settings.device)
        several = several_expected(settings, devices, loaded.most_trials)
        if several and loaded.settings.estimates_memory and not settings.dry_run:
            # Starting Ray and estimating take seconds, so they overlap. Broken off, it would leave a Ray that nobody
            # closes.
            executor.prepare(loaded.tasks, devices, settings.threads or 1)
        with interrupt.at_once():
            study, steering = prepare(loaded, devices)
            study = replace(study, notes=[*study.notes, *executor.left_out])
            show_plan(console, study)
            if settings.dry_run:
                show_needs(console, study)
                return StudyResult(study.plan, study.estimates.raw)
            show_monitoring(console, study)
            record = to_record(study)
            if study.requests:
                trackers.connect()
        interrupt.check_signals()  # one that came where Python drops exceptions
        if given is None:
            executor = started.enter_context(closing(for_plan(executor, study.plan, settings)))
        folder = open_folder(study, console)
        folder.code = len(record.code) or None
        with closing(folder):
            if record != study.record:
                folder.describe(record)
            show_live_page(console, study, folder.path)
            context = RunContext(executor, console, interrupt, trackers)
            decisions.open(folder.path / DECISIONS)
            broken = execute(study, steering, folder, record, context)
            if scales := steering.source.scales():  # an objective defines its space as it runs
                record = replace(record, scales=scales)
                folder.describe(record)
        workloads = {name: task.workload for name, task in study.tasks.items()}
        plan = steering.engine.state.plan or study.plan  # with devices that have joined
        result = StudyResult(plan, steering.source.estimates.raw, folder.recorded(record), workloads)
        if study.settings.estimates_memory and study.settings.calibration:
            learn_from(result, study, console)
        show_end(console, study, result, early=broken is not None, fewer=steering.source.ended_early())
        if isinstance(broken, (KeyboardInterrupt, DevicesLost)):
            raise broken
    return result.with_objects()
