"""Logs the memory state of a device and this process."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.machine.devices import ram_device
from tuner.machine.peak import resident_bytes
from tuner.trial import GB

if TYPE_CHECKING:
    import torch


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
