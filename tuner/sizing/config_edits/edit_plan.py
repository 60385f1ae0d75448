"""Which values go into which configuration files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError, option
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.config_edits.file_edit import FileEdit, edit_file, held
from tuner.sizing.config_edits.found_files import ConfigFile
from tuner.sizing.config_edits.listed_configurations import SizedConfiguration, listed_values
from tuner.sizing.footprints.footprint import stage_numbers
from tuner.trial import ACCUMULATION

# A number in a file's name, or two of a range, that stands alone or after "stage".
NUMBERS = re.compile(r"(?<![^\W_])(?:stage)?(\d+(?:-\d+)?)(?![^\W_])", re.IGNORECASE)
FEW = 3  # files that a line names; it counts the others
SAY_WHERE = f"say where it is with {option('key', 'NAME=DOTTED.PATH')}"


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
class EditPlan:
    """What is to be changed in files, and what the user should know of it."""

    edits: tuple[FileEdit, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FilePlan:
    """What becomes of a file.

    Attributes:
        edit: what is to be changed in it; None where it is left alone.
        written: what it holds, by stage and name; of what is the same for all stages, the stage is "".
        strays: variables that it holds, of which its name tells no stage.
        fault: why it cannot be read.
    """

    file: ConfigFile
    edit: FileEdit | None = None
    written: frozenset[tuple[str, str]] = frozenset()
    strays: tuple[str, ...] = ()
    fault: str = ""
    notes: tuple[str, ...] = ()


def values_of(chosen: Sequence[Chosen], batch: str, *, one_step: bool, whose: str = "") -> Values:
    """What is to be written of a choice: a footprint's stages, which share their batch, or one configuration.

    Args:
        chosen: the choice.
        batch: what the batch is called.
        one_step: whether files say the samples of an optimizer step, as ours do, and not of a batch.
        whose: of several configurations, the name of this one.
    """
    first = chosen[0]
    return Values(
        batch=batch,
        common={batch: first.step_size if one_step else first.batch_size, ACCUMULATION: first.accumulation},
        stages={each.name: each.variables for each in chosen},
        needed={each.name: each.lowered for each in chosen},
        alone=one_step or (len(chosen) == 1 and not stage_numbers(first.name)),
        whose=whose,
    )


def parse_keys(texts: Sequence[str]) -> dict[str, str]:
    """Where values are, by name, from texts such as ``batch_size=data_loader.batch_size``.

    Raises:
        InputError: a text is none.
    """
    pairs = {text: text.partition("=") for text in texts}
    for text, (name, _, path) in pairs.items():
        if not name or not path:
            raise InputError(f"{option('key', text)}: expected NAME=DOTTED.PATH")
    return {name: path for name, _, path in pairs.values()}


def plan_edits(
    files: Sequence[ConfigFile],
    values: Values,
    own: Mapping[str, str],
    given: Mapping[str, str],
    sized: Sequence[SizedConfiguration] = (),
) -> EditPlan:
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
    plans = [_file_plan(file, values, keys, () if given else sized) for file in files]
    _check_folders(plans, values, keys)
    written = {pair for each in plans for pair in each.written}
    for name, path in given.items():
        if not any(name == other for _, other in written):
            raise InputError(
                f"{option('key', f'{name}={path}')}: no file holds {path}: give the path of a value in it"
            )
    _check_written(values, keys, written)
    notes = [note for each in plans for note in each.notes]
    if values.whose and ("", values.batch) in written:
        notes.append(f"{values.whose}: its batch, the smallest of all, goes into the files")
    if written:  # not where all are files of configurations, which have notes of their own
        notes += _not_written(values, written)
    return EditPlan(tuple(each.edit for each in plans if each.edit), (*notes, *_left_alone(plans, values, keys)))


def stage_of(file: Path, stages: Sequence[str]) -> str | None:
    """The stage whose numbers a file's name has: "01_stage.yaml" is of 01, "stage_3.toml" of 02-05."""
    for match in NUMBERS.finditer(file.stem):
        numbers = stage_numbers(match[1])
        for stage in stages:
            if numbers and set(numbers) <= set(stage_numbers(stage)):
                return stage
    return None


def _file_plan(
    file: ConfigFile, values: Values, keys: Mapping[str, str], sized: Sequence[SizedConfiguration]
) -> _FilePlan:
    """What becomes of a file.

    Raises:
        InputError: it cannot be edited, or it was named and holds nothing.
    """
    try:
        found = held(file.path, keys.values())
    except InputError as error:
        if file.named:
            raise
        return _FilePlan(file, fault=error.text)
    listed = listed_values(file.path, values.batch, sized) if sized else None
    if listed and listed[0]:
        return _FilePlan(file, edit_file(file.path, listed[0]), notes=tuple(listed[1]))
    stage = next(iter(values.stages)) if values.alone else stage_of(file.path, list(values.stages))
    variables = values.stages[stage] if stage else {}
    strays = () if stage else tuple(name for name in keys if name not in values.common and keys[name] in found)
    wanted = {**values.common, **variables}
    mine = {} if listed else {name: value for name, value in wanted.items() if keys[name] in found}
    if mine:
        written = frozenset((stage or "" if name in variables else "", name) for name in mine)
        edit = edit_file(file.path, {keys[name]: value for name, value in mine.items()})
        return _FilePlan(file, edit, written, strays)
    if not file.named:
        return _FilePlan(file, strays=strays)
    if strays:
        raise InputError(f"{file.path}: holds {', '.join(strays)}, but {_no_stage(values)}")
    missing = ", ".join(keys[name] for name in wanted if keys[name] not in found)
    raise InputError(f"{file.path}: holds none of {missing}: add one, or {SAY_WHERE}")


def _no_stage(values: Values) -> str:
    return f"no stage has this number, or its name has none: stages are {', '.join(values.stages)}"


def _left_alone(plans: Sequence[_FilePlan], values: Values, keys: Mapping[str, str]) -> list[str]:
    """What is not changed in files, and why."""
    strays, faults = _unusable(plans, values)
    none = [str(each.file.path) for each in plans if not (each.edit or each.strays or each.fault)]
    nothing = [f"{_few(none)}, without any of {', '.join(keys.values())}"] if none else []
    return [f"left alone: {line}" for line in (*strays, "; ".join([*nothing, *faults])) if line]


def _unusable(plans: Sequence[_FilePlan], values: Values) -> tuple[list[str], list[str]]:
    """Variables of files that are no stage's, and files that cannot be read: a text at most for each of both."""
    strays = [f"{', '.join(each.strays)} in {each.file.path}" for each in plans if each.strays]
    faults = [each.fault for each in plans if each.fault]
    return [f"{_few(strays)}: {_no_stage(values)}"] if strays else [], [_few(faults)] if faults else []


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - FEW
    return ", ".join(texts[:FEW]) + (f" and {more} more" if more > 0 else "")


def _not_written(values: Values, written: set[tuple[str, str]]) -> list[str]:
    """What was chosen, but has no place in any file; that there is no accumulation needs none."""
    common = {name: value for name, value in values.common.items() if (name, value) != (ACCUMULATION, 1)}
    found = []
    for stage, wanted in {"": common, **values.stages}.items():
        texts = [f"{name} {value:g}" for name, value in wanted.items() if (stage, name) not in written]
        whose = f" of stage {stage}" if stage and not values.alone else ""
        if texts:
            them = "it" if len(texts) == 1 else "them"
            found.append(f"not written: {', '.join(texts)}{whose}: no file holds {them}")
    return found


def _check_keys(values: Values, keys: Mapping[str, str]) -> None:
    known = values.names()
    for name, path in keys.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            raise InputError(f"{option('key', f'{name}={path}')}: nothing that is chosen has this name ({hint})")


def _check_folders(plans: Sequence[_FilePlan], values: Values, keys: Mapping[str, str]) -> None:
    """Refuses folders of which no file is to be changed."""
    for folder in dict.fromkeys(folder for each in plans for folder in each.file.folders):
        inside = [each for each in plans if folder in each.file.folders]
        if not any(each.edit for each in inside):
            strays, faults = _unusable(inside, values)
            nothing = f"no file in it has a place for {', '.join(keys.values())}: add one, or {SAY_WHERE}"
            raise InputError(f"{option('config_path', str(folder))}: {'; '.join([nothing, *strays, *faults])}")


def _check_written(values: Values, keys: Mapping[str, str], written: set[tuple[str, str]]) -> None:
    """Refuses files that would have the batch without what it needs."""
    if ("", values.batch) not in written:
        return
    if values.common[ACCUMULATION] > 1 and ("", ACCUMULATION) not in written:
        raise InputError(
            f"accumulation {values.common[ACCUMULATION]}: no file has a key {keys[ACCUMULATION]}: add it, or say "
            f"where it is with {option('key', f'{ACCUMULATION}=DOTTED.PATH')}"
        )
    for stage, needed in values.needed.items():
        for name in needed:
            if (stage, name) not in written:
                prefix, whose = ("", "") if values.alone else ("stage ", " of the stage")
                raise InputError(
                    f"{prefix}{stage}: {name} {values.stages[stage][name]:g}: the batch fits only with it, and no "
                    f"file{whose} has a key {keys[name]}: add it"
                )
