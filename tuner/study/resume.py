"""Resuming a study: whether it is the same study, and the events in its journal."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.decisions.events import Ended, Event, Planned, Reported
from tuner.errors import InputError, option
from tuner.hyperparameters import is_auto, shrunk, with_batch
from tuner.records.attempts import Attempt
from tuner.records.epochs import EpochLine
from tuner.records.study_record import StudyRecord
from tuner.spec.settings import Settings
from tuner.trial import AUTO, RANKS, Configuration, EpochReport, Trial
from tuner.values import config_key, value_key
from tuner.workloads.command_line import CommandLine
from tuner.workloads.pickling import fingerprint, source_digest
from tuner.workloads.task import Tasks


def description(tasks: Tasks, trials: Sequence[Trial], settings: Settings) -> StudyRecord:
    """What must be the same when a study is resumed."""
    prints = [fingerprint(task.data) for task in tasks.values()]
    several = len(tasks) > 1
    return StudyRecord(
        workload=list(tasks) if several else next(iter(tasks)),
        seed=settings.seed,
        seeds=settings.seeds,
        split_seed=settings.data_seed,
        fingerprint=prints if several else prints[0],
        configurations=listed(trials, several=several),
        metrics={name: task.objective.metric for name, task in tasks.items()},
        directions={name: task.objective.direction for name, task in tasks.items()},
        further={
            name: {other.metric: other.direction for other in task.objective.others}
            for name, task in tasks.items()
            if task.objective.others
        },
    )


def listed(trials: Sequence[Trial], *, several: bool) -> list[Configuration]:
    """The configurations of a study's trials, with their workload if there are several."""
    return [
        Configuration(trial.name, trial.config, trial.workload if several else "")
        for trial in trials
        if trial.seed == trials[0].seed  # those of the first seed come first
    ]


def with_batches_of(study: StudyRecord, trials: Sequence[Trial]) -> list[Trial]:
    """The trials of a resumed study with the batches and numbers of ranks that were found when it began.

    They belong to a configuration, so trials of further seeds have the same.
    """
    batches = _batches(study, trials)
    ranks = {(one.workload or study.workload, one.name): one.values.get(RANKS, AUTO) for one in study.configurations}

    def filled(trial: Trial) -> Trial:
        config, key = dict(trial.config), (trial.workload, trial.name)
        if key in batches and is_auto(config):
            config = with_batch(config, batches[key])
        if config.get(RANKS) == AUTO:
            config[RANKS] = ranks.get(key, AUTO)
        return replace(trial, config=config)

    return [filled(trial) for trial in trials]


def with_more_seeds(study: StudyRecord, trials: Sequence[Trial], seeds: int) -> StudyRecord:
    """The record of a study that is resumed with more seeds."""
    by_name = _batches(study, trials)
    batches = {trial.trial_id: by_name[key] for trial in trials if (key := (trial.workload, trial.name)) in by_name}
    return replace(study, seeds=seeds, auto_batch=batches)


def with_code(study: StudyRecord, tasks: Tasks) -> StudyRecord:
    """The record of a study that goes on with the current code."""
    workloads = [task.workload for task in tasks.values()]
    digest = source_digest(one.path if isinstance(one, CommandLine) else one.code for one in workloads)
    return replace(study, code=[*study.code, digest]) if digest and digest not in study.code[-1:] else study


def _batches(study: StudyRecord, trials: Sequence[Trial]) -> dict[tuple[str, str], int]:
    """The batches that were found for a study, by workload and name."""
    by_trial = study.auto_batch
    return {(trial.workload, trial.name): by_trial[trial.trial_id] for trial in trials if trial.trial_id in by_trial}


def check_same(study: StudyRecord, described: StudyRecord, folder: str) -> None:
    """Refuses to resume a study of something else.

    Raises:
        InputError: the workload, data, configurations, objective or seed differ; the text says which.
    """
    where = option("resume", folder)
    compared: list[tuple[str, object, object]] = [
        ("workload", study.workload, described.workload),
        ("seed", study.seed, described.seed),
        ("split_seed", study.data_seed, described.data_seed),
    ]
    for name, objective in study.objectives.items():  # an earlier version kept none
        now = described.objectives.get(name, objective)
        compared += [("metric", objective.metric, now.metric), ("direction", objective.direction, now.direction)]
        further = [[f"{one.metric}, {one.direction}d" for one in by.others] for by in (objective, now)]
        compared.append(("further metrics", further[0], further[1]))
    for key, before, after in compared:
        if before != after:
            raise InputError(f"{where}: its {key} is {before!r}, not {after!r}; start a new study for that")
    _check_seeds(study, described, where)
    if study.fingerprint != described.fingerprint:
        raise InputError(f"{where}: its data are different; give its own by {option('data')}")
    if not _same(study.configurations, described.configurations) and not _more_samples(study, described):
        differ = _differing(study.configurations, described.configurations)
        raise InputError(f"{where}: its configurations are different{differ}; start a new study for these")


def _more_samples(study: StudyRecord, described: StudyRecord) -> bool:
    """Whether trials are added to a random search of one workload and seed."""
    before, after = study.configurations, described.configurations
    alone = len(described.workloads) == described.seeds == 1 and not study.auto_batch
    same_ids = len(str(len(after))) <= max(3, len(str(len(before))))
    grows = study.used.get("search") == "random"
    return grows and alone and same_ids and _same(after[: len(before)], before)


def _same(before: Sequence[Configuration], after: Sequence[Configuration]) -> bool:
    return list(map(_key, before)) == list(map(_key, after))


def _key(one: Configuration) -> tuple[str, str, str]:
    return one.workload, one.name, config_key(one.values)


def _differing(all_before: Sequence[Configuration], all_now: Sequence[Configuration]) -> str:
    """How two lists of configurations differ, in a few words."""
    if len(all_before) != len(all_now):
        return f" (it has {len(all_before)}, not {len(all_now)})"
    before, now = next(
        (before, now) for before, now in zip(all_before, all_now, strict=True) if _key(before) != _key(now)
    )
    if before.name != now.name:
        return f" (it has {before.name}, not {now.name})"
    old, new = ({key: value_key(value) for key, value in one.values.items()} for one in (before, now))
    key = next(key for key in {**old, **new} if old.get(key) != new.get(key))
    if key not in old or key not in new:
        return f" ({before.name} has {f'no {key}' if key in new else f'{key}, which these lack'})"
    return f" (in {before.name} {key} is {before.values[key]!r:.60}, not {now.values[key]!r:.60})"


def _check_seeds(study: StudyRecord, described: StudyRecord, where: str) -> None:
    """Refuses fewer seeds, and more seeds if trial ids would change."""
    has, wanted, configurations = study.seeds, described.seeds, len(described.configurations)
    if wanted < has:
        raise InputError(f"{where}: it has {has} seeds; give {option('seeds', has)} or more")
    trials = wanted * configurations
    if wanted > has and len(str(trials)) > max(3, len(str(has * configurations))):
        raise InputError(
            f"{where}: {option('seeds', wanted)} makes {trials} trials, which takes longer trial ids than it has; "
            "start a new study for that"
        )


def events_of(
    attempts: Sequence[Attempt],
    lines: Sequence[EpochLine],
    trials: Mapping[str, Trial],
    paced: Callable[[Trial], Trial] = lambda trial: trial,
    asks: Sequence[tuple[int | None, Planned]] = (),
) -> list[Event]:
    """The events in the journal of earlier processes, in the order in which they happened.

    Earlier versions wrote no order. Their events come first: what a search suggested, and all else by its time.
    ``paced`` says when a member of a population pauses.
    """
    begun = {f"{row.trial_id}@{row.attempts}": row.epochs for row in attempts if row.status == "paused"}
    timed: list[tuple[int, float, Event]] = [(order or 0, -math.inf, event) for order, event in asks]
    reports: dict[str, list[EpochLine]] = {}
    for line in lines:
        if line.trial_id in trials:  # a changed file may have others
            reports.setdefault(line.trial_id, []).append(line)
            timed.append((line.order or 0, line.at, _reported(line)))
    now = -math.inf
    for row in attempts:  # the system's clock may have been changed, and some rows have no time
        times = [line.at for line in reports.get(row.trial_id, ()) if line.attempt <= row.attempts]
        now = max(now, -math.inf if row.ended_at is None else row.ended_at, *times)
        timed.append((row.order or 0, now, _ended(row, trials[row.trial_id], begun, paced)))
    return [event for *_, event in sorted(timed, key=lambda found: found[:2])]


def _reported(line: EpochLine) -> Reported:
    metrics = {name: math.nan if value is None else value for name, value in line.metrics.items()}
    report = EpochReport(line.trial_id, line.epoch, 0, metrics, line.memory_bytes, line.host_peak_bytes)
    return Reported(report, line.at)


def _ended(row: Attempt, planned: Trial, begun: Mapping[str, int], paced: Callable[[Trial], Trial]) -> Ended:
    """The end of an attempt. Its batch and its evaluation are as small as they were then."""
    now, then = shrunk(planned.config), shrunk(row.config)
    trial = planned if row.attempts == planned.attempt else replace(planned, attempt=row.attempts)
    if row.status == "paused" or row.parent_checkpoint:  # a member of a population, whose values change
        parent = row.parent_checkpoint
        trial = paced(replace(trial, config=row.config, parent=parent, begun=begun.get(parent, 0)))
    elif now != then:
        config = {key: value for key, value in planned.config.items() if key not in now} | then
        trial = replace(trial, config=config)
    return Ended(trial, row.result, row.metrics, 0.0, row.estimated_bytes or 0, epochs=row.epochs)
