"""The numbers in errors of memory that ran out. Those of CUDA are torch 2.11's, from the emulated card."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tuner.machine.caps import LackOfMemory, parse_out_of_memory
from tuner.trial import GB, MB

REMEDY = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
CAPPED = (
    "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 79.65 GiB of which 55.27 GiB is "
    "free. Including non-PyTorch memory, this process has 24.38 GiB memory in use. 23.89 GiB allowed; Of the "
    "allocated memory 22.81 GiB is allocated by PyTorch, and 1.08 GiB is reserved by PyTorch but unallocated. "
) + REMEDY
FULL = (
    "CUDA out of memory. Tried to allocate 15.93 GiB. GPU 0 has a total capacity of 79.65 GiB of which 7.55 GiB is "
    "free. Process 29960 has 71.88 GiB memory in use. Including non-PyTorch memory, this process has 220.00 MiB "
    "memory in use. 23.89 GiB allowed; Of the allocated memory 3.00 MiB is allocated by PyTorch, and 17.00 MiB is "
    "reserved by PyTorch but unallocated. "
) + REMEDY
UNCAPPED = (
    "CUDA out of memory. Tried to allocate 79.65 GiB. GPU 0 has a total capacity of 79.65 GiB of which 78.87 GiB is "
    "free. Including non-PyTorch memory, this process has 800.00 MiB memory in use. Of the allocated memory 300.00 "
    "MiB is allocated by PyTorch, with 8.00 MiB allocated in private pools (e.g., CUDA Graphs), and 0 bytes is "
    "reserved by PyTorch but unallocated. "
) + REMEDY
ON_MIG = (  # the whole text
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165, please report a '
    "bug to PyTorch. "
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "536870912 bytes. Error code 12 (Cannot allocate memory)"
)


def gib(size: float) -> int:
    return int(size * GB)


@pytest.mark.parametrize(
    ("text", "found", "line"),
    [
        (
            CAPPED,
            LackOfMemory(2 * MB, gib(22.81) + gib(1.08), gib(23.89), gib(55.27)),
            "out of memory: needed 2 MB more, allowed 23.89 GB, in use 23.89 GB",
        ),
        (
            FULL,
            LackOfMemory(gib(15.93), 20 * MB, gib(23.89), gib(7.55)),
            "out of memory: needed 15.93 GB more, allowed 23.89 GB, in use 20 MB, the device had only 7.55 GB free",
        ),
        (
            UNCAPPED,
            LackOfMemory(gib(79.65), 300 * MB, None, gib(78.87)),
            "out of memory: needed 79.65 GB more, in use 300 MB, the device had only 78.87 GB free",
        ),
        (CPU, LackOfMemory(512 * MB), "out of memory: needed 512 MB more"),
        (ON_MIG, LackOfMemory(), "out of memory"),
    ],
    ids=["at the cap", "a full device", "without a cap", "CPU", "a MIG instance"],
)
def test_sizes_are_read_and_told_in_one_short_line(text: str, found: LackOfMemory, line: str) -> None:
    assert parse_out_of_memory(text) == parse_out_of_memory(f"Traceback:\n  OutOfMemoryError: {text}") == found
    assert str(found) == line


def test_errors_of_the_installed_torch_and_numpy_are_read() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as torchs:
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(MemoryError, match="Unable") as numpys:
        np.empty(2**50, dtype=np.uint8)
    assert parse_out_of_memory(str(torchs.value)) == parse_out_of_memory(str(numpys.value)) == LackOfMemory(2**50)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "std::bad_alloc",
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
    ],
)
def test_errors_without_sizes_say_none(text: str) -> None:
    assert parse_out_of_memory(text) is None


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (LackOfMemory(10, 85, 100, 20), False),  # neither: fragments
        (LackOfMemory(30 * MB, 85 * MB, 100 * MB, 20 * MB), False),  # both: the cap is looked at first
        (LackOfMemory(30 * MB, 50 * MB, 100 * MB, 20 * MB), True),
        (LackOfMemory(30 * MB, None, 100 * MB, 20 * MB), False),
        (LackOfMemory(30 * MB, None, None, 20 * MB), True),
    ],
)
def test_a_device_is_full_only_where_the_cap_left_room(error: LackOfMemory, full: bool) -> None:
    assert error.device_full == full
