"""The largest batch whose footprint fits, for any source of footprints, and the accumulation that goes with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tuner.errors import InputError, option
from tuner.trial import ACCUMULATION, GB, Config

MEMORY, TRAINING_SET, USERS_BOUND = "memory", "the training set", "max_batch_size"  # the names of bounds
Need = Callable[[int], int]  # from a batch's samples to its bytes
Number = int | float


class DoesNotFit(InputError):
    """Not even the smallest batch fits."""

    def __init__(self, text: str, need_bytes: int, limit_bytes: int) -> None:
        """Takes the smallest batch's need and the limit."""
        super().__init__(text)
        self.need_bytes = need_bytes
        self.limit_bytes = limit_bytes


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, and the name of its bound.

    ``beyond_bytes`` is the memory with one more sample, or None if memory is not the bound.
    """

    batch_size: int
    need_bytes: int
    beyond_bytes: int | None
    stopped_by: str


def largest_batch(
    need: Need, limit_bytes: int, *, at_least: int = 1, at_most: int, bound: str, growth: int = 0
) -> LargestBatch:
    """The largest batch size that takes no more than ``limit_bytes``.

    A footprint is nearly linear in the batch, so a line through the interval's ends is a good guess. If a guess does
    not halve the interval, bisection follows. ``need`` must not decrease with the batch, and is called once per size.
    ``bound`` is the name of ``at_most``. A ``growth`` above 0 limits a tried size to this multiple of one that fits.

    Raises:
        DoesNotFit: a batch of ``at_least`` takes more.
    """
    need = cache(need)
    if need(at_least) > limit_bytes:
        raise DoesNotFit(does_not_fit(at_least, need(at_least), limit_bytes), need(at_least), limit_bytes)
    fits, beyond = at_least, at_least if growth else at_most
    while beyond < at_most and need(beyond) <= limit_bytes:
        fits, beyond = beyond, min(growth * beyond, at_most)
    if need(beyond) <= limit_bytes:
        return LargestBatch(beyond, need(beyond), None, bound)
    halve = False
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        guess = middle if halve else _on_the_line(need, fits, beyond, limit_bytes)
        before = beyond - fits
        fits, beyond = (guess, beyond) if need(guess) <= limit_bytes else (fits, guess)
        halve = beyond - fits > before // 2
    return LargestBatch(fits, need(fits), need(beyond), MEMORY)


def does_not_fit(batch: int, need_bytes: int, limit_bytes: int) -> str:
    """By how much a batch does not fit, in words."""
    short = need_bytes - limit_bytes
    return (
        f"a batch of {batch} takes {need_bytes / GB:.2f} GB, {short / GB:.2f} GB more than the "
        f"{limit_bytes / GB:.2f} GB available"
    )


def check_least(at_least: int, at_most: int, bound: str) -> None:
    """Raises ``InputError`` if the smallest batch is above the largest, which is ``bound``."""
    if at_least > at_most:
        raise InputError(f"{option('min_batch_size', at_least)} is above {at_most}, {bound}: lower it")


def _on_the_line(need: Need, fits: int, beyond: int, limit_bytes: int) -> int:
    """The size at which the line through both ends reaches the limit, strictly between them."""
    share = (limit_bytes - need(fits)) / (need(beyond) - need(fits))
    return min(max(fits + int(share * (beyond - fits)), fits + 1), beyond - 1)


@dataclass(frozen=True)
class Goal:
    """The target of a choice."""

    limit_bytes: int  # the maximum memory of a step
    safety_margin: float = 0.85  # the limit's share of the device's memory
    effective_batch: int = 256  # the wanted samples of an optimizer step, over all devices
    devices: int = 1  # the number of devices that share each optimizer step
    min_batch_size: int = 1
    max_batch_size: int | None = None


@dataclass(frozen=True)
class Chosen:
    """The choice for a stage or a configuration of this name."""

    name: str
    batch_size: int  # samples per device
    accumulation: int  # batches per optimizer step
    devices: int  # the number of devices that share each optimizer step
    need_bytes: int  # the predicted memory of a batch
    stopped_by: str  # what bounds the batch: "memory" or the name of another bound
    method: str  # the source of the prediction
    beyond_bytes: int | None = None  # the memory of one more sample; None if memory is not the bound
    variables: Mapping[str, Number] = field(default_factory=dict)  # numbers of pairs or a stage's other variables
    lowered: tuple[str, ...] = ()  # the names of lowered variables
    measured_bytes: int | None = None  # the measured memory of a real step, if one was run

    @property
    def step_size(self) -> int:
        """The samples of an optimizer step on one device, which our files call the batch."""
        return self.batch_size * self.accumulation

    @property
    def effective_batch(self) -> int:
        """The samples of an optimizer step, over all devices."""
        return self.step_size * self.devices


def accumulation_for(batch_size: int, devices: int, effective_batch: int) -> int:
    """The batches per optimizer step: max(1, ⌊effective / (batch · devices)⌋), as in the GPU memory guide."""
    return max(1, effective_batch // (batch_size * devices))


def check_not_chosen(text: str, batch: str) -> None:
    """Raises ``InputError`` if ``NAME=VALUE`` overrides a chosen value: the batch or the accumulation."""
    name, given = text.partition("=")[0], option("overrides", text)
    if name == batch:
        raise InputError(f"{given}: {name} is the batch, which is chosen; see {option('max_batch_size')}")
    if name == ACCUMULATION:
        raise InputError(f"{given}: {name} is chosen; see {option('target_effective_batch')}")


def explanations(chosen: Chosen, goal: Goal, given: Config) -> list[str]:
    """The reasons for batch, accumulation and lowered pairs, a line each; ``given`` has the numbers before."""
    name = chosen.name
    lines = [
        f"{name}: {key} {chosen.variables[key]:g} instead of {float(given[key]):g}, the most with which a batch "
        f"of {goal.min_batch_size} fits"
        for key in chosen.lowered
    ]
    return [*lines, f"{name}: {_batch_text(chosen, goal)}", f"{name}: {_accumulation_text(chosen, goal)}"]


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
