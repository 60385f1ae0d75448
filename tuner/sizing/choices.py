"""The choice of a run's batch, accumulation and numbers of pairs, from sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.errors import InputError, option
from tuner.sizing.search import TRAINING_SET, USERS_BOUND
from tuner.trial import ACCUMULATION, GB, Config

Number = int | float


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
    found = [
        f"{name}: {key} {chosen.variables[key]:g} instead of {float(given[key]):g}, the most with which a batch "
        f"of {goal.min_batch_size} fits"
        for key in chosen.lowered
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
