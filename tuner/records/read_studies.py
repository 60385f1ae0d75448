"""Reads ended and running studies: folders with a journal, and CSV files. Nothing is written."""

import csv
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError
from tuner.objective import Objective
from tuner.records.attempts import (
    AFTER_METRICS,
    BEFORE_METRICS,
    CONFIG,
    STUDY,
    TEXTS,
    Attempt,
    as_given,
    parse_attempt,
)
from tuner.records.checking import collecting_later
from tuner.records.files import ATTEMPTS, RESULTS
from tuner.records.files import STUDY as STUDY_FILE
from tuner.records.recorded_study import RecordedStudy, guessed, objectives_in, open_study
from tuner.values import is_number, parse

RESULTS_FOLDER = Path("results")  # the default parent of studies' folders
COLUMNS = (*BEFORE_METRICS, *AFTER_METRICS)


def read_studies(paths: str | Path | Iterable[str | Path]) -> tuple[list[RecordedStudy], list[str]]:
    """The studies at these paths, in order and without duplicates, and notes about what could not be read.

    If there are several, damaged ones are left out with a note.

    Args:
        paths: folders of studies, their parent folders, and files like ``results.csv``; none for the newest study
            under ``results/``. A ``results.csv`` in a study's folder stands for the folder.

    Raises:
        InputError: a path is missing or holds no study, no study can be read, or no attempt has ended yet.
    """
    listed = listed_paths(paths)
    places = [place for path in listed for place in _places(path)] or [newest_study()]
    once = {place.resolve(): place for place in places}.values()
    studies: list[RecordedStudy] = []
    notes = [f"{path}: read from the {ATTEMPTS} beside it" for path in listed if _stands_for_folder(path)]
    damaged: list[str] = []
    for place in once:
        try:
            opened = [open_study(place, f"results {place}", some=True)] if place.is_dir() else _read_table(place)
        except InputError as error:
            damaged.append(str(error))
            continue
        studies += opened
        for study in opened:
            notes += study.notes
            notes += [] if study.attempts or not place.is_dir() else [f"{place}: no attempt has ended yet"]
    if not any(study.attempts for study in studies):
        if damaged:
            more = f"; {len(damaged) - 1} more cannot be read" if len(damaged) > 1 else ""
            raise InputError(f"{damaged[0]}{more}")
        raise InputError(f"{', '.join(map(str, once))}: no attempt has ended yet; try again later")
    return studies, [*notes, *(f"left out: {text}" for text in damaged)]


def newest_study() -> Path:
    """The newest study under ``results/``; an InputError is raised if there is none."""
    studies = _studies_in(RESULTS_FOLDER)
    if not studies:
        raise InputError(f"{RESULTS_FOLDER}/ holds no study: run one, or give the folder of a study")
    return max(studies, key=_start)


def objective_in(workload: str, rows: Sequence[Attempt], studies: Iterable[RecordedStudy]) -> Objective:
    """What a workload's trials are compared by; without a metric if that is unknown.

    The record of a study says it; else it is ``guessed`` by the rows.
    """
    recorded = (study.record.objectives.get(workload) for study in studies)
    return next(filter(None, recorded), None) or guessed(workload, rows)


def labels(studies: Sequence[RecordedStudy]) -> list[str]:
    """A short name for each study: the hyphenated parts of its folder's name that distinguish it from the others.

    If folders have the same name, the parts of their paths are used.
    """
    names, joint = [study.name.split("-") for study in studies], "-"
    if not _distinct(names):
        names, joint = [[*study.path.resolve().parts[1:], study.name] for study in studies], "/"
    if len(names) == 1:
        return [studies[0].name]
    while min(map(len, names)) > 1 and len({name[0] for name in names}) == 1:
        names = [name[1:] for name in names]
    while max(map(len, names)) > 1 and _distinct([name[:-1] or name for name in names]):
        names = [name[:-1] or name for name in names]
    return [joint.join(name) for name in names]


@collecting_later()
def read_together(
    paths: str | Path | Iterable[str | Path],
) -> tuple[dict[str, RecordedStudy], list[Attempt], list[str]]:
    """The studies at these paths by their labels, all of their rows with these in the column ``study``, and notes.

    Raises:
        InputError: as of ``read_studies``.
    """
    studies, notes = read_studies(paths)
    by_label = dict(zip(labels(studies), studies, strict=True))
    return by_label, [replace(row, study=label) for label, study in by_label.items() for row in study.rows], notes


def by_data(rows: Iterable[Attempt], workload: str, studies: Mapping[str, RecordedStudy]) -> list[list[Attempt]]:
    """A workload's rows in groups that may be compared seed by seed: of one study, or of studies of the same data."""
    groups: dict[tuple[str, bool], list[Attempt]] = {}
    for row in rows:
        fingerprint = studies[row.study].record.fingerprints.get(workload) if row.study in studies else None
        groups.setdefault((fingerprint or row.study, bool(fingerprint)), []).append(row)
    return list(groups.values())


def name_in_study(row: Attempt) -> str:
    """The name of a row's configuration if there are several studies."""
    return f"{row.name} of {row.study}"


def _distinct(names: Sequence[Sequence[str]]) -> bool:
    return len({tuple(name) for name in names}) == len(names)


def listed_paths(paths: object) -> list[Path]:
    """One or several paths as a list."""
    listed = [paths] if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else paths
    checked: list[Path] = []
    for path in listed:
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"{path!r}: is not a path; give the folder of a study, a {RESULTS} or a list of them")
        checked.append(Path(path))
    return checked


def _stands_for_folder(path: Path) -> bool:
    return path.name == RESULTS and path.is_file() and _is_study(path.parent)


def _places(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder; give the folder of a study or a {RESULTS}")
    if path.is_file():
        return [path.parent if _stands_for_folder(path) else path]
    if _is_study(path):
        return [path]
    if studies := _studies_in(path):
        return studies
    if (path / RESULTS).is_file():
        return [path / RESULTS]
    raise InputError(f"{path}: is not a study and contains none; give the folder of a study or a {RESULTS}")


def _studies_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _is_study(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error


def _is_study(path: Path) -> bool:
    return (path / STUDY_FILE).is_file() or (path / ATTEMPTS).is_file()


def _start(path: Path) -> tuple[int, str]:
    """When a study was started: ``study.json`` is written once, at the start."""
    file = path / STUDY_FILE if (path / STUDY_FILE).is_file() else path / ATTEMPTS
    return file.stat().st_mtime_ns, path.name


def _read_table(path: Path) -> list[RecordedStudy]:
    """The studies of a CSV file: one, or those named in its column ``study``."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            columns = [as_given(cell) for cell in next((line for line in lines if line), [])]
            if not columns:
                raise InputError(f"{path}: it is empty; give the {RESULTS} of a study, or its folder")
            _check_columns(columns, path)
            numbered = [(f"{path}, line {lines.line_num}", line) for line in lines if line]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not CSV text in UTF-8: {error}") from error
    cells = [_cells(line, columns, where) for where, line in numbered]
    numbers = {column: _numbers({line[column] for line in cells if column in line}, column) for column in columns}
    rows = []
    for line, (where, _) in zip(cells, numbered, strict=True):
        study = line.pop(STUDY, "")
        values = {column: numbers[column].get(text, text) for column, text in line.items()}
        rows.append(replace(parse_attempt(values, where), study=study))
    default_name = path.resolve().parent.name if path.name == RESULTS else path.stem
    by_name: dict[str, list[Attempt]] = {default_name: []} if not rows else {}
    for row in rows:
        by_name.setdefault(row.study or default_name, []).append(row)
    return [RecordedStudy(path, name, rows, objectives=objectives_in(rows)) for name, rows in by_name.items()]


def _cells(line: Sequence[str], columns: Sequence[str], where: str) -> dict[str, str]:
    """The texts of a line that are not blank, by column."""
    if len(line) != len(columns):
        raise InputError(f"{where}: has {len(line)} fields, but there are {len(columns)} columns")
    return {column: text for column, text in zip(columns, map(as_given, line), strict=True) if text}


def _numbers(texts: Collection[str], column: str) -> dict[str, object]:
    """The numbers that a column's texts stand for.

    A table does not say the types of hyperparameters. They are numbers where all are, as Python writes them: ``007``
    is a text, and so are ``True`` and ``None``.
    """
    numbers: dict[str, object] = {text: number for text in texts if is_number(number := parse(text))}
    typed = all(text in numbers and str(numbers[text]) == text for text in texts)
    return numbers if column not in TEXTS and (typed or not column.startswith(CONFIG)) else {}


def _check_columns(columns: Iterable[str], path: Path) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise InputError(f"{path}: is not a table of tuner: it has no column {', '.join(missing)}")
    if repeated := [column for column, count in Counter(list(columns)).items() if count > 1]:
        raise InputError(f"{path}: it has the column {repeated[0]} more than once; leave one of them")
