from __future__ import annotations

import errno
import gc
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.worker_process import worker
from tuner.machine.caps import capped, is_out_of_memory, worker_environment
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter, data_bytes
from tuner.trial import GB, MB, Device


@pytest.fixture(scope="module")
def call() -> Iterator[Callable[..., Any]]:
    """Calls a function in one process with a worker's environment."""
    with worker() as call:
        yield call


def allocate(*sizes_mb: int) -> list[str]:
    """What comes of allocating each with a cap of 200 MB in this process, and of the last once more without."""
    meter = PeakMeter(ram_device(), lambda: None)
    meter.start()
    found = []
    for size in sizes_mb:
        try:
            with capped(ram_device(), 200 * MB, meter.base_bytes):
                torch.ones(size * MB // 4)
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    torch.ones(sizes_mb[-1] * MB // 4)
    return found


def test_an_allocation_beyond_the_cap_fails_and_only_that(call: Callable[..., Any]) -> None:
    within, beyond, again, last = call(allocate, 150, 300, 150, 300)
    assert within == again == ""
    assert "DefaultCPUAllocator: can't allocate memory" in beyond
    assert "DefaultCPUAllocator: can't allocate memory" in last


def raised_under_cap(error: Exception, taken_mb: int) -> bool:
    """Whether this error counts as a lack of memory while a trial holds so much of its cap of 200 MB."""
    gc.collect()  # an earlier error refers to its frame, and that to what it held
    meter = PeakMeter(ram_device(), lambda: None)
    meter.start()
    try:
        with capped(ram_device(), 200 * MB, meter.base_bytes):
            held = bytearray(taken_mb * MB)
            raise error
    except Exception as raised:
        return is_out_of_memory(raised) and len(held) > 0
    return False


def test_an_error_without_a_reason_is_a_lack_of_memory_only_at_the_cap(call: Callable[..., Any]) -> None:
    for error, counts in (
        (SystemError("error return without exception set"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (ModuleNotFoundError("No module named 'x'"), False),
        (ValueError("3"), False),
    ):
        assert call(raised_under_cap, error, 196) is counts, error
        assert call(raised_under_cap, error, 100) is False, error
        assert not is_out_of_memory(error), error


def test_the_limit_is_put_back_whatever_happens() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(KeyError), capped(ram_device(), 2**40, 0):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 2**40
        raise KeyError
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_on_cuda_the_cap_is_a_share_of_the_device_that_is_given_back(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=1000))
    for cap in (250, 5000):
        with capped(gpu_16gb, cap, base_bytes=7):
            shares.append(-1)
    assert shares == [0.25, -1, 1.0, 1.0, -1, 1.0]


def test_without_proc_ram_has_no_cap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tuner.machine.caps.data_bytes", lambda: None)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with capped(ram_device(), 1, 0):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_workers_environment_leaves_what_the_user_has_set(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    *ours, given = worker_environment(ram_device())["GLIBC_TUNABLES"].split(":")
    assert given == "glibc.malloc.check=1"  # of two, glibc takes the last
    assert "glibc.malloc.tcache_count=0" in ours
    assert worker_environment(gpu_16gb) == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert worker_environment(gpu_16gb) == {}


def raised_from(cause: Exception) -> Exception:
    error = ValueError("the step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        raised_from(MemoryError()),
    ],
    ids=repr,
)
def test_memory_that_ran_out_is_known_by_type_text_and_cause(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(("room_bytes", "lacking"), [(GB, False), (12 * MB, True)])
def test_a_thread_that_cannot_be_started_lacks_memory_where_no_room_for_its_stack_is_left(
    room_bytes: int, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = data_bytes() or 0
    monkeypatch.setattr("tuner.machine.caps.data_bytes", lambda: held)
    with pytest.raises(ValueError, match="the step") as raised, capped(ram_device(), room_bytes, held):
        raise raised_from(RuntimeError("can't start new thread"))
    assert is_out_of_memory(raised.value) == lacking


@pytest.mark.parametrize(
    "error",
    [
        ValueError("DefaultCPUAllocator"),
        RuntimeError("shapes"),
        OSError(errno.ENOSPC, "full"),
        raised_from(KeyError()),
    ],
    ids=repr,
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)
