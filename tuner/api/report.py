"""``write_report``: a study as one HTML page, in a file or served while the study runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import InputError, ParameterError, option, printable
from tuner.records.attempts import Attempt
from tuner.records.files import ATTEMPTS
from tuner.records.journal import read_attempts
from tuner.records.read_studies import RESULTS_FOLDER, newest_study, objective_in
from tuner.records.study_record import StudyRecord, read_study
from tuner.reporting.figures.style import check_plotly
from tuner.reporting.page.document import REPORT, check_replaceable, write_page
from tuner.reporting.serving import LivePage, serve
from tuner.reporting.study_view import StudyView, read_study_view
from tuner.spec.commands import PORT, ReportOptions
from tuner.spec.options import public
from tuner.study.repeat import how_to_repeat
from tuner.trial import Objective


@public(ReportOptions)
def write_report(options: ReportOptions) -> Path:
    """Writes a study as one HTML page that works offline: results, plots, and what memory did.

    What could not be read of the study is in the page, and a warning.

    Returns:
        The page's file.

    Raises:
        InputError: there is no such study, the file cannot be written or is there and no earlier page, or the port is
            in use; or plotly is not installed.
    """
    file, notes = write_page_of(options)
    for note in notes:
        warnings.warn(printable(note), stacklevel=3)
    return file


def write_page_of(options: ReportOptions) -> tuple[Path, Sequence[str]]:
    """What ``write_report`` does. Returns the page's file, and what could not be read, a line each."""
    directory, output, watch, port = options.directory, options.output, options.watch, options.port
    if port != PORT and not watch:
        raise ParameterError("port", port, f"has no effect without {option('watch')}")
    check_plotly()
    folder = newest_study(RESULTS_FOLDER) if directory is None else Path(directory)
    load_study_view(folder)  # what cannot be read is refused before anything is served or written
    file = folder / REPORT if output is None else Path(output)
    _check_file(file)
    if watch:
        serve(LivePage(folder, lambda: load_study_view(folder)), port)
    study = load_study_view(folder)
    try:
        write_page(study, file)
    except OSError as error:
        raise _refusal(file, error) from error
    return file, study.notes


def _check_file(file: Path) -> None:
    """Refuses what the page must not or cannot be written over, before anything is served."""
    if file.is_dir():
        raise ParameterError("output", str(file), "is a folder", "give the name of a file")
    if not file.parent.is_dir():
        raise ParameterError("output", str(file), f"there is no folder {file.parent}", "make it or give another")
    try:
        check_replaceable(file)
    except OSError as error:
        raise _refusal(file, error) from error


def _refusal(file: Path, error: OSError) -> InputError:
    return ParameterError("output", str(file), f"cannot be written: {error.strerror}", "give another file")


def load_study_view(folder: Path) -> StudyView:
    """A study's folder as the page shows it."""
    study = read_study(folder, f"report {folder}")
    objectives = objectives_used(study, read_attempts(folder / ATTEMPTS, study.workloads)[0])
    return read_study_view(folder, objectives, lambda row: how_to_repeat(study, row, folder), f"report {folder}")


def objectives_used(study: StudyRecord, rows: list[Attempt]) -> dict[str, Objective]:
    """What each workload's trials are compared by; older studies do not say it themselves."""
    return {name: study.objectives.get(name) or _objective(name, rows) for name in study.workloads}


def _objective(workload: str, rows: list[Attempt]) -> Objective:
    found = objective_in(workload, rows)
    if not found.metric:
        raise InputError(
            f"report: it is not known what trials of {workload!r} are compared by: no trial has a val_… metric"
        )
    return found
