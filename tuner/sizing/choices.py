"""What one run is to be trained with: batch, accumulation, numbers of pairs; decided from sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.errors import InputError, option
from tuner.sizing.search import TRAINING_SET, USERS_BOUND, largest_batch
from tuner.trial import ACCUMULATION, GB, Config

Number = int | float
# Pairs of a sample that can be left out where a batch does not fit otherwise; what should go first is first.
PAIRS = ("n_negatives", "n_positives")


@dataclass(frozen=True)
class Goal:
    """What is asked for."""

    limit_bytes: int  # what a step may take of its device
    safety_margin: float = 0.85  # the share of the device's memory that this is
    effective_batch: int = 256  # the samples of an optimizer step that are wanted, over all devices
    devices: int = 1  # how many share each optimizer step
    min_batch_size: int = 1
    max_batch_size: int | None = None


@dataclass(frozen=True)
class Chosen:
    """What a stage or a configuration, of this name, is to be trained with."""

    name: str
    batch_size: int  # samples that a device takes at a time
    accumulation: int  # batches for each optimizer step
    devices: int  # how many take them side by side
    need_bytes: int  # what a batch is predicted to take of its device
    stopped_by: str  # "memory", or what else kept the batch from being larger
    method: str  # where the prediction comes from
    beyond_bytes: int | None = None  # what one sample more would take; None where it is not memory that stops
    # the numbers of pairs, or whatever else a stage sets, by name
    variables: Mapping[str, Number] = field(default_factory=dict)
    lowered: tuple[str, ...] = ()  # those of them that had to be lowered
    measured_bytes: int | None = None  # what a real step took; None where none was run

    @property
    def step_size(self) -> int:
        """The samples of an optimizer step on one device: what our files call the batch."""
        return self.batch_size * self.accumulation

    @property
    def effective_batch(self) -> int:
        """The samples of an optimizer step, over all devices."""
        return self.step_size * self.devices


def accumulation_for(batch_size: int, devices: int, effective_batch: int) -> int:
    """Batches for each optimizer step: max(1, ⌊effective / (batch · devices)⌋), as in the GPU memory guide."""
    return max(1, effective_batch // (batch_size * devices))


def lowered(
    need: Callable[[Mapping[str, int]], int], pairs: Mapping[str, Number], limit_bytes: int
) -> dict[str, int] | None:
    """The numbers of pairs with which a batch fits that does not fit with those given, as large as can be.

    Negatives are lowered first, to 1 at the least; then positives. What takes no memory stays. None where it does not
    help; else those that change. ``need`` is what the batch takes with other numbers in the place of those given.
    """
    changed: dict[str, int] = {}
    for name in PAIRS:
        least = {**changed, name: 1}
        if pairs.get(name, 0) <= 1 or need(least) >= need(changed):
            continue
        if need(least) <= limit_bytes:
            others = dict(changed)
            found = largest_batch(
                lambda number, name=name, others=others: need({**others, name: number}),  # type: ignore[misc]
                limit_bytes,
                at_most=int(pairs[name]),
                bound=name,
            )
            return {**changed, name: found.batch_size}
        changed = least
    return None


def check_not_chosen(text: str, batch: str) -> None:
    """Refuses an override, ``NAME=VALUE``, of what is chosen: the batch, by its name, or the accumulation.

    Raises:
        InputError: it is one.
    """
    name, given = text.partition("=")[0], option("overrides", text)
    if name == batch:
        raise InputError(f"{given}: {name} is the batch, which is chosen; see {option('max_batch_size')}")
    if name == ACCUMULATION:
        raise InputError(f"{given}: {name} is chosen; see {option('target_effective_batch')}")


def explanations(chosen: Chosen, goal: Goal, given: Config) -> list[str]:
    """Why it is this batch, this accumulation and these numbers of pairs, in a sentence each.

    Args:
        chosen: the choice.
        goal: what was asked for.
        given: the numbers of pairs before they were lowered.
    """
    name = chosen.name
    found = [
        f"{name}: {each} {chosen.variables[each]:g} instead of {float(given[each]):g}, the most with which a batch "
        f"of {goal.min_batch_size} fits"
        for each in chosen.lowered
    ]
    return [*found, f"{name}: {_batch_text(chosen, goal)}", f"{name}: {_accumulation_text(chosen, goal)}"]


def _batch_text(chosen: Chosen, goal: Goal) -> str:
    limit = f"{goal.limit_bytes / GB:.3f} GB"
    if chosen.beyond_bytes is None:
        once = " (one step an epoch)" if chosen.stopped_by == TRAINING_SET else ""
        bound = option(USERS_BOUND) if chosen.stopped_by == USERS_BOUND else chosen.stopped_by
        return f"batch {chosen.batch_size}, bounded by {bound}{once}; {limit} could be taken"
    beyond = f"{chosen.batch_size + 1} would take {chosen.beyond_bytes / GB:.3f} GB"
    return f"batch {chosen.batch_size}, as {beyond}, more than {limit}"


def _accumulation_text(chosen: Chosen, goal: Goal) -> str:
    together, wanted = chosen.batch_size * chosen.devices, goal.effective_batch
    if together > wanted:
        most = wanted // chosen.devices
        remedy = f": {option(USERS_BOUND, most)} keeps to it" if most else ""
        return f"no accumulation, as a step of {together} is above the {wanted} wanted{remedy}"
    if chosen.accumulation < accumulation_for(chosen.batch_size, chosen.devices, wanted):
        return (
            f"no accumulation, which would make more of the {wanted} wanted: beside the gradients of another batch "
            f"not even one of {goal.min_batch_size} fits"
        )
    devices = f" on each of {chosen.devices} devices" if chosen.devices > 1 else ""
    batches = f"{chosen.accumulation} batches" if chosen.accumulation > 1 else "1 batch"
    return (
        f"{batches} of {chosen.batch_size}{devices} for each optimizer step, "
        f"which makes {chosen.effective_batch} of the {wanted} wanted"
    )
