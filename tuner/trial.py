"""The dataclasses that flow from one stage to the next: read this file first.

    Configuration ──► Trial ──► MemoryEstimate ──► Placement ──► EpochReport … Outcome

Memory is in bytes, and every name ends with its unit. A GB in options, CSV files and printed text is 2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

LOOPBACK = "127.0.0.1"
MB, GB = 2**20, 2**30
MOST_TRIALS = 100_000  # of a study: each is planned before the first begins
MOST_NAME = 200  # the most characters of a configuration's name
LARGEST_NUMBER = 1e300  # the largest number that a configuration may have
MOST_SEED = 2**63 - 1  # the largest seed or epoch: files and generators have 63 bits for it
MOST_GB = 1_000_000  # the upper bound of every option in GB

ConfigValue: TypeAlias = Any  # see ``tuner.values``
Config = Mapping[str, ConfigValue]  # the values of hyperparameters, by key
Objects = Mapping[str, Mapping[str, object]]  # by key and by the key of a value, what has labels in configurations
RunStatus = Literal["completed", "paused", "pruned", "out_of_memory", "diverged", "failed", "stalled", "interrupted"]
Status = Literal[RunStatus, "too_large", "infeasible"]
Phase = Literal["", "start", "first step", "training", "evaluation"]
Lost = Literal["", "worker", "node", "memory"]
ShortOf = Literal["", "RAM"]
FreshProcesses = Literal["auto", "on", "off"]  # whether each trial has a process of its own
SUCCESSFUL: tuple[Status, ...] = ("completed", "pruned", "too_large", "infeasible")  # ended as the user wants it

KNOWN = ("estimated_gb", "inference_gb", "parameters", "step_seconds")  # what is known of a trial before it runs
FRONT = "front"  # the column with a trial's front: 1 for trials that none is better than in everything
LEARNED = "learned"  # the method of an estimate that is learned from the peaks of other trials of the study


class Auto(str):
    """A batch size or a number of ranks that tuner chooses, and not the same text of a user's own program."""


AUTO = Auto("auto")  # a batch size that tuner chooses: the largest for which a trial fits into its memory share
UNNAMED = "default"  # the name of a configuration that sets nothing
LARGEST_BATCH = 1_000_000_000
MOST_RANKS = 64
# Optional keys of a configuration, which has them only if they differ from the default.
ACCUMULATION = "accumulation"  # micro-batches in an optimizer step
EVALUATION_PARTS = "evaluation_parts"  # chunks for each chunk of a plain evaluation
CHECKPOINTING = "gradient_checkpointing"  # 1 recomputes activations in backward instead of keeping them
CUDA_GRAPHS = "cuda_graphs"  # 1 records a step on a GPU as a CUDA graph
MAX_BATCH = "max_batch_size"  # the largest batch that ``AUTO`` may become
RANKS = "gpus_per_trial"  # the processes that train together, each with a GPU or a part of the RAM; or ``AUTO``
NODES = "nodes_per_trial"  # the machines on which these are, as many on each
PLACING = (RANKS, NODES)  # what a trial's own program does not get
OFFLOADING = "offload_teacher_to_cpu"  # 1 keeps modules that are never trained in the host's memory between uses


@dataclass(frozen=True)
class Device:
    """Memory that trials share: one GPU, one MIG instance of a GPU, or one machine's RAM."""

    node_id: str  # Ray's id of its node; empty on the machine that tuner runs on
    kind: Literal["cuda", "cpu"]  # "cpu" for a machine's RAM
    index: int  # the GPU's ordinal on its own machine; 0 for RAM
    name: str
    total_bytes: int  # its memory, within the limit of the process's cgroup
    free_bytes: int  # the memory that no process held when the device was detected
    cores: int  # CPU cores that its trials share; 0 if unknown
    uuid: str = ""  # the UUID of the GPU or MIG instance, by which a process is pinned to it; empty for RAM
    host: str = ""  # the node's displayed name; empty on the machine that tuner runs on
    idle_cores: int | None = None  # how many of the cores were idle; None if unknown
    ram_bytes: int = 0  # of a GPU's host, within the process's cgroup; 0 if unknown, and for RAM itself
    free_ram_bytes: int = 0  # what of it was free
    instance: int | None = None  # a MIG instance's number on its GPU; None for a whole GPU, and for RAM
    multiprocessors: int = 0  # those of a MIG instance; 0 for a whole GPU, whose model says it, or if unknown
    context_bytes: int = 0  # what a process takes of a GPU beside its tensors, as it was measured; 0 if it was not
    shared_bytes: int = 0  # what the processes for trials share of a machine's RAM, which counts once

    @property
    def label(self) -> str:
        """Its name in results: ``cuda:0`` or ``cpu``; on another node ``10.0.0.2/cuda:0``."""
        name = gpu_label(self.index, self.instance) if self.kind == "cuda" else "cpu"
        return f"{self.host}/{name}" if self.host else name

    @property
    def free_cores(self) -> int:
        """The cores that no other program keeps busy."""
        return self.cores if self.idle_cores is None else min(self.cores, self.idle_cores)


def gpu_label(index: int, instance: int | None) -> str:
    """The name of a GPU, ``cuda:0``, or of a MIG instance, ``cuda:0:1``: NVIDIA's ``GPU:instance`` of containers."""
    return f"cuda:{index}" if instance is None else f"cuda:{index}:{instance}"


@dataclass(frozen=True)
class Configuration:
    """A named point of a search space, with a value for every hyperparameter of its workload."""

    name: str
    values: Config
    workload: str = ""  # its name, in a list for several workloads


class Shape(NamedTuple):
    """A number of ranks, and of the machines that have as many each."""

    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """The ranks on each machine."""
        return self.ranks // self.nodes


ALONE = Shape(1, 1)


@dataclass(frozen=True)
class Trial:
    """A configuration that is trained with one seed. A retry is the same trial with a higher ``attempt``."""

    trial_id: str
    workload: str
    name: str
    config: Config
    seed: int
    attempt: int = 1
    # Of a member of a population: the checkpoint that it takes over, the epochs that this has, and when it pauses.
    parent: str = ""
    begun: int = 0
    until: int = 0  # 0 for its last epoch

    @property
    def epochs(self) -> int:
        """The number of epochs in its configuration; 0 if that does not say."""
        epochs = self.config.get("epochs", 0)
        return epochs if isinstance(epochs, int) else 0

    @property
    def pause(self) -> str:
        """The name of the checkpoint with which this attempt pauses."""
        return f"{self.trial_id}@{self.attempt}"

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in an optimizer step."""
        return int(self.config.get(ACCUMULATION, 1))

    @property
    def ranks(self) -> int:
        """The number of processes that train it together."""
        return int(self.config.get(RANKS, 1))

    @property
    def shape(self) -> Shape:
        """The number of its ranks, and of the machines on which they are."""
        return Shape(self.ranks, int(self.config.get(NODES, 1)))


def title(workload: str, name: str, *, several: bool, seed: int | None = None) -> str:
    """The displayed name of a configuration, with its workload if there are several, and with any seed."""
    full_name = f"{workload}/{name}" if several else name
    return full_name if seed is None else f"{full_name} (seed {seed})"


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a training step is expected to take, in parts that add up to ``total_bytes``."""

    method: str  # an estimator's name, "formula" or "given"; ends with ", calibrated" if it is
    parameter_bytes: int = 0  # the model's parameters
    gradient_bytes: int = 0  # one gradient for each trained parameter
    optimizer_bytes: int = 0  # the optimizer's state, such as Adam's two moments
    activation_bytes: int = 0  # the tensors that forward keeps for backward, and the temporaries at the peak
    logits_bytes: int = 0  # a transformer's scores of every token in the vocabulary, and the loss's copies of them
    data_bytes: int = 0  # buffers and the largest batch: features, graph, targets
    workspace_bytes: int = 0  # scratch memory of libraries, such as cuBLAS
    fragmentation_bytes: int = 0  # the bytes that the caching allocator reserves beyond the allocated peak
    cached_bytes: int = 0  # the part of the fragmentation that the allocator gives back where memory is short
    heap_bytes: int = 0  # an allowance for freed CPU tensors that the C library's heap keeps
    context_bytes: int = 0  # a process's memory before its first tensor: CUDA context, or interpreter and libraries
    margin: float = 0.0  # the fraction of the reserved bytes that is added for safety
    headroom_bytes: int = 0  # calibration's allowance for errors that do not grow with size
    note: str = ""  # why another estimator than the requested one was used, and what of it is a guess; mostly empty
    context_note: str = ""  # the end of the note, on what of the context is a guess
    host_bytes: int = 0  # what a GPU trial takes of its host's RAM, with its child processes; no part of the total
    host_measured: bool = False  # whether trials of its workload have shown what they take there; else it is a guess
    inference_bytes: int = 0  # of a forward pass without gradients, with the context; 0 if it was not asked for
    parameters: int = 0  # how many numbers the model's parameters have; 0 if unknown
    epoch_seconds: float | None = None  # how long an epoch takes with its evaluation; None if unknown
    step_seconds: float | None = None  # the same for each of its steps

    @classmethod
    def given(cls, gb: float) -> MemoryEstimate:
        """The user's own footprint, to which no margin is added."""
        return cls("given", context_bytes=int(gb * GB))

    @property
    def is_given(self) -> bool:
        """Whether it is the user's own footprint and not an estimate."""
        return self.method == "given"

    @property
    def is_learned(self) -> bool:
        """Whether it is learned from the peaks of other trials of the study."""
        return self.method == LEARNED

    @property
    def is_first_share(self) -> bool:
        """Whether nothing is learned yet, so that it is a share to begin with: what is learned has a margin."""
        return self.is_learned and not self.margin

    @property
    def predicted_bytes(self) -> int | None:
        """The total; None for a share to begin with, which predicts nothing."""
        return None if self.is_first_share else self.total_bytes

    @property
    def total_bytes(self) -> int:
        """The sum of all parts: the memory of the trial's process on its device."""
        return sum(self.parts().values())

    @property
    def reserved_bytes(self) -> int:
        """All parts except the context: the memory that the allocator reserves."""
        return self.total_bytes - self.context_bytes

    @property
    def least_bytes(self) -> int:
        """The total with which a step just runs, when the allocator has to free its cache."""
        return self.total_bytes - self.cached_bytes

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
    """The number of a trial's ended attempts, for each way of ending that allows a retry."""

    out_of_memory: int = 0
    lost_workers: int = 0
    starved: int = 0  # others held memory that was the trial's
    failures: int = 0
    stalls: int = 0


@dataclass(frozen=True)
class Request:
    """A trial in the queue. ``need_bytes`` will be reserved for it, including its context."""

    trial: Trial
    estimate: MemoryEstimate
    need_bytes: int
    history: History = History()
    host_bytes: int = 0  # what will be reserved of its host's RAM beside a GPU's memory
    ran_out_bytes: int = 0  # the share with which its last attempt ran out of memory

    @property
    def seconds(self) -> float | None:
        """How long all epochs of its trial are expected to take; None if that is unknown."""
        an_epoch, epochs = self.estimate.epoch_seconds, self.trial.epochs - self.trial.begun
        return an_epoch * epochs if an_epoch and epochs else None


@dataclass(frozen=True)
class Placement:
    """A trial, or one rank of it, on its device with its memory share."""

    trial: Trial
    estimate: MemoryEstimate
    device: Device
    fraction: float  # ``limit_bytes`` as a fraction in (0, 1] of the device's budget
    limit_bytes: int  # the reserved memory; the trial's cap is this less the worker's context
    threads: int
    host_bytes: int = 0  # the reserved RAM of its host beside a GPU's memory; there is no cap on it
    rank: int = 0
    others: tuple[Placement, ...] = ()  # of the trial's other ranks
    address: str = LOOPBACK  # where rank 0 waits for the others: its machine's own, if they are on several
    port: int = 0
    beside: tuple[str, ...] = ()  # the UUIDs of the GPUs of the other ranks on its machine

    @property
    def all(self) -> tuple[Placement, ...]:
        """This one and those of the other ranks."""
        return self, *self.others

    @property
    def label(self) -> str:
        """The name of its device in results; ``cuda:0+cuda:1`` for ranks on several."""
        return "+".join(dict.fromkeys(place.device.label for place in self.all))

    @property
    def log(self) -> str:
        """The name of the file with its output."""
        return f"{self.trial.trial_id}.{self.rank}" if self.rank else self.trial.trial_id


@dataclass(frozen=True)
class Began:
    """A trial's process is ready, and the user's own code is about to begin."""

    trial_id: str
    pid: int  # of the process that runs the trial
    created: float  # its ``processes.time_made``, as its id may be used again
    leads: bool = False  # whether it leads its process group


@dataclass(frozen=True)
class EpochReport:
    """The report of a running trial after an epoch."""

    trial_id: str
    epoch: int  # counts from 1; at the beginning of training the number of epochs already done, mostly 0
    epochs: int  # how many there will be; 0 if unknown
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None  # the peak of its process so far; None if unknown
    host_peak_bytes: int | None = None  # its peak in its host's RAM so far; None on the CPU, or if unknown
    seconds: float | None = None  # the time since training went on after the report before; None if unknown
    core_share: float | None = None  # the part of a core that it kept busy then; None on the CPU, or if unknown
    again: bool = False  # whether it is from before the checkpoint with which the trial goes on

    @property
    def is_last(self) -> bool:
        """Whether the trial has done all its epochs."""
        return 0 < self.epochs <= self.epoch


@dataclass(frozen=True)
class Question:
    """What a running trial asks the study, or only tells it."""

    trial_id: str
    content: object
    waits: bool = True  # for an answer


@dataclass(frozen=True)
class AttemptResult:
    """The part of an attempt's ``Outcome`` that decides about retries. It can be read from the journal, too."""

    status: Status
    lost: Lost = ""
    limit_bytes: int = 0  # the memory that was reserved for the attempt; 0 if it was never placed
    peak_bytes: int | None = None  # the peak of its process; None if unknown
    phase: Phase = ""  # the phase in which it failed
    short_of: ShortOf = ""  # "RAM" if a trial on a GPU ran out of its host's RAM, not of its device's memory
    host_bytes: int = 0  # the RAM that was reserved for it beside its device's memory
    host_peak_bytes: int | None = None  # its peak in there; None if unknown


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    trial: Trial
    status: Status
    placement: Placement | None = None  # where it ran; None if it was never placed
    metrics: Mapping[str, float] = field(default_factory=dict)  # the final metrics by name, if training got that far
    epochs: int = 0
    seconds: float = 0.0  # wall time from the placement to the end
    peak_bytes: int | None = None  # its process's peak, with what a failed allocation asked for; None if unknown
    error: str = ""  # why the attempt was not completed, in one line
    traceback: str = ""  # the full traceback of ``error``, for the study's folder
    phase: Phase = ""  # the phase in which the attempt failed
    # Whether its worker (or a data loader of it), or the node, died without an exception, or others had its "memory".
    lost: Lost = ""
    reusable: bool = True  # whether another trial may run in its worker
    host_peak_bytes: int | None = None  # its peak in its host's RAM; None on the CPU, or if it could not be measured
    short_of: ShortOf = ""  # "RAM" if a trial on a GPU ran out of its host's RAM, not of its device's memory
    hopeless: bool = False  # whether every trial would fail alike
    rank_peaks: tuple[int | None, ...] = ()  # of each rank, where there are several

    @property
    def result(self) -> AttemptResult:
        """The part that decides about retries."""
        limit = self.placement.limit_bytes if self.placement else 0
        host = self.placement.host_bytes if self.placement else 0
        return AttemptResult(
            self.status, self.lost, limit, self.peak_bytes, self.phase, self.short_of, host, self.host_peak_bytes
        )
