"""Where a device's memory goes: the result of `compute_batch_size`, and a log of what is held now."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.machine.devices import ram_device
from tuner.machine.peak import resident_bytes
from tuner.trial import GB, MB

if TYPE_CHECKING:
    import torch


FREE_MEMORY = "free memory"  # the name of the bound where others hold so much that it is less than the limit
WHO_HOLDS_THE_REST = (
    "other programs, or this one's other tensors, hold the rest (`tuner doctor` names programs on a GPU)"
)


@dataclass(frozen=True)
class MemoryBudget:
    """A device's memory and what a training step takes of it, in bytes.

    With ``fragmentation`` as a share, a batch takes

        need = context + (1 + fragmentation) · (model + batch_size · (activation + per_sample))

    where model = parameters + embeddings + optimizer + gradients + teacher.

    Attributes:
        total_bytes: all memory of the device.
        free_bytes: the memory that no program holds, including what this process's allocator caches; 0 for a GPU
            that is not there.
        limit_bytes: the memory that may be used: total · target utilization, or the free memory if that is less. What
            the model holds already, and a process's context, count as free. With ``total_gb`` only the former.
        need_bytes: the memory of a batch of ``batch_size``, no more than the limit.
        context_bytes: a process's memory before its first tensor: CUDA context, or interpreter and libraries.
        parameter_bytes: the model's parameters and buffers without its embeddings.
        embedding_bytes: weights of its ``nn.Embedding`` and ``nn.EmbeddingBag`` modules, shared ones once.
        optimizer_bytes: the optimizer's state.
        gradient_bytes: one gradient for each trainable parameter.
        teacher_bytes: parameters and buffers of the teacher.
        available_bytes: the memory for samples within the limit.
        activation_bytes: the memory of a sample beyond its own data, at the chosen batch size.
        per_sample_bytes: a sample's own data.
        fragmentation: the allocator's loss as a share of the tensors; 0 if ``activation_bytes`` includes it.
        batch_size: the largest batch that fits, in samples.
        mode: "static", "traced" or "measured".
        stopped_by: why the batch is not larger: "memory", "free memory" or "max_batch_size".
    """

    total_bytes: int
    free_bytes: int
    limit_bytes: int
    need_bytes: int
    context_bytes: int
    parameter_bytes: int
    embedding_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    teacher_bytes: int
    available_bytes: int
    activation_bytes: int
    per_sample_bytes: int
    fragmentation: float
    batch_size: int
    mode: str
    stopped_by: str

    @property
    def static_bytes(self) -> int:
        """The memory that does not depend on the batch: the context, and the model's."""
        return self.context_bytes + self.model_bytes

    @property
    def model_bytes(self) -> int:
        """The tensors that live as long as the training: weights, optimizer state, gradients and the teacher's."""
        held = self.parameter_bytes + self.embedding_bytes + self.optimizer_bytes
        return held + self.gradient_bytes + self.teacher_bytes

    def __str__(self) -> str:
        parts = {
            "params": self.parameter_bytes,
            "embed": self.embedding_bytes,
            "opt": self.optimizer_bytes,
            "grad": self.gradient_bytes,
            "teacher": self.teacher_bytes,
        }
        words = " ".join(f"{name}={size / MB:.1f}" for name, size in parts.items())
        only = f" free={self.free_bytes / MB:.0f}MB: {WHO_HOLDS_THE_REST}" if self.stopped_by == FREE_MEMORY else ""
        return (
            f"MemoryBudget(total={self.total_bytes / MB:.0f}MB static={self.static_bytes / MB:.1f}MB [{words}] "
            f"activation={self.activation_bytes / MB:.1f}MB per_graph={self.per_sample_bytes / MB:.3f}MB "
            f"available={self.available_bytes / MB:.1f}MB batch_size={self.batch_size} mode={self.mode}{only})"
        )


def log_memory_state(label: str = "", device: str | torch.device | None = None) -> dict[str, int]:
    """Logs what a device and this process hold, in one line of the logger "tuner" at the level INFO.

    Args:
        label: where in the program this is; it opens the line.
        device: "cuda", "cuda:1", "cpu" or a ``torch.device``; by default the GPU if this process uses one.

    Returns:
        Bytes by name. CUDA: ``allocated``, ``reserved`` and ``peak`` (the most that was reserved) of torch's
        allocator, ``free`` and ``total`` of the GPU. CPU: ``resident`` and ``peak`` (the most that was) of this
        process, where the system tells, ``free`` and ``total`` of the machine within its cgroup.

    Raises:
        InputError: no such device.
    """
    state = _cpu_state() if _is_cpu(device) else _cuda_state(device)
    figures = " ".join(f"{name}={size / GB:.2f}GB" for name, size in state.items())
    logging.getLogger("tuner").info("memory%s: %s", f" {label}" if label else "", figures)
    return state


def _is_cpu(device: str | torch.device | None) -> bool:
    if device is not None:
        return str(device) == "cpu"
    torch = sys.modules.get("torch")  # a process without it uses no GPU
    return torch is None or not torch.cuda.is_initialized()


def _cpu_state() -> dict[str, int]:
    machine = ram_device()
    return {**resident_bytes(), "free": machine.free_bytes, "total": machine.total_bytes}


def _cuda_state(device: str | torch.device | None) -> dict[str, int]:
    import torch

    chosen = torch_device("cuda" if device is None else device)
    if chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device='{chosen}': this machine has no such GPU; give cpu, cuda or cuda:N")
    free, total = torch.cuda.mem_get_info(chosen)
    return {
        "allocated": torch.cuda.memory_allocated(chosen),
        "reserved": torch.cuda.memory_reserved(chosen),
        "peak": torch.cuda.max_memory_reserved(chosen),
        "free": free,
        "total": total,
    }


def torch_device(choice: str | torch.device) -> torch.device:
    """The device of this name. An unknown name raises ``InputError``."""
    import torch

    try:
        return torch.device(choice)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={choice!r}: give cpu, cuda or cuda:N") from error
