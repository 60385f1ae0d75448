"""``report``: a study as one HTML page, in a file or served while the study runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.api.run import command_again
from tuner.errors import InputError
from tuner.records.attempts import Attempt
from tuner.records.journal import read_attempts
from tuner.records.read_studies import RESULTS_FOLDER, metric_of, newest_study
from tuner.records.study_folder import ATTEMPTS
from tuner.records.study_json import read_study, workloads
from tuner.reporting.page.document import REPORT, check_replaceable, write_page
from tuner.reporting.serving import PORT, LivePage, serve
from tuner.reporting.study_view import StudyView, read_study_view


def report(
    directory: str | Path | None = None, *, output: str | Path | None = None, watch: bool = False, port: int = PORT
) -> Path:
    """Writes a study as one HTML page that works offline: results, plots, and what memory did.

    What could not be read of the study is in the page, and a warning.

    Args:
        directory: the study's folder; by default the newest study under ``results/``.
        output: the page's file; by default ``report.html`` in the study's folder.
        watch: serve the page on the loopback address until Ctrl-C, and write it then; it follows a study that runs.
        port: where it is served; 0 for any that is free.

    Returns:
        The page's file.

    Raises:
        InputError: there is no such study, the file cannot be written or is there and no earlier page, or the port is
            in use.
    """
    file, notes = write_report(directory, output, watch, port)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return file


def write_report(
    directory: str | Path | None, output: str | Path | None, watch: bool, port: int
) -> tuple[Path, Sequence[str]]:
    """What ``report`` does; parameters as there. Returns the page's file, and what could not be read, a line each.

    Raises:
        InputError: as ``report``.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: must be from 0 to 65535")
    if port != PORT and not watch:
        raise InputError(f"--port {port}: has no effect without --watch")
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
        raise InputError(f"--output {file}: is a folder; give the name of a file")
    if not file.parent.is_dir():
        raise InputError(f"--output {file}: there is no folder {file.parent}; make it or give another")
    try:
        check_replaceable(file)
    except OSError as error:
        raise _refusal(file, error) from error


def _refusal(file: Path, error: OSError) -> InputError:
    return InputError(f"--output {file}: cannot be written: {error.strerror}; give another file")


def load_study_view(folder: Path) -> StudyView:
    """A study's folder as the page shows it.

    Raises:
        InputError: it is not the folder of a study.
    """
    study = read_study(folder, "report")
    metrics = metrics_used(study, read_attempts(folder / ATTEMPTS)[0])
    return read_study_view(folder, metrics, lambda row: command_again(study, row, folder), "report")


def metrics_used(study: Mapping[str, Any], rows: list[Attempt]) -> dict[str, str]:
    """What each workload's trials are compared by; older studies do not say it themselves.

    Args:
        study: the content of ``study.json``.
        rows: of its journal.

    Raises:
        InputError: it is not known.
    """
    known = study.get("metrics", {})
    return {name: str(known[name]) if name in known else _metric(name, rows) for name in workloads(study)}


def _metric(workload: str, rows: list[Attempt]) -> str:
    found = metric_of(workload, rows)
    if not found:
        raise InputError(
            f"report: it is not known what trials of {workload!r} are compared by: no trial has a val_… metric"
        )
    return found
