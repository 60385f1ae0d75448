"""Traces the allocations of training steps on fake tensors, without a device and without computing.

Two optimizer steps are traced, as the first one creates the optimizer's state. A workload's evaluations follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import Parameter, signature

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor

from tuner.errors import NO_OTHER_METHOD, OTHER_METHODS, TunerError, WorkloadError, one_line
from tuner.estimation.caching_allocator import DEFAULT, PRIVATE, SIDE
from tuner.estimation.cards import CardProperties
from tuner.estimation.tracing.corrections.in_place import sole_owners
from tuner.estimation.tracing.corrections.temporaries import Operator
from tuner.estimation.tracing.dispatch_mode import TraceMode
from tuner.estimation.tracing.function_mode import FunctionMode, patched
from tuner.estimation.tracing.storage_tracker import StorageTracker, with_own_storage
from tuner.estimation.tracing.trace import DeviceKind, Trace
from tuner.machine.first_use import without_compiled_folder
from tuner.training.graphs import CudaRecorder, GraphedSteps
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import odd_batch, rehearse, representative_batches
from tuner.training.step import offload, prepare, uses, values
from tuner.trial import CUDA_GRAPHS, OFFLOADING, Config
from tuner.workloads.base import Batch, Workload
from tuner.workloads.batches import changed, parts_of
from tuner.workloads.contract import built, to_workload_error
from tuner.workloads.protocols import OptionalMethods, call

STEPS = 2
Parts = tuple[nn.Module, torch.optim.Optimizer | None, Callable[[], Tensor]]


class Untraceable(TunerError):
    """The step cannot be traced without computing it. The text names the operation and the remedy."""


def trace_workload(
    workload: Workload,
    config: Config,
    data: object,
    *,
    device_kind: DeviceKind = "cpu",
    card: CardProperties | None = None,
    origins: bool = False,
    forward: bool = False,
) -> Trace:
    """Traces a workload's model, its first two training steps and its evaluations, as ``rehearse`` runs them.

    For a GPU, the host's work (building the model, drawing batches) does not count, but the model and the batches do.
    ``card`` is its model; without it, workspaces and the staging memory of reductions do not count. With ``origins``
    the trace tells where each allocation comes from, which takes longer. With ``forward`` one batch's loss is traced
    instead, without gradients and in evaluation mode.

    Raises:
        Untraceable: the step cannot be traced.
        WorkloadError: a method of the user's workload failed, maybe only because the tensors have no values.
    """
    with tracing(device_kind, card, origins=origins) as tracker:
        with tracker.paused(tracker.on_gpu):
            model = built(workload, config, data)
        # Without a name of their own, their copies are released as in training.
        kept = _mark_frozen(
            tracker, call(workload, OptionalMethods.frozen, (), model), offloaded=uses(config, OFFLOADING)
        )
        _mark_model(tracker, model)
        prepare(workload, model, config, data, rehearsal=True)
        tracker.mark(model.buffers(), "data")  # again, as ``prepare`` may add buffers, such as a teacher's outputs
        if forward:
            batch = next(_batches(tracker, representative_batches(workload, config, data)))
            with torch.autocast(device_kind, torch.bfloat16, enabled=uses(config, "amp")):
                _forward(model, partial(workload.loss, model, batch))
            return _traced(tracker, model, kept)
        optimizer = build_optimizer(workload, model, config)
        _watch(tracker, optimizer)
        with tracker.paused(tracker.on_gpu):
            odd = odd_batch(workload, config, data) if tracker.on_gpu else None
            odd = None if odd is None else _moved(odd)
        batches = _batches(tracker, representative_batches(workload, config, data))
        keep, step = partial(_keep, tracker), None
        if tracker.on_gpu and uses(config, CUDA_GRAPHS):
            step = GraphedSteps(workload, model, optimizer, config, recorder=TracedRecorder(tracker))
        rehearse(workload, model, optimizer, batches, data, config=config, keep=keep, step=step, odd=odd)
    return _traced(tracker, model, kept)


def trace_step(
    make: Callable[[], Parts],
    *,
    device_kind: DeviceKind = "cpu",
    card: CardProperties | None = None,
    origins: bool = False,
    forward: bool = False,
    remedy: str = NO_OTHER_METHOD,
) -> Trace:
    """Traces two training steps of any model; ``card``, ``origins`` and ``forward`` are as in ``trace_workload``.

    ``make`` returns the model, its optimizer (or None) and a function that returns a batch's loss. A model that
    ``make`` builds takes no memory. One that exists already keeps its state: gradients and optimizer state are
    restored. A step that cannot be traced raises ``Untraceable``, which says the ``remedy``.
    """
    with tracing(device_kind, card, origins=origins, remedy=remedy) as tracker, ExitStack() as restore:
        with tracker.building():
            model, optimizer, loss = make()
        tracker.mark_live("data")  # the loss function's; model and optimizer get their categories below
        with tracker.paused():
            restore.enter_context(_left_as_found(model, optimizer))
        puts = tracker.on_gpu and bool(tracker.events)
        _mark_model(tracker, model)
        tracker.rest_on_host = puts
        if forward:
            _forward(model, loss)
            return _traced(tracker, model)
        if optimizer is not None:
            restore.callback(_watch(tracker, optimizer).close)
        tracker.inputs_at = len(tracker.events)
        value = None  # as in a plain loop, a loss lives until the next one is computed

        def forward_and_backward() -> Tensor:
            model.zero_grad(set_to_none=True)
            found = loss()
            tracker.inputs_at = None
            found.backward()  # type: ignore[no-untyped-call]
            return found

        for _ in range(STEPS):
            if optimizer is not None and _takes_closure(optimizer):
                optimizer.step(forward_and_backward)  # type: ignore[arg-type]  # a tensor, as torch's own examples have
                continue
            model.zero_grad(set_to_none=True)
            value = loss()
            tracker.inputs_at = None
            value.backward()  # type: ignore[no-untyped-call]
            if optimizer is None:
                tracker.mark((p.grad for p in model.parameters()), "gradients")
            else:
                optimizer.step()
    return _traced(tracker, model)


def _takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps compute losses themselves, as those of ``LBFGS``."""
    closure = signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


@contextmanager
def tracing(
    device_kind: DeviceKind, card: CardProperties | None, *, origins: bool = False, remedy: str = OTHER_METHODS
) -> Iterator[StorageTracker]:
    """Traces everything in this block, and then restores torch's random state, modes and switches."""
    tracker = StorageTracker(device_kind, with_origins=origins)
    with without_compiled_folder():
        mode = TraceMode(tracker, device_kind, card)
    sole_owners()  # cached now, as it must not run within another backward pass
    fast_path = torch.backends.mha.get_fastpath_enabled()
    log = logging.getLogger(fake_tensor.__name__)
    was_silent, log.disabled = log.disabled, True  # it logs a traceback before it raises
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            # The fused inference kernel of nn.TransformerEncoderLayer has no fake version.
            torch.backends.mha.set_fastpath_enabled(False)
            with patched(mode), FunctionMode(mode), mode:
                yield tracker
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        operator = next((operator for raised, operator in mode.failures if raised is error), None)
        if operator is None and (wrong := to_workload_error(error, " while traced")):
            raise wrong from error
        raise Untraceable(f"{_reason(error, operator)}: {remedy}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        log.disabled = was_silent
        tracker.close()


def _reason(error: BaseException, operator: Operator | None) -> str:
    """One line with the operation and its error."""
    text = one_line(error)
    text = text if len(text) <= 200 else text[:197] + "..."
    where = f"operator {operator} cannot be traced" if operator is not None else "the step failed while traced"
    return f"{where} ({type(error).__name__}: {text})"


def _mark_model(tracker: StorageTracker, model: nn.Module) -> None:
    """Marks a model's tensors in the order in which ``to()`` moves them: those of a module's children come first."""
    for module in _children_first(model):
        tracker.mark(module._parameters.values(), "parameters")
        tracker.mark(module._buffers.values(), "data")


def _forward(model: nn.Module, loss: Callable[[], object]) -> None:
    """Computes a batch's loss without gradients, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        loss()


def _traced(tracker: StorageTracker, model: nn.Module, host_bytes: int = 0) -> Trace:
    count = sum(parameter.numel() for parameter in model.parameters())
    return Trace(tuple(tracker.events), tracker.categories, tracker.origins, tracker.has_guess, count, host_bytes)


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _mark_frozen(tracker: StorageTracker, modules: Iterable[nn.Module], *, offloaded: bool) -> int:
    """Marks modules that are never trained as parameters, or offloads them: a GPU then has copies while they run.

    Returns the bytes of their weights.
    """
    kept = 0
    for module in modules:
        kept += sum(value.nbytes for _, __, value in values(module))
        if tracker.on_gpu and offloaded:
            tracker.ignore(*(value for _, __, value in values(module)))
            offload(module, "cuda")
        else:
            if tracker.on_gpu:
                # Loaded weights stay on the host; the GPU's copies are released with the module.
                with tracker.paused():
                    module._apply(torch.clone)  # type: ignore[no-untyped-call]
            _mark_model(tracker, module)
    return kept


def _watch(tracker: StorageTracker, optimizer: torch.optim.Optimizer) -> ExitStack:
    """Marks gradients before each optimizer step and the optimizer's state after it, until the result is closed."""
    for state in optimizer.state.values():  # Adagrad's exists before the first step
        tracker.mark(state.values(), "optimizer")

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
    """The batches, each marked as data. None is held here, as an evaluation would then be traced with it."""
    return iter(partial(_draw, tracker, batches), None)


def _draw(tracker: StorageTracker, batches: Iterator[Batch]) -> Batch | None:
    """The next batch, marked as data, or None at the end. Drawing it is the host's work."""
    with tracker.paused(tracker.on_gpu):
        batch = next(batches, None)
        if batch is not None and tracker.on_gpu:
            batch = _moved(batch)
    if batch is not None:
        tracker.mark(parts_of(batch), "data")
    return batch


def _moved(batch: Batch) -> Batch:
    """What of the batch is moved to a GPU: of a part of a larger tensor, such as a slice of all data, only that."""
    return changed(batch, lambda part: with_own_storage(part) if isinstance(part, Tensor) else part)


def _keep(tracker: StorageTracker, model: nn.Module) -> dict[str, Tensor]:
    """The copy of the best weights, on the host."""
    with tracker.paused(tracker.on_gpu):
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if tracker.on_gpu:
        tracker.ignore(*weights.values())
    else:
        tracker.mark(weights.values(), "data")
    return weights


@contextmanager
def _left_as_found(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Restores what a step changes: gradients, buffers, the optimizer's state and groups.

    Only integer buffers are copied, as a step on fake tensors computes no floats.
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


class TracedRecorder(CudaRecorder):
    """Tells a tracker what CUDA's recorder does: steps on a side stream, and one in a private pool."""

    may_fail = False

    def __init__(self, tracker: StorageTracker) -> None:
        self._tracker = tracker

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The block's tensors are in the blocks of another stream."""
        with self._in(SIDE):
            yield

    def to_device(self, batch: Batch) -> Batch:
        """The batch, which stands for its copy on the device."""
        return batch

    def record(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Runs the step in a private pool."""
        self._tracker.release_workspaces()
        self._tracker.empty_cache()
        with self._in(PRIVATE):
            loss = step()
        return loss, lambda: None

    def hidden(self, workload: Workload, model: nn.Module) -> object:
        """Nothing, as values are unknown."""

    @contextmanager
    def _in(self, pools: int) -> Iterator[None]:
        self._tracker.use(pools)
        try:
            yield
        finally:
            self._tracker.release_workspaces()
            self._tracker.use(DEFAULT)
