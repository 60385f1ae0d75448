"""What a training step allocates, when, and for what: found on fake tensors, with no device and no computing.

Two optimizer steps are traced, since an optimizer's state appears in the first, and for a workload an evaluation
after them. The record goes to ``tuner.estimation.allocator.replay`` for a GPU; its exact bytes are the CPU's measure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor

from tuner.errors import TunerError, WorkloadError, one_line
from tuner.estimation.tracing.corrections.in_place import sole_owners
from tuner.estimation.tracing.dispatch_mode import TraceMode
from tuner.estimation.tracing.function_mode import FunctionMode, patched
from tuner.estimation.tracing.storage_tracker import StorageTracker
from tuner.estimation.tracing.trace import DeviceKind, Trace
from tuner.training.offload import offload, values
from tuner.training.rehearsal import rehearse, representative_batches
from tuner.training.step import build_optimizer, prepare, uses
from tuner.trial import OFFLOADING, Config
from tuner.workloads.base import Batch, Workload
from tuner.workloads.contract import built, to_workload_error
from tuner.workloads.protocols import frozen

if TYPE_CHECKING:
    from tuner.estimation.tracing.corrections.temporaries import Operator

STEPS = 2
Parts = tuple[nn.Module, torch.optim.Optimizer | None, Callable[[], Tensor]]


class Untraceable(TunerError):
    """A step that cannot be followed without computing it: names the operation, and what to do instead."""


def trace_workload(
    workload: Workload,
    config: Config,
    data: object,
    *,
    device_kind: DeviceKind = "cpu",
    cublas_workspace_bytes: int = 0,
) -> Trace:
    """Trace a workload's model, its first two training steps and its evaluations, as ``rehearse`` does.

    On a GPU, what the host does (building the model, drawing batches) takes no memory there, but the model and each
    batch do.

    Args:
        workload: what is trained.
        config: a complete configuration.
        data: what ``workload.load_data`` returned.
        device_kind: where the step is to run.
        cublas_workspace_bytes: see ``TraceMode``; 0 on the CPU.

    Raises:
        Untraceable: the step cannot be followed.
        WorkloadError: a method of the user's failed; on tensors without values, which may be why.
    """
    with _traced(device_kind, cublas_workspace_bytes) as tracker:
        with tracker.paused(tracker.on_gpu):
            model = built(workload, config, data)
        _mark_frozen(tracker, frozen(workload, model), offloaded=uses(config, OFFLOADING))
        _mark_model(tracker, model)
        prepare(workload, model, config, data, rehearsal=True)
        tracker.mark(model.buffers(), "data")  # once more: it may have made some, such as a teacher's outputs
        optimizer = build_optimizer(model, config)
        _watch(tracker, optimizer)
        batches = _batches(tracker, representative_batches(workload, config, data))
        rehearse(workload, model, optimizer, batches, data, config=config, keep=partial(_keep, tracker))
    return Trace(tuple(tracker.events), tracker.categories)


def trace_step(
    make: Callable[[], Parts], *, device_kind: DeviceKind = "cpu", cublas_workspace_bytes: int = 0
) -> Trace:
    """Trace two training steps of any model.

    A model that is built inside ``make`` costs no memory however large it is. One that exists already is left as it
    was found: its parameters are not moved, its gradients and its optimizer's state are put back.

    Args:
        make: returns the model, its optimizer (None: no step is taken) and a function that returns a batch's loss.
        device_kind: where the step is to run.
        cublas_workspace_bytes: see ``TraceMode``; 0 on the CPU.

    Raises:
        Untraceable: the step cannot be followed.
    """
    with _traced(device_kind, cublas_workspace_bytes) as tracker, ExitStack() as restore:
        with tracker.paused(tracker.on_gpu):
            model, optimizer, loss = make()
        tracker.mark_live("data")  # what is neither the model's nor the optimizer's, the loss holds
        with tracker.paused():
            restore.enter_context(_left_as_found(model, optimizer))
        _mark_model(tracker, model)
        if optimizer is not None:
            restore.callback(_watch(tracker, optimizer).close)
            if tracker.on_gpu:
                _prefer_foreach(optimizer)
        value = None  # as in a plain loop: the last loss lives until the next one is there
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            if optimizer is None:
                tracker.mark((p.grad for p in model.parameters()), "gradients")
            else:
                optimizer.step()
    return Trace(tuple(tracker.events), tracker.categories)


@contextmanager
def _traced(device_kind: DeviceKind, cublas_workspace_bytes: int) -> Iterator[StorageTracker]:
    """Everything in this block is traced; torch's random numbers, modes and switches are as before after it."""
    tracker = StorageTracker(device_kind)
    mode = TraceMode(tracker, device_kind, cublas_workspace_bytes)
    sole_owners()  # observed beforehand: not while another backward runs
    fast_path = torch.backends.mha.get_fastpath_enabled()
    log = logging.getLogger(fake_tensor.__name__)
    was_silent, log.disabled = log.disabled, True  # it prints a traceback before it raises
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            # The fused inference kernel of nn.TransformerEncoderLayer has no fake one.
            torch.backends.mha.set_fastpath_enabled(False)
            with patched(mode, device_kind), FunctionMode(device_kind), mode:
                yield tracker
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        operator = next((operator for raised, operator in mode.failures if raised is error), None)
        if operator is None and (wrong := to_workload_error(error, " while traced")):
            raise wrong from error
        raise Untraceable(_reason(error, operator)) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        log.disabled = was_silent
        tracker.close()


def _reason(error: BaseException, operator: Operator | None) -> str:
    """One line: which operation, what it said, what to do."""
    text = one_line(error)
    text = text if len(text) <= 200 else text[:197] + "..."
    where = f"operator {operator} cannot be followed" if operator is not None else "the step failed while traced"
    return f"{where} ({type(error).__name__}: {text}): use the measured or the static method"


def _mark_model(tracker: StorageTracker, model: nn.Module) -> None:
    tracker.mark(model.buffers(), "data")
    tracker.mark(model.parameters(), "parameters")


def _mark_frozen(tracker: StorageTracker, modules: Iterable[nn.Module], *, offloaded: bool) -> None:
    """Modules that are never trained: parameters; or the host's, of which a GPU has copies while they run."""
    for module in modules:
        if tracker.on_gpu and offloaded:
            tracker.ignore(*(value for _, __, value in values(module)))
            offload(module, "cuda")
        else:
            if tracker.on_gpu:
                # Loaded weights stay with whoever keeps their file; a GPU's are copies that go with the module.
                with tracker.paused():
                    module._apply(torch.clone)  # type: ignore[no-untyped-call]
            _mark_model(tracker, module)


def _watch(tracker: StorageTracker, optimizer: torch.optim.Optimizer) -> ExitStack:
    """Mark gradients before each step of the optimizer and its state after it, until this is closed."""

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        tracker.mark((p.grad for group in optimizer.param_groups for p in group["params"]), "gradients")

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for state in optimizer.state.values():
            tracker.mark(state.values(), "optimizer")

    watching = ExitStack()
    watching.callback(optimizer.register_step_pre_hook(before).remove)
    watching.callback(optimizer.register_step_post_hook(after).remove)
    return watching


def _batches(tracker: StorageTracker, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches as they are drawn, which is the host's work, each marked as data."""
    while True:
        with tracker.paused(tracker.on_gpu):
            batch = next(batches, None)
        if batch is None:
            return
        tracker.mark(batch, "data")
        yield batch
        del batch


def _keep(tracker: StorageTracker, model: nn.Module) -> dict[str, Tensor]:
    """The copy of the best weights, which is on the host."""
    with tracker.paused(tracker.on_gpu):
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if tracker.on_gpu:
        tracker.ignore(*weights.values())
    else:
        tracker.mark(weights.values(), "data")
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
