"""What a study shows: its plan before the trials run, and its page, tables and advice when they have ended."""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.decisions.capacity import bound_by_cores, within_cores
from tuner.decisions.plan import Plan
from tuner.errors import NOT_GIVEN, TunerError, joined, one_line, option
from tuner.objective import Objective
from tuner.records.attempts import NOT_KEPT, Attempt
from tuner.records.files import RESULTS
from tuner.records.recorded_study import open_study
from tuner.records.row_queries import varying
from tuner.records.seed_statistics import has_seeds
from tuner.records.study_record import StudyRecord
from tuner.reporting import phases
from tuner.reporting.console import in_notebook, line_width, print_text, print_wrapped
from tuner.reporting.plan_text import estimates_text, monitoring_text, plan_text
from tuner.reporting.result_tables import best_text, estimate_accuracy, print_averages, print_trials
from tuner.reporting.texts import count_text, labelled
from tuner.spec.commands import ReportOptions
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments, command, program
from tuner.spec.stored_options import needs_objects, same_call
from tuner.study.executors import processes_line
from tuner.study.past_trial import how_to_repeat
from tuner.study.prepare import Study
from tuner.study.result import StudyResult
from tuner.study.study_json import doubt
from tuner.trial import GB, Request, Status, title
from tuner.workloads.task import describe

if TYPE_CHECKING:
    from rich.console import Console

SPARE = 1.1  # what is advised exceeds what was measured by so much
REMEDIES: dict[Status, str] = {
    "out_of_memory": f"{option('on_oom', 'grow')}, a larger {option('max_attempts')} or more memory runs them again",
    "failed": f"{option('max_failures', 1)} runs them again",
    "stalled": f"they were tried twice; a new study with a longer {option('trial_timeout')} runs them again",
}


def show_plan(console: Console, study: Study) -> None:
    """Prints the plan and a search's part in it; if nothing is left to run, how to run trials again."""
    bound = "in_process" if study.settings.in_process else "max_workers"
    lines = [
        plan_text(study.plan, study.requests, describe(study.tasks), study.sized.text, study.seconds, bound),
        *left_out(study),
        *study.spec.whole_lists,
        *study.notes,
    ]
    if study.settings.cluster and not study.settings.address:
        own = f"{option('address', 'local')} starts a Ray of the study's own"
        lines.append(labelled("cluster", f"{study.settings.cluster}, by RAY_ADDRESS; {own}"))
    if study.requests:
        lines.append(processes_line(study.plan, study.tasks, study.settings))
    if study.left:
        name = study.settings.search_name or "Optuna"
        more = "more trials" if study.spec.is_endless else count_text(study.left, "more trial")
        lines.append(
            labelled(
                "search", f"{name} suggests {more} as room becomes free; the plan assumes that they are like these"
            )
        )
    if not study.requests:
        last = Counter({row.trial_id: row.status for row in study.attempts}.values())
        lines += [f"{last[status]} {status}: {remedy}" for status, remedy in REMEDIES.items() if last[status]]
    if text := joined(*lines, by="\n"):
        print_wrapped(console, text)


def left_out(study: Study) -> list[str]:
    """A line for each trial that fits no device or breaks a constraint."""
    names = _names(study, study.infeasible)
    reasons = [study.needs.infeasible_text(request) for request in study.infeasible]
    return [labelled("left out", f"{name}: {reason}") for name, reason in zip(names, reasons, strict=True)]


def show_needs(console: Console, study: Study) -> None:
    """Prints each configuration's needs, which are the same for all seeds."""
    estimates = [request.estimate for request in study.requests]
    if needs := dict(zip(_names(study, study.requests), estimates, strict=True)):
        print_text(console, estimates_text(list(needs.items()), line_width(console)))


def show_monitoring(console: Console, study: Study) -> None:
    """Prints the commands that show the devices' memory while trials run."""
    _print_lines(console, [monitoring_text(study.plan)] if study.requests else [])


def show_live_page(console: Console, study: Study, folder: Path) -> None:
    """Prints the command that serves the study's page while trials run."""
    command = f"{program()} report {shlex.join([str(folder), *arguments(ReportOptions(watch=True))])}"
    _print_lines(console, [labelled("live page", command)] if study.requests and study.settings.report else [])


def _names(study: Study, requests: Sequence[Request]) -> list[str]:
    several = len(study.tasks) > 1
    return [title(request.trial.workload, request.trial.name, several=several) for request in requests]


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    """Prints the lines that are not empty."""
    if text := joined(*lines, by="\n"):
        print_text(console, text)


def write_report(console: Console, result: StudyResult) -> Path | None:
    """Writes the study's page. A failure is one printed line, as the results are complete without it."""
    folder = Path(result)
    phases.show("writing the report")
    try:
        from tuner.reporting.figures.chart import check_plotly
        from tuner.reporting.page.document import REPORT, Page, library_file, write_page
        from tuner.reporting.page.sections import main_html

        check_plotly()
        study, page = open_study(folder), folder / REPORT
        main = main_html(study, lambda row: how_to_repeat(result.study.record, row, folder))
        write_page(Page(study.name, main), page, library_file(folder, page))
    except Exception as error:
        fault = getattr(error, "strerror", None) or f"{type(error).__name__}: {one_line(error)}"
        remedy = f"{program()} report {shlex.quote(str(folder))} tries again"
        reason = error.text if isinstance(error, TunerError) else f"{fault}; {remedy}"  # else it has a remedy itself
        with suppress(OSError):
            print_text(console, f"no report: {reason}")
        return None
    return page


def show_end(console: Console, study: Study, result: StudyResult, *, early: bool, fewer: str = "") -> None:
    """Writes the study's page and prints its results; ``fewer`` says why a search ended early."""
    page = write_report(console, result) if study.settings.report else None
    with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
        if study.spec.shows_end:
            _print_end(console, study, result, page)
        lines = [_unkept(result), _next_step(result) if early else fewer]
        _print_lines(console, lines)


def _print_end(console: Console, study: Study, result: StudyResult, page: Path | None) -> None:
    """Prints each workload's table, advice, the files, and how to repeat the best trials."""
    folder, record, several = Path(result), result.study.record, len(study.objectives) > 1
    tables = not (study.spec.returns_table and in_notebook())
    figures = Figures(result.trials, result.study.attempts, result.plan, study.settings, record.programs)
    lines = [estimate_accuracy(result.trials)] if study.settings.estimates_memory else []
    lines += _remarks(result.trials)
    lines += [f"advice: {sentence}" for sentence in advise(figures)]
    lines += [f"results: {folder / RESULTS}", f"report: {page}" if page else ""]
    for workload, objective in study.objectives.items():
        rows = result.study.of_workload(workload)
        if several:
            console.print(workload, style="bold", markup=False)
        if tables:
            _print_tables(console, rows, objective, result.workloads[workload].headline)
        if best := result.study.best(workload):
            seeds = has_seeds(rows)
            name = title(workload, best.name, several=several, seed=best.seed if seeds else None)
            values = best_text(best, rows, objective)
            if not values.endswith(f" with {name.replace(',', ', ')}"):  # a grid's names are the values
                values = f"{name}, {values}"
            which = "best single trial" if seeds else "best"
            if objective.others:
                front = count_text(len(result.study.front(workload)), "trial")
                lines.append(f"front: {front} that no other one beats in every metric")
                which = f"best by {objective.metric}"
            lines.append(f"{which}: {values}. Again: {how_to_repeat(record, best, folder)}")
            caution = doubt(study.tasks[workload])
            lines.append(caution and f"warning: {caution}")
    _print_lines(console, lines)


def _remarks(rows: Sequence[Attempt]) -> list[str]:
    """A line for each kind of remark on trials that are completed, with the first one."""
    kinds: dict[str, list[Attempt]] = {}
    for row in rows:
        if row.status == "completed" and row.error and not row.error.startswith(NOT_KEPT):
            kinds.setdefault(row.error.partition(": ")[0], []).append(row)
    counts = {kind: f" (and {len(alike) - 1} more trials)" * (len(alike) > 1) for kind, alike in kinds.items()}
    return [f"warning: {alike[0].name}: {alike[0].error}{counts[kind]}" for kind, alike in kinds.items()]


def _unkept(result: StudyResult) -> str:
    """Names the trials whose weights are better than the kept ones but could not be kept; empty if none is."""
    if not result.study.unkept:
        return ""
    first, *others = result.study.unkept
    several, more = len(result.objectives) > 1, f" and {len(others)} more" if others else ""
    which = f"{title(first.workload, first.name, several=several)} ({first.trial_id}){more}"
    reason = first.error.removeprefix(f"{NOT_KEPT}: ")
    return f"best.pt is not of the best trial: the weights of {which} could not be kept: {reason}"


def _print_tables(console: Console, rows: Sequence[Attempt], objective: Objective, headline: Sequence[str]) -> None:
    """Prints a workload's trials; with several seeds its configurations, and the trials that are not completed."""
    if not has_seeds(rows):
        ran = [row for row in rows if row.device or row.status != "interrupted"]
        if ran:
            print_trials(console, ran, objective, headline)
        if len(rows) > len(ran):
            console.print(f"{len(rows) - len(ran)} of {count_text(len(rows), 'trial')} never started")
        return
    print_averages(console, rows, objective, varying(rows), headline)
    others = [row for row in rows if row.status != "completed"]
    if ran := [row for row in others if row.device]:
        print_trials(console, ran, Objective(objective.metric), headline)
    if len(others) > len(ran):
        console.print(f"{len(others) - len(ran)} of {count_text(len(rows), 'trial')} never started")


def _next_step(result: StudyResult) -> str:
    """How to go on with a study that was ended early; one in which all trials failed needs a remedy first."""
    failed = [row for row in result.trials if row.status == "failed"]
    if not failed or any(row.status not in ("failed", "interrupted") for row in result.trials):
        return how_to_continue(Path(result), result.study.record)
    again = option("resume", os.fspath(result))
    return f"no trial has succeeded: mend the error first; {again} with {REMEDIES['failed']}"


def how_to_continue(folder: Path, study: StudyRecord) -> str:
    """The command, or the call, that continues a study that was ended early."""
    if study.options and not needs_objects(study):
        return f"continue with: {command(Settings(resume=str(folder)))}"
    return f"continue with: {same_call(str(folder))}"


@dataclass(frozen=True)
class Figures:
    """The figures that advice follows from."""

    rows: Sequence[Attempt]  # the study's trials, as the journal has their last attempts
    attempts: Sequence[Attempt]  # all of the journal
    plan: Plan  # how the trials shared the devices
    settings: Settings  # the study's
    programs: Collection[str] = ()  # the workloads that are functions or scripts


def advise(figures: Figures) -> list[str]:
    """Advice for the next study, the most useful first; each gives its figures and names an option."""
    return list(filter(None, (_out_of_memory(figures), _shares(figures))))


def _out_of_memory(figures: Figures) -> str:
    """Advice on trials that ran out of memory: how much is enough, or how to make them smaller."""
    settings, ran_out = figures.settings, [row for row in figures.attempts if row.status == "out_of_memory"]
    programs = any(row.workload in figures.programs for row in ran_out)
    if not ran_out or (programs and settings.estimates_memory):  # nothing can measure a step of these
        return ""
    names, most = {row.trial_id for row in ran_out}, max(row.limit_gb or 0.0 for row in ran_out)
    last = [row for row in figures.rows if row.trial_id in names]
    given_up = sum(row.status == "out_of_memory" for row in last)
    enough = max((row.limit_gb or 0.0 for row in last if row.status == "completed"), default=0.0)
    whole = most * GB >= 0.99 * figures.plan.limits().device_bytes
    if given_up and whole and programs:
        return ""
    if given_up and whole and settings.on_oom != "accumulate":
        remedy = f"a whole device was not enough for {given_up}: {_advised('on_oom', 'accumulate')} halves them"
    elif settings.estimates_memory and settings.memory_estimation == "measured":
        return ""
    elif settings.estimates_memory:
        remedy = f"{_advised('memory_estimation', 'measured')} measures a step of each instead"
    elif enough and not given_up:
        remedy = f"{_advised(settings.given_by, _up(enough))} was enough in the end"
    else:
        remedy = f"without {_advised(settings.given_by)} the need of each is estimated"
    times = count_text(len(ran_out), "time")
    return f"{count_text(len(names), 'trial')} ran out of memory {times}, with {most:.2f} GB at most: {remedy}"


def _shares(figures: Figures) -> str:
    """Advice on smaller shares, if unused memory kept trials waiting."""
    plan, settings, peaks = figures.plan, figures.settings, _peaks(figures)
    share, ran_out = settings.given_gb, any(row.status == "out_of_memory" for row in figures.attempts)
    if settings.estimates_memory or share is None or plan.bound != "memory" or not peaks or ran_out:
        return ""
    enough = _up(max(peaks) * SPARE)
    bound_to = bound_by_cores(plan.devices, plan.max_workers)
    fit = within_cores([int(budget / (enough * GB)) for budget in plan.budgets], bound_to)
    most = min(sum(fit), settings.max_workers or sum(fit), len(figures.rows))
    if enough >= share or most <= plan.workers:
        return ""
    peaks_text = f"peaks reached {max(peaks) / share:.0%} of the shares: {_advised(settings.given_by, enough)}"
    return f"{peaks_text} would run {most} instead of {plan.workers} at once"


def _peaks(figures: Figures) -> list[float]:
    """Each trial's peak in GB, taken as its configuration's largest; empty if a configuration has none."""
    largest = defaultdict[tuple[str, str], float](float)
    for row in figures.rows:
        if row.status == "completed":
            largest[row.workload, row.name] = max(largest[row.workload, row.name], row.peak_memory_gb or 0.0)
    peaks = [largest[row.workload, row.name] for row in figures.rows]
    return peaks if all(peaks) else []


def _up(gb: float) -> float:
    """A number of GB rounded up to hundredths."""
    return math.ceil(round(100 * gb, 6)) / 100


def _advised(name: str, value: object = NOT_GIVEN) -> str:
    """An option, and its value if one is advised, rounded to hundredths."""
    return f"`{option(name, round(value, 2) if isinstance(value, float) else value)}`"
