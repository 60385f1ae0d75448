"""Measures real training steps on the device, in a new process: their memory and their time."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import cloudpickle

from tuner.errors import ExecutionError, WorkloadError, one_line
from tuner.machine.allocator_settings import allocator_environment
from tuner.machine.caps import environment, is_out_of_memory, worker_environment
from tuner.machine.devices import pin
from tuner.machine.peak import PeakMeter
from tuner.trial import Config, Device, MemoryEstimate
from tuner.workloads.base import Workload
from tuner.workloads.contract import to_workload_error

if TYPE_CHECKING:
    from torch import nn


P = ParamSpec("P")
R = TypeVar("R")


class Measurement(NamedTuple):
    """What ``training.rehearsal.rehearse`` took."""

    peak_bytes: int  # of the process: peak reserved memory and context on a GPU, peak resident memory on the CPU
    estimate: MemoryEstimate  # with an epoch's time, if it could be found


def measure(
    workload: Workload, config: Config, data: object, device: Device, expandable_segments: bool = False
) -> Measurement:
    """Runs two training steps and the evaluations in a new process, so that nothing else is counted.

    A few steps and an evaluation follow, which are timed: on the CPU with one thread, as most plans give a trial.

    Raises:
        ExecutionError: the process died or the step failed.
        WorkloadError: a method of the user's workload failed.
    """
    try:
        with environment(worker_environment(device)):  # a process reads its heap's settings as it starts
            return run_in_new_process(_run_packed, packed(workload, config, data), device, expandable_segments)
    except BrokenProcessPool as error:
        raise ExecutionError("the process that measures a step could not start, or died (out of memory?)") from error
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        reason = one_line(error, 200)
        raise ExecutionError(f"the measured step failed: {type(error).__name__}: {reason}") from error


def _run_packed(content: bytes, device: Device, expandable_segments: bool) -> Measurement:
    workload, config, data = unpacked(content)
    try:
        return _run(workload, config, data, device, expandable_segments)
    except (Exception, SystemExit) as error:
        wrong = to_workload_error(error)
        if wrong is None or is_out_of_memory(error):
            raise
        raise wrong from error


def _run(workload: Workload, config: Config, data: object, device: Device, expandable_segments: bool) -> Measurement:
    pin(device)
    os.environ.update(allocator_environment(expandable_segments))
    import torch

    from tuner.training.optimizers import build_optimizer
    from tuner.training.rehearsal import epoch_seconds, odd_batch, representative_batches, warm_up
    from tuner.training.rehearsal import rehearse as rehearse_training
    from tuner.training.step import place

    target = "cpu" if device.kind == "cpu" else "cuda:0"
    meter = PeakMeter(device, lambda: warm_up(target), host=False)

    def rehearse() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = place(workload, config, data, target, rehearsal=True)
        optimizer = build_optimizer(workload, model, config)
        batches = representative_batches(workload, config, data)
        odd = odd_batch(workload, config, data)
        rehearse_training(workload, model, optimizer, batches, data, config=config, device=target, odd=odd)
        return model, optimizer

    meter.start()
    model, optimizer = rehearse()
    peak = meter.peak_bytes()
    if peak is None:
        raise RuntimeError(f"this system ({sys.platform}) does not report a process's peak memory")
    changes = tensor_changes(rehearse) if target == "cpu" else [torch.cuda.max_memory_allocated()]
    allocated = max(itertools.accumulate(changes, initial=0))
    parameters = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    exact = parameters + gradients + sum(value.nbytes for value in state)
    activations = max(0, allocated - exact)
    estimate = MemoryEstimate(
        method="measured",
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=exact - parameters - gradients,
        activation_bytes=activations,
        fragmentation_bytes=max(0, peak - meter.context_bytes - exact - activations),
        context_bytes=meter.context_bytes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
    with suppress(Exception):  # memory is known all the same
        torch.set_num_threads(1)
        seconds = epoch_seconds(workload, model, optimizer, config, data, target)
        estimate = replace(estimate, epoch_seconds=seconds)
    return Measurement(peak, estimate)


def tensor_changes(run: Callable[[], object]) -> list[int]:
    """The bytes of each allocation (positive) and release (negative) of a CPU tensor, by torch's profiler."""
    import torch

    quiet = {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99")}  # it would log to the terminal
    with environment(quiet), torch.profiler.profile(profile_memory=True) as profile:
        run()
    events: Any = profile.profiler
    records = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    return [int(record.nbytes()) for record in sorted(records, key=lambda record: record.start_ns())]


def run_in_new_process(
    function: Callable[Concatenate[bytes, P], R], content: bytes, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Calls a function of one of our modules in a new process with what is ``packed``, and returns its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:  # without the user's script, which the process would run again
            running = pool.submit(function, content, *args, **kwargs)
        finally:
            sys.modules["__main__"] = main
        try:
            return running.result()
        except KeyboardInterrupt:  # the process may hang, and the end of the block waits for it
            for process in pool._processes.values():
                process.terminate()
            raise


def packed(*content: object) -> bytes:
    """Objects for another process, with the code of what cannot be imported there."""
    return bytes(cloudpickle.dumps(content))


def unpacked(content: bytes) -> Any:
    """What was ``packed``. The bytes are this program's own and came through a pipe."""
    return pickle.loads(content)  # noqa: S301
