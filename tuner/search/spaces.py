"""Reads search spaces. Each hyperparameter has a value, a list of values, or a range.

    space:
      hidden_dim: {choice: [32, 64, 128]}
      lr: {loguniform: [1e-4, 1e-1]}
      dropout: {uniform: [0, 0.5], step: 0.1}
      batch_size: {logint: [1000, 100000]}
      optimizer: {choice: [adam, sgd]}
      momentum: {uniform: [0.8, 0.99], if: {optimizer: sgd}}
      model:
        num_layers: {int: [1, 4]}
      epochs: 20

A range includes both ends. Records have ``model.num_layers`` for a key of a group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tuner.errors import InputError, did_you_mean
from tuner.search.configurations import Schema, ambiguous, faults, keyed, to_entry
from tuner.search.domains import CROSSED, KINDS, WHOLE, Domain, Kind, Space, exact, flat, is_group, is_recordable
from tuner.trial import AUTO, Configuration, ConfigValue, Objects
from tuner.values import Label, encode, has_objects, label, parse, plain, value_key

Values = Mapping[str, object]
CONDITION, STEP = "if", "step"
MOST_STEPS = 10**15  # numbers of more digits are not apart
# The words of other tools, in lower case, with our kind for each: a "range" is whole if its ends are, one with "<"
# excludes its high end, and an empty text is none of ours. A word with "()" counts in calls alone.
RANGES = dict.fromkeys(("bounds", "interval", "range", "tag()"), "range")
WORDS = {
    **dict.fromkeys(("uniform", "quniform", "q_uniform", "float", "double", "real"), "uniform"),
    **dict.fromkeys(("floatdistribution", "suggest_float", "suggest_uniform"), "uniform"),
    **dict.fromkeys(("loguniform", "qloguniform", "log_uniform_values", "suggest_loguniform"), "loguniform"),
    **dict.fromkeys(("int", "integer", "intdistribution", "suggest_int", "int_uniform", "qrandint"), "int"),
    **{"logint": "logint", "randint": "int<", "range()": "int<", "lograndint": "logint<"},
    **dict.fromkeys(("choice", "categorical", "categoricaldistribution", "suggest_categorical", CROSSED), "choice"),
    **dict.fromkeys(("hp.loguniform()", "hp.qloguniform()", "log_uniform", "linspace", "logspace", "randn"), ""),
    **dict.fromkeys(("gauss", "normal", "lognormal", "qnormal", "shuffle()", "sort()", "glob()"), ""),
    **RANGES,
}
LISTS = {**RANGES, **dict.fromkeys(("values", "choices", "options", "categories", "list"), "choice"), "_value": ""}
TYPES = ("distribution", "_type", "parameter_type", "parametertype")
ENDS = ("min max", "low high", "lower upper", "lb ub", "min_value max_value", "minvalue maxvalue")
CALL = re.compile(r"((?:\w+\.)*(\w+))\s*\((.*)\)", re.DOTALL)
BRACKETS = re.compile(r"(\w*)\[([-+.\deE]+(?::[-+.\deE]+)+)\]")


def parse_space(
    given: object, schema: Schema, source: str, defaults: Values | None = None, fixed: Values | None = None
) -> dict[str, Domain]:
    """Turns a mapping such as the one at the top of this module into domains. ``source`` is its name in errors.

    Keys stand behind those that their conditions name. ``defaults`` have further keys, and ``fixed`` values replace
    others. Without a schema any key may have any value; with one, ``workload`` is no key of the space. Wrong keys,
    words, ends, values and conditions raise one ``InputError`` with every fault.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{source}: 'space' must be a mapping from hyperparameter to a value or a range")
    parts = [list(_entries(part)) for part in (defaults or {}, given, fixed or {})]
    if schema is not None:
        parts[:2] = [[pair for pair in part if pair[0] != "workload"] for part in parts[:2]]
    entries = {key: value for part in parts for key, value in part}
    problems = [fault for part in parts for fault in ambiguous([key for key, _ in part])] or ambiguous(list(entries))
    forms, space = {key: _Form.of(value) for key, value in entries.items()}, {}
    for key, form in forms.items():
        wrong = _wrong(key, form, schema)
        problems += wrong
        if not wrong:
            space[key] = _domain(form, None if schema is None else type(schema[key].default))
    if not problems:
        for key, form in forms.items():
            conditions, wrong = _conditions(key, form.condition, space)
            space[key] = replace(space[key], conditions=conditions)
            problems += wrong
    if problems:
        raise InputError(f"{source}: " + "; ".join(dict.fromkeys(problems)))
    return _ordered(space, source)


def parse_points(given: object, space: Space, source: str) -> list[dict[str, ConfigValue]]:
    """Turns a list of partial configurations into values of the space's keys.

    Unknown keys, values outside the space and keys whose conditions do not hold raise ``InputError``.
    """
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise InputError(f"{source}: 'points' must be a list of mappings from hyperparameter to a value")
    points: list[dict[str, ConfigValue]] = []
    for number, entry in enumerate(given, 1):
        where = f"{source}: point {number}"
        if not isinstance(entry, Mapping) or not entry:
            raise InputError(f"{where}: expected a mapping from hyperparameter to a value, not {entry!r:.60}")
        point: dict[str, ConfigValue] = {}
        for key, value in _located(entry, space):
            if key not in space:
                raise InputError(f"{where}: {_unknown(key, space)}")
            if not (taken := space[key].taken(value)):
                raise InputError(f"{where}: {key} = {value!r} is outside the space ({space[key]})")
            point[key] = taken[0]
        before: dict[str, ConfigValue] = {}
        for key, domain in space.items():
            if key in point and not domain.applies(before):
                needs = [f"{name} = {' or '.join(map(label, some))}" for name, some in domain.conditions.items()]
                raise InputError(f"{where}: {key} needs {' and '.join(needs)}: give that as well, or leave {key} out")
            if key in point or (domain.is_constant and domain.applies(before)):
                before[key] = point.get(key, domain.values[0])
        if point in points:
            raise InputError(f"{where}: it is the same as point {points.index(point) + 1}")
        points.append(point)
    return points


def listed_objects(listed: Iterable[Mapping[str, object] | Configuration], source: str) -> Objects:
    """What labels stand for in configurations without a schema; see ``tuner.values``.

    Two objects of one name under one key raise ``InputError``.
    """
    columns: dict[str, list[object]] = {}
    for entry in listed:
        pairs = (
            entry.values.items() if isinstance(entry, Configuration) else flat(dict(keyed(to_entry(entry).values)))
        )
        for key, value in pairs:
            columns.setdefault(key, []).append(value)
    if problems := [f"{key}: {fault}" for key, values in columns.items() if (fault := _same_labels(values))]:
        raise InputError(f"{source}: " + "; ".join(problems))
    return {key: _objects(values) for key, values in columns.items()}


def flat_keys(given: Mapping[str, object]) -> list[str]:
    """The keys of a space in the form of records, such as ``model.num_layers``."""
    return [key for key, _ in _entries(given)]


def kinds_of(given: object) -> set[str]:
    """The kinds of domains in a space, which need not be valid; single values have none."""
    entries = _entries(given) if isinstance(given, Mapping) else ()
    return {kind for _, value in entries if isinstance(value, Mapping) for kind in set(value) & set(KINDS)}


@dataclass(frozen=True)
class _Form:
    """What the user wrote for a hyperparameter, in parts."""

    kind: str
    values: object
    given: object  # all of it
    step: object = None
    condition: object = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: object) -> _Form:
        """A single value is a list of one."""
        if not (isinstance(value, Mapping) and _is_domain(value)):
            return cls("choice", [value], value)
        others = [str(key) for key in value if key not in (CONDITION, STEP)]
        kinds = [key for key in others if key in KINDS] or others[:1]
        unknown = tuple(key for key in others if key not in kinds[:1])
        kind = kinds[0] if kinds else ""
        return cls(kind, value.get(kind), value, value.get(STEP), value.get(CONDITION), unknown)


def _entries(given: Mapping[str, object], group: str = "", condition: object = None) -> Iterator[tuple[str, object]]:
    """Each hyperparameter and what was written for it, with the conditions of its groups."""
    for name, value in given.items():
        key = f"{group}{name}" if group else name
        if is_group(value) and not _is_domain(value):
            inner = {name: inside for name, inside in value.items() if name != CONDITION}
            yield from _entries(inner, f"{key}.", _both(condition, value.get(CONDITION)))
        elif condition is None:
            yield key, value
        else:
            form = value if isinstance(value, Mapping) and _is_domain(value) else {"choice": [value]}
            yield key, {**form, CONDITION: _both(condition, form.get(CONDITION))}


def _is_domain(value: Mapping[str, object]) -> bool:
    """Whether a mapping is meant as a domain, also a misspelt one or one of another tool, and not as a group."""
    others = {str(name).lower(): inside for name, inside in value.items() if name not in (CONDITION, STEP)}
    alone = bool(value) and not others and STEP not in value
    lists = [name for name, inside in others.items() if isinstance(inside, (list, tuple)) and len(others) == 1]
    misspelt = any(name in (*WORDS, *LISTS) or did_you_mean(name, KINDS, cutoff=0.8) for name in lists)
    return misspelt or alone or any(kind in value for kind in KINDS) or bool(_of_another_tool(value))


def _of_another_tool(value: object) -> str:
    """Another tool's domain in the form of our files; empty if it is none."""
    if isinstance(value, range):
        return _ours("choice", () if value[9:] else value)
    if isinstance(value, str):
        return _of_call(value.strip())
    items = value.items() if isinstance(value, Mapping) else ()
    given = {str(name).lower(): inside for name, inside in items if name != CONDITION}
    if any(isinstance(inside, Mapping) for inside in given.values()):
        return ""
    if "value" in given:
        return label(given["value"])
    named = [WORDS[word] for name in (*TYPES, "type") if (word := str(given.get(name)).lower()) in WORDS]
    log, step = True in (given.get("log"), given.get("log_scale")), given.get(STEP, given.get("q"))
    for ends in map(str.split, ENDS):
        if all(is_recordable(parse(str(given.get(end)))) for end in ends):
            return _ours([*named, "range"][0], [*(given[end] for end in ends), step], log=log)
    for name, kind in LISTS.items():
        if isinstance(listed := given.get(name), (list, tuple)):
            return _ours([*named, kind][0], listed, log=log)
    return _ours("") if {*LISTS, *TYPES} & set(given) else ""


def _of_call(text: str) -> str:
    """The same of a text such as ``uniform(0, 1)`` or ``uniform[0:1]``."""
    text = BRACKETS.sub(lambda match: f"{match[1] or 'interval'}({match[2].replace(':', ',')})", text)
    if not (match := CALL.fullmatch(text)):
        return ""
    dotted, name, inner = (part.lower() for part in match.groups())
    kinds = [WORDS[word] for word in (f"{dotted}()", f"{name}()", name) if word in WORDS]
    parts = [part.rpartition("=")[2].strip() for part in re.split("[(),]", inner)]
    log = bool({"true", "log", "'log-uniform'"} & set(parts))
    return _ours(kinds[0], parts if kinds[0] != "choice" else (), log=log) if kinds else ""


def _ours(kind: str, values: Sequence[object] = (), *, log: bool = False) -> str:
    """Choices, or a range with two ends and a step, in the form of our files; unknown values are ``[...]``."""
    if kind in ("", "choice"):
        return f"{{choice: {label(list(values)) if kind and values else '[...]'}}}"
    numbers = [number for value in values if is_recordable(number := parse(str(value)))]
    whole = kind != "uniform" and all(isinstance(end, int) for end in numbers[:2])
    linear, logarithmic = ("int", "logint") if whole else ("uniform", "loguniform")
    kinds = [kind.rstrip("<")] if kind != "range" else [linear] if numbers[2:] else [linear, logarithmic]
    kinds = [logarithmic] if log else kinds
    if len(numbers) < 2 or (kinds[0] in WHOLE and not whole):
        return f"{{{'choice' if kind == 'range' else kinds[0]}: [...]}}"
    low, high, *steps = numbers
    high -= kind.endswith("<")
    step = f", step: {label(steps[0])}" if steps else ""
    fitting = [one for one in kinds if low < high and (low > 0 or not one.startswith("log"))]
    fitting = fitting if all(0 < one <= high - low for one in steps) else []
    return " or ".join(f"{{{one}: {label([low, high])}{step}}}" for one in fitting) or _ours("")


def _both(first: object, second: object) -> object:
    return {**first, **second} if isinstance(first, Mapping) and isinstance(second, Mapping) else second or first


def _located(given: Mapping[str, object], keys: Collection[str], group: str = "") -> Iterator[tuple[str, object]]:
    """The values by the keys of a space, also where they are given in groups."""
    for name, value in given.items():
        key = f"{group}{name}"
        if key not in keys and isinstance(value, Mapping) and any(other.startswith(f"{key}.") for other in keys):
            yield from _located(value, keys, f"{key}.")
        else:
            yield key, value


def _unknown(key: str, keys: Collection[str]) -> str:
    hint = did_you_mean(key, keys, f"known are {', '.join(keys)}" if keys else "there is no other key")
    return f"unknown key {key!r} ({hint})"


def _conditions(key: str, given: object, space: Space) -> tuple[dict[str, tuple[ConfigValue, ...]], list[str]]:
    """The values that a key needs of others, and the faults of that."""
    if given is None:
        return {}, []
    if not isinstance(given, Mapping) or not given:
        rule = "expected a mapping from another key to a value or a list of them"
        return {}, [f"{key}: {CONDITION}: {given!r}: {rule}"]
    conditions, problems = {}, []
    for other, value in _located(given, space):
        if other == key or other not in space:
            others = [name for name in space if name != key]
            why = "it is the key itself" if other == key else _unknown(other, others)
            problems.append(f"{key}: {CONDITION}: {why}")
            continue
        domain = space[other]
        alone = domain.taken(value) or not isinstance(value, (list, tuple))
        listed = [value] if alone else list(value)  # type: ignore[call-overload]
        taken = [domain.taken(wanted) for wanted in listed]
        if domain.count == float("inf"):
            problems.append(f"{key}: {CONDITION}: {other} is a range of numbers: give it a step or {{choice: [...]}}")
        problems += [
            f"{key}: {CONDITION}: {other} = {wanted!r} is outside the space ({domain})"
            for wanted, value in zip(listed, taken, strict=True)
            if not value
        ]
        if not listed:
            problems.append(f"{key}: {CONDITION}: {other}: the list is empty")
        conditions[other] = tuple(value for values in taken for value in values)
    return conditions, problems


def _ordered(space: Space, source: str) -> dict[str, Domain]:
    """The space with each key behind those that its conditions name, and otherwise in its order."""
    waiting = dict(space)
    ordered: dict[str, Domain] = {}
    while waiting:
        ready = next((key for key, domain in waiting.items() if set(domain.conditions) <= set(ordered)), None)
        if ready is None:
            circle = [key for key in waiting if any(key in domain.conditions for domain in waiting.values())]
            raise InputError(f"{source}: {CONDITION}: {' and '.join(circle)} depend on each other")
        ordered[ready] = waiting.pop(ready)
    return ordered


def _wrong(key: str, form: _Form, schema: Schema) -> list[str]:
    """The faults of a hyperparameter's domain, each in a few words."""
    if schema is not None and key not in schema:
        return faults({key: None}, schema)
    kind, values = form.kind, form.values
    is_ours = isinstance(form.given, Mapping) and any(name in form.given for name in KINDS)
    if not is_ours and (ours := _of_another_tool(form.given)):
        shown = f"{form.given!r:.60}"
        return [f"{key}: {shown} is the syntax of another tool: give {ours}, or as a value {{choice: [{shown}]}}"]
    if kind not in KINDS:
        shown = f"{kind!r} is not a kind of domain" if kind else f"{form.given!r} is not a domain"
        remedy = f"give a value or one of {', '.join(f'{{{name}: [...]}}' for name in KINDS)}"
        return [f"{key}: {shown}: {did_you_mean(kind, KINDS, remedy)}"]
    if form.unknown:
        hint = did_you_mean(form.unknown[0], (STEP, CONDITION), "leave it out")
        return [f"{key}: {form.unknown[0]!r} cannot stand beside {kind!r} ({hint})"]
    if not isinstance(values, (list, tuple)) or not values:
        return [f"{key}: {kind} {values!r}: expected a list that is not empty"]
    default = None if schema is None else schema[key].default
    if kind == CROSSED and form.condition is not None:
        return [f"{key}: {kind} has no condition, as all combinations are tried: give {{choice: [...]}}"]
    if kind in ("choice", CROSSED):
        fault = "a step belongs to a range" if form.step is not None else "" if schema else _same_labels(values)
        problems = [f"{key}: {fault}"] if fault else []
    else:
        problem = _wrong_range(kind, values, default) or _wrong_step(kind, values, form.step)
        problems = [f"{key}: {kind} {list(values)!r} {problem}"] if problem else []
    problems += [fault for value in values for fault in faults({key: value}, schema)] if not problems else []
    several = f": for each of them give {{choice: {form.given!r}}}" if isinstance(form.given, list) else ""
    return [f"{fault}{several}" for fault in problems]


def _wrong_range(kind: str, ends: Sequence[object], default: ConfigValue | None) -> str:
    """The fault of a range's ends, or an empty text. The hyperparameter's bounds are checked elsewhere."""
    whole = kind in WHOLE
    if isinstance(default, str):
        return "is a range, but the hyperparameter is text: give {choice: [...]}"
    numbers = [end for end in ends if is_recordable(end, whole)]
    if not len(ends) == len(numbers) == 2:
        return f"must be two {'whole numbers' if whole else 'numbers'}, its ends"
    if isinstance(default, int) and not whole:
        return f"must be of whole numbers: give {{{'logint' if kind == 'loguniform' else 'int'}: [...]}}"
    low, high = numbers
    if not low < high:
        one = f"; for one value give {low}" if low == high else ""
        return f"must rise: its low end comes first{one}"
    return "must begin above 0, as it has a logarithm" if kind.startswith("log") and low <= 0 else ""


def _wrong_step(kind: str, ends: Sequence[object], step: object) -> str:
    low, high = (end for end in ends if isinstance(end, (int, float)))
    length = exact(high) - exact(low)
    if step is None or (is_recordable(step, kind in WHOLE) and length / MOST_STEPS <= exact(step) <= length):
        return ""
    return f"has step {step!r}: give {'a whole number' if kind in WHOLE else 'a number'} above 0, within its range"


def _same_labels(values: Sequence[object]) -> str:
    """The fault of different objects with the same label in records, or an empty text."""
    seen: dict[str, object] = {}
    for value in values:
        name = value_key(value)
        if has_objects(encode(value)) and seen.setdefault(name, value) is not value:
            called = label(plain(value))
            return f"two different choices are called {called!r} in records: give one of them another name"
    return ""


def _domain(form: _Form, number_type: type[int] | type[float] | type[str] | None) -> Domain:
    """The domain of a form without faults. ``own`` is the hyperparameter's type if that is known."""
    assert isinstance(form.values, (list, tuple))
    assert form.step is None or isinstance(form.step, (int, float))
    kind = cast("Kind", "choice" if form.kind == CROSSED else form.kind)
    values = tuple(_typed(value, form.kind, number_type) for value in form.values)
    objects = {} if number_type else _objects(form.values)
    return Domain(kind, values, form.step, objects=objects, crossed=form.kind == CROSSED)


def _objects(values: Iterable[object]) -> dict[str, object]:
    """By key, what labels stand for. In earlier versions they stood for tuples, dates and paths, too."""
    marked = [value for value in values if repr(encode(value)) != repr(value)]
    old = {value_key(Label(repr(value))): value for value in marked}
    return old | {value_key(value): value for value in marked if has_objects(encode(value))}


def _typed(value: ConfigValue, kind: str, as_type: type[int] | type[float] | type[str] | None) -> ConfigValue:
    """A value as in configurations; the ends of a range of whole numbers stay whole."""
    if kind in WHOLE:
        return int(value)
    if as_type is None:
        return plain(value)
    return AUTO if value == AUTO else as_type(value)
