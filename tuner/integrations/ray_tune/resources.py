"""What a wrapped trainable's trials need, and the resources that Tune requests from Ray for each.

They grow when a trial runs again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal
from uuid import uuid4
from weakref import WeakValueDictionary

import ray
from ray.exceptions import RayActorError
from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory

from tuner.decisions.plan import budget_bytes, need_bytes
from tuner.decisions.retry import RetryPolicy
from tuner.errors import InputError, one_line
from tuner.estimation.calibration import with_headroom
from tuner.estimation.overheads import SHARED_BYTES
from tuner.execution.nodes import Node
from tuner.spec.commands import Estimate
from tuner.spec.settings import Settings
from tuner.trial import GB, MB, MOST_GB, Device, MemoryEstimate, Request, Trial

# The CPU memory that a process of Tune, which is no fork, takes beyond a worker of tuner: ray.tune, pandas, and
# pyarrow for checkpoints.
TUNE_BYTES = SHARED_BYTES + 60 * MB
RAY_STEP = 10_000  # Ray counts resources in units of 1 / RAY_STEP


@dataclass(frozen=True)
class TrainableSpec:
    """The common settings of all trials of a wrapped trainable."""

    name: str
    estimate: Estimate  # a trial's need in GB, or a function of its configuration that returns it
    devices: Sequence[Device]
    settings: Settings  # buffer, caps and retries

    @property
    def policy(self) -> RetryPolicy:
        """The rules for retries."""
        return self.settings.retry_policy

    @property
    def smallest(self) -> Device:
        """The device with the smallest budget. A trial must fit on any device, as Tune cannot choose one."""
        return min(self.devices, key=lambda device: budget_bytes(device, self.settings.buffer_bytes))

    @property
    def budget_bytes(self) -> int:
        """The bytes that trials divide on the smallest device."""
        return budget_bytes(self.smallest, self.settings.buffer_bytes)

    def estimated(self, config: dict[str, object]) -> MemoryEstimate:
        """The estimate for a configuration. If it fails or is no number of GB, ``InputError`` is raised."""
        if not callable(self.estimate):
            return given_estimate(self.estimate)
        try:
            estimate = self.estimate(config)
        except Exception as error:
            reason = one_line(error)
            raise InputError(f"estimate: failed on {config}: {type(error).__name__}: {reason}") from error
        if not isinstance(estimate, MemoryEstimate):
            return given_estimate(estimate, f" for {config}")
        if self.smallest.kind == "cuda":
            return estimate
        return with_headroom(replace(estimate, context_bytes=estimate.context_bytes + TUNE_BYTES))

    def refusal(self, estimate: MemoryEstimate) -> str:
        """Why a trial of this size fits on no device; empty if it fits."""
        if estimate.least_bytes <= self.budget_bytes:
            return ""
        device = self.smallest
        return (
            f"estimate: a trial needs {estimate.least_bytes / GB:.2f} GB, and {device.label} has "
            f"{self.budget_bytes / GB:.2f} GB for trials ({device.total_bytes / GB:.2f} GB in all, "
            f"{device.free_bytes / GB:.2f} GB free, buffer {self.settings.gpu_memory_buffer_gb:.2f} GB)"
        )


def given_estimate(value: object, where: str = "") -> MemoryEstimate:
    """A number of GB as an estimate without a margin; other values raise ``InputError``."""
    gb = float(value) if not isinstance(value, bool) and isinstance(value, Real) else 0.0
    if not 0 < gb <= MOST_GB:
        raise InputError(
            f"estimate {value!r}{where}: must be a number of GB above 0 and up to {MOST_GB:,}, or a function of a "
            "configuration that returns one"
        )
    return MemoryEstimate.given(gb)


@dataclass(frozen=True)
class Budget:
    """The memory that trials divide on a device."""

    kind: Literal["cuda", "cpu"]
    budget_bytes: int  # min(total − buffer, free) of the smallest device, as Tune cannot choose a trial's device
    ray_amount: float  # Ray's amount of the device: 1 GPU, or a node's memory in bytes

    def fraction(self, need_bytes: int) -> float:
        """These bytes as a share of the budget, rounded down to Ray's precision so that the last trial fits, too."""
        return max(1, math.floor(min(1.0, need_bytes / self.budget_bytes) * RAY_STEP)) / RAY_STEP

    def resources(self, need_bytes: int) -> dict[str, float]:
        """The share as Ray's resources."""
        amount = self.fraction(need_bytes) * self.ray_amount
        return {"GPU": amount} if self.kind == "cuda" else {"memory": math.floor(amount)}


class TrialResources(PlacementGroupFactory):  # type: ignore[misc]
    """The resources of one trial. They grow after an attempt that ran out of memory.

    Tune keeps this object with its trial in the driver, and sends a copy with every attempt. It is a key of Tune's
    dictionaries, so each object equals only itself.
    """

    def __init__(
        self, request: Request, budget: Budget | None, others: Mapping[str, float], refusal: str = ""
    ) -> None:
        """Requests the trial's share, and ``others`` of Ray's resources, such as ``{"CPU": 1}``."""
        self.resources_id = uuid4().hex  # the same in the driver and in the copies
        self.request = request
        self.budget = budget  # None if the trial fits on no device
        self.refusal = refusal  # why it does not fit, or empty
        self._others = dict(others)
        self._bundle()
        _IN_DRIVER[self.resources_id] = self

    @property
    def fraction(self) -> float:
        """The share of the budget, from 0 to 1."""
        return self.budget.fraction(self.request.need_bytes) if self.budget else 0.0

    def grow(self, request: Request) -> None:
        """Grows to the need of the next attempt; ignores a repeated call for the same attempt."""
        if request.trial.attempt == self.request.trial.attempt + 1:
            self.request = replace(self.request, **{name: getattr(request, name) for name in GROWING})
            self._bundle()

    def _bundle(self) -> None:
        share = self.budget.resources(self.request.need_bytes) if self.budget else {}
        super().__init__([{**self._others, **share} or {"CPU": 1.0}])

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        _IN_DRIVER.setdefault(self.resources_id, self)  # a restored experiment's; the driver's own stays


GROWING = ("trial", "need_bytes", "history")
_IN_DRIVER: WeakValueDictionary[str, TrialResources] = WeakValueDictionary()


class RunAgain(RayActorError):  # type: ignore[misc]
    """Makes Tune retry a trial that ran out of memory, from its last checkpoint, with more memory.

    Tune retries after every ``RayActorError`` whose actor was preempted, regardless of ``FailureConfig``. Tune reads
    ``preempted`` in the driver, where the resources grow at the same time.
    """

    def __init__(self, resources_id: str = "", request: Request | None = None, reason: str = "") -> None:
        """Takes the next attempt. All arguments are positional, as exceptions are pickled by their arguments."""
        super().__init__(None, reason, False, True)
        self.resources_id = resources_id
        self.request = request

    @property
    def preempted(self) -> bool:
        """Whether Tune retries the trial: if this process is the driver, which has its resources."""
        resources = _IN_DRIVER.get(self.resources_id)
        if resources is None or self.request is None:
            return False
        resources.grow(self.request)
        return True


def trial_resources(spec: TrainableSpec, config: dict[str, object], requested: object) -> TrialResources:
    """The resources of a trial with this configuration; called in Tune's driver.

    ``requested`` is the result of the trainable's ``default_resource_request``. A trial that fits on no device gets
    no share, and fails alone. A wrong estimate or several bundles raise ``InputError``.
    """
    estimate = spec.estimated(config)
    need = min(need_bytes(estimate), spec.budget_bytes)
    request = Request(Trial("", spec.name, "", {}, 0), estimate, need)
    if refusal := spec.refusal(estimate):
        return TrialResources(request, None, _others(requested), refusal)
    return TrialResources(request, _budget(spec), _others(requested))


def _budget(spec: TrainableSpec) -> Budget:
    """The budget of the smallest device, with Ray's amount of it."""
    amount = 1.0
    if spec.smallest.kind == "cpu":
        nodes: list[Node] = ray.nodes()
        amount = min(node["Resources"].get("memory", 0) for node in nodes if node["Alive"])
    return Budget(spec.smallest.kind, spec.budget_bytes, amount)


def _others(requested: object) -> Mapping[str, float]:
    """The resources that a trainable requests, without GPUs and memory; one CPU if it requests nothing."""
    if requested is None:
        return {"CPU": 1.0}
    request = requested if isinstance(requested, PlacementGroupFactory) else resource_dict_to_pg_factory(requested)
    bundle = request.bundles[0]
    if request.head_bundle_is_empty or len(request.bundles) > 1 or bundle.get("GPU", 0) > 1:
        raise InputError(
            f"trainable: asks Ray for {request.bundles}: trials must be of one process, on one GPU at most"
        )
    return {name: amount for name, amount in bundle.items() if name not in ("GPU", "memory")}
