"""A model's memory as a sum of terms, each a size times a product of variables.

    bytes = Σ size · variable · variable · …

TOML files have the sizes in GB (2**30 bytes). See ``configs/footprints`` for examples, and docs/memory.md.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import InputError, did_you_mean, one_line, option
from tuner.machine.atomic_files import replace_file
from tuner.machine.regular_files import MOST_BYTES, regular
from tuner.search.configurations import CONFIG_FOLDERS
from tuner.sizing.choices import Number
from tuner.trial import ACCUMULATION, GB, LARGEST_NUMBER, MOST_NAME

Values = Mapping[str, Number]

FILE_KEYS = ("name", "batch", "batch_is_step", "max_batch_size", "variables", "keys", "terms", "stages")
TERM_KEYS = ("part", "gb", "times")
STAGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True)
class Term:
    """Bytes times a product of variables, which may repeat; ``part`` is a category such as "activations"."""

    part: str
    size_bytes: float
    times: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """A model's memory as a function of variables."""

    name: str
    terms: tuple[Term, ...]
    variables: Values  # the defaults
    batch: str  # the variable that is the batch, in samples
    max_batch_size: int | None = None  # None: no bound
    stages: Mapping[str, Values] = field(default_factory=dict)  # a curriculum's variables by "01" or "02-05"
    # A variable's or the accumulation's name in configuration files: a dotted path or a bare name.
    keys: Mapping[str, str] = field(default_factory=dict)
    # The batch in configuration files is the samples of an optimizer step. The footprint is of one micro-batch.
    batch_is_step: bool = False
    source: str = "footprint"  # the file's name, for messages

    def parts(self, values: Values) -> dict[str, int]:
        """Bytes by part; ``self.variables`` has the defaults.

        Raises:
            InputError: a value is missing, unknown, or not a number of 0 or more.
        """
        complete = self._complete(values)
        parts: dict[str, float] = {}
        for term in self.terms:
            size = term.size_bytes * math.prod(float(complete[name]) for name in term.times)
            parts[term.part] = parts.get(term.part, 0.0) + size
        if not math.isfinite(sum(parts.values())):
            raise InputError(f"{self.source}: the footprint is infinite for {dict(values)}: give smaller values")
        return {part: round(size) for part, size in parts.items()}

    def need_bytes(self, values: Values) -> int:
        """The sum of ``parts``."""
        return sum(self.parts(values).values())

    def formula(self) -> str:
        """The sum in one line, in GB, such as "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"."""
        fixed: dict[tuple[str, ...], float] = {}
        growing: dict[tuple[str, ...], float] = {}
        for term in self.terms:
            sums, times = fixed, list(term.times)
            if self.batch in times:
                sums = growing
                times.remove(self.batch)
            sums[tuple(times)] = sums.get(tuple(times), 0.0) + term.size_bytes / GB
        fixed_texts, texts = (
            [" · ".join([f"{size:.4g}", *times]) for times, size in sums.items()] for sums in (fixed, growing)
        )
        factor = f"({' + '.join(texts)})" if len(texts) > 1 else "".join(texts)
        return " + ".join([*fixed_texts, *([f"{self.batch} · {factor}"] if growing else [])])

    def _complete(self, values: Values) -> Values:
        """All variables, checked."""
        needed = used(self.terms)
        known = {*needed, *self.variables, *(name for stage in self.stages.values() for name in stage)}
        for name, value in values.items():
            if name not in known:
                raise InputError(f"{self.source}: no variable is called {name!r} ({_hint(name, known)})")
            _number(value, f"{self.source}: {name}")
        complete = {**self.variables, **values}
        for name in needed:
            if name not in complete:
                raise InputError(f"{self.source}: {name} has no value: give it one, or add it to [variables]")
        return complete


def used(terms: Iterable[Term]) -> list[str]:
    """The variables of the terms, without duplicates."""
    return list(dict.fromkeys(name for term in terms for name in term.times))


def stage_numbers(name: str) -> range:
    """The numbers in a stage's name: 1 for "01", 2 to 5 for "02-05", and none for other names."""
    match = STAGE.fullmatch(name)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def read_footprint(path: str | Path) -> Footprint:
    """Reads a TOML file, or one of ``configs/footprints`` by name. A missing or wrong file raises ``InputError``."""
    file = _find(path)
    table = _Table(str(file), "", _load(file))
    table.check_keys(FILE_KEYS, ("name", "batch", "terms"))
    batch = table.text("batch")
    if batch == ACCUMULATION:
        raise table.fault(f"batch = {batch!r}: is the number of batches in a step: give the batch another name")
    variables = table.inside("variables", "[variables]").numbers(batch)
    stages = _stages(table, batch)
    known = {batch, *variables, *(name for values in stages.values() for name in values)}
    terms = _terms(table, known)
    if batch not in used(terms):
        raise table.fault(f"batch = {batch!r}: no term has it in its times ({_hint(batch, used(terms))})")
    most, is_step = table.content.get("max_batch_size"), table.content.get("batch_is_step", False)
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise table.fault(f"max_batch_size = {most!r}: must be a whole number of at least 1")
    if not isinstance(is_step, bool):
        raise table.fault(f"batch_is_step = {is_step!r}: must be true or false")
    keys = table.inside("keys", "[keys]")
    for name in keys.content:
        if name not in {*known, ACCUMULATION}:
            raise keys.fault(f"unknown variable {name!r} ({_hint(name, {*known, ACCUMULATION})})")
    return Footprint(
        name=table.text("name"),
        terms=terms,
        variables=variables,
        batch=batch,
        max_batch_size=most,
        stages=stages,
        keys={name: keys.text(name) for name in keys.content},
        batch_is_step=is_step,
        source=str(file),
    )


def write_footprint(footprint: Footprint, path: str | Path, *, overwrite: bool = False) -> None:
    """Writes a footprint atomically. A file that exists already or is not writable raises ``InputError``."""
    import tomlkit

    check_new(path, overwrite=overwrite)
    # Twelve digits of a size, as further ones are rounding of the division by 2**30.
    terms = [
        {"part": term.part, "gb": float(f"{term.size_bytes / GB:.12g}")}
        | ({"times": [*term.times]} if term.times else {})
        for term in footprint.terms
    ]
    content = {
        "name": footprint.name,
        "batch": footprint.batch,
        "batch_is_step": footprint.batch_is_step or None,
        "max_batch_size": footprint.max_batch_size,
        "variables": dict(footprint.variables),
        "keys": dict(footprint.keys),
        "terms": terms,
        "stages": {name: dict(values) for name, values in footprint.stages.items()},
    }
    given = {key: value for key, value in content.items() if value not in (None, {})}
    try:
        replace_file(Path(path), tomlkit.dumps(given).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; give another file") from error


def check_new(path: str | Path, *, overwrite: bool) -> None:
    """Raises ``InputError`` if the file exists, unless it is to be overwritten."""
    if Path(path).exists() and not overwrite:
        raise InputError(f"{path}: already exists; give another name, or {option('overwrite', True)}")


def _find(path: str | Path) -> Path:
    """The file of that path or bare name."""
    if Path(path).is_file():
        return Path(path)
    shipped = {file.stem: file for folder in CONFIG_FOLDERS for file in (folder / "footprints").glob("*.toml")}
    name = str(path).replace("-", "_")
    if name not in shipped:
        known = ", ".join(sorted(shipped))
        what = "is a folder" if Path(path).is_dir() else "there is no such file"
        raise InputError(f"footprint {path}: {what}; give a TOML file or one of {known}")
    return shipped[name]


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(regular(path, MOST_BYTES).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not TOML: {one_line(error)}") from error


@dataclass(frozen=True)
class _Table:
    """A table of a file. Its errors begin with the file's name and the table's place."""

    source: str
    where: str
    content: Mapping[str, object]

    def fault(self, text: str) -> InputError:
        return InputError(f"{self.source}: {self.where}{text}")

    def inside(self, key: str, where: str) -> _Table:
        """The table of this key, or an empty one."""
        return self.table(self.content.get(key, {}), where)

    def table(self, value: object, where: str) -> _Table:
        if not isinstance(value, Mapping):
            raise self.fault(f"{where}: must be a table, not {value!r}")
        return _Table(self.source, f"{where}: ", value)

    def text(self, key: str) -> str:
        value = self.content[key]
        if not isinstance(value, str) or not value.strip():
            raise self.fault(f"{key} = {value!r}: must be text")
        if len(value) > MOST_NAME:
            raise self.fault(f"{key}: has {len(value):,} characters; {MOST_NAME} are the most")
        return value

    def number(self, key: str) -> Number:
        return _number(self.content[key], f"{self.source}: {self.where}{key}")

    def numbers(self, batch: str) -> dict[str, Number]:
        """All values as variables. Chosen ones (batch, accumulation) are errors."""
        for name in self.content:
            if name == batch:
                raise self.fault(f"{name} is the batch, which is chosen for all stages: leave it out")
            if name == ACCUMULATION:
                raise self.fault(f"{name} is chosen, and no variable of the memory: leave it out")
        return {name: self.number(name) for name in self.content}

    def check_keys(self, known: Iterable[str], needed: Iterable[str]) -> None:
        for key in self.content:
            if key not in known:
                raise self.fault(f"unknown key {key!r} ({_hint(key, known)})")
        for key in needed:
            if key not in self.content:
                raise self.fault(f"{key} is missing")


def _stages(table: _Table, batch: str) -> dict[str, dict[str, Number]]:
    stages, taken = {}, set[int]()
    for name, values in table.inside("stages", "[stages]").content.items():
        numbers = stage_numbers(name)
        if not numbers:
            raise table.fault(f"stage {name!r}: must be a number or a range of them, such as 01 or 02-05")
        if taken & set(numbers):
            raise table.fault(f"stage {name!r}: another stage has some of its numbers")
        taken |= set(numbers)
        stages[name] = table.table(values, f"stage {name!r}").numbers(batch)
    return stages


def _terms(table: _Table, known: set[str]) -> tuple[Term, ...]:
    listed = table.content["terms"]
    if not isinstance(listed, list) or not listed:
        raise table.fault("terms: must be a list of one or more tables, [[terms]]")
    terms = []
    for number, entry in enumerate(listed, 1):
        term = table.table(entry, f"term {number}")
        term.check_keys(TERM_KEYS, ("part", "gb"))
        times = term.content.get("times", [])
        if not isinstance(times, list):
            raise term.fault(f"times = {times!r}: must be a list of variables")
        for name in times:
            if not isinstance(name, str) or name not in known:
                raise term.fault(f"unknown variable {name!r} in times ({_hint(str(name), known)})")
        terms.append(Term(term.text("part"), float(term.number("gb")) * GB, tuple(times)))
    return tuple(terms)


def _number(value: object, what: str) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{what} = {value!r}: must be a number")
    if not 0 <= value <= LARGEST_NUMBER:
        raise InputError(f"{what} = {value!r:.40}: must be a finite number of 0 or more, at most {LARGEST_NUMBER:g}")
    return value


def _hint(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known, f"known are {', '.join(sorted(known))}")
