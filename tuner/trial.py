"""The dataclasses that flow from one stage to the next: read this file first.

    Configuration ──► Trial ──► MemoryEstimate ──► Placement ──► EpochReport … Outcome

Memory is in bytes, and every name carries its unit. A GB at the edge (options, CSV, printed text) is 2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MB = 2**20
GB = 2**30
MOST_GB = 1_000_000  # the upper bound of every option in GB: no device has as much

ConfigValue = int | float | str
Config = Mapping[str, ConfigValue]  # the values of hyperparameters, by key
Status = Literal["completed", "pruned", "out_of_memory", "diverged", "failed", "interrupted"]
Phase = Literal["", "start", "first step", "training", "evaluation"]
Lost = Literal["", "worker", "node"]
SUCCESSFUL: tuple[Status, ...] = ("completed", "pruned")

AUTO = "auto"  # a batch size that is to be chosen: as large as the trial's share of a device allows
UNNAMED = "default"  # the name of a configuration that sets nothing
# Keys of a configuration. All are optional: a configuration has them only where they differ from the default.
ACCUMULATION = "accumulation"  # micro-batches in an optimizer step
CHECKPOINTING = "gradient_checkpointing"  # 1 recomputes activations in backward instead of keeping them
MAX_BATCH = "max_batch_size"  # the largest batch that ``AUTO`` may become
OFFLOADING = "offload_teacher_to_cpu"  # 1 keeps modules that are never trained in the host's memory between uses


@dataclass(frozen=True)
class Device:
    """A piece of memory that trials share: one GPU, or one machine's RAM."""

    node_id: str  # Ray's id of its node; empty on the machine that tuner runs on
    kind: Literal["cuda", "cpu"]  # "cpu" for a machine's RAM
    index: int  # the GPU's ordinal on its own machine; 0 for RAM
    name: str
    total_bytes: int  # its memory, or the part that the process's cgroup may use
    free_bytes: int  # memory that no process held when the device was looked at
    cores: int  # CPU cores that its trials share; 0 if unknown
    uuid: str = ""  # the GPU's UUID, by which a process is pinned to it; empty for RAM
    host: str = ""  # the node's name for people; empty on the machine that tuner runs on

    @property
    def label(self) -> str:
        """Its name in results: ``cuda:0`` or ``cpu``; on another node ``10.0.0.2/cuda:0``."""
        own = f"cuda:{self.index}" if self.kind == "cuda" else "cpu"
        return f"{self.host}/{own}" if self.host else own


@dataclass(frozen=True)
class Configuration:
    """One named point of a search space: every hyperparameter of its workload has a value."""

    name: str
    values: Config


@dataclass(frozen=True)
class Trial:
    """One configuration that is trained with one seed; a retry is the same trial with a higher ``attempt``."""

    trial_id: str
    workload: str
    name: str
    config: Config
    seed: int
    attempt: int = 1

    @property
    def epochs(self) -> int:
        """The number of epochs that its configuration asks for."""
        return int(self.config["epochs"])

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in an optimizer step."""
        return int(self.config.get(ACCUMULATION, 1))


def is_auto(config: Config) -> bool:
    """Whether a configuration's batch size is still to be chosen."""
    return AUTO in config.values()


def with_batch(config: Config, batch_size: int) -> dict[str, ConfigValue]:
    """The configuration with this batch size in the place of ``AUTO``."""
    return {key: batch_size if value == AUTO else value for key, value in config.items()}


def title(workload: str, name: str, *, several: bool, seed: int | None = None) -> str:
    """The name of a configuration in texts: with its workload if there are several, and with a seed if given."""
    full_name = f"{workload}/{name}" if several else name
    return full_name if seed is None else f"{full_name} (seed {seed})"


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a training step is expected to take, in parts that add up to ``total_bytes``."""

    # "given", "static", "formula" (a transformer's), "traced" or "measured"; ends with ", calibrated" if it is
    method: str
    parameter_bytes: int = 0  # the model's parameters
    gradient_bytes: int = 0  # one gradient for each trained parameter
    optimizer_bytes: int = 0  # the optimizer's state, such as Adam's two moments
    activation_bytes: int = 0  # what forward keeps for backward, and the temporaries at the peak
    logits_bytes: int = 0  # a transformer's scores of every token in the vocabulary, with the loss's copies of them
    data_bytes: int = 0  # buffers and the largest batch: features, graph, targets
    workspace_bytes: int = 0  # scratch memory of libraries, such as cuBLAS
    fragmentation_bytes: int = 0  # what the caching allocator reserves beyond the allocated bytes at the peak
    heap_bytes: int = 0  # an allowance for freed CPU tensors that the C library's heap keeps
    context_bytes: int = 0  # what a process takes before its first tensor: CUDA context, or interpreter and libraries
    margin: float = 0.0  # the share that is added to the reserved bytes for safety
    headroom_bytes: int = 0  # what calibration adds for errors that do not grow with size
    note: str = ""  # why the estimator is not the one that was asked for; empty if it is

    @classmethod
    def given(cls, gb: float) -> MemoryEstimate:
        """A footprint that the user gave; it counts as it is, without a margin."""
        return cls("given", context_bytes=int(gb * GB))

    @property
    def is_given(self) -> bool:
        """Whether the user gave it, so that it says nothing of what a trial takes."""
        return self.method == "given"

    @property
    def total_bytes(self) -> int:
        """The sum of all parts: what the trial's process takes from its device."""
        return sum(self.parts().values())

    @property
    def reserved_bytes(self) -> int:
        """All parts except the context: what the allocator takes."""
        return self.total_bytes - self.context_bytes

    def parts(self) -> dict[str, int]:
        """The parts in bytes by name, in the order in which they are printed."""
        return {
            "parameters": self.parameter_bytes,
            "gradients": self.gradient_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activation_bytes,
            "logits": self.logits_bytes,
            "data": self.data_bytes,
            "workspace": self.workspace_bytes,
            "fragmentation": self.fragmentation_bytes,
            "heap": self.heap_bytes,
            "context": self.context_bytes,
        }

    def __str__(self) -> str:
        """The total, the method and the parts that are not zero, in one line."""
        parts = ", ".join(f"{name} {size / GB:.2f}" for name, size in self.parts().items() if size)
        return f"{self.total_bytes / GB:.2f} GB {self.method}" + (f" ({parts})" if parts else "")


@dataclass(frozen=True)
class History:
    """The number of a trial's attempts that have ended in each of the ways that allow a retry."""

    out_of_memory: int = 0
    lost_workers: int = 0
    failures: int = 0


@dataclass(frozen=True)
class Request:
    """A trial that waits for a place; ``need_bytes`` will be reserved for it, its context included."""

    trial: Trial
    estimate: MemoryEstimate
    need_bytes: int
    history: History = History()


@dataclass(frozen=True)
class Placement:
    """A trial on its device, with the share of the device that is reserved for it."""

    trial: Trial
    estimate: MemoryEstimate
    device: Device
    fraction: float  # its share (0 to 1] of the memory that trials divide on the device; mirrors ``limit_bytes``
    limit_bytes: int  # the memory that is reserved for it. The trial's cap is this less the worker's context.
    threads: int


@dataclass(frozen=True)
class EpochReport:
    """The report of a running trial after an epoch."""

    trial_id: str
    # Counts from 1. The report at the beginning of training has the epochs that are done already, mostly 0.
    epoch: int
    epochs: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None  # the peak of its process so far; None if unknown


@dataclass(frozen=True)
class DeviceLost:
    """A device is gone, together with its node: nothing can be placed on it any more."""

    device: Device
    reason: str


@dataclass(frozen=True)
class AttemptResult:
    """The part of an attempt's ``Outcome`` that decisions are based on; a line of the journal gives it, too."""

    status: Status
    lost: Lost = ""
    limit_bytes: int = 0  # the memory that was reserved for the attempt; 0 if it had no place
    peak_bytes: int | None = None  # the peak of its process; None if unknown


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    trial: Trial
    status: Status
    placement: Placement | None = None  # where it ran; None if it was never placed
    # The final metrics by name; empty unless training got that far.
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    seconds: float = 0.0  # wall time from the placement to the end
    peak_bytes: int | None = None  # the peak of its process on its device; None if it could not be measured
    error: str = ""  # why it is not completed, in one line
    traceback: str = ""  # the full text behind ``error``, for the study's folder
    phase: Phase = ""  # in which it failed
    lost: Lost = ""  # what died during the attempt through no exception of the trial: its worker or the whole node
    reusable: bool = True  # whether its worker is clean, so that another trial may run in it

    @property
    def result(self) -> AttemptResult:
        """The part that decisions are based on."""
        limit = self.placement.limit_bytes if self.placement else 0
        return AttemptResult(self.status, self.lost, limit, self.peak_bytes)


@dataclass(frozen=True)
class Hyperparameter:
    """A number that a workload accepts under one key of a configuration.

    Attributes:
        default: the value where a configuration has none; only values of its type are accepted.
        low: the smallest value that is accepted.
        high: the largest.
        doc: one phrase for people.
        optional: a configuration has it only where it differs from the default.
        auto: ``AUTO`` is accepted, too.
    """

    default: int | float
    low: float
    high: float
    doc: str = ""
    optional: bool = False
    auto: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, so that ``true`` and ``false`` are accepted, too."""
        return isinstance(self.default, int) and (self.low, self.high) == (0, 1)


@dataclass(frozen=True)
class TextHyperparameter:
    """The same for text, which must be one of ``choices`` if there are any."""

    default: str
    doc: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False


AnyHyperparameter = Hyperparameter | TextHyperparameter


# Keys that the training loop reads from every workload's configurations.
LOOP_OPTIONS: Mapping[str, Hyperparameter] = {
    ACCUMULATION: Hyperparameter(1, 1, 1_000_000, "micro-batches of a batch", optional=True),
    "amp": Hyperparameter(0, 0, 1, "1 trains in bfloat16 where autocast does", optional=True),
    "clear_cache_every_n": Hyperparameter(
        0, 0, 1_000_000_000, "steps after which a GPU's cached memory is given back; 0 for never", optional=True
    ),
    CHECKPOINTING: Hyperparameter(0, 0, 1, "1 recomputes activations in backward, to keep fewer", optional=True),
    MAX_BATCH: Hyperparameter(0, 0, 1_000_000_000, "the largest size of an auto batch; 0 for any", optional=True),
    OFFLOADING: Hyperparameter(0, 0, 1, "1 keeps a GPU free of modules that are never trained", optional=True),
}
