"""Plans the values of a file that lists configurations. Each entry has its own choice, the defaults the smallest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.search.configurations import name_of, read_configs
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.config_edits.file_edit import held
from tuner.trial import ACCUMULATION

LISTED, DEFAULTS = "configurations", "defaults"


@dataclass(frozen=True)
class SizedConfiguration:
    """The choice for a workload's configuration."""

    workload: str
    name: str
    chosen: Chosen


@dataclass(frozen=True)
class _Entry:
    """A listed configuration with a choice for each workload; without choices it was not sized."""

    path: str
    name: str
    values: Mapping[str, object]
    choices: tuple[Chosen, ...]


@dataclass(frozen=True)
class _File:
    """A file that lists configurations, and its literal dotted paths."""

    path: Path
    entries: tuple[_Entry, ...]
    defaults: Mapping[str, object]
    written: set[str]

    def place(self, entry: _Entry, key: str) -> str | None:
        """The path of an entry's value: in the entry, else in the defaults, else None."""
        for where, values in ((entry.path, entry.values), (DEFAULTS, self.defaults)):
            path = f"{where}.{key}"
            if path in self.written:
                return path
            if key in values:
                raise InputError(f"{self.path}: {path} comes by an alias: write it out")
        return None


def listed_values(
    path: Path, batch: str, sized: Sequence[SizedConfiguration]
) -> tuple[dict[str, Number], list[str]] | None:
    """The values by dotted path, and notes for the user; None if the file lists no sized configuration.

    An entry with its own batch has its own choice. The others share the defaults, which get the smallest choice.
    ``batch`` is the name of the samples of an optimizer step. A batch without the accumulation or the numbers of
    pairs that it needs raises ``InputError``.
    """
    file = _read(path, batch, sized)
    if file is None:
        return None
    sized_here = [entry for entry in file.entries if entry.choices]
    placed = {entry.path: file.place(entry, batch) for entry in sized_here}
    shared = [entry for entry in sized_here if placed[entry.path] == f"{DEFAULTS}.{batch}"]
    smallest = [_smallest([each for entry in shared for each in entry.choices])] if shared else []
    planned: dict[str, dict[Number, list[str]]] = {}
    missing: dict[str, list[str]] = {}
    for entry in sized_here:
        if placed[entry.path] is None:
            continue
        chosen = _smallest(smallest if entry in shared else entry.choices)
        variables = {key: value for each in entry.choices for key, value in each.variables.items()}
        for key, value in {batch: chosen.step_size, ACCUMULATION: chosen.accumulation, **variables}.items():
            at = file.place(entry, key)
            if at is not None:
                planned.setdefault(at, {}).setdefault(value, []).append(entry.name)
            elif key != ACCUMULATION or value > 1:
                _check_missing(file, entry, key, value)
                missing.setdefault(f"{key} {value:g}", []).append(entry.name)
    if without := [entry.name for entry in sized_here if placed[entry.path] is None]:
        missing[batch] = without
    notes = [f"not written: {what} of {', '.join(names)}: {path} does not hold it" for what, names in missing.items()]
    if len(shared) > 1:
        notes.append(f"{path}: {DEFAULTS} have the smallest batch of {', '.join(entry.name for entry in shared)}")
    if others := [entry.name for entry in file.entries if not entry.choices]:
        notes.append(f"{path}: not sized: {', '.join(others)}, which keep what they have of their own")
    return {at: _agreed(file, at, wishes) for at, wishes in planned.items()}, notes


def _read(path: Path, batch: str, sized: Sequence[SizedConfiguration]) -> _File | None:
    try:
        listed, defaults = read_configs(path)
    except InputError:
        return None  # another kind of file
    if not held(path, [LISTED]) or not isinstance(listed, list) or not all(isinstance(e, Mapping) for e in listed):
        return None
    entries = []
    for number, values in enumerate(listed):
        whose = values.get("workload", defaults.get("workload"))
        name = name_of({key: value for key, value in values.items() if key != "workload"})
        choices = tuple(each.chosen for each in sized if each.name == name and whose in (None, each.workload))
        entries.append(_Entry(f"{LISTED}.{number}", name, values, choices))
    if not any(entry.choices for entry in entries):
        return None
    keys = {batch, ACCUMULATION, *(key for each in sized for key in each.chosen.variables)}
    places = [f"{where}.{key}" for where in (DEFAULTS, *(entry.path for entry in entries)) for key in keys]
    return _File(path, tuple(entries), defaults, held(path, places))


def _smallest(choices: Sequence[Chosen]) -> Chosen:
    return min(choices, key=lambda each: each.batch_size)


def _check_missing(file: _File, entry: _Entry, key: str, value: Number) -> None:
    if key == ACCUMULATION or any(key in each.lowered for each in entry.choices):
        raise InputError(
            f"{file.path}: {entry.name}: {key} {value:g}: the batch fits only with it, and neither the configuration "
            f"nor {DEFAULTS} has a key {key}: add it"
        )


def _agreed(file: _File, at: str, wishes: Mapping[Number, Sequence[str]]) -> Number:
    """The value of a place; different ones raise ``InputError``."""
    if len(wishes) > 1:
        each = ", ".join(f"{value:g} for {names[0]}" for value, names in wishes.items())
        raise InputError(f"{file.path}: {at} would have to be {each}: give each configuration one of its own")
    return next(iter(wishes))
