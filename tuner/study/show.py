"""What a study shows: its plan before the trials run, and its page, tables and advice when they have ended."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import TunerError, one_line, option
from tuner.objective import Objective
from tuner.records.attempts import NOT_KEPT, Attempt
from tuner.records.files import RESULTS
from tuner.records.recorded_study import open_study
from tuner.records.row_queries import varying
from tuner.records.seed_statistics import has_seeds
from tuner.records.study_record import StudyRecord
from tuner.reporting import phases
from tuner.reporting.console import in_notebook, line_width, print_text
from tuner.reporting.plan_text import estimates_text, monitoring_text, plan_text
from tuner.reporting.result_tables import best_text, estimate_accuracy, print_averages, print_trials
from tuner.reporting.texts import count_text
from tuner.spec.settings import Settings
from tuner.study.advice import Figures, advise
from tuner.study.executors import processes_line
from tuner.study.live_search import infeasible_text
from tuner.study.prepare import Study
from tuner.study.repeat import command, how_to_repeat, program
from tuner.study.result import StudyResult
from tuner.study.stored_options import needs_objects, same_call
from tuner.study.study_json import doubt
from tuner.trial import Status, title
from tuner.workloads.task import describe

if TYPE_CHECKING:
    from rich.console import Console

REMEDIES: dict[Status, str] = {
    "out_of_memory": f"{option('on_oom', 'grow')}, a larger {option('max_attempts')} or more memory runs them again",
    "failed": f"{option('max_failures', 1)} runs them again",
    "stalled": f"they were tried twice; a new study with a longer {option('trial_timeout')} runs them again",
}


def show_plan(console: Console, study: Study) -> None:
    """Prints the plan and a search's part in it; if nothing is left to run, how to run trials again."""
    data, batches = describe(study.tasks), study.sized.text
    bound = "in_process" if study.settings.in_process else "max_workers"
    lines = [plan_text(study.plan, study.requests, data, batches, study.seconds, bound)]
    lines += [*left_out(study), *filter(None, study.notes)]
    if study.requests and (how := processes_line(study.plan, study.tasks, study.settings)):
        lines.append(how)
    if study.left:
        name = study.settings.search_name or "Optuna"
        more = "more trials" if study.selected.is_endless else count_text(study.left, "more trial")
        lines.append(
            f"{'search':<10} {name}: {more} to be suggested as there is room, planned for as if they were like these"
        )
    if not study.requests:
        last = Counter({row.trial_id: row.status for row in study.attempts}.values())
        lines += [f"{last[status]} {status}: {remedy}" for status, remedy in REMEDIES.items() if last[status]]
    print_text(console, "\n".join(lines))


def left_out(study: Study) -> list[str]:
    """A line for each trial that fits no device or breaks a constraint."""
    several = len(study.tasks) > 1
    return [
        f"{'left out':<10} {title(request.trial.workload, request.trial.name, several=several)}: "
        f"{infeasible_text(request, study.limits, study.settings)}"
        for request in study.infeasible
    ]


def show_needs(console: Console, study: Study) -> None:
    """Prints each configuration's needs, which are the same for all seeds."""
    several = len(study.tasks) > 1
    needs = {
        title(request.trial.workload, request.trial.name, several=several): request.estimate
        for request in study.requests
    }
    if needs:
        print_text(console, estimates_text(list(needs.items()), line_width(console)))


def show_monitoring(console: Console, study: Study) -> None:
    """Prints the commands that show the devices' memory while trials run."""
    if study.requests and (watch := monitoring_text(study.plan)):
        print_text(console, watch)


def write_report(console: Console, result: StudyResult, record: StudyRecord) -> Path | None:
    """Writes the study's page. A failure is one printed line, as the results are complete without it."""
    folder = Path(result)
    phases.show("writing the report")
    try:
        from tuner.reporting.figures.chart import check_plotly
        from tuner.reporting.page.document import REPORT, Page, library_file, write_page
        from tuner.reporting.page.sections import main_html

        check_plotly()
        shown, page = open_study(folder), folder / REPORT
        main = main_html(shown, lambda row: how_to_repeat(record, row, folder))
        write_page(Page(shown.name, main), page, library_file(folder, page))
    except Exception as error:
        fault = getattr(error, "strerror", None) or f"{type(error).__name__}: {one_line(error)}"
        again = f"{program()} report {shlex.quote(str(folder))} tries again"
        said = error.text if isinstance(error, TunerError) else f"{fault}; {again}"  # else it says the remedy itself
        with suppress(OSError):
            print_text(console, f"no report: {said}")
        return None
    return page


def show_end(
    console: Console, study: Study, result: StudyResult, record: StudyRecord, *, early: bool, fewer: str = ""
) -> None:
    """Writes the study's page and prints its results; ``fewer`` says why a search ended early."""
    page = write_report(console, result, record) if study.settings.report else None
    with suppress(OSError):  # nobody reads it any more: a closed pipe or terminal
        if study.selected.shows_end:
            _print_end(console, study, result, record, page)
        if result.study.unkept:
            print_text(console, _unkept(result))
        if fewer and not early:
            print_text(console, fewer)
        if early:
            print_text(console, how_to_continue(Path(result), record))


def _print_end(console: Console, study: Study, result: StudyResult, record: StudyRecord, page: Path | None) -> None:
    """Prints each workload's table, advice, the files, and how to repeat the best trials."""
    folder, several = Path(result), len(study.objectives) > 1
    tables = not (study.selected.returns_table and in_notebook())
    programs = record.programs
    figures = Figures(result.trials, result.study.attempts, result.plan, study.settings, programs)
    lines = [estimate_accuracy(result.trials, record.plan.first_shares)] if study.settings.estimates_memory else []
    lines += [f"advice: {said}" for said in advise(figures)]
    lines += [f"results: {folder / RESULTS}", f"report: {page}" if page else ""]
    for workload, objective in study.objectives.items():
        rows = result.study.of_workload(workload)
        if several:
            console.print(workload, style="bold", markup=False)
        if tables:
            _print_tables(console, rows, objective, result.workloads[workload].headline)
        if best := result.study.best(workload):
            name = title(workload, best.name, several=several, seed=best.seed if has_seeds(rows) else None)
            said = best_text(best, rows, objective)
            if not said.endswith(f" with {name.replace(',', ', ')}"):  # a grid's names are the values
                said = f"{name}, {said}"
            which = "best single trial" if has_seeds(rows) else "best"
            if objective.others:
                front = result.study.front(workload)
                lines.append(f"front: {count_text(len(front), 'trial')} that none is better than in everything")
                which = f"best by {objective.metric}"
            again = how_to_repeat(record, best, folder)
            lines.append(f"{which}: {said}. Again: {again}")
            lines.append(f"warning: {said}" if (said := doubt(study.tasks[workload])) else "")
    print_text(console, "\n".join(line for line in lines if line))


def _unkept(result: StudyResult) -> str:
    """Names the trials whose weights are better than the kept ones but could not be kept, and says why."""
    first, *others = result.study.unkept
    several, more = len(result.objectives) > 1, f" and {len(others)} more" if others else ""
    which = f"{title(first.workload, first.name, several=several)} ({first.trial_id}){more}"
    reason = first.error.removeprefix(f"{NOT_KEPT}: ")
    return f"best.pt is not of the best trial: the weights of {which} could not be kept: {reason}"


def _print_tables(console: Console, rows: Sequence[Attempt], objective: Objective, headline: Sequence[str]) -> None:
    """Prints a workload's trials; with several seeds its configurations, and the trials that are not completed."""
    if not has_seeds(rows):
        print_trials(console, rows, objective, headline)
        return
    print_averages(console, rows, objective, varying(rows), headline)
    others = [row for row in rows if row.status != "completed"]
    if ran := [row for row in others if row.device]:
        print_trials(console, ran, Objective(objective.metric), headline)
    if len(others) > len(ran):
        console.print(f"{len(others) - len(ran)} of {count_text(len(rows), 'trial')} never started")


def how_to_continue(folder: Path, study: StudyRecord) -> str:
    """The command, or the call, that continues a study that was ended early."""
    if study.options and not needs_objects(study):
        return f"continue with: {command(Settings(resume=str(folder)))}"
    return f"continue with: {same_call(str(folder))}"
