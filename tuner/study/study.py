"""A study from its options to its results: the only file that knows the order of the stages."""

from __future__ import annotations

import dataclasses
import platform
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, TunerError
from tuner.execution.loop import Correction, Decisions, Executor, run_trials
from tuner.machine.interrupts import Interrupt, TimeLimitReached, orderly
from tuner.memory import calibration
from tuner.memory.feedback import StudyFeedback
from tuner.placement import Packer, Plan, need_bytes
from tuner.records.browse import best_first
from tuner.records.epochs import EPOCHS, read_epochs
from tuner.records.journal import read_attempts
from tuner.records.study_folder import ATTEMPTS, AUTO_BATCH, RESULTS, Row, StudyFolder, check_unused, read_study
from tuner.retry import Retry, next_attempt
from tuner.study.advice import Figures, advise
from tuner.study.again import program
from tuner.study.auto_batch import packed_uniformly, size_batches
from tuner.study.live_search import LiveSearch, first_suggestions, fitting
from tuner.study.planning import (
    Estimates,
    calibration_key,
    plan_requests,
    to_trials,
    usable,
    whole_bytes,
)
from tuner.study.recorder import Recorder
from tuner.study.resume import (
    check_same,
    description,
    ended,
    listed,
    remaining,
    to_ending,
    with_batches_of,
    with_more_samples,
    with_more_seeds,
)
from tuner.study.settings import Settings
from tuner.study.steering import Pruning, Steering
from tuner.trackers.choosing import choose_trackers
from tuner.trackers.feeds import Trackers
from tuner.trial import (
    ACCUMULATION,
    GB,
    SUCCESSFUL,
    Device,
    EpochReport,
    MemoryEstimate,
    Outcome,
    Request,
    Trial,
    is_auto,
    title,
)
from tuner.views.notebook import NotebookProgress, import_quietly, in_notebook
from tuner.views.progress import Progress
from tuner.views.seeds import has_seeds, print_averages
from tuner.views.tables import (
    estimate_accuracy,
    estimates_text,
    make_console,
    monitoring_text,
    plan_text,
    print_table,
    results_table,
)
from tuner.workloads import classes_of
from tuner.workloads.base import Choice, Jobs, accumulated, describe, load_jobs, metrics_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

Again = Callable[[Row, Path, Plan], str]


@dataclass(frozen=True)
class StudyResult:
    """What a study came to.

    Attributes:
        plan: how the trials shared the devices.
        estimates: each trial's estimate before calibration, by trial id.
        rows: one for each trial, each workload's best first, with the CSV's names; empty after a dry run.
        folder: where the results are; None after a dry run.
    """

    plan: Plan
    estimates: Mapping[str, MemoryEstimate]
    rows: list[Row] = field(default_factory=list)
    folder: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 if every trial was completed or pruned on purpose, else 1."""
        return 0 if all(row["status"] in SUCCESSFUL for row in self.rows) else 1

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame with the CSV's columns."""
        import pandas as pd

        from tuner.records.study_folder import columns

        return pd.DataFrame(self.rows, columns=columns(self.rows))


def run_study(
    choices: Sequence[Choice],
    settings: Settings,
    *,
    label: str,
    command: str,
    options: Mapping[str, Any] | None = None,
    again: Again | None = None,
    executor: Executor | None = None,
    returns_table: bool = False,
    from_python: bool = False,
    live: LiveSearch | None = None,
) -> StudyResult:
    """Runs every configuration and writes the results as they come.

    Args:
        choices: what to try of each workload, in the order in which trials are numbered.
        settings: how.
        label: ends the default folder's name: the mode.
        command: what the user called, for ``study.json``.
        options: the options of ``tune run`` that make this study, with which ``--resume`` makes it again.
        again: from a workload's best row, the folder and the plan, how to have that trial again; None prints no end.
        executor: what runs the trials; Ray by default.
        returns_table: the caller returns a table that a notebook shows, so that none is printed there.
        from_python: the user called a function, so that advice names its parameters.
        live: suggests trials as others end; those in ``choices`` are what it suggested before.

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
    interrupt = Interrupt(settings.time_limit_seconds)
    console = make_console()
    study = read_study(Path(settings.resume)) if settings.resume else {}
    if settings.resume and not settings.dry_run:
        check_unused(Path(settings.resume))  # a plan of what cannot begin would be for nothing
    trials = to_trials(choices, settings)
    if study.get(AUTO_BATCH) or any(is_auto(trial.config) for trial in trials):
        settings = packed_uniformly(settings)
    trials = with_batches_of(study, trials)
    jobs = load_jobs(choices)
    described = description(jobs, trials, settings.seed, settings.seeds, settings.data_seed)
    attempts = _earlier_attempts(settings, study, described)
    executor = executor or _ray(settings)
    with orderly(interrupt), closing(executor):
        devices = usable(executor.devices(settings.device), settings)
        if settings.auto_memory and not settings.dry_run:
            executor.prepare(devices)  # starting Ray and estimating take seconds, so they overlap
        sized = size_batches(jobs, trials, devices, settings)
        estimates = sized.estimates
        plan, requests, misfits = _plan(jobs, estimates, trials, attempts, devices, settings, live)
        tried = live.trials if live else sized.trials
        about = describe(jobs)
        console.print(plan_text(plan, requests, about, str(sized)), markup=False, soft_wrap=True)
        if live and live.left:
            console.print(_search_text(live), markup=False, soft_wrap=True)
        if not requests:
            console.print(_given_up(attempts), markup=False, soft_wrap=True, end="")
        interrupt.check_signals()
        if settings.dry_run:
            if requests:
                console.print(_estimates_text(jobs, requests), markup=False, soft_wrap=True)
            return StudyResult(plan, estimates.raw)
        if requests and (watch := monitoring_text(plan)):
            console.print(watch, markup=False, soft_wrap=True)
        if requests:
            trackers.connect()
        folder = _open_folder(settings, jobs, label, len(attempts), console)
        with closing(folder):
            if not settings.resume:
                study = {
                    **described,
                    **_tried(tried, jobs),
                    AUTO_BATCH: sized.by_trial(),
                    "classes": classes_of([job.workload for job in jobs.values()]),
                    "metrics": metrics_of(jobs),
                }
                study |= _description(command, options, about, settings, plan)
                folder.describe(study)
            elif live:
                study = with_more_samples({**study, **_tried(tried, jobs)}, settings.num_samples)
                folder.describe(study)
            elif settings.seeds > study.get("seeds", 1):
                study = with_more_seeds(study, trials, settings.seeds)
                folder.describe(study)
            running = _Running(jobs, requests, misfits, estimates, plan, folder, settings, tried, live, study)
            broken: BaseException | None = None
            try:
                if requests:
                    trackers.open(folder.path, study)
                _execute(running, executor, console, interrupt, trackers)
            except (KeyboardInterrupt, TimeLimitReached) as error:
                broken = error
            attempts = folder.attempts()
        result = StudyResult(plan, estimates.raw, best_first(folder.rows(), metrics_of(jobs)), folder.path)
        if settings.auto_memory and settings.calibration:
            _learn(console, result, settings)
        page = _write_page(console, result, metrics_of(jobs), again) if settings.report else None
        if again:
            with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
                tables = not (returns_table and in_notebook())
                figures = Figures(result.rows, attempts, plan, settings, metrics_of(jobs), from_python)
                _print_end(console, result, figures, again, page, tables=tables)
        if broken:
            with suppress(OSError):
                console.print(_how_to_go_on(folder.path, options), markup=False, soft_wrap=True)
        if isinstance(broken, KeyboardInterrupt):
            raise broken
    return result


def _search_text(live: LiveSearch) -> str:
    """What a live search adds to the plan."""
    return (
        f"{'search':<10} {live.settings.search}: {live.left} more trials are suggested as there is room for them, "
        "and planned for as if they were like these"
    )


def _given_up(attempts: Sequence[Row]) -> str:
    """What would run the trials of a finished study again that did not end well; empty if there are none."""
    last = Counter({row["trial_id"]: row["status"] for row in attempts}.values())
    remedies = {
        "out_of_memory": "--on-oom grow, a larger --max-attempts or more memory runs them again",
        "failed": "--max-failures 1 runs them again",
    }
    return "".join(f"{last[status]} {status}: {remedy}\n" for status, remedy in remedies.items() if last[status])


def _how_to_go_on(folder: Path, options: Mapping[str, Any] | None) -> str:
    call = (
        f"{program()} --resume {shlex.quote(str(folder))}" if options else f"the same call and resume={str(folder)!r}"
    )
    return f"go on with: {call}"


def _earlier_attempts(settings: Settings, study: Mapping[str, Any], described: Mapping[str, Any]) -> list[Row]:
    """The journal of the study that is gone on with; empty for a new one.

    Raises:
        InputError: it is of something else.
    """
    if not settings.resume:
        return []
    check_same(study, described, settings.resume)
    return read_attempts(Path(settings.resume) / ATTEMPTS)[0]


def _plan(
    jobs: Jobs,
    estimates: Estimates,
    trials: Sequence[Trial],
    attempts: Sequence[Row],
    devices: Sequence[Device],
    settings: Settings,
    live: LiveSearch | None,
) -> tuple[Plan, list[Request], list[Request]]:
    """The plan for the trials that are left, these, and those of a search that fit no device.

    Only where nothing is left, the plan is one for all of them. A live search is asked for its first trials.
    """
    whole = whole_bytes(devices, settings)
    policy, requests = settings.retry_policy, list(estimates.requests)
    left = remaining(requests, attempts, policy, whole_bytes=whole, accumulated=partial(accumulated, jobs))
    if live:
        live.recall(trials, ended(attempts, left), read_epochs(Path(settings.resume or "") / EPOCHS))
        left += first_suggestions(live, left, estimates, jobs, devices, whole)
    fit, misfits = fitting(left, whole, jobs, settings) if settings.search else (left, [])
    if fit:
        more = len(fit) + live.left if live else 0
        return *plan_requests(jobs, fit, devices, settings, more), misfits
    if misfits and not attempts:
        plan_requests(jobs, [min(misfits, key=lambda each: each.need_bytes)], devices, settings)  # says why not
    shown = [replace(request, need_bytes=min(request.need_bytes, whole)) for request in requests]
    return plan_requests(jobs, shown, devices, settings)[0], [], misfits


def _tried(trials: Sequence[Trial], jobs: Jobs) -> dict[str, Any]:
    return {"configurations": listed(trials, several=len(jobs) > 1)}


@dataclass(frozen=True)
class _Running:
    """A study that runs: what of it waits, and all that its decisions are made by."""

    jobs: Jobs
    requests: Sequence[Request]
    misfits: Sequence[Request]
    estimates: Estimates
    plan: Plan
    folder: StudyFolder
    settings: Settings
    trials: Sequence[Trial]
    live: LiveSearch | None
    study: Mapping[str, Any]

    @property
    def whole(self) -> int:
        """The most that a trial can be given, in bytes."""
        return whole_bytes(self.plan.devices, self.settings)


def _execute(study: _Running, executor: Executor, console: Console, interrupt: Interrupt, trackers: Trackers) -> None:
    """Runs the trials; whatever happens, every one of them has a row in the end."""
    jobs, requests, plan, folder, settings = study.jobs, study.requests, study.plan, study.folder, study.settings
    number = len(requests) + len(study.misfits) + (study.live.left if study.live else 0)
    known = [request.trial.config["epochs"] for request in requests]
    epochs = sum(known) * number // max(1, len(known))
    progress = (NotebookProgress if in_notebook() else Progress)(
        console, number, epochs, metrics_of(jobs), sum(plan.budgets), several_seeds=settings.seeds > 1
    )
    recorder = Recorder(folder, progress, requests, trackers)
    feedback = _feedback(study.estimates, folder)
    pruning = Pruning(settings.scheduler, metrics_of(jobs), study.trials)
    pruning.replay(read_epochs(folder.path / EPOCHS))
    steering = Steering(
        study.live,
        pruning,
        jobs,
        plan.devices,
        study.estimates,
        requests,
        study.whole,
        recorder,
        feedback,
        folder,
        study.study,
    )
    decisions = _decisions(jobs, feedback, settings, pruning, steering)
    try:
        with progress:
            for request in study.misfits:
                steering.misfit(request)
            if requests:
                interrupt.check()  # Ray takes seconds to start
                executor.open(jobs, plan, folder.checkpoints)
            corrected = map(feedback.correct, requests)
            run_trials(corrected, Packer(plan), executor, recorder, decisions, interrupt)
    except BaseException as error:
        cause = _cause(error, settings)
        with suppress(TunerError):  # that the rows cannot be written either would hide why
            recorder.close(cause)
        raise
    recorder.close("")


def _cause(error: BaseException, settings: Settings) -> str:
    """Why a study ended before its trials did, in a word or two."""
    if isinstance(error, TimeLimitReached):
        return f"time limit of {settings.time_limit_text} reached"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "the study broke off"


def _feedback(estimates: Estimates, folder: StudyFolder) -> StudyFeedback:
    """What is known of the trials' memory; the attempts of a study that is gone on with have told some already."""
    feedback = StudyFeedback(estimates.raw, estimates.known, need_bytes)
    trials = {request.trial.trial_id: request.trial for request in estimates.requests}
    for row in folder.attempts():
        if f"config/{ACCUMULATION}" not in row and row["trial_id"] in trials:
            feedback.learn(trials[row["trial_id"]], to_ending(row))
    return feedback


def _decisions(
    jobs: Jobs, feedback: StudyFeedback, settings: Settings, pruning: Pruning, steering: Steering
) -> Decisions:
    """What follows an attempt, what it tells of the trials that wait, and what a search and a scheduler decide."""
    policy = settings.retry_policy
    jitter = Random(settings.seed)

    def try_again(request: Request, outcome: Outcome, whole_bytes: int) -> Retry | None:
        return next_attempt(
            request,
            outcome.ending,
            policy,
            whole_bytes=whole_bytes,
            accumulated=partial(accumulated, jobs),
            random=jitter.random,
        )

    def learn(outcome: Outcome) -> Correction | None:
        return feedback.correct if feedback.learn(outcome.trial, outcome.ending) else None

    def prune(report: EpochReport) -> bool:
        steering.reported(report)
        return pruning.stops(report)

    return Decisions(try_again, learn, steering.suggest, prune, steering.ended)


def _ray(settings: Settings) -> Executor:
    from tuner.execution.ray_executor import RayExecutor

    return RayExecutor(
        expandable_segments=settings.expandable_segments,
        address=settings.address,
        caps=settings.caps,
        checkpoint_seconds=settings.checkpoint_seconds,
    )


def _learn(console: Console, result: StudyResult, settings: Settings) -> None:
    """Keeps what completed trials took, so that the next study on this machine estimates and packs better."""
    devices = {device.label: device for device in result.plan.devices}
    samples: dict[str, list[calibration.Sample]] = {}
    for row in result.rows:
        estimate = result.estimates[row["trial_id"]]
        as_estimated = estimate.method == "traced" and f"config/{ACCUMULATION}" not in row
        if row["status"] == "completed" and row["peak_memory_gb"] and as_estimated and row["device"] in devices:
            key = calibration_key(row["workload"], devices[row["device"]], settings)
            samples.setdefault(key, []).append(calibration.to_sample(estimate, int(row["peak_memory_gb"] * GB)))
    try:
        for key, measured in samples.items():
            calibration.record(key, measured)
    except TunerError as error:  # the study is complete all the same
        console.print(f"not calibrated: {error}", markup=False, soft_wrap=True)


def _write_page(
    console: Console, result: StudyResult, metrics: Mapping[str, str], again: Again | None
) -> Path | None:
    """Writes the study's page; what goes wrong with it costs a line, as the results are complete without it."""
    folder = result.folder
    assert folder is not None
    try:
        from tuner.views.page.files import REPORT, write_page
        from tuner.views.page.study import read_page_study

        study = read_page_study(folder, metrics, lambda row: again(row, folder, result.plan) if again else "")
        write_page(study, folder / REPORT)
    except Exception as error:
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        with suppress(OSError):
            again_by = f"{program()} report {shlex.quote(str(folder))} tries again"
            console.print(f"no {folder}/report.html: {said}; {again_by}", markup=False, soft_wrap=True)
        return None
    return folder / REPORT


def _open_folder(settings: Settings, jobs: Jobs, label: str, attempts: int, console: Console) -> StudyFolder:
    """The folder that was asked for, that of the study that is gone on with, or a new one that no other study has."""
    if settings.resume:
        folder = StudyFolder.resume(Path(settings.resume), metrics_of(jobs))
        if len(folder.attempts()) != attempts:  # it was not locked when they were read
            folder.close()
            raise InputError(f"--resume {settings.resume}: another run has just written there; look at it again")
        for note in folder.notes:
            console.print(note, markup=False, soft_wrap=True)
        return folder
    if settings.output:
        return StudyFolder(Path(settings.output), metrics_of(jobs))
    base = Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{'+'.join(jobs)}-{label}"
    number, path = 1, base
    while True:
        try:
            return StudyFolder(path, metrics_of(jobs), new=True)
        except FileExistsError:
            number += 1
            path = base.with_name(f"{base.name}-{number}")


def _description(
    command: str, options: Mapping[str, Any] | None, data: str, settings: Settings, plan: Plan
) -> dict[str, Any]:
    """What ``study.json`` holds, beside what makes the study the one that it is."""
    packages = ("torch", "ray", "numpy")
    return {
        "command": command,
        "options": options,
        "data": data,
        "settings": dataclasses.asdict(settings),
        "plan": {**dataclasses.asdict(plan), "workers": plan.workers},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _estimates_text(jobs: Jobs, requests: Sequence[Request]) -> str:
    """What each configuration will need; it is the same for all of its seeds."""
    several = len(jobs) > 1
    listed = {title(each.trial.workload, each.trial.name, several=several): each.estimate for each in requests}
    return estimates_text(list(listed.items()))


def _print_end(
    console: Console,
    result: StudyResult,
    figures: Figures,
    again: Again,
    page: Path | None,
    *,
    tables: bool,
) -> None:
    """Each workload's table, what follows from it, where the CSV is, and how to have the best trials again."""
    assert result.folder is not None
    metrics = figures.metrics
    several = len(metrics) > 1
    lines = [estimate_accuracy(result.rows)] if figures.settings.auto_memory else []
    lines += [f"advice: {said}" for said in advise(figures)]
    lines += [f"results: {result.folder / RESULTS}", f"report: {page}" if page else ""]
    for workload, metric in metrics.items():
        rows = [row for row in result.rows if row["workload"] == workload]
        if several:
            console.print(workload, style="bold", markup=False)
        if tables:
            _print_tables(console, rows, metric)
        best = next((row for row in rows if row["status"] == "completed"), None)
        if best:
            name = title(workload, best["name"], several=several, seed=best["seed"] if has_seeds(rows) else None)
            which = "best single trial" if has_seeds(rows) else "best"
            lines.append(
                f"{which}: {name}, {metric} {best[metric]:.4f}. Again: {again(best, result.folder, result.plan)}"
            )
    console.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)


def _print_tables(console: Console, rows: Sequence[Row], metric: str) -> None:
    """A workload's trials; with several seeds its configurations, and of the trials those that are not completed."""
    if not has_seeds(rows):
        print_table(console, results_table(rows, metric))
        return
    print_averages(console, rows, metric)
    others = [row for row in rows if row["status"] != "completed"]
    if ran := [row for row in others if row["device"]]:
        print_table(console, results_table(ran, metric, seeds=True))
    if len(others) > len(ran):
        console.print(f"{len(others) - len(ran)} of {len(rows)} trials never started")
