"""The end of a study: calibration, its page, its tables, and how to continue it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.decisions.plan import is_tight
from tuner.errors import TunerError, one_line
from tuner.hyperparameters import shrunk
from tuner.objective import Objective
from tuner.records.attempts import NOT_KEPT, Attempt
from tuner.records.epochs import seconds_per_epoch
from tuner.records.files import RESULTS
from tuner.records.recorded_study import open_study
from tuner.records.row_queries import varying
from tuner.records.seed_statistics import has_seeds
from tuner.records.study_record import StudyRecord
from tuner.reporting import phases
from tuner.reporting.console import in_notebook, print_text
from tuner.reporting.result_tables import best_text, estimate_accuracy, print_averages, print_trials
from tuner.reporting.texts import count_text
from tuner.spec.settings import Settings
from tuner.study.advice import Figures, advise
from tuner.study.planning import estimation_service
from tuner.study.prepare import Study
from tuner.study.record import doubt
from tuner.study.repeat import command, how_to_repeat, program
from tuner.study.result import StudyResult
from tuner.study.stored_options import needs_objects, same_call
from tuner.trial import RANKS, MemoryEstimate, title

if TYPE_CHECKING:
    from rich.console import Console


def learn_from(study: Study, result: StudyResult, console: Console) -> None:
    """Records what completed trials took, so that later studies on this machine estimate better."""
    names = {device.label: device.name for device in result.plan.devices}
    took = seconds_per_epoch(result.study.epochs)
    ended: dict[tuple[str, str], list[tuple[MemoryEstimate, Attempt]]] = {}
    for row in result.trials:
        raw = result.estimates.get(row.trial_id)  # a changed line of the journal may be of no trial
        alone = not shrunk(row.config) and row.config.get(RANKS, 1) == 1
        if raw and row.status == "completed" and row.device in names and alone:
            ended.setdefault((row.workload, names[row.device]), []).append((raw, row))
    service = estimation_service(study.settings)
    try:
        for (workload, device), trials in ended.items():
            task = study.tasks[workload]
            peaks = [(raw, row.peak_bytes) for raw, row in trials if row.peak_bytes and not _filled(raw, row)]
            in_ram = [(raw, row.peak_ram_bytes) for raw, row in trials if row.peak_ram_bytes and raw.host_bytes]
            times = [(raw, row.config, took[row.trial_id]) for raw, row in trials if row.trial_id in took]
            service.learn(workload, device, peaks)
            if in_ram:
                service.learn_in_ram(workload, device, in_ram)
            service.learn_times(task.workload, task.data, device, times)
    except TunerError as error:  # the study is complete all the same
        print_text(console, f"not calibrated: {error.text}")


def _filled(raw: MemoryEstimate, row: Attempt) -> bool:
    """Whether a trial had a whole device that was smaller than its estimate: then its peak is what there was."""
    return row.gpu_fraction == 1 and is_tight(raw, row.result.limit_bytes)


def write_report(console: Console, study: Study, result: StudyResult, record: StudyRecord) -> Path | None:
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
    """Learns from the study, writes its page, and prints its results; ``fewer`` says why a search ended early."""
    settings = study.settings
    if settings.estimates_memory and settings.calibration:
        learn_from(study, result, console)
    page = write_report(console, study, result, record) if settings.report else None
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
