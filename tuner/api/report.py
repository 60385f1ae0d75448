"""``write_report``: a study as one HTML page, in a file or served while the study runs; or several side by side."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import InputError, ParameterError, option, printable
from tuner.records.checking import collecting_later
from tuner.records.read_studies import labels, listed_paths, newest_study
from tuner.records.recorded_study import RecordedStudy, open_study
from tuner.reporting.figures.chart import check_plotly
from tuner.reporting.page.document import REPORT, Page, check_replaceable, library_file, write_page
from tuner.reporting.page.sections import main_html
from tuner.reporting.page.side_by_side import side_by_side_html
from tuner.reporting.serving import LivePage, serve
from tuner.spec.commands import PORT, ReportOptions
from tuner.spec.options import public
from tuner.study.past_trial import how_to_repeat

COMPARED = "compared.html"  # the page of several studies


@public(ReportOptions)
def write_report(options: ReportOptions) -> Path:
    """Writes a study as one HTML page that works offline: results, plots, and what memory did.

    Several studies are compared on one page. What could not be read of a study is in the page, and a warning.

    Returns:
        The page's file.

    Raises:
        InputError: there is no such study, the file cannot be written or is there and no earlier page, the port is
            in use, or plotly is not installed.
    """
    file, notes = write_page_of(options)
    for note in notes:
        warnings.warn(printable(note), stacklevel=3)
    return file


def write_page_of(options: ReportOptions) -> tuple[Path, Sequence[str]]:
    """What ``write_report`` does. Returns the page's file, and what could not be read, a line each."""
    watch, port = options.watch, options.port
    if port != PORT and not watch:
        raise ParameterError("port", port, f"has no effect without {option('watch')}")
    check_plotly()
    folders = _folders(options.directory)
    if watch and len(folders) > 1:
        raise InputError(f"{option('watch')} follows one study, and {len(folders)} were given: give one of them")
    studies = [load_study(folder) for folder in folders]  # what cannot be read is refused before all else
    file = folders[0] / REPORT if len(folders) == 1 else folders[0].resolve().parent / COMPARED
    file = file if options.output is None else Path(options.output)
    _check_file(file)
    if watch:
        serve(LivePage(folders[0], lambda: page_of(load_study(folders[0]))), port)
        studies = [load_study(folders[0])]
    library = None if options.single_file else library_file(folders[0], file)
    try:
        write_page(_page(studies, folders, file), file, library)
    except OSError as error:
        raise _refusal(file, error) from error
    return file, [note for study in studies for note in study.notes]


def _folders(given: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The folders of the studies, each once; by default the newest one."""
    once = {path.resolve(): path for path in listed_paths(() if given is None else given)}
    return list(once.values()) or [newest_study()]


@collecting_later()
def _page(studies: Sequence[RecordedStudy], folders: Sequence[Path], file: Path) -> Page:
    """The page of a study, or that of several with links to their own."""
    if len(studies) == 1:
        return page_of(studies[0])
    place = file.resolve().parent
    links = [
        os.path.relpath((folder / REPORT).resolve(), place) if (folder / REPORT).is_file() else ""
        for folder in folders
    ]
    names = labels(studies)
    return Page(" · ".join(names), side_by_side_html(dict(zip(names, studies, strict=True)), links))


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


def page_of(study: RecordedStudy) -> Page:
    """The page of a study."""
    return Page(study.name, main_html(study, lambda row: how_to_repeat(study.record, row, study.path)))


def load_study(folder: Path, command: str = "report") -> RecordedStudy:
    """A study's folder as the page shows it; its trials must be comparable."""
    study = open_study(folder, where := f"{command} {folder}", needs_record=True)
    for workload, objective in study.objectives.items():
        if not objective.metric:
            raise InputError(
                f"{where}: it is not known what trials of {workload!r} are compared by: no trial has a val_… metric"
            )
    return study
