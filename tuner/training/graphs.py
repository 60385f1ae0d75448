"""CUDA graphs: a training step's kernels are recorded once and then launched together, for every batch of its shape.

It follows "Whole-network capture" in PyTorch's notes on CUDA: a few steps run on a side stream, then one is recorded
into memory of its own (a private pool), and each further batch is copied to where the recorded kernels read it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor, nn

from tuner.errors import one_line
from tuner.machine.caps import is_out_of_memory
from tuner.training.exchange import Ranks
from tuner.training.step import Steps, uses
from tuner.trial import ACCUMULATION, CHECKPOINTING, CUDA_GRAPHS, OFFLOADING, Config
from tuner.workloads.base import Batch, Workload
from tuner.workloads.batches import changed, parts_of
from tuner.workloads.protocols import OptionalMethods, optional

WARM_UP_STEPS = 3  # as in PyTorch's notes; they train like all others


class CudaRecorder:
    """What recording and launching a step needs of the current CUDA device.

    cuBLAS keeps a workspace for each stream and thread. They are given back after each step on the side stream:
    otherwise they would stay in a graph's pool after its end, and in a worker after its trial.
    """

    may_fail = True  # then steps run without a graph

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._free()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Steps in this block run on the side stream, after what was launched before, and before what comes after."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        here.wait_stream(self._stream)

    def to_device(self, batch: Batch) -> Batch:
        """A copy of the batch on the device."""
        return changed(batch, lambda part: part.to("cuda", copy=True, non_blocking=True))

    def record(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Records a step without running it; returns the tensor of its loss, and what runs it.

        CUDA stays usable after any exception.
        """
        self._free()
        # With a pool of our own we know its name if the recording fails.
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random_state = generator.clone_state()
        complete = False
        try:
            with _refusing_to_wait(), self.aside():
                # A data loader's threads may go on with CUDA.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    loss = step()
                except BaseException:
                    with suppress(RuntimeError), catch_warnings():  # the step's own error says more
                        simplefilter("ignore")
                        graph.capture_end()
                        complete = True
                    raise
                graph.capture_end()
                complete = True
        except BaseException:
            if not complete:  # torch leaves the allocator and the random numbers recording
                _end_allocation(pool)
                generator.graphsafe_set_state(random_state)
            graph.reset()
            raise
        return loss, graph.replay

    def hidden(self, workload: Workload, model: nn.Module) -> object:
        """State that an eager step may change but a graph cannot: attributes, and random generators on the CPU."""
        numbers = [random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state(legacy=False))]
        return _Attributes.of(workload, model), numbers

    def _free(self) -> None:
        """Gives unused memory back to the device, so that the other pools can have it."""
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """In this block, torch raises before an operation waits for the device, which would spoil a recording."""
    before = torch.cuda.get_sync_debug_mode()
    with catch_warnings():
        simplefilter("ignore")  # it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _end_allocation(pool: tuple[int, int]) -> None:
    """Ends the allocation to a pool, as ``CUDAGraph::capture_end`` does unless CUDA has refused the recording."""
    device = torch.cuda.current_device()
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)  # earlier versions have another name
    end = end or torch._C._cuda_endAllocateCurrentStreamToPool  # type: ignore[attr-defined]
    with suppress(RuntimeError):  # it has ended, and the graph releases the pool
        end(device, pool)
        torch._C._cuda_releasePool(device, pool)


@dataclass(frozen=True)
class _Attributes:
    """The attributes of a workload and its model that a recorded step has read: numbers, texts and which tensors."""

    plain: list[tuple[str, float | str]]
    ids: list[int]
    tensors: list[Tensor] = field(compare=False)  # kept, so that no other tensor gets the id of one of them

    @classmethod
    def of(cls, workload: Workload, model: nn.Module) -> _Attributes:
        owned = [item for owner in (workload, *model.modules()) for item in vars(owner).items()]
        plain = [(key, value) for key, value in owned if isinstance(value, (bool, int, float, str))]
        tensors = [value for _, value in owned if isinstance(value, Tensor)]
        tensors += [*model.parameters(), *model.buffers()]
        return cls(plain, [id(value) for value in tensors], tensors)


@dataclass(frozen=True)
class _Recorded:
    """A recorded step, and the tensors that its kernels read and write."""

    loss: Tensor
    launch: Callable[[], None]
    batch: Batch
    rates: list[Tensor]  # the learning rates of the optimizer's groups
    gradients: list[tuple[nn.Parameter, Tensor | None]]
    settings: list[dict[str, object]]  # of the optimizer, when it was recorded
    attributes: _Attributes  # when it was recorded


@dataclass(eq=False)
class GraphedSteps(Steps):
    """Runs training steps as a CUDA graph where that is possible, with the results of ``Steps``.

    A batch of another shape than the first one, such as an epoch's last one, is trained without the graph. If the
    step cannot be recorded, all batches are, and ``notes`` gets the reason. Running out of memory is no such reason.
    """

    warm_up = 1 + WARM_UP_STEPS
    recorder: CudaRecorder | None = None  # replaces ``CudaRecorder``, in traces and tests

    def __post_init__(self) -> None:
        self._shape: object = None
        self._before = 0  # steps of that shape before the recording
        self._graph: _Recorded | None = None
        self._given_up = False
        self._begun = False  # an epoch has begun and no step was launched yet
        if reason := "not with several ranks" if self.ranks else obstacle(self.workload, self.config, self.optimizer):
            self._give_up(reason)
        else:
            self._recorder = self.recorder or CudaRecorder()

    def __call__(self, *batches: Batch) -> Tensor:
        """One step; returns the loss."""
        if len(batches) != 1:
            self._give_up("a step has several batches")
        elif not all(_is_dense(part) for part in parts_of(batches[0])):
            self._give_up("a batch has more than dense tensors")
        if self._given_up:
            return super().__call__(*batches)
        (batch,) = batches
        shape = [(part.shape, part.dtype) for part in parts_of(batch)]
        self._shape = self._shape or shape
        if shape != self._shape:
            return self._apart(batch)
        if self._graph is None and self._before < WARM_UP_STEPS:
            return self._warm_up(batch)
        graph = self._graph = self._graph or self._record(batch)
        if graph is None:
            return super().__call__(batch)
        if self._begun and _Attributes.of(self.workload, self.model) != graph.attributes:
            self._give_up("attributes of the model or the workload change between epochs")
            return super().__call__(batch)
        self._begun = False
        for place, part in zip(parts_of(graph.batch), parts_of(batch), strict=True):
            place.copy_(part, non_blocking=True)
        graph.launch()
        return graph.loss.clone()  # the next step overwrites it

    def begin_epoch(self) -> None:
        """Gives the graph the learning rates of an epoch. A graph cannot follow other changes of a schedule."""
        if self._graph is None:
            return
        if self._settings() != self._graph.settings:
            self._give_up("lr_schedule changes more than learning rates")
            return
        self._begun = True
        for group, rate in zip(self.optimizer.param_groups, self._graph.rates, strict=True):
            rate.fill_(float(group["lr"]))

    def end(self) -> None:
        """Adds a note if there were too few steps to record one."""
        if self._graph is None and self._before:
            self._give_up(f"only {self._before} steps had the first batch's shape")

    def _apart(self, batch: Batch) -> Tensor:
        """A step without the graph, which keeps its own gradients."""
        loss = super().__call__(batch)
        for parameter, gradient in self._graph.gradients if self._graph else ():
            parameter.grad = gradient
        return loss

    def _warm_up(self, batch: Batch) -> Tensor:
        """A step before the recording. If the last one changes hidden state, every later step would."""
        batch = self._recorder.to_device(batch)
        self._before += 1
        last = self._before == WARM_UP_STEPS
        before = self._recorder.hidden(self.workload, self.model) if last else None
        with self._recorder.aside():
            loss = super().__call__(batch)
        if last and self._recorder.hidden(self.workload, self.model) != before:
            self._give_up("loss changes attributes of the model or the workload, or draws random numbers on the CPU")
        return loss

    def _record(self, batch: Batch) -> _Recorded | None:
        """Records a step; None if it cannot be."""
        groups = self.optimizer.param_groups
        self.optimizer.zero_grad(set_to_none=True)  # the graph's gradients are in its own memory
        batch = self._recorder.to_device(batch)
        rates = [torch.tensor(float(group["lr"]), device=group["params"][0].device) for group in groups]
        try:
            loss, launch = self._recorder.record(partial(self._step, batch, rates))
        except Exception as error:
            self.optimizer.zero_grad(set_to_none=True)
            if is_out_of_memory(error) or not self._recorder.may_fail:
                raise
            reason = one_line(str(error).partition("\n")[0], 200)
            self._give_up(f"a step cannot be recorded ({reason or type(error).__name__})")
            return None
        gradients = [(value, value.grad) for value in self.model.parameters()]
        attributes = _Attributes.of(self.workload, self.model)
        return _Recorded(loss, launch, batch, rates, gradients, self._settings(), attributes)

    def _step(self, batch: Batch, rates: list[Tensor]) -> Tensor:
        """A step with learning rates that kernels read from these tensors."""
        groups = self.optimizer.param_groups
        changed = {"lr", "capturable"}
        before = [{key: group[key] for key in changed & group.keys()} for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            return super().__call__(batch)
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    def _settings(self) -> list[dict[str, object]]:
        """The optimizer's settings other than learning rates, which recorded kernels keep."""
        leave_out = ("params", "lr")
        groups = self.optimizer.param_groups
        return [{key: value for key, value in group.items() if key not in leave_out} for group in groups]

    def _give_up(self, reason: str) -> None:
        if not self._given_up:
            self.notes.append(f"CUDA graphs: {reason}; trained eagerly")
        self._given_up = True
        self._graph = None


def _is_dense(part: object) -> bool:
    """Whether it is a tensor into whose memory another one of its shape can be copied."""
    return isinstance(part, Tensor) and part.layout is torch.strided and not part.is_nested


def obstacle(workload: Workload, config: Config, optimizer: torch.optim.Optimizer) -> str:
    """Why steps cannot be recorded, as far as that is known before the first one; empty if nothing is known."""
    if workload.batches_vary:
        return "batches vary in size"
    if optional(workload, OptionalMethods.epoch_data):
        return "epoch_data may change the model"
    if int(config.get(ACCUMULATION, 1)) > 1:
        return f"not with {ACCUMULATION}"
    for option in (CHECKPOINTING, OFFLOADING):
        if uses(config, option):
            return f"not with {option}"
    # These alone keep their numbers of steps on the device, or count none.
    if not all(group.get("fused") or group.get("capturable") for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} is neither fused nor capturable"
    return ""


def steps_of(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    device: str | None = None,
    notes: list[str] | None = None,
    ranks: Ranks | None = None,
) -> Steps:
    """What runs a configuration's steps: ``GraphedSteps`` with ``cuda_graphs`` on a GPU, else ``Steps``.

    ``notes`` gets the reason if there is no graph although the configuration asks for one.
    """
    graphed = uses(config, CUDA_GRAPHS) and next(model.parameters()).device.type == "cuda"
    kind = GraphedSteps if graphed else Steps
    return kind(workload, model, optimizer, config, device, [] if notes is None else notes, ranks)
