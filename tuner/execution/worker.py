"""One trial in one process: the same code under Ray and in the in-process twin."""

from __future__ import annotations

import gc
import io
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tuner.peak import PeakMeter
from tuner.trial import Device, EpochReport, Outcome, Placement, Status, Trial
from tuner.workloads.base import Workload

if TYPE_CHECKING:
    from tuner.training import Fit

Event = EpochReport | Outcome | bytes


def run_trial(workload: Workload, data: Any, placement: Placement, meter: PeakMeter) -> Iterator[Event]:
    """Trains a placed trial.

    Yields an ``EpochReport`` as training begins and after each epoch, then the ``Outcome``, then, if it is
    completed, the content of its ``best.pt``. Nothing that a trial raises gets out.
    """
    began = time.perf_counter()
    status: Status = "completed"
    epochs, metrics, checkpoint, error, text = 0, {}, b"", "", ""
    try:
        import torch

        from tuner.training import fit

        meter.start()
        torch.set_num_threads(placement.threads)
        for said in fit(workload, placement.trial, data, torch_device(placement.device)):
            if isinstance(said, EpochReport):
                epochs = said.epoch
                yield said
            else:
                metrics, checkpoint = said.metrics, _to_bytes(placement.trial, said)
    except Exception as exception:
        status, error, text = classify(exception), _one_line(exception), traceback.format_exc()
    # The peak is read before the clean-up, and the clean-up is done outside the except block: the exception's
    # traceback would keep the trial's tensors alive.
    peak = meter.peak_bytes()
    gc.collect()
    yield Outcome(
        trial=placement.trial,
        status=status,
        placement=placement,
        metrics=metrics,
        epochs=epochs,
        seconds=time.perf_counter() - began,
        peak_bytes=peak,
        error=error,
        traceback=text,
    )
    if checkpoint:
        yield checkpoint


def torch_device(device: Device) -> str:
    """What torch calls a worker's device: it sees no other GPU than the one it is pinned to."""
    return "cuda:0" if device.kind == "cuda" else "cpu"


def classify(error: Exception) -> Status:
    """The status that an exception stands for: by its type, and on the CPU, where torch has none, by its text."""
    import torch

    from tuner.training import Diverged

    host_allocation = isinstance(error, RuntimeError) and any(
        sign in str(error) for sign in ("DefaultCPUAllocator", "std::bad_alloc")
    )
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or host_allocation:
        return "out_of_memory"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _to_bytes(trial: Trial, result: Fit) -> bytes:
    """What ``best.pt`` holds: plain values and tensors, so that ``torch.load(weights_only=True)`` reads it."""
    import torch

    content = {
        "workload": trial.workload,
        "name": trial.name,
        "config": dict(trial.config),
        "seed": trial.seed,
        "metrics": result.metrics,
        "weights": result.weights,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
