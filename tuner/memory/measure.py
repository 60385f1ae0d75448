"""One real training step on the device itself, in a process of its own, and what it took."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.devices import pin
from tuner.errors import ExecutionError
from tuner.peak import PeakMeter
from tuner.trial import Device, MemoryEstimate

if TYPE_CHECKING:
    from tuner.workloads.base import Config, Workload

STEPS = 2  # the second has the optimizer's state that the first one makes


@dataclass(frozen=True)
class Measurement:
    """What two training steps and an evaluation took, in bytes.

    Attributes:
        peak_bytes: what the process took from its device: reserved peak and context, or resident peak.
        context_bytes: what of it was there before the first tensor: CUDA context, or interpreter and libraries.
        allocated_bytes: peak of the tensors' bytes.
        parameter_bytes: the model's parameters.
        gradient_bytes: their gradients.
        optimizer_bytes: the optimizer's state.
    """

    peak_bytes: int
    context_bytes: int
    allocated_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    def to_estimate(self) -> MemoryEstimate:
        """The same as an estimate; what the parts do not explain counts as activations and fragmentation."""
        exact = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        process = max(self.peak_bytes - self.context_bytes, exact)
        activation = max(0, self.allocated_bytes - exact)
        return MemoryEstimate(
            method="measured",
            parameter_bytes=self.parameter_bytes,
            gradient_bytes=self.gradient_bytes,
            optimizer_bytes=self.optimizer_bytes,
            activation_bytes=activation,
            fragmentation_bytes=max(0, process - exact - activation),
            context_bytes=self.context_bytes,
        )


def measure(workload: Workload, config: Config, data: Any, device: Device) -> Measurement:
    """Runs two training steps and an evaluation in a new process, so that nothing else is counted.

    Raises:
        ExecutionError: the process died or the step failed; the text has the reason.
    """
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(_run, workload, config, data, device).result()
    except BrokenProcessPool as error:
        raise ExecutionError("the process that measured a step could not start, or died (out of memory?)") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExecutionError(f"the step that was measured failed: {type(error).__name__}: {reason}") from error


def _run(workload: Workload, config: Config, data: Any, device: Device) -> Measurement:
    pin(device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler's library writes lines to the terminal
    import torch

    from tuner import training

    training.warm_up()
    target = "cpu" if device.kind == "cpu" else "cuda:0"
    meter = PeakMeter(device)
    meter.start()
    with _TensorPeak(target) as tensors:
        torch.manual_seed(0)
        model = workload.build_model(config, data).to(target)
        optimizer = training.build_optimizer(model, config)
        model.train()
        for batch in itertools.islice(training.representative_batches(workload, config, data), STEPS):
            training.train_step(workload, model, optimizer, training.to_device(batch, target))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        training.evaluate(workload, model, data, "validation")
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    peak = meter.peak_bytes()
    if peak is None:
        raise RuntimeError(f"this system ({sys.platform}) does not tell a process's peak memory")
    return Measurement(
        peak_bytes=peak,
        context_bytes=meter.context_bytes,
        allocated_bytes=tensors.bytes,
        parameter_bytes=sum(p.nbytes for p in model.parameters()),
        gradient_bytes=sum(gradient.nbytes for gradient in gradients),
        optimizer_bytes=sum(value.nbytes for value in state),
    )


class _TensorPeak:
    """The peak of the tensors' bytes within a with-block: CUDA's own counter, or the CPU profiler's records."""

    def __init__(self, target: str) -> None:
        self.bytes = 0
        self._cuda = target != "cpu"
        self._profile: Any = None

    def __enter__(self) -> _TensorPeak:
        import torch

        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            self._profile = torch.profiler.profile(profile_memory=True)
            self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        import torch

        if self._cuda:
            self.bytes = int(torch.cuda.max_memory_allocated())
            return
        self._profile.__exit__(*error)
        records = [e for e in self._profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        sizes = [record.nbytes() for record in sorted(records, key=lambda record: record.start_ns())]
        self.bytes = max(0, *itertools.accumulate(sizes, initial=0))
