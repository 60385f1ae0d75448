"""The dataclasses that flow from one stage to the next: read this file first.

    Configuration ──► Trial ──► MemoryEstimate ──► Placement ──► EpochReport … Outcome

Memory is in bytes in here, and a unit is part of every name. A GB at the edge (options, CSV, printed text) is
2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

GB = 2**30
MOST_GB = 1_000_000  # no option that is a number of GB may be more: no device has as much
MB = 2**20

Status = Literal["completed", "pruned", "out_of_memory", "diverged", "failed", "interrupted"]
Phase = Literal["", "start", "first step", "training", "evaluation"]
Lost = Literal["", "worker", "node"]
# Micro-batches in an optimizer step: a key of a configuration where it is more than one.
ACCUMULATION = "accumulation"
AUTO = "auto"  # the batch of a configuration that is to be as large as its share of a device allows
UNNAMED = "default"  # what a configuration is called that sets nothing
# 1 where backward computes activations again instead of finding them kept: an optional key, too.
CHECKPOINTING = "gradient_checkpointing"
MAX_BATCH = "max_batch_size"  # the most samples that ``AUTO`` may come to: an optional key, too
# 1 where modules that are never trained wait in the host's memory between their uses: an optional key.
OFFLOADING = "offload_teacher_to_cpu"
SUCCESSFUL: tuple[Status, ...] = ("completed", "pruned")


@dataclass(frozen=True)
class Device:
    """A piece of memory that trials share: one GPU, or one machine's RAM.

    Attributes:
        node_id: Ray's name for the node that holds it; empty for the machine that tuner runs on.
        kind: "cuda", or "cpu" for a machine's RAM.
        index: the GPU's ordinal as its own machine counts it; 0 for RAM.
        name: what its maker calls it.
        total_bytes: all of its memory, or what the process's cgroup may use of it.
        free_bytes: what nobody holds at the moment of asking.
        cores: CPU cores that its trials may use between them; 0 where they are not known.
        uuid: the GPU's own name, by which a process is pinned to it; empty for RAM.
        host: what people call the node; empty for the machine that tuner runs on.
    """

    node_id: str
    kind: Literal["cuda", "cpu"]
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    cores: int
    uuid: str = ""
    host: str = ""

    @property
    def label(self) -> str:
        """How results name it: ``cuda:0`` or ``cpu``, on another node ``10.0.0.2/cuda:0``."""
        own = f"cuda:{self.index}" if self.kind == "cuda" else "cpu"
        return f"{self.host}/{own}" if self.host else own


@dataclass(frozen=True)
class Configuration:
    """One named point of a search space: every hyperparameter of its workload has a value."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One configuration to be trained with one seed; a retry is the same trial with a higher ``attempt``."""

    trial_id: str
    workload: str
    name: str
    config: Mapping[str, Any]
    seed: int
    attempt: int = 1


def is_auto(config: Mapping[str, Any]) -> bool:
    """Whether a configuration's batch is still to be found."""
    return AUTO in config.values()


def with_batch(config: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """The configuration with so many samples in the place of ``AUTO``."""
    return {key: batch_size if value == AUTO else value for key, value in config.items()}


def title(workload: str, name: str, *, several: bool, seed: int | None = None) -> str:
    """What texts call a configuration: by its name, after its workload's where there are several of these.

    Args:
        workload: its name.
        name: the configuration's.
        several: whether there are several workloads.
        seed: that of a trial, where its configuration is trained with several; else None.
    """
    whose = f"{workload}/{name}" if several else name
    return whose if seed is None else f"{whose} (seed {seed})"


@dataclass(frozen=True)
class MemoryEstimate:
    """What a training step is expected to take from its device, in parts that add up to ``total_bytes``.

    Attributes:
        parameter_bytes: the model's parameters.
        gradient_bytes: one gradient for each trained parameter.
        optimizer_bytes: the optimizer's state, such as Adam's two moments.
        activation_bytes: what forward keeps for backward, and the temporaries at the peak.
        logits_bytes: of a transformer's head: scores of every token in the vocabulary, and the loss's copies of them.
        data_bytes: buffers and the largest batch: features, graph, targets.
        workspace_bytes: scratch memory of libraries, such as cuBLAS.
        fragmentation_bytes: what the caching allocator reserves beyond what is allocated at the peak.
        heap_bytes: an allowance for what the C library's heap keeps of freed CPU tensors.
        context_bytes: what a process takes before its first tensor: CUDA context, or interpreter and libraries.
        method: where it comes from: "given", "static", "formula" (a transformer's), "traced" or "measured"; then
            ", calibrated" if it is.
        margin: the share by which a trial's need exceeds what it reserves.
        headroom_bytes: what a need has on top, for errors that do not grow with size; from calibration.
        note: why another method than the one asked for was used; empty otherwise.
    """

    method: str
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    logits_bytes: int = 0
    data_bytes: int = 0
    workspace_bytes: int = 0
    fragmentation_bytes: int = 0
    heap_bytes: int = 0
    context_bytes: int = 0
    margin: float = 0.0
    headroom_bytes: int = 0
    note: str = ""

    @property
    def total_bytes(self) -> int:
        """All parts together: what the trial's process takes from its device."""
        return sum(self.parts().values())

    @property
    def reserved_bytes(self) -> int:
        """All parts but the context: what the allocator takes."""
        return self.total_bytes - self.context_bytes

    def parts(self) -> dict[str, int]:
        """The parts by name, in bytes, in the order in which they are printed."""
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
        """One readable line: the total, the method and the parts that are not zero."""
        parts = ", ".join(f"{name} {size / GB:.2f}" for name, size in self.parts().items() if size)
        return f"{self.total_bytes / GB:.2f} GB {self.method}" + (f" ({parts})" if parts else "")


@dataclass(frozen=True)
class History:
    """How often a trial's attempts have ended in each of the ways after which it may be tried again."""

    out_of_memory: int = 0
    lost_workers: int = 0
    failures: int = 0


@dataclass(frozen=True)
class Request:
    """A trial that waits for a place.

    Attributes:
        trial: what to train.
        estimate: what it is expected to use.
        need_bytes: what is set aside for it, context included.
        history: what became of its attempts so far.
    """

    trial: Trial
    estimate: MemoryEstimate
    need_bytes: int
    history: History = History()


@dataclass(frozen=True)
class Placement:
    """A trial on its device, with the share of it that is reserved for the trial.

    Attributes:
        trial: what to train.
        estimate: what it is expected to use.
        device: where it runs.
        fraction: its share of what the device's trials divide between them (0 to 1]; mirrors ``limit_bytes``.
        limit_bytes: the memory set aside for it, context included; less the worker's context it is the trial's cap.
        threads: CPU threads that it computes with.
    """

    trial: Trial
    estimate: MemoryEstimate
    device: Device
    fraction: float
    limit_bytes: int
    threads: int


@dataclass(frozen=True)
class EpochReport:
    """What a running trial says after an epoch.

    Attributes:
        trial_id: which.
        epoch: counts from 1; as training begins those that are done already, mostly 0.
        epochs: that there will be.
        metrics: by name.
        memory_bytes: the most that its process has taken from its device so far, measured as a peak is; None where
            that is not known.
    """

    trial_id: str
    epoch: int
    epochs: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None


@dataclass(frozen=True)
class DeviceLost:
    """A device is gone, with its node: nothing can be placed on it any more."""

    device: Device
    reason: str


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        placement: what ran, and where; for a trial that never started, see ``trial``.
        trial: the attempt.
        status: one of ``Status``.
        metrics: final metrics by name; empty unless training got that far.
        epochs: epochs that were finished.
        seconds: wall time from the placement to the end.
        peak_bytes: the most that its process took from its device; None where it could not be measured.
        error: one line that says why it is not completed; empty otherwise.
        traceback: the full text behind ``error``, for the study's folder.
        phase: what it was doing when it failed: "start", "first step", "training" or "evaluation"; else empty.
        lost: what died under it, through no exception of its own: its worker, or the whole node; else empty.
        reusable: whether its worker is as clean as before the trial, so that another may run in it.
    """

    trial: Trial
    status: Status
    placement: Placement | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    seconds: float = 0.0
    peak_bytes: int | None = None
    error: str = ""
    traceback: str = ""
    phase: Phase = ""
    lost: Lost = ""
    reusable: bool = True

    @property
    def ending(self) -> Ending:
        """What decisions are made by."""
        limit = self.placement.limit_bytes if self.placement else 0
        return Ending(self.status, self.lost, limit, self.peak_bytes)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, as far as decisions go: of an ``Outcome``, or of a line in a journal.

    Attributes:
        status: as in ``Outcome``.
        lost: as in ``Outcome``.
        limit_bytes: what the attempt was given; 0 if it had no place.
        peak_bytes: the most that its process was seen to take; None where that is not known.
    """

    status: Status
    lost: Lost = ""
    limit_bytes: int = 0
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Hyperparameter:
    """What a workload accepts under one key of a configuration.

    Attributes:
        default: the value where a configuration leaves it out; its type is the type that is accepted.
        low: smallest value that makes sense, itself included.
        high: largest, itself included.
        doc: what it does, in a few words.
        optional: it is in a configuration only where it has another value than the default.
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
        """Whether it is on or off, so that ``true`` and ``false`` are understood, too."""
        return isinstance(self.default, int) and (self.low, self.high) == (0, 1)


@dataclass(frozen=True)
class TextHyperparameter:
    """The same for a value that is text.

    Attributes:
        default: the value where a configuration leaves it out.
        doc: what it does, in a few words.
        choices: what it may be; anything where this is empty.
        optional: as in ``Hyperparameter``.
    """

    default: str
    doc: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False


AnyHyperparameter = Hyperparameter | TextHyperparameter


# What the training loop understands in every workload's configurations.
LOOP_OPTIONS: Mapping[str, Hyperparameter] = {
    ACCUMULATION: Hyperparameter(1, 1, 1_000_000, "micro-batches in which a batch is taken", optional=True),
    "amp": Hyperparameter(0, 0, 1, "1 trains in bfloat16 where autocast does", optional=True),
    "clear_cache_every_n": Hyperparameter(
        0, 0, 1_000_000_000, "steps after which a GPU's cached memory is given back; 0 for never", optional=True
    ),
    CHECKPOINTING: Hyperparameter(0, 0, 1, "1 computes activations again in backward, to keep fewer", optional=True),
    MAX_BATCH: Hyperparameter(0, 0, 1_000_000_000, "the most that an auto batch may be; 0 for any", optional=True),
    OFFLOADING: Hyperparameter(0, 0, 1, "1 keeps a GPU free of modules that are not trained", optional=True),
}
