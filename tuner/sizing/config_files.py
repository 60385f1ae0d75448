"""Which values go into which configuration files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.editing.edit import Edit, edit, holds
from tuner.errors import InputError
from tuner.sizing.choices import Chosen, Number
from tuner.sizing.footprints.footprint import stage_numbers
from tuner.trial import ACCUMULATION

SUFFIXES = (".yaml", ".yml", ".toml")
# A number in a file's name, or two of a range, that stands alone or after "stage".
NUMBERS = re.compile(r"(?<![^\W_])(?:stage)?(\d+(?:-\d+)?)(?![^\W_])", re.IGNORECASE)


@dataclass(frozen=True)
class Values:
    """What is to be written.

    Attributes:
        batch: what the batch is called.
        common: values for any file that holds them, by name: batch and accumulation.
        stages: the values of each stage's variables; under one name that is no number, for any file.
        needed: names without which the batch does not fit or says something else, by stage; "" is any.
    """

    batch: str
    common: Mapping[str, Number]
    stages: Mapping[str, Mapping[str, Number]]
    needed: Mapping[str, tuple[str, ...]]


def values_of(chosen: Sequence[Chosen], batch: str, *, in_one_step: bool) -> Values:
    """What is to be written of a choice.

    Args:
        chosen: a footprint's stages, which share their batch; or one configuration.
        batch: what the batch is called.
        in_one_step: whether files say the samples of an optimizer step, as ours do, and not of a batch.
    """
    first = chosen[0]
    size = first.batch_size * (first.accumulation if in_one_step else 1)
    return Values(
        batch=batch,
        common={batch: size, ACCUMULATION: first.accumulation},
        stages={each.name: each.variables for each in chosen},
        needed={each.name: each.lowered for each in chosen},
    )


def config_files(paths: Sequence[str]) -> list[Path]:
    """The files: those named, and those in the folders named, sorted by name.

    Raises:
        InputError: there is no such file, it is of no format that is understood, or a folder has none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            listed = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not listed:
                raise InputError(f"--config-path {path}: the folder has no file in {', '.join(SUFFIXES)}")
            found += listed
        elif not path.is_file():
            raise InputError(f"--config-path {path}: there is no such file or folder")
        elif path.suffix not in SUFFIXES:
            raise InputError(f"--config-path {path}: must be one of {', '.join(SUFFIXES)}")
        else:
            found.append(path)
    return list(dict.fromkeys(found))


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
    files: Sequence[Path], values: Values, own: Mapping[str, str], given: Mapping[str, str]
) -> list[Edit]:
    """What is to be changed in each file; nothing is written.

    Args:
        files: YAML and TOML files.
        values: what is to be written.
        own: what the files call it by themselves, where they do not call it by its name.
        given: what the user says that they call it; this counts before the other.

    Raises:
        InputError: a file holds nothing of it, a path that the user gave or what must be written is in none, or a
            file cannot be edited.
    """
    _check_keys(values, given)
    keys = {**own, **given}
    planned, written = [], set()
    for file in files:
        stage, mine = _values_for(file, values)
        held = {name: value for name, value in mine.items() if holds(file, keys.get(name, name))}
        if not held:
            names = ", ".join(keys.get(name, name) for name in mine)
            raise InputError(
                f"{file}: holds none of {names}: add one, or say where it is with --key NAME=DOTTED.PATH"
            )
        written |= {(stage if name in values.needed.get(stage, ()) else "", name) for name in held}
        planned.append(edit(file, {keys.get(name, name): value for name, value in held.items()}))
    for name in given:
        if not any(name == other for _, other in written):
            raise InputError(
                f"--key {name}={given[name]}: no file holds {given[name]}: give the path of a value in it"
            )
    _check_written(values, keys, written)
    return planned


def stage_of(file: Path, stages: Sequence[str]) -> str | None:
    """The stage whose numbers a file's name has: "01_stage.yaml" is of 01, "stage_3.toml" of 02-05."""
    for match in NUMBERS.finditer(file.stem):
        numbers = stage_numbers(match[1])
        for stage in stages:
            if numbers and set(numbers) <= set(stage_numbers(stage)):
                return stage
    return None


def _values_for(file: Path, values: Values) -> tuple[str, dict[str, Number]]:
    """A file's stage and what it is to have, if it holds it."""
    stages = list(values.stages)
    alone = len(stages) == 1 and not stage_numbers(stages[0])
    stage = stages[0] if alone else stage_of(file, stages)
    return stage or "", {**values.common, **(values.stages[stage] if stage else {})}


def _check_keys(values: Values, keys: Mapping[str, str]) -> None:
    known = {*values.common, *(name for variables in values.stages.values() for name in variables)}
    for name in keys:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            raise InputError(f"--key {name}={keys[name]}: nothing that is chosen has this name ({hint})")


def _check_written(values: Values, keys: Mapping[str, str], written: set[tuple[str, str]]) -> None:
    """Refuses files that would have the batch without what it needs."""
    names = {name for _, name in written}
    if values.batch not in names:
        return
    if values.common[ACCUMULATION] > 1 and ACCUMULATION not in names:
        key = keys.get(ACCUMULATION, ACCUMULATION)
        raise InputError(
            f"accumulation {values.common[ACCUMULATION]}: no file has a key {key}: add it, or say where it is "
            f"with --key {ACCUMULATION}=DOTTED.PATH"
        )
    for stage, needed in values.needed.items():
        for name in needed:
            if (stage, name) not in written:
                raise InputError(
                    f"stage {stage}: {name} {values.stages[stage][name]:g}: the batch fits only with it, and no file "
                    f"of the stage has a key {keys.get(name, name)}: add it"
                )
