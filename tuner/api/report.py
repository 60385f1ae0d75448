"""``write_report``: a study as one HTML page, in a file or served while the study runs; or several side by side."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import InputError, ParameterError, option, printable
from tuner.records.checking import collecting_later
from tuner.records.read_studies import RESULTS_FOLDER, RecordedStudy, labels, newest_study
from tuner.records.study_record import read_study
from tuner.reporting.figures.library import check_plotly
from tuner.reporting.page.document import REPORT, Page, check_replaceable, library_file, write_page
from tuner.reporting.page.sections import main_html
from tuner.reporting.page.side_by_side import side_by_side_html
from tuner.reporting.serving import LivePage, serve
from tuner.reporting.study_view import StudyView, read_study_view
from tuner.spec.commands import PORT, ReportOptions
from tuner.spec.options import public
from tuner.study.repeat import how_to_repeat

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
    studies = [load_study_view(folder) for folder in folders]  # what cannot be read is refused before all else
    file = folders[0] / REPORT if len(folders) == 1 else folders[0].resolve().parent / COMPARED
    file = file if options.output is None else Path(options.output)
    _check_file(file)
    if watch:
        serve(LivePage(folders[0], lambda: load_study_view(folders[0])), port)
        studies = [load_study_view(folders[0])]
    library = None if options.single_file else library_file(folders[0], file)
    try:
        write_page(_page(studies, folders, file), file, library)
    except OSError as error:
        raise _refusal(file, error) from error
    return file, [note for study in studies for note in study.notes]


def _folders(given: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The folders of the studies, each once; by default the newest one."""
    listed = [given] if isinstance(given, (str, os.PathLike)) else list(given or ())
    once = {path.resolve(): path for path in map(Path, listed)}
    return list(once.values()) or [newest_study(RESULTS_FOLDER)]


@collecting_later()
def _page(studies: Sequence[StudyView], folders: Sequence[Path], file: Path) -> Page:
    """The page of a study, or that of several with links to their own."""
    if len(studies) == 1:
        return Page(studies[0].name, main_html(studies[0]))
    place = file.resolve().parent
    links = [
        os.path.relpath((folder / REPORT).resolve(), place) if (folder / REPORT).is_file() else ""
        for folder in folders
    ]
    names = labels([RecordedStudy(folder, study.name, ()) for folder, study in zip(folders, studies, strict=True)])
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


def load_study_view(folder: Path, command: str = "report") -> StudyView:
    """A study's folder as the page shows it."""
    where = f"{command} {folder}"
    study = read_study(folder, where)
    return read_study_view(folder, None, lambda row: how_to_repeat(study, row, folder), where)
