"""Plans which values are written to which configuration files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError, did_you_mean, option
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.config_edits.file_edit import FileEdit, edit_file, held
from tuner.sizing.config_edits.found_files import ConfigFile
from tuner.sizing.config_edits.listed_configurations import SizedConfiguration, listed_values
from tuner.sizing.footprints.footprint import stage_numbers
from tuner.trial import ACCUMULATION

# A number or a range of numbers in a file's name, alone or after "stage".
NUMBERS = re.compile(r"(?<![^\W_])(?:stage)?(\d+(?:-\d+)?)(?![^\W_])", re.IGNORECASE)
FEW = 3  # the maximum number of files that a line names; others are counted
SAY_WHERE = f"say where it is with {option('key', 'NAME=DOTTED.PATH')}"


@dataclass(frozen=True)
class NewValues:
    """The values to write."""

    batch: str  # the batch's name
    common: Mapping[str, Number]  # batch and accumulation by name, for any file that has them
    stages: Mapping[str, Mapping[str, Number]]  # variables by stage
    needed: Mapping[str, tuple[str, ...]]  # by stage, the variables without which the batch does not fit
    without_stages: bool = False  # the single entry of ``stages`` is for any file
    configuration: str = ""  # the configuration's name, if there are several

    def names(self) -> dict[str, None]:
        """The names of all values, in order."""
        return dict.fromkeys([*self.common, *(name for variables in self.stages.values() for name in variables)])


@dataclass(frozen=True)
class EditPlan:
    """The changes of files, and notes for the user."""

    edits: tuple[FileEdit, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FilePlan:
    """The plan for a file."""

    file: ConfigFile
    edit: FileEdit | None = None  # None: no change
    written: frozenset[tuple[str, str]] = frozenset()  # stage and name of its values; common values have the stage ""
    strays: tuple[str, ...] = ()  # its stage variables, if its name has no stage
    fault: str = ""  # why it cannot be read
    notes: tuple[str, ...] = ()


def new_values(chosen: Sequence[Chosen], batch: str, *, one_step: bool, configuration: str = "") -> NewValues:
    """The values to write for a choice: of a footprint's stages, which share their batch, or of one configuration.

    With ``one_step``, the files' batch is the samples of an optimizer step, as in our files.
    """
    first = chosen[0]
    return NewValues(
        batch=batch,
        common={batch: first.step_size if one_step else first.batch_size, ACCUMULATION: first.accumulation},
        stages={each.name: each.variables for each in chosen},
        needed={each.name: each.lowered for each in chosen},
        without_stages=one_step or (len(chosen) == 1 and not stage_numbers(first.name)),
        configuration=configuration,
    )


def parse_keys(texts: Sequence[str]) -> dict[str, str]:
    """The places of values by name, from texts such as ``batch_size=data_loader.batch_size``."""
    found = {}
    for text in texts:
        name, _, found[name] = text.partition("=")
        if not name or not found[name]:
            raise InputError(f"{option('key', text)}: expected NAME=DOTTED.PATH")
    return found


def plan_edits(
    files: Sequence[ConfigFile],
    values: NewValues,
    own: Mapping[str, str],
    given: Mapping[str, str],
    sized: Sequence[SizedConfiguration] = (),
) -> EditPlan:
    """The changes of each YAML or TOML file; nothing is written.

    Args:
        files: the files.
        values: the values to write.
        own: the names of values in files, if they differ; by the footprint.
        given: the same by the user, which takes precedence.
        sized: the choices of all configurations, for files that list configurations; ignored with ``given``.

    Raises:
        InputError: a named file or a whole folder has none of the values, a user's path or a required value is in no
            file, or a file cannot be edited.
    """
    names = values.names()
    for name, path in given.items():
        if name not in names:
            hint = did_you_mean(name, names, f"known are {', '.join(sorted(names))}")
            raise InputError(f"{option('key', f'{name}={path}')}: nothing that is chosen has this name ({hint})")
    planner = _Planner(values, {name: given.get(name, own.get(name, name)) for name in names})
    plans = [planner.plan(file, () if given else sized) for file in files]
    planner.check_folders(plans)
    written = {pair for each in plans for pair in each.written}
    for name, path in given.items():
        if not any(name == other for _, other in written):
            raise InputError(
                f"{option('key', f'{name}={path}')}: no file holds {path}: give the path of a value in it"
            )
    planner.check_written(written)
    notes = [note for each in plans for note in each.notes]
    if values.configuration and ("", values.batch) in written:
        notes.append(f"{values.configuration}: its batch, the smallest of all, goes into the files")
    if written:  # not where all are files of configurations, which have notes of their own
        notes += planner.not_written(written)
    return EditPlan(tuple(each.edit for each in plans if each.edit), (*notes, *planner.left_alone(plans)))


def stage_of(file: Path, stages: Sequence[str]) -> str | None:
    """The stage whose numbers a file's name has: "01_stage.yaml" is of 01, "stage_3.toml" of 02-05."""
    for match in NUMBERS.finditer(file.stem):
        numbers = stage_numbers(match[1])
        for stage in stages:
            if numbers and set(numbers) <= set(stage_numbers(stage)):
                return stage
    return None


@dataclass(frozen=True)
class _Planner:
    """New values, with a dotted path or a bare name in the files for each."""

    values: NewValues
    keys: Mapping[str, str]

    def plan(self, file: ConfigFile, sized: Sequence[SizedConfiguration]) -> _FilePlan:
        """The plan for a file. A file that the user named must be readable and have at least one of the values."""
        values, keys = self.values, self.keys
        try:
            found = held(file.path, keys.values())
        except InputError as error:
            if file.named:
                raise
            return _FilePlan(file, fault=error.text)
        listed = listed_values(file.path, values.batch, sized) if sized else None
        if listed and listed[0]:
            return _FilePlan(file, edit_file(file.path, listed[0]), notes=tuple(listed[1]))
        stage = next(iter(values.stages)) if values.without_stages else stage_of(file.path, list(values.stages))
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
            raise InputError(f"{file.path}: holds {', '.join(strays)}, but {self._no_stage()}")
        missing = ", ".join(keys[name] for name in wanted if keys[name] not in found)
        raise InputError(f"{file.path}: holds none of {missing}: add one, or {SAY_WHERE}")

    def check_folders(self, plans: Sequence[_FilePlan]) -> None:
        """Rejects folders in which no file changes."""
        for folder in dict.fromkeys(folder for each in plans for folder in each.file.folders):
            inside = [each for each in plans if folder in each.file.folders]
            if not any(each.edit for each in inside):
                nothing = f"no file in it has a place for {', '.join(self.keys.values())}: add one, or {SAY_WHERE}"
                texts = "; ".join([nothing, *self._strays(inside), *_faults(inside)])
                raise InputError(f"{option('config_path', str(folder))}: {texts}")

    def check_written(self, written: set[tuple[str, str]]) -> None:
        """Rejects a batch without the values that it needs."""
        values, accumulation = self.values, self.values.common[ACCUMULATION]
        if ("", values.batch) not in written:
            return
        if accumulation > 1 and ("", ACCUMULATION) not in written:
            raise InputError(
                f"accumulation {accumulation}: no file has a key {self.keys[ACCUMULATION]}: add it, or say where it "
                f"is with {option('key', f'{ACCUMULATION}=DOTTED.PATH')}"
            )
        for stage, name in [(stage, name) for stage, needed in values.needed.items() for name in needed]:
            if (stage, name) not in written:
                prefix, of_stage = ("", "") if values.without_stages else ("stage ", " of the stage")
                raise InputError(
                    f"{prefix}{stage}: {name} {values.stages[stage][name]:g}: the batch fits only with it, and no "
                    f"file{of_stage} has a key {self.keys[name]}: add it"
                )

    def not_written(self, written: set[tuple[str, str]]) -> list[str]:
        """A line for chosen values that are in no file, except an accumulation of 1."""
        common = {name: value for name, value in self.values.common.items() if (name, value) != (ACCUMULATION, 1)}
        found = []
        for stage, wanted in {"": common, **self.values.stages}.items():
            texts = [f"{name} {value:g}" for name, value in wanted.items() if (stage, name) not in written]
            of_stage = f" of stage {stage}" if stage and not self.values.without_stages else ""
            if texts:
                them = "it" if len(texts) == 1 else "them"
                found.append(f"not written: {', '.join(texts)}{of_stage}: no file holds {them}")
        return found

    def left_alone(self, plans: Sequence[_FilePlan]) -> list[str]:
        """A line for each reason why files or values are not changed."""
        none = [str(each.file.path) for each in plans if not (each.edit or each.strays or each.fault)]
        nothing = [f"{_few(none)}, without any of {', '.join(self.keys.values())}"] if none else []
        lines = [*self._strays(plans), "; ".join([*nothing, *_faults(plans)])]
        return [f"left alone: {line}" for line in lines if line]

    def _strays(self, plans: Sequence[_FilePlan]) -> list[str]:
        """One text for stage variables in files without a stage; empty if there are none."""
        strays = [f"{', '.join(each.strays)} in {each.file.path}" for each in plans if each.strays]
        return [f"{_few(strays)}: {self._no_stage()}"] if strays else []

    def _no_stage(self) -> str:
        return f"no stage has this number, or its name has none: stages are {', '.join(self.values.stages)}"


def _faults(plans: Sequence[_FilePlan]) -> list[str]:
    """One text for files that cannot be read; empty if there are none."""
    faults = [each.fault for each in plans if each.fault]
    return [_few(faults)] if faults else []


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - FEW
    return ", ".join(texts[:FEW]) + (f" and {more} more" if more > 0 else "")
