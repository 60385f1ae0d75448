"""The common settings of all trials of a wrapped trainable."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

from tuner.decisions.plan import budget_bytes
from tuner.decisions.retry import RetryPolicy
from tuner.errors import InputError, one_line
from tuner.estimation.calibration import with_headroom
from tuner.spec.commands import Estimate
from tuner.spec.settings import Settings
from tuner.trial import GB, MB, MOST_GB, Device, MemoryEstimate

# The CPU memory that a process of Tune takes beyond a worker of tuner: ray.tune, pandas, and pyarrow for checkpoints.
# With few tensors, ``tests/support/tune_mnist.py`` took 470 MiB.
TUNE_BYTES = 120 * MB


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
