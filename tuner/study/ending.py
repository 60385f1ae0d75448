"""What follows a study's trials: what was learned, its page, its tables, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import TunerError
from tuner.records.attempts import Attempt
from tuner.records.files import RESULTS
from tuner.records.study_record import StudyRecord
from tuner.reporting.console import print_table
from tuner.reporting.result_tables import estimate_accuracy, has_seeds, print_averages, results_table
from tuner.spec.settings import Settings
from tuner.study.advice import Figures, advise
from tuner.study.planning import estimation_service
from tuner.study.repeat import how_to_repeat, program
from tuner.study.result import StudyResult
from tuner.study.resumed_options import needs_objects
from tuner.trial import ACCUMULATION, GB, MemoryEstimate, title

if TYPE_CHECKING:
    from rich.console import Console


def learn_from(result: StudyResult, settings: Settings, console: Console) -> None:
    """Keeps what completed trials took, so that the next study on this machine estimates and packs better."""
    devices = {device.label: device for device in result.plan.devices}
    service = estimation_service(settings)
    peaks: dict[tuple[str, str], list[tuple[MemoryEstimate, int]]] = {}
    for row in result.trials:
        as_estimated = row.status == "completed" and ACCUMULATION not in row.config
        if as_estimated and row.peak_memory_gb and row.device in devices:
            found = peaks.setdefault((row.workload, devices[row.device].name), [])
            found.append((result.estimates[row.trial_id], int(row.peak_memory_gb * GB)))
    try:
        for (workload, device), taken in peaks.items():
            service.learn(workload, device, taken)
    except TunerError as error:  # the study is complete all the same
        console.print(f"not calibrated: {error}", markup=False, soft_wrap=True)


def write_report(
    console: Console, result: StudyResult, metrics: Mapping[str, str], study: StudyRecord
) -> Path | None:
    """Writes the study's page; what goes wrong with it costs a line, as the results are complete without it."""
    folder = result.folder
    assert folder is not None
    try:
        from tuner.reporting.page.document import REPORT, write_page
        from tuner.reporting.study_view import read_study_view

        page = read_study_view(folder, metrics, lambda row: how_to_repeat(study, row, folder))
        write_page(page, folder / REPORT)
    except Exception as error:
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        with suppress(OSError):
            again_by = f"{program()} report {shlex.quote(str(folder))} tries again"
            console.print(f"no {folder}/report.html: {said}; {again_by}", markup=False, soft_wrap=True)
        return None
    return folder / REPORT


def print_end(
    console: Console,
    result: StudyResult,
    figures: Figures,
    study: StudyRecord,
    page: Path | None,
    *,
    tables: bool,
) -> None:
    """Each workload's table, what follows from it, where the CSV is, and how to have the best trials again."""
    assert result.folder is not None
    metrics = figures.metrics
    several = len(metrics) > 1
    lines = [estimate_accuracy(result.trials)] if figures.settings.auto_memory else []
    lines += [f"advice: {said}" for said in advise(figures)]
    lines += [f"results: {result.folder / RESULTS}", f"report: {page}" if page else ""]
    for workload, metric in metrics.items():
        rows = [row for row in result.trials if row.workload == workload]
        if several:
            console.print(workload, style="bold", markup=False)
        if tables:
            _print_tables(console, rows, metric)
        best = next((row for row in rows if row.status == "completed"), None)
        if best:
            name = title(workload, best.name, several=several, seed=best.seed if has_seeds(rows) else None)
            which = "best single trial" if has_seeds(rows) else "best"
            again = how_to_repeat(study, best, result.folder, result.workloads[workload])
            lines.append(f"{which}: {name}, {metric} {best.number(metric):.4f}. Again: {again}")
    console.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)


def _print_tables(console: Console, rows: Sequence[Attempt], metric: str) -> None:
    """A workload's trials; with several seeds its configurations, and of the trials those that are not completed."""
    if not has_seeds(rows):
        print_table(console, results_table(rows, metric))
        return
    print_averages(console, rows, metric)
    others = [row for row in rows if row.status != "completed"]
    if ran := [row for row in others if row.device]:
        print_table(console, results_table(ran, metric, seeds=True))
    if len(others) > len(ran):
        console.print(f"{len(others) - len(ran)} of {len(rows)} trials never started")


def how_to_continue(folder: Path, study: StudyRecord) -> str:
    """The command, or the call, that goes on with a study that was ended early.

    Args:
        folder: the study's.
        study: what its ``study.json`` says.
    """
    if study.options and not needs_objects(study):
        return f"go on with: {program()} --resume {shlex.quote(str(folder))}"
    return f"go on with: the same call, with resume={str(folder)!r} in place of output"
