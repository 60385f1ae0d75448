"""A model's memory as a sum of terms, each a size times a product of variables.

    bytes = Σ size · variable · variable · …

TOML files have the sizes in GB (2**30 bytes). See ``configs/footprints`` for examples, and docs/memory.md.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from tuner.errors import InputError, did_you_mean, one_line
from tuner.machine.safe_files import MOST_BYTES, regular
from tuner.records.checking import checked
from tuner.search.configurations import CONFIG_FOLDERS
from tuner.sizing.choices import Number
from tuner.trial import ACCUMULATION, GB, LARGEST_NUMBER, MOST_NAME

Values = Mapping[str, Number]
STAGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
# A number or a range of numbers in a file's name, alone or after "stage".
NUMBERS = re.compile(r"(?<![^\W_])(?:stage)?(\d+(?:-\d+)?)(?![^\W_])", re.IGNORECASE)


def _amount(value: Number) -> Number:
    if not 0 <= value <= LARGEST_NUMBER:
        raise ValueError(f"expected a finite number of 0 or more, at most {LARGEST_NUMBER:g}")
    return value


Amount = Annotated[StrictInt | StrictFloat, AfterValidator(_amount)]
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]


class _Table(BaseModel):
    """A table of a footprint file, which has no other keys than its fields."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @model_validator(mode="after")
    def check_keys(self) -> Self:
        """Raises ``ValueError`` for an unknown key."""
        for key in self.model_extra or ():
            raise ValueError(f"unknown key {key!r} ({_hint(key, type(self).model_fields)})")
        return self


class Term(_Table):
    """GB times a product of variables, which may repeat; ``part`` is a category such as "activations"."""

    part: Name
    gb: Amount
    times: tuple[str, ...] = ()


class Footprint(_Table):
    """A model's memory as a function of variables, with the fields of a footprint file."""

    name: Name
    batch: Name  # the variable that is the batch, in samples
    # The batch in configuration files is the samples of an optimizer step. The footprint is of one micro-batch.
    batch_is_step: StrictBool = False
    max_batch_size: Annotated[StrictInt, Field(ge=1)] | None = None  # None: no bound
    variables: dict[str, Amount] = Field(default_factory=dict)  # the defaults
    # A variable's or the accumulation's name in configuration files: a dotted path or a bare name.
    keys: dict[str, Name] = Field(default_factory=dict)
    terms: Annotated[tuple[Term, ...], Field(min_length=1)]
    stages: dict[str, dict[str, Amount]] = Field(default_factory=dict)  # a curriculum's variables by "01" or "02-05"

    @model_validator(mode="after")
    def check_names(self) -> Self:
        """Raises ``ValueError`` if a name is unknown, chosen by the optimizer, or no number of a stage."""
        for chosen in (self.batch, ACCUMULATION):
            if any(chosen in values for values in (self.variables, *self.stages.values())):
                raise ValueError(f"{chosen} is chosen, and the same for all stages: leave it out of the variables")
        taken: set[int] = set()
        for name in self.stages:
            if not (numbers := stage_numbers(name)) or taken & set(numbers):
                raise ValueError(f"stage {name!r}: expected numbers of its own, such as 01 or 02-05")
            taken |= set(numbers)
        variables = {self.batch, *self.variables, *(name for values in self.stages.values() for name in values)}
        for name in self.used():
            if name not in variables:
                raise ValueError(f"unknown variable {name!r} in times ({_hint(name, variables)})")
        for name in self.keys:
            if name not in {*variables, ACCUMULATION}:
                raise ValueError(f"unknown variable {name!r} in [keys] ({_hint(name, {*variables, ACCUMULATION})})")
        if self.batch not in self.used() or self.batch == ACCUMULATION:
            raise ValueError(f"batch {self.batch!r}: expected a variable in the times of a term")
        return self

    def used(self) -> list[str]:
        """The variables of the terms, without duplicates."""
        return list(dict.fromkeys(name for term in self.terms for name in term.times))

    def need_bytes(self, values: Values) -> int:
        """The sum of the terms; ``self.variables`` has the defaults.

        Raises:
            InputError: a variable has no value, or the sum is infinite.
        """
        complete = {**self.variables, **values}
        for name in self.used():
            if name not in complete:
                raise InputError(f"{self.name}: {name} has no value: give it one, or add it to [variables]")
        size_gb = sum(term.gb * math.prod(float(complete[name]) for name in term.times) for term in self.terms)
        if not math.isfinite(size_gb * GB):
            raise InputError(f"{self.name}: the footprint is infinite for {dict(values)}: give smaller values")
        return round(size_gb * GB)

    def formula(self) -> str:
        """The sum in one line, in GB, such as "2.7 + 0.0293 · batch_size + 0.01465 · batch_size · n_negatives"."""
        sums: dict[tuple[str, ...], float] = {}
        for term in self.terms:
            sums[term.times] = sums.get(term.times, 0.0) + term.gb
        return " + ".join(" · ".join([f"{size:.4g}", *times]) for times, size in sums.items())


def stage_numbers(name: str) -> range:
    """The numbers in a stage's name: 1 for "01", 2 to 5 for "02-05", and none for other names."""
    match = STAGE.fullmatch(name)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def stage_of(file: Path, names: Sequence[str]) -> str:
    """The name of a file's stage: "01_stage.yaml" is of 01, and "stage_3.toml" of 02-05; any file of an only stage.

    A file of no stage has an empty name.
    """
    if len(names) == 1 and not stage_numbers(names[0]):
        return names[0]
    numbers = [set(stage_numbers(match[1])) for match in NUMBERS.finditer(file.stem)]
    return next((name for name in names if any(n and n <= set(stage_numbers(name)) for n in numbers)), "")


def read_footprint(path: str | Path) -> Footprint:
    """Reads a TOML file, or one of ``configs/footprints`` by name. A missing or wrong file raises ``InputError``."""
    file = _find(path)
    try:
        content = tomllib.loads(regular(file, MOST_BYTES).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not TOML: {one_line(error)}") from error
    return checked(Footprint, content, str(file))


def _find(path: str | Path) -> Path:
    """The file of that path or bare name."""
    if Path(path).is_file():
        return Path(path)
    shipped = {file.stem: file for folder in CONFIG_FOLDERS for file in (folder / "footprints").glob("*.toml")}
    name = str(path).replace("-", "_")
    if name not in shipped:
        names = ", ".join(sorted(shipped))
        raise InputError(f"footprint {path}: there is no such file; give a TOML file or one of {names}")
    return shipped[name]


def _hint(name: str, names: Iterable[str]) -> str:
    return did_you_mean(name, names, f"known are {', '.join(sorted(names))}")
