"""Chooses the batch for the stages of a footprint's curriculum."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from tuner.errors import InputError, did_you_mean, option
from tuner.sizing.choices import (
    USERS_BOUND,
    Chosen,
    DoesNotFit,
    Goal,
    LargestBatch,
    Number,
    accumulation_for,
    check_least,
    check_not_chosen,
    does_not_fit,
    largest_batch,
)
from tuner.sizing.footprint import Footprint
from tuner.trial import GB, LARGEST_NUMBER

PAIRS = ("n_negatives", "n_positives")  # a sample's pairs, lowered in this order if a batch does not fit
LARGEST = 2**20  # the largest batch, if neither the footprint nor the user has a bound
Stages = Mapping[str, Mapping[str, Number]]  # variables by stage


def stages_of(footprint: Footprint, overrides: Sequence[str]) -> dict[str, dict[str, Number]]:
    """The variables by stage. A footprint without stages is one stage of its own name.

    ``overrides`` are ``"variable=value"`` texts for all stages. A wrong text, the batch or the accumulation raise
    ``InputError``.
    """
    given = dict(_override(footprint, text) for text in overrides)
    stages = footprint.stages or {footprint.name: {}}
    return {name: {**footprint.variables, **values, **given} for name, values in stages.items()}


def size_stages(footprint: Footprint, stages: Stages, goal: Goal) -> list[Chosen]:
    """The choice for each stage; all share the batch of the stage that needs the most memory.

    Raises:
        InputError: the smallest batch is above the largest.
        DoesNotFit: a stage's smallest batch does not fit even with fewer pairs; the text has remedies.
    """
    check_least(goal.min_batch_size, *_bound(footprint, goal))
    fewer = {name: _fewer_pairs(footprint, name, values, goal) for name, values in stages.items()}
    values = {name: {**stages[name], **fewer[name]} for name in stages}
    largest = {name: _largest(footprint, values[name], goal) for name in stages}
    least = min(largest, key=lambda name: largest[name].batch_size)
    batch = largest[least].batch_size
    accumulation = accumulation_for(batch, goal.devices, goal.effective_batch)

    def chosen(name: str) -> Chosen:
        mine = largest[name]
        as_least = len(stages) > 1 and mine.batch_size > batch
        return Chosen(
            name=name,
            batch_size=batch,
            accumulation=accumulation,
            devices=goal.devices,
            need_bytes=footprint.need_bytes({**values[name], footprint.batch: batch}),
            stopped_by=f"stage {least}" if as_least else mine.stopped_by,
            method="footprint",
            beyond_bytes=None if as_least else mine.beyond_bytes,
            variables=values[name],
            lowered=tuple(fewer[name]),
        )

    return [chosen(name) for name in stages]


def _fewer_pairs(footprint: Footprint, name: str, values: Mapping[str, Number], goal: Goal) -> dict[str, int]:
    """The lowered numbers of pairs with which the smallest batch fits; empty if it fits anyway.

    Negatives are lowered first, to at least 1, then positives. Pairs that take no memory stay. If the batch does not
    fit with any numbers, ``DoesNotFit`` is raised.
    """
    least, limit = goal.min_batch_size, goal.limit_bytes

    def need(changed: Mapping[str, int]) -> int:
        return footprint.need_bytes({**values, **changed, footprint.batch: least})

    changed: dict[str, int] = {}
    for pair in PAIRS:
        if need(changed) <= limit:
            break
        if values.get(pair, 0) > 1 and need({**changed, pair: 1}) < need(changed):
            numbers = range(1, int(values[pair]))
            fitting = bisect_right(numbers, limit, key=lambda number, pair=pair: need({**changed, pair: number}))  # type: ignore[misc]
            changed[pair] = max(1, fitting)
    if need(changed) > limit:
        remedy = f"it fits a device of {need({}) / goal.safety_margin / GB:.2f} GB"
        if changed:
            pairs = " and ".join(f"{pair} 1" for pair in changed)
            remedy += f"; with {pairs} it fits one of {need(changed) / goal.safety_margin / GB:.2f} GB"
        where = f"{footprint.name}, stage {name}" if footprint.stages else footprint.name
        raise DoesNotFit(f"{where}: {does_not_fit(least, need({}), limit)}: {remedy}", need({}), limit)
    return changed


def _largest(footprint: Footprint, values: Mapping[str, Number], goal: Goal) -> LargestBatch:
    most, bound = _bound(footprint, goal)
    return largest_batch(
        lambda batch: footprint.need_bytes({**values, footprint.batch: batch}),
        goal.limit_bytes,
        at_least=goal.min_batch_size,
        at_most=most,
        bound=bound,
    )


def _bound(footprint: Footprint, goal: Goal) -> tuple[int, str]:
    """The largest batch to try, and the name of that bound."""
    bounds = [(LARGEST, "the search")]
    if footprint.max_batch_size is not None:
        bounds.append((footprint.max_batch_size, "the footprint's max_batch_size"))
    if goal.max_batch_size is not None:
        bounds.append((goal.max_batch_size, USERS_BOUND))
    return min(bounds, key=lambda bound: bound[0])


def _override(footprint: Footprint, text: str) -> tuple[str, Number]:
    check_not_chosen(text, footprint.batch)
    name, equals, value = text.partition("=")
    names = {*footprint.used(), *(name for values in stages_of(footprint, ()).values() for name in values)}
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not equals or not 0 <= number <= LARGEST_NUMBER:
        raise InputError(f"{option('overrides', text)}: expected VARIABLE=NUMBER, a finite number of 0 or more")
    if name not in names:
        hint = did_you_mean(name, names, f"known are {', '.join(sorted(names))}")
        raise InputError(f"{option('overrides', text)}: {footprint.name} has no such variable: {hint}")
    return name, int(number) if number.is_integer() else number
