"""The memory of a model that is not at hand: a sum of terms, each a size times a product of variables.

    bytes = Σ size · variable · variable · …

A file says it in TOML (``configs/footprints`` has some), in GB of 2**30 bytes; docs/sizing.md describes the format.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import InputError, option
from tuner.search.configurations import CONFIG_FOLDERS
from tuner.trial import ACCUMULATION, GB

Values = Mapping[str, int | float]

FILE_KEYS = ("name", "batch", "batch_is_step", "max_batch_size", "variables", "keys", "terms", "stages")
TERM_KEYS = ("part", "gb", "times")
STAGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True)
class Term:
    """One summand.

    Attributes:
        part: what the memory is for, such as "activations"; terms of one part are added up.
        size_bytes: bytes for each unit of the product.
        times: the variables that are multiplied; one may occur twice.
    """

    part: str
    size_bytes: float
    times: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """What a model takes, as a function of its variables.

    Attributes:
        name: of the model.
        terms: the summands.
        variables: values where neither a stage nor the caller says otherwise.
        batch: which variable is the batch, in samples.
        max_batch_size: the most samples to consider; None for no bound.
        stages: variables of the stages of a curriculum, by "01" or "02-05".
        keys: what configuration files call a variable or "accumulation": a dotted path, or a bare name.
        batch_is_step: whether configuration files say the samples of an optimizer step where they say the batch, as
            ours do, and not of one of its batches; the footprint is of one of these.
        source: the file that it comes from, for messages.
    """

    name: str
    terms: tuple[Term, ...]
    variables: Values
    batch: str
    max_batch_size: int | None = None
    stages: Mapping[str, Values] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    batch_is_step: bool = False
    source: str = "footprint"

    def parts(self, values: Values) -> dict[str, int]:
        """Bytes by part.

        Args:
            values: of the variables; those left out are taken from ``self.variables``.

        Raises:
            InputError: a value is missing, unknown, or not a number of 0 or more.
        """
        complete = self._complete(values)
        parts: dict[str, float] = {}
        for term in self.terms:
            size = term.size_bytes * math.prod(float(complete[name]) for name in term.times)
            parts[term.part] = parts.get(term.part, 0.0) + size
        if not math.isfinite(sum(parts.values())):
            raise InputError(f"{self.source}: the footprint has no end with {dict(values)}: give smaller values")
        return {part: round(size) for part, size in parts.items()}

    def need_bytes(self, values: Values) -> int:
        """The sum of ``parts``.

        Raises:
            InputError: as ``parts``.
        """
        return sum(self.parts(values).values())

    def formula(self) -> str:
        """The sum in one line, in GB, such as "2.7 + batch_size · (0.0293 + 0.01465 · n_negatives)"."""
        fixed = [(term.size_bytes / GB, term.times) for term in self.terms if self.batch not in term.times]
        growing = [
            (term.size_bytes / GB, _without(term.times, self.batch))
            for term in self.terms
            if self.batch in term.times
        ]
        per_sample = _products(growing)
        factor = f"({' + '.join(per_sample)})" if len(per_sample) > 1 else "".join(per_sample)
        return " + ".join([*_products(fixed), *([f"{self.batch} · {factor}"] if growing else [])])

    def _complete(self, values: Values) -> Values:
        """All variables, checked."""
        needed = used(self.terms)
        known = {*needed, *self.variables, *(name for stage in self.stages.values() for name in stage)}
        for name, value in values.items():
            if name not in known:
                raise InputError(f"{self.source}: no variable is called {name!r} ({_hint(name, known)})")
            _check_number(value, f"{self.source}: {name}")
        complete = {**self.variables, **values}
        for name in needed:
            if name not in complete:
                raise InputError(f"{self.source}: {name} has no value: give it one, or add it to [variables]")
        return complete


def used(terms: Iterable[Term]) -> list[str]:
    """The variables that occur in terms, each once."""
    return list(dict.fromkeys(name for term in terms for name in term.times))


def read_footprint(path: str | Path) -> Footprint:
    """Reads a footprint.

    Args:
        path: a TOML file, or the bare name of one in ``configs/footprints``.

    Raises:
        InputError: there is no such file, or something in it is wrong; the text says what, in one line.
    """
    file = _find(path)
    return _Reader(str(file)).footprint(_load(file))


def write_footprint(footprint: Footprint, path: str | Path, *, overwrite: bool = False) -> None:
    """Writes a footprint as ``read_footprint`` reads it; whoever reads it sees a whole file at any moment.

    Args:
        footprint: what to write.
        path: the file.
        overwrite: replace a file that is there.

    Raises:
        InputError: the file is there already, or cannot be written.
    """
    import tomlkit

    from tuner.records.journal import replace_file

    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path}: is there already; give another name, or {option('overwrite', True)}")
    try:
        replace_file(path, tomlkit.dumps(_to_toml(footprint)).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; give another file") from error


def _to_toml(footprint: Footprint) -> dict[str, Any]:
    """What a file holds; what is empty is left out."""
    content = {
        "name": footprint.name,
        "batch": footprint.batch,
        "batch_is_step": footprint.batch_is_step or None,
        "max_batch_size": footprint.max_batch_size,
        "variables": dict(footprint.variables),
        "keys": dict(footprint.keys),
        "terms": [_term_to_toml(term) for term in footprint.terms],
        "stages": {name: dict(values) for name, values in footprint.stages.items()},
    }
    return {key: value for key, value in content.items() if value not in (None, {})}


def _term_to_toml(term: Term) -> dict[str, Any]:
    # Twelve digits: what a division by 2**30 adds behind them is noise.
    record = {"part": term.part, "gb": float(f"{term.size_bytes / GB:.12g}"), "times": list(term.times)}
    return {key: value for key, value in record.items() if value != []}


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


def _load(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is not TOML: {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class _Reader:
    """Turns the content of a file into a footprint; every message begins with the file's name."""

    source: str

    def footprint(self, content: Mapping[str, Any]) -> Footprint:
        self._check_keys(content, FILE_KEYS, ("name", "batch", "terms"), "")
        batch = self._text(content["batch"], "batch")
        if batch == ACCUMULATION:
            raise self._fault(f"batch = {batch!r}: is the number of batches in a step: give the batch another name")
        variables = self._variables(content.get("variables", {}), "[variables]", batch)
        stages = self._stages(content.get("stages", {}), batch)
        known = {batch, *variables, *(name for values in stages.values() for name in values)}
        terms = self._terms(content["terms"], known)
        if batch not in used(terms):
            raise self._fault(f"batch = {batch!r}: no term has it in its times ({_hint(batch, used(terms))})")
        return Footprint(
            name=self._text(content["name"], "name"),
            terms=terms,
            variables=variables,
            batch=batch,
            max_batch_size=self._most(content.get("max_batch_size")),
            stages=stages,
            keys=self._keys(content.get("keys", {}), {*known, ACCUMULATION}),
            batch_is_step=self._flag(content.get("batch_is_step", False), "batch_is_step"),
            source=self.source,
        )

    def _terms(self, listed: object, known: set[str]) -> tuple[Term, ...]:
        if not isinstance(listed, list) or not listed:
            raise self._fault("terms: must be a list of one or more tables, [[terms]]")
        return tuple(self._term(entry, f"term {number}", known) for number, entry in enumerate(listed, 1))

    def _term(self, entry: object, where: str, known: set[str]) -> Term:
        table = self._table(entry, where)
        self._check_keys(table, TERM_KEYS, ("part", "gb"), f"{where}: ")
        times = table.get("times", [])
        if not isinstance(times, list):
            raise self._fault(f"{where}: times = {times!r}: must be a list of variables")
        for name in times:
            if not isinstance(name, str) or name not in known:
                raise self._fault(f"{where}: unknown variable {name!r} in times ({_hint(str(name), known)})")
        _check_number(table["gb"], f"{self.source}: {where}: gb")
        return Term(self._text(table["part"], f"{where}: part"), float(table["gb"]) * GB, tuple(times))

    def _stages(self, tables: object, batch: str) -> dict[str, dict[str, int | float]]:
        stages, taken = {}, set[int]()
        for name, values in self._table(tables, "[stages]").items():
            numbers = stage_numbers(name)
            if not numbers:
                raise self._fault(f"stage {name!r}: must be a number or a range of them, such as 01 or 02-05")
            if taken & set(numbers):
                raise self._fault(f"stage {name!r}: another stage has some of its numbers")
            taken |= set(numbers)
            stages[name] = self._variables(values, f"stage {name!r}", batch)
        return stages

    def _keys(self, entries: object, known: set[str]) -> dict[str, str]:
        keys = self._table(entries, "[keys]")
        for name, key in keys.items():
            if name not in known:
                raise self._fault(f"[keys]: unknown variable {name!r} ({_hint(name, known)})")
            self._text(key, f"[keys]: {name}")
        return dict(keys)

    def _variables(self, entries: object, where: str, batch: str) -> dict[str, int | float]:
        table = self._table(entries, where)
        for name, value in table.items():
            if name == batch:
                raise self._fault(f"{where}: {name} is the batch, which is chosen for all stages: leave it out")
            if name == ACCUMULATION:
                raise self._fault(f"{where}: {name} is chosen, and no variable of the memory: leave it out")
            _check_number(value, f"{self.source}: {where}: {name}")
        return dict(table)

    def _most(self, value: object) -> int | None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self._fault(f"max_batch_size = {value!r}: must be a whole number of at least 1")
        return value

    def _flag(self, value: object, what: str) -> bool:
        if not isinstance(value, bool):
            raise self._fault(f"{what} = {value!r}: must be true or false")
        return value

    def _text(self, value: object, what: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._fault(f"{what} = {value!r}: must be text")
        return value

    def _table(self, value: object, where: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._fault(f"{where}: must be a table, not {value!r}")
        return value

    def _check_keys(self, table: Mapping[str, Any], known: Iterable[str], must: Iterable[str], where: str) -> None:
        for key in table:
            if key not in known:
                raise self._fault(f"{where}unknown key {key!r} ({_hint(key, known)})")
        for key in must:
            if key not in table:
                raise self._fault(f"{where}{key} is missing")

    def _fault(self, text: str) -> InputError:
        return InputError(f"{self.source}: {text}")


def stage_numbers(name: str) -> range:
    """The numbers that a stage's name stands for: "01" is 1, "02-05" is 2 to 5; empty if it is no such name."""
    match = STAGE.fullmatch(name)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def _check_number(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{what} = {value!r}: must be a number")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{what} = {value!r}: must be a finite number of 0 or more")


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"


def _without(times: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The product less one factor."""
    at = times.index(name)
    return times[:at] + times[at + 1 :]


def _products(listed: Iterable[tuple[float, tuple[str, ...]]]) -> list[str]:
    """Products as text, those of like factors as one."""
    sizes: dict[tuple[str, ...], float] = {}
    for size, times in listed:
        sizes[times] = sizes.get(times, 0.0) + size
    return [" · ".join([f"{size:.4g}", *times]) for times, size in sizes.items()]
