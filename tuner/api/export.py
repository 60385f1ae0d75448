"""``export``: a study as one of Optuna's, for optuna-dashboard and for whatever else reads Optuna's databases."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.api.report import load_study
from tuner.errors import InputError, one_line, option
from tuner.objective import Objective
from tuner.records.attempts import CONFIG
from tuner.records.epochs import histories
from tuner.records.optuna_space import frozen_trials, quiet
from tuner.records.read_studies import newest_study
from tuner.records.row_queries import varying
from tuner.reporting.texts import count_text
from tuner.spec.commands import ExportOptions
from tuner.spec.options import public
from tuner.values import encode

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

TOGETHER = 1000  # the trials whose rows are made at a time
ABOUT = ("number", "state", "datetime_start", "datetime_complete")  # of trials: attributes and columns


@dataclass(frozen=True)
class Exported:
    """A study that was made in an Optuna database."""

    study_name: str  # for ``optuna.load_study``
    storage: str  # the database's URL
    trials: Mapping[str, int]  # how many there are of each state, such as "complete"
    notes: Sequence[str] = ()  # what could not be read of the study, a line each

    def text(self) -> str:
        """One line for a terminal, after those of the notes."""
        states = ", ".join(f"{number} {state}" for state, number in self.trials.items())
        trials = count_text(sum(self.trials.values()), "trial")
        line = f"optuna: {self.study_name}, {trials} ({states}) in {_shown(self.storage)}"
        return "\n".join([*(f"note: {note}" for note in self.notes), line])


@public(ExportOptions)
def export(options: ExportOptions) -> list[Exported]:
    """Makes an Optuna study of a study: its trials with their parameters, values, states and epochs.

    A configuration that completed is COMPLETE, one that was pruned is PRUNED, and all others are FAIL, with status
    and error among their user attributes. Hyperparameters that vary are parameters; those that do not are the study's
    user attribute ``fixed``. What a parameter could have been is taken from the values that were tried: numbers span
    a range, on the scale of the search space, and everything else is a choice. Without a space, wide ranges of
    positive numbers are logarithmic.

    Returns:
        One for each workload.

    Raises:
        InputError: there is no such study, the URL cannot be used, or the database has a study of that name already.
    """
    url, directory = options.optuna, options.directory
    if not url:
        example = option("optuna", "sqlite:///optuna.db")
        raise InputError(f"{option('optuna')}: give a database, such as {example}")
    folder = newest_study() if directory is None else Path(directory)
    view = load_study(folder, "export")
    study, objectives, curves = view.record, view.objectives, histories(view.epochs)
    if not view.rows:
        raise InputError(f"export {folder}: no attempt has ended yet; try again later")
    base = options.study_name or folder.resolve().name
    made: list[Exported] = []
    with _storage(url) as storage:
        names = {workload: f"{base}-{workload}" if len(objectives) > 1 else base for workload in objectives}
        _check_names(storage, names.values(), url)
        for workload, objective in objectives.items():
            rows = sorted(view.of_workload(workload), key=attrgetter("trial_id"))
            varied = [key.removeprefix(CONFIG) for key in varying(rows)]
            trials = frozen_trials(rows, varied, objective, curves, study)
            fixed = {key: encode(value) for row in rows[:1] for key, value in row.config.items() if key not in varied}
            about = {"tuner": str(folder.resolve()), "command": study.command, "data": study.data, "fixed": fixed}
            _create(storage, names[workload], objective, about, trials)
            counts = Counter(trial.state.name.lower() for trial in trials)
            made.append(Exported(names[workload], url, counts, () if made else view.notes))
    return made


def _shown(url: str) -> str:
    """A URL without its password and its query, which may hold one; of one that cannot be read only its kind."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter is of a port that is no number
        kind, separator, _ = url.partition("://")
        return f"{kind}{separator}…" if separator else url
    shown = str(parsed.set(query={}).render_as_string(hide_password=True))
    return f"{shown}?…" if parsed.query else shown


@contextmanager
def _storage(url: str) -> Iterator[RDBStorage]:
    """Optuna's storage. Optuna logs nothing in the block."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    storage = None
    try:
        with quiet():
            storage = optuna.storages.RDBStorage(url)
            yield storage
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = one_line(getattr(error, "orig", None) or error, 200)
        raise InputError(
            f"{option('optuna', _shown(url))}: cannot be used: {reason}; give another, such as sqlite:///new.db"
        ) from error
    finally:
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()


def _check_names(storage: RDBStorage, names: Iterable[str], url: str) -> None:
    there = {study.study_name for study in storage.get_all_studies()}
    for name in names:
        if name in there:
            raise InputError(
                f"{option('optuna', _shown(url))}: has a study {name!r} already: give another name by "
                f"{option('study_name')}, or remove "
                "that one by optuna delete-study"
            )


def _create(
    storage: RDBStorage, name: str, objective: Objective, about: Mapping[str, object], trials: Sequence[FrozenTrial]
) -> None:
    """Makes a study with all of its trials, or none."""
    import optuna

    directions = [one.direction for one in objective.all]
    study = optuna.create_study(storage=storage, study_name=name, directions=directions)
    try:
        study.set_metric_names([one.metric for one in objective.all])
        for key, value in about.items():
            study.set_user_attr(key, value)
        _add_trials(storage, storage.get_study_id_from_name(name), trials)
    except BaseException:
        optuna.delete_study(study_name=name, storage=storage)
        raise


def _add_trials(storage: RDBStorage, study_id: int, trials: Sequence[FrozenTrial]) -> None:
    """Adds trials in one transaction, by the models of Optuna's tables.

    ``Study.add_trials`` has a transaction for each trial and queries for each attribute, which takes 20 ms a trial.
    """
    from optuna.storages._rdb.models import TrialModel
    from sqlalchemy import insert, select

    of_study = TrialModel.study_id == study_id
    with storage.engine.begin() as connection:
        for start in range(0, len(trials), TOGETHER):
            part = trials[start : start + TOGETHER]
            rows = [{name: getattr(trial, name) for name in ABOUT} | {"study_id": study_id} for trial in part]
            connection.execute(insert(TrialModel), rows)
        ids = dict(connection.execute(select(TrialModel.number, TrialModel.trial_id).where(of_study)).all())
        for start in range(0, len(trials), TOGETHER):
            for table, rows in _rows(trials[start : start + TOGETHER], ids).items():
                connection.execute(insert(table), rows)


def _rows(trials: Sequence[FrozenTrial], ids: Mapping[int, int]) -> dict[type, list[dict[str, object]]]:
    """The rows of trials in the tables of values, parameters, attributes and epochs."""
    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models

    finite_step = models.TrialIntermediateValueModel.TrialIntermediateValueType.FINITE
    domains = {name: domain for trial in trials for name, domain in trial.distributions.items()}
    texts = {name: distribution_to_json(domain) for name, domain in domains.items()}
    rows: dict[type, list[dict[str, object]]] = defaultdict(list)
    for trial in trials:
        of = {"trial_id": ids[trial.number]}
        for place, value in enumerate(trial.values or ()):
            stored, kind = models.TrialValueModel.value_to_stored_repr(value)
            rows[models.TrialValueModel].append({**of, "objective": place, "value": stored, "value_type": kind})
        for name, value in trial.params.items():
            param = {"param_name": name, "param_value": domains[name].to_internal_repr(value)}
            rows[models.TrialParamModel].append({**of, **param, "distribution_json": texts[name]})
        for key, attribute in trial.user_attrs.items():
            rows[models.TrialUserAttributeModel].append({**of, "key": key, "value_json": json.dumps(attribute)})
        for step, value in trial.intermediate_values.items():
            step_row = {"step": step, "intermediate_value": value, "intermediate_value_type": finite_step}
            rows[models.TrialIntermediateValueModel].append({**of, **step_row})
    return rows
