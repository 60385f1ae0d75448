"""Which values go into which configuration files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.config_edits.edit import Edit, edit, held
from tuner.sizing.config_entries import Sized, entry_values, in_one_step
from tuner.sizing.config_folders import ConfigFile
from tuner.sizing.footprints.footprint import stage_numbers
from tuner.trial import ACCUMULATION

# A number in a file's name, or two of a range, that stands alone or after "stage".
NUMBERS = re.compile(r"(?<![^\W_])(?:stage)?(\d+(?:-\d+)?)(?![^\W_])", re.IGNORECASE)
FEW = 3  # files that a line names; it counts the others


@dataclass(frozen=True)
class Values:
    """What is to be written.

    Attributes:
        batch: what the batch is called.
        common: values for any file that holds them, by name: batch and accumulation.
        stages: the values of each stage's variables.
        needed: names without which the batch does not fit, by stage.
        alone: whether what stands for the stages is one name that is no stage's, so that all values are for any file.
        whose: of several configurations, the one that these are of.
    """

    batch: str
    common: Mapping[str, Number]
    stages: Mapping[str, Mapping[str, Number]]
    needed: Mapping[str, tuple[str, ...]]
    alone: bool = False
    whose: str = ""

    def names(self) -> dict[str, None]:
        """What all of the values are called, in order."""
        return dict.fromkeys([*self.common, *(name for variables in self.stages.values() for name in variables)])


@dataclass(frozen=True)
class Plan:
    """What is to be changed in files, and what the user should know of it."""

    edits: tuple[Edit, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Planned:
    """What becomes of a file.

    Attributes:
        file: the file.
        edit: what is to be changed in it; None where it is left alone.
        written: what it holds, by stage and name; of what is the same for all stages, the stage is "".
        strays: variables that it holds, of which its name tells no stage.
        fault: why it cannot be read.
        notes: what else the user should know.
    """

    file: ConfigFile
    edit: Edit | None = None
    written: frozenset[tuple[str, str]] = frozenset()
    strays: tuple[str, ...] = ()
    fault: str = ""
    notes: tuple[str, ...] = ()


def values_of(chosen: Sequence[Chosen], batch: str, *, one_step: bool, whose: str = "") -> Values:
    """What is to be written of a choice.

    Args:
        chosen: a footprint's stages, which share their batch; or one configuration.
        batch: what the batch is called.
        one_step: whether files say the samples of an optimizer step, as ours do, and not of a batch.
        whose: of several configurations, the name of this one.
    """
    first = chosen[0]
    size = in_one_step(first) if one_step else first.batch_size
    return Values(
        batch=batch,
        common={batch: size, ACCUMULATION: first.accumulation},
        stages={each.name: each.variables for each in chosen},
        needed={each.name: each.lowered for each in chosen},
        alone=one_step or (len(chosen) == 1 and not stage_numbers(first.name)),
        whose=whose,
    )


def parse_keys(texts: Sequence[str]) -> dict[str, str]:
    """Where values are, by name, as ``--key NAME=DOTTED.PATH`` says.

    Raises:
        InputError: a text is none.
    """
    for text in texts:
        name, _, path = text.partition("=")
        if not name or not path:
            raise InputError(f"--key {text}: expected NAME=DOTTED.PATH")
    return dict(text.split("=", 1) for text in texts)


def planned_edits(
    files: Sequence[ConfigFile],
    values: Values,
    own: Mapping[str, str],
    given: Mapping[str, str],
    sized: Sequence[Sized] = (),
) -> Plan:
    """What is to be changed in each file; nothing is written.

    Args:
        files: YAML and TOML files.
        values: what is to be written.
        own: what the files call it by themselves, where they do not call it by its name.
        given: what the user says that they call it; this counts before the other.
        sized: the choices of all configurations, for files that list these; with ``given`` these are as any others.

    Raises:
        InputError: a file that was named, or all of a folder, holds nothing of it, a path that the user gave or what
            must be written is in none, or a file cannot be edited.
    """
    _check_keys(values, given)
    keys = {name: given.get(name, own.get(name, name)) for name in values.names()}
    planned = [_planned(file, values, keys, () if given else sized) for file in files]
    _check_folders(planned, values, keys)
    written = {pair for each in planned for pair in each.written}
    for name in given:
        if not any(name == other for _, other in written):
            raise InputError(
                f"--key {name}={given[name]}: no file holds {given[name]}: give the path of a value in it"
            )
    _check_written(values, keys, written)
    notes = [note for each in planned for note in each.notes]
    if values.whose and ("", values.batch) in written:
        notes.append(f"{values.whose}: its batch, the smallest of all, goes into the files")
    if written:  # not where all are files of configurations, which have notes of their own
        notes += _not_written(values, written)
    return Plan(tuple(each.edit for each in planned if each.edit), (*notes, *_left_alone(planned, values, keys)))


def stage_of(file: Path, stages: Sequence[str]) -> str | None:
    """The stage whose numbers a file's name has: "01_stage.yaml" is of 01, "stage_3.toml" of 02-05."""
    for match in NUMBERS.finditer(file.stem):
        numbers = stage_numbers(match[1])
        for stage in stages:
            if numbers and set(numbers) <= set(stage_numbers(stage)):
                return stage
    return None


def _planned(file: ConfigFile, values: Values, keys: Mapping[str, str], sized: Sequence[Sized]) -> _Planned:
    """What becomes of a file.

    Raises:
        InputError: it cannot be edited, or it was named and holds nothing.
    """
    try:
        found = held(file.path, keys.values())
    except InputError as error:
        if file.named:
            raise
        return _Planned(file, fault=str(error))
    entries = entry_values(file.path, values.batch, sized) if sized else None
    if entries and entries[0]:
        return _Planned(file, edit(file.path, entries[0]), notes=tuple(entries[1]))
    stage = next(iter(values.stages)) if values.alone else stage_of(file.path, list(values.stages))
    variables = values.stages[stage] if stage else {}
    mine = {} if entries else {**values.common, **variables}
    mine = {name: value for name, value in mine.items() if keys[name] in found}
    strays = () if stage else tuple(name for name in keys if name not in values.common and keys[name] in found)
    if not mine:
        if file.named:
            wanted = [keys[name] for name in (*values.common, *variables) if keys[name] not in found]
            raise InputError(f"{file.path}: {_nothing(values, wanted, strays)}")
        return _Planned(file, strays=strays)
    edited = edit(file.path, {keys[name]: value for name, value in mine.items()})
    return _Planned(
        file, edited, frozenset((stage or "" if name in variables else "", name) for name in mine), strays
    )


def _nothing(values: Values, wanted: Sequence[str], strays: Sequence[str]) -> str:
    if strays:
        return f"holds {', '.join(strays)}, but {_no_stage(values)}"
    return f"holds none of {', '.join(wanted)}: add one, or say where it is with --key NAME=DOTTED.PATH"


def _no_stage(values: Values) -> str:
    return f"no stage has this number, or its name has none: stages are {', '.join(values.stages)}"


def _left_alone(planned: Sequence[_Planned], values: Values, keys: Mapping[str, str]) -> list[str]:
    """What is not changed in files, and why."""
    strays, faults = _unusable(planned, values)
    none = [str(each.file.path) for each in planned if not (each.edit or each.strays or each.fault)]
    nothing = [f"{_few(none)}, without any of {', '.join(keys.values())}"] if none else []
    lines = [*strays, "; ".join([*nothing, *faults])]
    return [f"left alone: {line}" for line in lines if line]


def _unusable(planned: Sequence[_Planned], values: Values) -> tuple[list[str], list[str]]:
    """Variables of files that are no stage's, and files that cannot be read: a text at most for each of both."""
    strays = [f"{', '.join(each.strays)} in {each.file.path}" for each in planned if each.strays]
    faults = [each.fault for each in planned if each.fault]
    return [f"{_few(strays)}: {_no_stage(values)}"] if strays else [], [_few(faults)] if faults else []


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - FEW
    return ", ".join(texts[:FEW]) + (f" and {more} more" if more > 0 else "")


def _not_written(values: Values, written: set[tuple[str, str]]) -> list[str]:
    """What was chosen, but has no place in any file; that there is no accumulation needs none."""
    chosen = {"": {name: value for name, value in values.common.items() if (name, value) != (ACCUMULATION, 1)}}
    found = []
    for stage, wanted in {**chosen, **values.stages}.items():
        texts = [f"{name} {value:g}" for name, value in wanted.items() if (stage, name) not in written]
        whose = f" of stage {stage}" if stage and not values.alone else ""
        if texts:
            found.append(
                f"not written: {', '.join(texts)}{whose}: no file holds {'it' if len(texts) == 1 else 'them'}"
            )
    return found


def _check_keys(values: Values, keys: Mapping[str, str]) -> None:
    known = values.names()
    for name in keys:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            raise InputError(f"--key {name}={keys[name]}: nothing that is chosen has this name ({hint})")


def _check_folders(planned: Sequence[_Planned], values: Values, keys: Mapping[str, str]) -> None:
    """Refuses folders of which no file is to be changed."""
    for folder in dict.fromkeys(folder for each in planned for folder in each.file.folders):
        inside = [each for each in planned if folder in each.file.folders]
        if not any(each.edit for each in inside):
            strays, faults = _unusable(inside, values)
            nothing = (
                f"no file in it has a place for {', '.join(keys.values())}: add one, or say where it is with "
                f"--key NAME=DOTTED.PATH"
            )
            raise InputError(f"--config-path {folder}: {'; '.join([nothing, *strays, *faults])}")


def _check_written(values: Values, keys: Mapping[str, str], written: set[tuple[str, str]]) -> None:
    """Refuses files that would have the batch without what it needs."""
    if ("", values.batch) not in written:
        return
    if values.common[ACCUMULATION] > 1 and ("", ACCUMULATION) not in written:
        raise InputError(
            f"accumulation {values.common[ACCUMULATION]}: no file has a key {keys[ACCUMULATION]}: add it, or say "
            f"where it is with --key {ACCUMULATION}=DOTTED.PATH"
        )
    for stage, needed in values.needed.items():
        for name in needed:
            if (stage, name) not in written:
                prefix, whose = ("", "") if values.alone else ("stage ", " of the stage")
                raise InputError(
                    f"{prefix}{stage}: {name} {values.stages[stage][name]:g}: the batch fits only with it, and no "
                    f"file{whose} has a key {keys[name]}: add it"
                )
