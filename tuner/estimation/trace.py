"""What a training step allocates, when, and for what: found on fake tensors, with no device and no computing.

Two optimizer steps are traced, since an optimizer's state appears in the first, and for a workload an evaluation
after them. The record goes to ``tuner.estimation.allocator.replay`` for a GPU; its exact bytes are the CPU's measure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor

from tuner.errors import TunerError, WorkloadError
from tuner.estimation import corrections
from tuner.estimation.allocator import RELEASE, Event, replay
from tuner.estimation.calibration import UNCALIBRATED_MARGIN
from tuner.estimation.overheads import CONTEXT_BYTES, HEAP_SLACK
from tuner.estimation.trace_mode import (
    Category,
    DeviceKind,
    FunctionMode,
    Recorder,
    TraceMode,
    mark_all,
    patched,
    paused,
)
from tuner.machine.caps import MMAP_THRESHOLD_BYTES
from tuner.training.loop import build_optimizer, prepare, rehearse, representative_batches, uses
from tuner.training.offload import offload, values
from tuner.trial import OFFLOADING, Config, MemoryEstimate
from tuner.workloads.base import Workload
from tuner.workloads.contract import built, fault
from tuner.workloads.protocols import frozen

STEPS = 2
Parts = tuple[nn.Module, torch.optim.Optimizer | None, Callable[[], Tensor]]

__all__ = ["Category", "Trace", "Untraceable", "trace_step", "trace_workload"]


class Untraceable(TunerError):
    """A step that cannot be followed without computing it: names the operation, and what to do instead."""


@dataclass(frozen=True)
class Trace:
    """Every allocation and release of a step, in order.

    Attributes:
        events: (id, bytes) and (id, ``RELEASE``), as ``tuner.estimation.allocator.replay`` takes
            them; ids are unique.
        categories: what each id is for.
    """

    events: tuple[Event, ...]
    categories: Mapping[int, Category]

    def peak_bytes(self) -> int:
        """The most bytes that are allocated at once, without any rounding: the CPU's measure."""
        return sum(self.parts_at_peak().values())

    def parts_at_peak(self) -> dict[Category, int]:
        """The bytes of each category at the moment when most is allocated; the first such moment."""
        live: dict[int, int] = {}
        now = most = last = 0
        for place, (key, size) in enumerate(self.events):
            if size == RELEASE:
                now -= live.pop(key)
            else:
                live[key] = size
                now += size
                if now > most:
                    most, last = now, place
        return self._parts(last)

    def to_estimate(self, device_kind: DeviceKind, expandable_segments: bool = False) -> MemoryEstimate:
        """What the step takes from a device of this kind, before any calibration.

        On CUDA that is what the caching allocator reserves, by replaying the record through its simulator; on the
        CPU the tensors' peak and the heap's gaps. What the allocator has beyond the tensors' peak is fragmentation.
        """
        parts = self.parts_at_peak()
        allocated = reserved = sum(parts.values())
        if device_kind == "cuda":
            reserved = replay(self.events, expandable_segments=expandable_segments).peak_reserved_bytes
        return MemoryEstimate(
            method="traced",
            parameter_bytes=parts["parameters"],
            gradient_bytes=parts["gradients"],
            optimizer_bytes=parts["optimizer"],
            activation_bytes=parts["activations"],
            data_bytes=parts["data"],
            workspace_bytes=parts["workspace"],
            fragmentation_bytes=reserved - allocated,
            heap_bytes=round(HEAP_SLACK * self._most_in_heap()) if device_kind == "cpu" else 0,
            context_bytes=CONTEXT_BYTES[device_kind],
            margin=UNCALIBRATED_MARGIN,
        )

    def _most_in_heap(self) -> int:
        """The most bytes that are allocated at once in tensors of which none is mapped by itself."""
        live: dict[int, int] = {}
        now = most = 0
        for key, size in self.events:
            if 0 <= size < MMAP_THRESHOLD_BYTES:
                live[key] = size
                now += size
                most = max(most, now)
            elif size == RELEASE:
                now -= live.pop(key, 0)
        return most

    def _parts(self, last: int) -> dict[Category, int]:
        """The bytes of each category after the event at place ``last``."""
        live: dict[int, int] = {}
        for key, size in self.events[: last + 1]:
            if size == RELEASE:
                del live[key]
            else:
                live[key] = size
        parts: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        for key, size in live.items():
            parts[self.categories[key]] += size
        return parts


def trace_workload(
    workload: Workload,
    config: Config,
    data: Any,
    *,
    device_kind: DeviceKind = "cpu",
    cublas_workspace_bytes: int = 0,
) -> Trace:
    """Trace a workload's model, its first two training steps and its evaluations, as in ``training.loop.rehearse``.

    On a GPU, what the host does (building the model, drawing batches) takes no memory there, but the model and each
    batch do.

    Args:
        workload: what is trained.
        config: a complete configuration.
        data: what ``workload.load_data`` returned.
        device_kind: where the step is to run.
        cublas_workspace_bytes: taken at the first matrix product of the forward pass and of the backward pass on a
            GPU, each of which has a handle of its own, and kept; 0 on the CPU.

    Raises:
        Untraceable: the step cannot be followed.
        WorkloadError: a method of the user's failed; on tensors without values, which may be why.
    """
    with _traced(device_kind, cublas_workspace_bytes) as recorder:
        with paused(recorder, device_kind == "cuda"):
            model = built(workload, config, data)
        _mark_frozen(recorder, frozen(workload, model), device_kind, offloaded=uses(config, OFFLOADING))
        _mark_model(recorder, model)
        prepare(workload, model, config, data, rehearsal=True)
        mark_all(recorder, model.buffers(), "data")  # once more: it may have made some, such as a teacher's outputs
        optimizer = build_optimizer(model, config)
        _watch(recorder, optimizer)
        batches = _batches(recorder, representative_batches(workload, config, data), device_kind)
        rehearse(
            workload,
            model,
            optimizer,
            batches,
            data,
            config=config,
            keep=partial(_keep, recorder, device_kind),
        )
    return Trace(tuple(recorder.events), recorder.categories)


def trace_step(
    make: Callable[[], Parts], *, device_kind: DeviceKind = "cpu", cublas_workspace_bytes: int = 0
) -> Trace:
    """Trace two training steps of any model.

    A model that is built inside ``make`` costs no memory however large it is. One that exists already is left as it
    was found: its parameters are not moved, its gradients and its optimizer's state are put back.

    Args:
        make: returns the model, its optimizer (None: no step is taken) and a function that returns a batch's loss.
        device_kind: where the step is to run.
        cublas_workspace_bytes: taken at the first matrix product of the forward pass and of the backward pass on a
            GPU, each of which has a handle of its own, and kept; 0 on the CPU.

    Raises:
        Untraceable: the step cannot be followed.
    """
    with _traced(device_kind, cublas_workspace_bytes) as recorder, ExitStack() as restore:
        with paused(recorder, device_kind == "cuda"):
            model, optimizer, loss = make()
        recorder.mark_live("data")  # what is neither the model's nor the optimizer's, the loss holds
        with paused(recorder, True):
            restore.enter_context(_left_as_found(model, optimizer))
        _mark_model(recorder, model)
        if optimizer is not None:
            restore.callback(_watch(recorder, optimizer))
            if device_kind == "cuda":
                _prefer_foreach(optimizer)
        value = None  # as in a plain loop: the last loss lives until the next one is there
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            if optimizer is None:
                mark_all(recorder, (p.grad for p in model.parameters()), "gradients")
            else:
                optimizer.step()
    return Trace(tuple(recorder.events), recorder.categories)


@contextmanager
def _traced(device_kind: DeviceKind, cublas_workspace_bytes: int) -> Iterator[Recorder]:
    """Everything in this block is traced; torch's random numbers, modes and switches are as before after it."""
    recorder = Recorder(device_kind)
    mode = TraceMode(recorder, device_kind, cublas_workspace_bytes)
    corrections.sole_owners()  # observed beforehand: not while another backward runs
    fast_path = torch.backends.mha.get_fastpath_enabled()
    log = logging.getLogger(fake_tensor.__name__)
    was_silent, log.disabled = log.disabled, True  # it prints a traceback before it raises
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            # The fused inference kernel of nn.TransformerEncoderLayer has no fake one.
            torch.backends.mha.set_fastpath_enabled(False)
            with patched(mode, device_kind), FunctionMode(device_kind), mode:
                yield recorder
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        operator = next((operator for raised, operator in mode.failures if raised is error), None)
        if operator is None and (wrong := fault(error, " while traced")):
            raise wrong from error
        raise Untraceable(_reason(error, operator)) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        log.disabled = was_silent
        recorder.close()


def _reason(error: BaseException, operator: Any) -> str:
    """One line: which operation, what it said, what to do."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 200 else text[:197] + "..."
    where = f"operator {operator} cannot be followed" if operator is not None else "the step failed while traced"
    return f"{where} ({type(error).__name__}: {text}): use the measured or the static method"


def _mark_model(recorder: Recorder, model: nn.Module) -> None:
    mark_all(recorder, model.buffers(), "data")
    mark_all(recorder, model.parameters(), "parameters")


def _mark_frozen(
    recorder: Recorder, modules: Iterable[nn.Module], device_kind: DeviceKind, *, offloaded: bool
) -> None:
    """Modules that are never trained: parameters; or the host's, of which a GPU has copies while they run."""
    for module in modules:
        if device_kind == "cuda" and offloaded:
            for _, __, value in values(module):
                recorder.ignore(value)
            offload(module, "cuda")
        else:
            if device_kind == "cuda":
                # Loaded weights stay with whoever keeps their file; a GPU's are copies that go with the module.
                with paused(recorder, True):
                    module._apply(torch.clone)  # type: ignore[no-untyped-call]
            _mark_model(recorder, module)


def _watch(recorder: Recorder, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Mark gradients before each step of the optimizer and its state after it; returns what ends it."""

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        mark_all(recorder, (p.grad for group in optimizer.param_groups for p in group["params"]), "gradients")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            mark_all(recorder, state.values(), "optimizer")

    handles = optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def _batches(recorder: Recorder, batches: Any, device_kind: DeviceKind) -> Iterator[Any]:
    """The batches as they are drawn, which is the host's work, each marked as data."""
    drawn = iter(batches)
    while True:
        with paused(recorder, device_kind == "cuda"):
            batch = next(drawn, None)
        if batch is None:
            return
        mark_all(recorder, batch, "data")
        yield batch
        del batch


def _keep(recorder: Recorder, device_kind: DeviceKind, model: nn.Module) -> dict[str, Tensor]:
    """The copy of the best weights, which is on the host."""
    with paused(recorder, device_kind == "cuda"):
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if device_kind == "cuda":
        for value in weights.values():
            recorder.ignore(value)
    else:
        mark_all(recorder, weights.values(), "data")
    return weights


def _prefer_foreach(optimizer: torch.optim.Optimizer) -> None:
    """On a GPU an optimizer of torch's left at ``foreach=None`` takes this path, but not with fake tensors."""
    for group in optimizer.param_groups:
        if group.get("foreach", 0) is None and not group.get("fused"):
            group["foreach"] = True


@contextmanager
def _left_as_found(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Put back what a step changes: gradients, buffers, the optimizer's state and groups.

    Values need no copy: a step on fake tensors computes none. Integers are real, and buffers of them are copied.
    """
    training = [(module, module.training) for module in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(m, dict(m._buffers)) for m in model.modules()]
    counts = [(b, b.clone()) for b in model.buffers() if not b.is_floating_point()]
    state = {} if optimizer is None else {p: dict(values) for p, values in optimizer.state.items()}
    groups = [] if optimizer is None else [dict(group) for group in optimizer.param_groups]
    try:
        yield
    finally:
        for module, was_training in training:
            module.training = was_training
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, values in buffers:
            module._buffers.update(values)
        with torch.no_grad():
            for buffer, count in counts:
                buffer.copy_(count)
        if optimizer is not None:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, values_ in zip(optimizer.param_groups, groups, strict=False):
                group.update(values_)
