"""What all trials of a wrapped trainable have in common, and the share of each by its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.calibration import with_headroom
from tuner.placement.packing import budget_bytes, need_bytes
from tuner.placement.retry import RetryPolicy
from tuner.spec.settings import Settings
from tuner.trial import GB, MB, MOST_GB, Device, MemoryEstimate, Request, Trial

if TYPE_CHECKING:
    from tuner.integrations.ray_tune.share import Budget, Share

# What a process of Tune's takes on the CPU beyond a worker of ours, for which estimates are made: ray.tune, pandas,
# and pyarrow, which writes checkpoints. With next to no tensors the example in ``tests/tune_mnist.py`` took 470 MiB.
TUNE_BYTES = 120 * MB

Estimate = float | Callable[[dict[str, Any]], float | MemoryEstimate]


@dataclass(frozen=True)
class Terms:
    """What all trials of a wrapped trainable have in common.

    Attributes:
        name: the trainable's.
        estimate: what a trial needs: GB, or what tells it by the configuration.
        devices: on which they may run.
        settings: buffer, caps and retries.
    """

    name: str
    estimate: Estimate
    devices: Sequence[Device]
    settings: Settings

    @property
    def policy(self) -> RetryPolicy:
        """When a trial is tried again."""
        return self.settings.retry_policy

    @property
    def smallest(self) -> Device:
        """The device with the least to give: Tune cannot choose a trial's, so it must fit any."""
        return min(self.devices, key=lambda device: budget_bytes(device, self.settings.buffer_bytes))

    @property
    def budget_bytes(self) -> int:
        """What that one's trials divide between them."""
        return budget_bytes(self.smallest, self.settings.buffer_bytes)

    def estimated(self, config: dict[str, Any]) -> MemoryEstimate:
        """What a trial with this configuration will need.

        Raises:
            InputError: the estimate fails, or is no number of GB.
        """
        if not callable(self.estimate):
            return given(self.estimate)
        try:
            found = self.estimate(config)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"estimate: failed on {config}: {type(error).__name__}: {reason}") from error
        if not isinstance(found, MemoryEstimate):
            return given(found, f" for {config}")
        if self.smallest.kind == "cuda":
            return found
        return with_headroom(replace(found, context_bytes=found.context_bytes + TUNE_BYTES))

    def refusal(self, estimate: MemoryEstimate) -> str:
        """Why a trial of this size can run nowhere; empty if it can."""
        if estimate.total_bytes <= self.budget_bytes:
            return ""
        device = self.smallest
        return (
            f"estimate: a trial needs {estimate.total_bytes / GB:.2f} GB, and {device.label} has "
            f"{self.budget_bytes / GB:.2f} GB for trials ({device.total_bytes / GB:.2f} GB in all, "
            f"{device.free_bytes / GB:.2f} GB free, buffer {self.settings.gpu_memory_buffer_gb:.2f} GB)"
        )


def share_of(terms: Terms, config: dict[str, Any], asked: Any) -> Share:
    """The share of a trial with this configuration, and what else of Ray's the trainable asks for; in Tune's driver.

    A trial that is too large for every device gets none, and will fail by itself: the others go on.

    Args:
        terms: what is common to all trials.
        config: the trial's.
        asked: what ``default_resource_request`` of the trainable gives.

    Raises:
        InputError: the estimate cannot be used, or the trainable asks for several bundles.
    """
    from tuner.integrations.ray_tune.share import Share

    estimate = terms.estimated(config)
    need = min(need_bytes(estimate), terms.budget_bytes)
    request = Request(Trial("", terms.name, "", {}, 0), estimate, need)
    if refusal := terms.refusal(estimate):
        return Share(request, None, _others(asked), refusal)
    return Share(request, _budget(terms), _others(asked))


def _budget(terms: Terms) -> Budget:
    """What the trials of a device divide, with what Ray has of it."""
    import ray

    from tuner.integrations.ray_tune.share import Budget

    amount = 1.0
    if terms.smallest.kind == "cpu":
        amount = min(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    return Budget(terms.smallest.kind, terms.budget_bytes, amount)


def _others(asked: Any) -> Mapping[str, float]:
    """What of the resources that a trainable asks for is no memory; one CPU if it asks for none.

    Raises:
        InputError: they are for several processes or GPUs.
    """
    from ray.tune import PlacementGroupFactory
    from ray.tune.execution.placement_groups import resource_dict_to_pg_factory

    if asked is None:
        return {"CPU": 1.0}
    request = asked if isinstance(asked, PlacementGroupFactory) else resource_dict_to_pg_factory(asked)
    bundle = request.bundles[0]
    if request.head_bundle_is_empty or len(request.bundles) > 1 or bundle.get("GPU", 0) > 1:
        raise InputError(
            f"trainable: asks Ray for {request.bundles}: trials must be of one process, on one GPU at most"
        )
    return {name: amount for name, amount in bundle.items() if name not in ("GPU", "memory")}


def given(value: Any, what: str = "") -> MemoryEstimate:
    """A number of GB as an estimate; it counts as it is, without a margin.

    Raises:
        InputError: it is none.
    """
    gb = float(value) if not isinstance(value, bool) and isinstance(value, Real) else 0.0
    if not 0 < gb <= MOST_GB:
        raise InputError(
            f"estimate {value!r}{what}: must be a number of GB above 0 and up to {MOST_GB:,}, or a function of a "
            "configuration that gives one"
        )
    return MemoryEstimate.given(gb)
