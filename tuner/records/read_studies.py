"""Reading studies that have ended or still run: folders with a journal, and tables alone. Nothing is written."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.errors import InputError
from tuner.records.attempts import (
    AFTER_METRICS,
    BEFORE_METRICS,
    STUDY,
    TEXTS,
    Attempt,
    parse_attempt,
)
from tuner.records.files import ATTEMPTS, RESULTS
from tuner.records.files import STUDY as STUDY_FILE
from tuner.records.journal import read_attempts
from tuner.records.row_queries import to_value
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study
from tuner.workloads.built_in import BUILT_IN
from tuner.workloads.lookup import find_workload

RESULTS_FOLDER = Path("results")  # where a study has its folder unless told otherwise
COLUMNS = (*BEFORE_METRICS, *AFTER_METRICS)


@dataclass(frozen=True)
class RecordedStudy:
    """What was read of a study."""

    path: Path  # its folder, or the file of a table alone
    name: str  # the folder's; of a table the file's, or what its column ``study`` says
    # one for each configuration that has ended once: its latest attempt, without what is missing
    rows: Sequence[Attempt]
    record: StudyRecord = UNKNOWN  # what ``study.json`` says


def read_studies(paths: str | Path | Iterable[str | Path]) -> tuple[list[RecordedStudy], list[str]]:
    """The studies in these places, each once, in their order, and what could not be read, a line each.

    Of several studies those that are damaged are left out, and told.

    Args:
        paths: folders of studies, folders that hold some, and files like ``results.csv``; none for the study under
            ``results/`` that was begun last. A ``results.csv`` in a study's folder stands for the folder.

    Raises:
        InputError: one of them is not there or holds no study, all are damaged or no tables of ours, or nothing has
            ended yet.
    """
    given = _listed_paths(paths)
    places = [place for path in given for place in _places(path)] or [newest_study(RESULTS_FOLDER)]
    once = {place.resolve(): place for place in places}.values()
    studies: list[RecordedStudy] = []
    notes = [f"{path}: read from the {ATTEMPTS} beside it" for path in given if _stands_for_folder(path)]
    damaged: list[str] = []
    for place in once:
        try:
            found, said = _read_folder(place) if place.is_dir() else (_read_table(place), [])
        except InputError as error:
            damaged.append(str(error))
            continue
        studies += found
        notes += said
    if not any(study.rows for study in studies):
        if damaged:
            more = f"; {len(damaged) - 1} more cannot be read" if len(damaged) > 1 else ""
            raise InputError(f"{damaged[0]}{more}")
        raise InputError(f"{', '.join(map(str, once))}: no attempt has ended yet; look again later")
    return studies, [*notes, *(f"left out: {text}" for text in damaged)]


def newest_study(folder: Path) -> Path:
    """The study in a folder that was begun last.

    Raises:
        InputError: it holds none.
    """
    studies = _studies_in(folder)
    if not studies:
        raise InputError(f"{folder}/ holds no study: run one, or give the folder of a study")
    return max(studies, key=_begun)


def metric_of(workload: str, rows: Sequence[Attempt], studies: Iterable[RecordedStudy] = ()) -> str:
    """What trials of a workload are compared by; empty where that is not known.

    Of one that is not built in its study says it; where none does, it is the first validation metric in its rows.
    """
    if workload in BUILT_IN:
        return find_workload(workload).metric
    for study in studies:
        if workload in study.record.metrics:
            return study.record.metrics[workload]
    own = (key for row in rows if row.workload == workload for key in row.metrics)
    return next((key for key in own if key.startswith("val_")), "")


def labels(studies: Sequence[RecordedStudy]) -> list[str]:
    """A short name for each study: as much of its folder's name as tells it from the others, between hyphens.

    Where folders have the same name, it is of their paths.
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


def data_print(study: RecordedStudy, workload: str) -> str | None:
    """The fingerprint of a workload's data in a study, and of how they are split; None where it is not known."""
    return study.record.fingerprints.get(workload)


def by_data(rows: Iterable[Attempt], prints: Mapping[str, str | None]) -> list[list[Attempt]]:
    """Rows in groups that may be compared seed by seed: of one study, or of studies known to be of the same data.

    Args:
        rows: which know their study.
        prints: by study the fingerprint of its data; None, or none, where it is not known.
    """
    groups: dict[tuple[str, bool], list[Attempt]] = {}
    for row in rows:
        known = prints.get(row.study)
        groups.setdefault((known or row.study, bool(known)), []).append(row)
    return list(groups.values())


def name_in_study(row: Attempt) -> str:
    """What a row's configuration is called where there are several studies."""
    return f"{row.name} of {row.study}"


def _distinct(names: Sequence[Sequence[str]]) -> bool:
    return len({tuple(name) for name in names}) == len(names)


def _listed_paths(paths: Any) -> list[Path]:
    """One path or several as a list.

    Raises:
        InputError: something is no path.
    """
    one = isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable)
    listed = [paths] if one else list(paths)
    for each in listed:
        if not isinstance(each, (str, os.PathLike)):
            raise InputError(f"{each!r}: is no path; give the folder of a study or a {RESULTS}, or a list of these")
    return [Path(each) for each in listed]


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
    raise InputError(f"{path}: is no study and holds none; give the folder of a study or a {RESULTS}")


def _studies_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _is_study(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error


def _is_study(path: Path) -> bool:
    return (path / STUDY_FILE).is_file() or (path / ATTEMPTS).is_file()


def _begun(path: Path) -> tuple[int, str]:
    """When a study was begun: its ``study.json`` is written once, and its journal after that."""
    file = path / STUDY_FILE if (path / STUDY_FILE).is_file() else path / ATTEMPTS
    return file.stat().st_mtime_ns, path.name


def _read_folder(path: Path) -> tuple[list[RecordedStudy], list[str]]:
    """The study of a folder, and what could not be read of it."""
    known = (path / STUDY_FILE).exists()
    record = read_study(path, f"results {path}") if known else UNKNOWN
    attempts, notes = read_attempts(path / ATTEMPTS, record.workloads, some=True)
    latest = {row.trial_id: row for row in attempts}
    rows = [_present(latest[trial_id]) for trial_id in sorted(latest)]
    if not rows:
        notes.append(f"{path}: no attempt has ended yet")
    if not known:
        notes.append(f"{path}: holds no {STUDY_FILE}: how its trials were run is not known")
    return [RecordedStudy(path, path.resolve().name, rows, record)], notes


def _read_table(path: Path) -> list[RecordedStudy]:
    """The studies of a CSV file: one, or those that its column ``study`` names."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            columns = next((line for line in lines if line), [])
            if not columns:
                raise InputError(f"{path}: it is empty; give the {RESULTS} of a study, or its folder")
            _check_columns(columns, path)
            rows = [_parse(line, columns, f"{path}, line {lines.line_num}") for line in lines if line]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no CSV text in UTF-8: {error}") from error
    own = path.resolve().parent.name if path.name == RESULTS else path.stem
    by_name: dict[str, list[Attempt]] = {own: []} if not rows else {}
    for row in rows:
        by_name.setdefault(row.study or own, []).append(row)
    return [RecordedStudy(path, name, each) for name, each in by_name.items()]


def _parse(line: Sequence[str], columns: Sequence[str], where: str) -> Attempt:
    if len(line) != len(columns):
        raise InputError(f"{where}: has {len(line)} fields, but there are {len(columns)} columns")
    values = {
        column: text if column in TEXTS else to_value(text)  # a name may look like a number
        for column, text in zip(columns, line, strict=True)
        if text
    }
    study = str(values.pop(STUDY, ""))
    return replace(parse_attempt(values, where), study=study)


def _check_columns(columns: Iterable[str], path: Path) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise InputError(f"{path}: is no table of tuner's: it has no column {', '.join(missing)}")
    if repeated := [column for column, count in Counter(list(columns)).items() if count > 1]:
        raise InputError(f"{path}: it has the column {repeated[0]} more than once; leave one of them")


def _present(row: Attempt) -> Attempt:
    """A row without what is missing in it."""
    metrics = {name: value for name, value in row.metrics.items() if value is not None}
    return replace(row, metrics=metrics, config={key: value for key, value in row.config.items() if value != ""})
