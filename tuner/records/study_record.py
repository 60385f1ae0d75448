"""``study.json``: the description of a study, and ``suggestions.jsonl``: what a search has added to it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from tuner.errors import InputError
from tuner.machine.safe_files import MOST_BYTES, regular
from tuner.objective import Direction, Objective
from tuner.records.checking import Amount, Name, Names, Shown, TrialId, Whole, checked_json, readable_lines
from tuner.records.files import STUDY, SUGGESTIONS
from tuner.trial import Config, Configuration, ConfigValue, Device
from tuner.values import decode, encode, label, value_key

OPTUNA_CALL = "tuner.optuna.optimize()"  # the command of a user's Optuna study
RESTORE = "restore it from a copy, or start a new study"


def _configuration(content: object) -> Configuration:
    """The configuration that ``to_content`` wrote, or an earlier version: with all values beside its name."""
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        raise ValueError("expected a configuration with a name")
    others = {key: decode(value) for key, value in content.items() if key not in ("name", "workload")}
    values = others["values"] if isinstance(others.get("values"), dict) else others
    return Configuration(content["name"], values, str(content.get("workload", "")))


def to_content(one: Configuration) -> dict[str, object]:
    """A configuration in the form of files."""
    values = {key: encode(value) for key, value in one.values.items()}
    return {**({"workload": one.workload} if one.workload else {}), "name": one.name, "values": values}


def _values_in(content: object, key: str = "") -> Iterator[tuple[str, ConfigValue]]:
    """The values in a stored space, grid or list of configurations, each with its hyperparameter."""
    if isinstance(content, Mapping) and (listed := content.get("choice", content.get("grid_search"))) is not None:
        yield from ((key, decode(value)) for value in listed if isinstance(listed, list))
    elif isinstance(content, Mapping):
        for name, inner in content.items():
            whole = not key and name in ("space", "grid", "defaults", "configurations")
            yield from _values_in(inner, "" if whole else f"{key}.{name}".removeprefix("."))
    elif isinstance(content, list):
        yield from (pair for inner in content for pair in _values_in(inner, key))
    if key:
        yield key, decode(content)


Scale = Literal["linear", "log"]  # of a range in a search space
Named = Annotated[Configuration, PlainValidator(_configuration)]
Count = Annotated[Whole, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """The plan of a study: how its trials share the devices."""

    devices: Sequence[Device] = field(default_factory=list)
    buffer_bytes: int = 0
    budgets: Sequence[Whole] = field(default_factory=list)
    packing: str = ""
    footprint_bytes: int = 0
    fits: Sequence[int] = field(default_factory=list)
    expected: Sequence[int] = field(default_factory=list)
    slots: Sequence[int] = field(default_factory=list)
    threads: Count | None = None
    bound: str = ""
    ram_budgets: Mapping[str, Whole] = field(default_factory=dict)
    ram_footprint_bytes: int = 0
    max_workers: Count | None = None
    workers: int = 0
    tight: Sequence[str] = field(default_factory=list)  # the names of trials with less than they would cache
    # Expected times where known: an epoch of each trial by its id, and all trials together.
    epoch_seconds: Mapping[str, Amount] = field(default_factory=dict)
    seconds: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """The content of ``study.json``, in order."""

    workload: Names  # a list if there are several
    seed: Whole | None = None  # the first seed
    seeds: Count = 1
    split_seed: Whole | None = None
    fingerprint: Names | None = None  # of the data and their split; a list if there are several workloads
    configurations: Sequence[Named] = field(default_factory=list)
    auto_batch: Mapping[TrialId, Whole] = field(default_factory=dict)  # chosen batch sizes by trial id
    # The user's own workloads: ``module:Class`` by name, None for an object without a module.
    classes: Mapping[str, str | None] = field(default_factory=dict)
    programs: Sequence[str] = field(default_factory=list)  # the names of those that are functions or scripts
    calls: Mapping[str, Shown] = field(default_factory=dict)  # how those are called that have bound arguments
    metrics: Mapping[str, Name] = field(default_factory=dict)  # the metric of each workload's trials
    directions: Mapping[str, Direction] = field(default_factory=dict)  # earlier versions minimised every metric
    # The further metrics of each workload's trials, with their directions.
    further: Mapping[str, Mapping[Name, Direction]] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of the space's ranges, by hyperparameter
    data: Shown | None = None  # a short description of the data sets
    last_epoch: Whole | None = None  # of a training on all data, which holds nothing out
    cautions: Mapping[str, Shown] = field(default_factory=dict)  # why a workload's data may not tell the best trial
    settings: Mapping[str, object] = field(default_factory=dict)  # its options where ``options`` does not have them
    plan: PlanRecord = PlanRecord()
    versions: Mapping[str, str] = field(default_factory=dict)
    code: Sequence[str] = field(default_factory=list)  # a digest of each version of its source, the first first
    revision: str = ""  # git's, of the folder that the study was started in, with "+" if files were changed
    started: str = ""
    id: str = ""  # which marks its trials in a user's Optuna study
    command: Shown = "a Python program"  # the user's command
    options: Mapping[str, object] | None = None  # those that repeat the study; None if only the same call does

    @property
    def used(self) -> Mapping[str, object]:
        """The values of all options, whether or not these repeat the study."""
        return {**self.settings, **(self.options or {})}

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, ConfigValue]]:
        """By hyperparameter, the values whose labels earlier versions wrote, where these are not ambiguous."""
        by_key: dict[str, dict[str, list[ConfigValue]]] = {}
        for content in (self.used.get("space"), self.used.get("config")):
            for key, value in _values_in(content):
                same = by_key.setdefault(key, {}).setdefault(label(value), [])
                same += [value] if value_key(value) not in map(value_key, same) else []
        unique = {
            key: {text: one[0] for text, one in texts.items() if len(one) == 1} for key, texts in by_key.items()
        }
        return {
            key: {text: one for text, one in labels.items() if type(one) is not str} for key, labels in unique.items()
        }

    def typed(self, config: Mapping[str, ConfigValue]) -> Mapping[str, ConfigValue]:
        """A configuration that was read, with values instead of earlier versions' labels."""
        old = [key for key, value in config.items() if type(value) is str and value in self.labels.get(key, {})]
        return {**config, **{key: self.labels[key][config[key]] for key in old}} if old else config

    @property
    def workloads(self) -> list[str]:
        """The names of its workloads."""
        return [self.workload] if isinstance(self.workload, str) else self.workload

    @property
    def objectives(self) -> dict[str, Objective]:
        """What the trials of each workload are compared by, where it is known."""
        return {
            name: Objective(
                metric,
                self.directions.get(name, "minimize"),
                tuple(Objective(other, direction) for other, direction in self.further.get(name, {}).items()),
            )
            for name, metric in self.metrics.items()
        }

    @property
    def fingerprints(self) -> dict[str, str]:
        """The known fingerprints of data, by workload."""
        prints = [self.fingerprint] if isinstance(self.fingerprint, str) else self.fingerprint or []
        return dict(zip(self.workloads, prints, strict=False))

    @property
    def data_seed(self) -> int:
        """The seed of the data's split."""
        return self.split_seed if self.split_seed is not None else self.seed or 0

    @property
    def known(self) -> bool:
        """Whether there is a ``study.json``."""
        return self.workload != []

    def to_json(self) -> bytes:
        """The content of ``study.json``."""
        content = {
            **asdict(replace(self, configurations=[])),
            "configurations": [*map(to_content, self.configurations)],
        }
        return (json.dumps(content, indent=2) + "\n").encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A configuration that a search has suggested, or only values that cannot be used."""

    number: Count  # among the study's configurations, from 1
    configuration: Named | None = None
    order: Whole | None = None  # among all that happened in the study
    refused: Annotated[Sequence[Config], PlainValidator(decode)] = ()  # earlier suggestions that cannot be used

    def to_line(self) -> bytes:
        """Its line in ``suggestions.jsonl``."""
        one = self.configuration
        line = {"number": self.number, "order": self.order, "refused": encode([*map(dict, self.refused)])}
        return (json.dumps({**line, "configuration": one and to_content(one)}) + "\n").encode()


UNKNOWN = StudyRecord(workload=[])  # a new study, or one without ``study.json``


def read_study(folder: Path, where: str = "") -> StudyRecord:
    """The content of a folder's ``study.json``, with the configurations that a search has suggested since.

    Messages begin with ``where``, by default the folder.

    Raises:
        InputError: the folder or the file does not exist, or the file is damaged.
    """
    where = where or str(folder)
    try:
        content = regular(folder / STUDY, MOST_BYTES).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = f"holds no {STUDY}" if folder.is_dir() else "is not a folder"
        what = missing if folder.exists() else "there is no such folder"
        raise InputError(f"{where}: {what}; give the folder of a study") from error
    except OSError as error:
        raise InputError(f"{where}: {STUDY} cannot be read: {error.strerror}") from error
    try:
        record = checked_json(StudyRecord, content)
    except ValueError as error:
        raise InputError(f"{where}: {STUDY} is damaged ({error}); {RESTORE}") from error
    listed = list(record.configurations)
    for suggestion in read_suggestions(folder):
        if suggestion.configuration and suggestion.number == len(listed) + 1:  # ``study.json`` has those before
            listed.append(suggestion.configuration)
    return replace(record, configurations=[replace(one, values=record.typed(one.values)) for one in listed])


def read_suggestions(folder: Path) -> list[Suggestion]:
    """The lines of ``suggestions.jsonl`` in order, without damaged ones."""
    return readable_lines(Suggestion, folder / SUGGESTIONS, MOST_BYTES)
