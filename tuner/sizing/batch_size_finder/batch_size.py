"""The largest batch of any torch model: ``compute_batch_size``, in three modes."""

import math
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Literal, TypedDict, Unpack, get_args

import torch
from torch import nn

from tuner.errors import InputError, TunerError
from tuner.estimation.cards import card_of, cublas_workspace_bytes
from tuner.estimation.estimators import with_context
from tuner.estimation.overheads import HEAP_SLACK, context_of
from tuner.estimation.tracing.tracer import Parts, Untraceable, trace_step
from tuner.machine.caps import is_out_of_memory
from tuner.machine.devices import cuda_devices, imagined_gpu, ram_device
from tuner.sizing.batch_size_finder.counting import activation_bytes, count, optimizer_bytes
from tuner.sizing.batch_size_finder.measuring import Line, Rehearsal, measure_line, rehearsal, step_failed
from tuner.sizing.batch_size_finder.samples import Batch, Samples, apply, samples_of
from tuner.sizing.batch_size_finder.training_step import Loss, MakeOptimizer, TrainingStep, copied, sharing
from tuner.sizing.choices import MEMORY, USERS_BOUND, DoesNotFit, LargestBatch, Need, largest_batch
from tuner.sizing.memory_state import FREE_MEMORY, WHO_HOLDS_THE_REST, MemoryBudget, torch_device
from tuner.trial import GB, MOST_GB, Device, MemoryEstimate

Mode = Literal["static", "traced", "measured"]
# Fragmentation as a share of the tensors, for modes that do not measure it, and on CUDA the least that is measured.
# CUDA: from the GPU memory estimation guide. CPU: the gaps in the heap, if it has all tensors.
FRAGMENTATION = {"cuda": 0.10, "cpu": HEAP_SLACK}
MOST_TRIED, CLOSE = 8, 1.05  # CUDA: how many batches are tried, until no larger one than by this factor could fit
# Errors of a step that is wrong itself. Torch has subclasses of these for what a trace does not support.
ORDINARY_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
GROWTH = 4  # a tried size is at most this multiple of one that fits, so that no trace is far beyond the limit


class Details(TypedDict, total=False):
    """Further arguments of ``compute_batch_size``."""

    total_gb: float | None
    loss: Loss | None
    optimizer: MakeOptimizer
    teacher: nn.Module | None


@dataclass(frozen=True)
class _Search:
    """The search's step, samples, device, a process's context there, memory limit, what sets it, and bounds."""

    step: TrainingStep
    samples: Samples
    device: Device
    context_bytes: int
    limit_bytes: int
    limited_by: str
    smallest: int
    largest: int


@dataclass(frozen=True)
class _Footprint:
    """The memory of batches. A batch above ``at_most`` is known to run out of memory."""

    need: Need
    optimizer_bytes: int
    fragmentation: float = 0.0
    at_most: int | None = None


def compute_batch_size(
    model: nn.Module,
    sample: Batch,
    device: str | torch.device,
    mode: Mode = "measured",
    target_utilization: float = 0.7,
    min_batch_size: int = 1,
    max_batch_size: int = 4096,
    **details: Unpack[Details],
) -> MemoryBudget:
    """The largest batch of a model that fits a device, and where the memory goes.

    need = context + (1 + fragmentation) · tensors must be no more than total · ``target_utilization``, to which no
    other margin is added. The tensors must fit the free memory. On CUDA that includes what this process's allocator
    caches, and on the CPU the cgroup limits it. The model's own tensors count as free if they are there already.
    Model, gradients, buffers, training flags and torch's random numbers do not change.

    Args:
        model: what will be trained, on any device.
        sample: a Data or HeteroData of PyTorch Geometric, which is one sample; a Batch of k graphs, which are k; a
            tensor, or a sequence or mapping of tensors, with samples along dimension 0. Larger batches repeat them.
        device: "cuda", "cuda:1", "cpu" or a ``torch.device``: the device to fill.
        mode: "static" counts weights and bounds activations by their shapes; "traced" follows a step on tensors
            without content, through a simulator of the allocator on CUDA; "measured" runs steps on the device.
        target_utilization: the share of the device's memory to use, above 0 and up to 1.
        min_batch_size: the smallest batch of interest; with batch normalisation at least 2, which it needs to train.
        max_batch_size: the largest.
        details: ``total_gb``, the device's memory in GB (2**30 bytes), instead of its total and free memory. Such a
            GPU need not exist, except to measure on it. ``loss`` takes the model and a batch, and returns a scalar
            to minimise. By default the model is called with a graph's attributes if they have the names of
            ``forward``'s parameters, else with the graph; with a sequence as positional and a mapping as named
            arguments. The default loss adds up the means of all floating outputs, also of a tuple, list or dict.
            ``optimizer`` takes the trainable parameters, and returns an optimizer; by default Adam. ``teacher`` is a
            frozen model on the same device. Each step calls it without gradients, as the model is called by default,
            and keeps its outputs until the loss is known.

    Returns:
        The budget. ``str()`` of it is one line in MB, which says if the free memory was the limit.

    Raises:
        DoesNotFit: not even ``min_batch_size`` samples fit; the text says by how much, and what would help.
        InputError: something given cannot be used, or the step fails on the sample.
        Untraceable: mode "traced" cannot follow the step; ``mode="measured"`` may.
    """
    total_gb = details.pop("total_gb", None)
    _check(mode, target_utilization, min_batch_size, max_batch_size, total_gb)
    target = _device(device, mode, total_gb)
    step = TrainingStep(model, **details)  # type: ignore[misc]  # of the other details
    _check_model(step)
    normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    smallest = min(max_batch_size, 2 if normalises else 1)
    context = context_of(target, alone=True)[0]
    limit_bytes, limited_by = (int(target.total_bytes * target_utilization), MEMORY)
    if total_gb is None and (room_bytes := context + _room_bytes(step, target)) < limit_bytes:
        limit_bytes, limited_by = room_bytes, FREE_MEMORY
    search = _Search(step, samples_of(sample), target, context, limit_bytes, limited_by, smallest, max_batch_size)
    try:
        footprint = {"static": _static, "traced": _traced, "measured": _measured}[mode](search)
        largest = _largest(search, footprint, max(min_batch_size, smallest))
    except DoesNotFit as short:
        raise _advised(short, search, target_utilization) from short
    return _budget(search, footprint, largest, mode)


def _static(search: _Search) -> _Footprint:
    step, samples, device = search.step, search.samples, search.device
    counted, (state_bytes, least_bytes) = count(step), optimizer_bytes(step, device.kind)
    held = counted.total_bytes + state_bytes
    per_sample = samples.sample_bytes + sum(activation_bytes(model, samples.extent) for model in step.models())
    context, fragmentation = search.context_bytes, FRAGMENTATION[device.kind]
    workspace_bytes = 2 * cublas_workspace_bytes(device)  # for the forward and the backward pass

    def need(size: int) -> int:
        tensor_bytes = max(held + size * per_sample, least_bytes + counted.teacher) + workspace_bytes
        return context + math.ceil((1 + fragmentation) * tensor_bytes)

    return _Footprint(need, state_bytes, fragmentation)


def _traced(search: _Search) -> _Footprint:
    step = search.step
    on_cpu = all(tensor.device.type == "cpu" for tensor in step.tensors())
    original = step if on_cpu else copied(step, torch.device("cpu"))

    @cache
    def guess(size: int) -> MemoryEstimate:
        fresh = sharing(original)  # for each size, as a model may keep its results
        with step.frozen():
            return _trace(fresh, search.samples, search.device, size)

    return _Footprint(lambda size: guess(size).total_bytes, guess(search.smallest).optimizer_bytes)


def _trace(step: TrainingStep, samples: Samples, device: Device, size: int) -> MemoryEstimate:
    outline = samples.take(size, outline=True)

    def make() -> Parts:
        batch = apply(outline, _traced_tensor)
        return step.model, step.make_optimizer(), lambda: step.value(batch)

    try:
        with step.flags():
            trace = trace_step(make, device_kind=device.kind, card=card_of(device), remedy=OTHER_MODES)
    except Untraceable as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise _explained(error, size) from error
    return with_context(trace.to_estimate(device.kind), device, alone=True)


OTHER_MODES = 'use mode="measured" or mode="static"'


def _explained(error: Untraceable, size: int) -> TunerError:
    """The error to raise, depending on whether the step or only its trace fails."""
    cause = error.__cause__
    if cause is not None and type(cause) in ORDINARY_ERRORS and not is_out_of_memory(cause):
        return InputError(f'{step_failed(size, cause)} (traced without values; mode="measured" runs it with them)')
    return error


def _traced_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of an outline, allocated in the trace; integers stay real."""
    return torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor


def _measured(search: _Search) -> _Footprint:
    device, context = search.device, search.context_bytes
    fragmentation = FRAGMENTATION["cuda"] if device.kind == "cuda" else 0.0  # the heap's gaps are measured
    room_bytes = int(min(search.limit_bytes - context, device.free_bytes) / (1 + fragmentation))
    # For Tensor.to, "cpu:0" is a different device, so each batch would be copied.
    target = torch.device("cuda", device.index) if device.kind == "cuda" else torch.device("cpu")
    try:
        with rehearsal(search.step, search.samples, target) as run:
            model_bytes = count(search.step).total_bytes
            sizes = search.smallest, search.largest, search.samples.count
            line = measure_line(run.peak_bytes, model_bytes, room_bytes, *sizes)
            if device.kind == "cuda":
                return _filling(search, line, run, search.limit_bytes - context)
            return _on_line(line, context, run.optimizer_bytes(), fragmentation)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise DoesNotFit(
            f"a batch of {search.smallest} ran out of memory on {target} as it was measured, with "
            f"{device.free_bytes / GB:.2f} GB free",
            search.limit_bytes,
            search.limit_bytes,
        ) from error
    finally:
        if device.kind == "cuda":
            torch.cuda.empty_cache()


def _on_line(line: Line, context: int, state_bytes: int, fragmentation: float) -> _Footprint:
    def need(size: int) -> int:
        return context + math.ceil((1 + fragmentation) * line.at(size))

    return _Footprint(need, state_bytes, fragmentation, line.at_most)


def _filling(search: _Search, line: Line, run: Rehearsal, room_bytes: int) -> _Footprint:
    """The footprint through the largest batch whose first steps CUDA's allocator had room for.

    The line is a guess, as what kernels stage grows up to a bound, and more is reserved than the tensors take. A
    footprint has a fixed part, so a batch that is larger in proportion to the room that is left still fits.
    """
    guessed = _on_line(line, search.context_bytes, run.optimizer_bytes(), FRAGMENTATION["cuda"])
    size = _largest(search, guessed, search.smallest).batch_size
    fits, over, through, share = 0, 0, line, guessed.fragmentation
    for _ in range(MOST_TRIED):
        try:
            allocated, reserved = run.first_steps_bytes(size)
        except torch.OutOfMemoryError:
            allocated, reserved = room_bytes, 2 * room_bytes
        if reserved <= room_bytes:
            fits, share = size, reserved / allocated - 1
            through = Line({0: line.peaks[0], size: allocated})
        else:
            over = size
        ahead = min(search.largest, int(size * room_bytes / reserved))
        size = (fits + over) // 2 if fits and over else ahead
        if size <= max(CLOSE * fits, search.smallest):
            break
    through = replace(through, at_most=(fits if over else line.at_most) or None)
    return _on_line(through, search.context_bytes, guessed.optimizer_bytes, share)


def _largest(search: _Search, footprint: _Footprint, least: int) -> LargestBatch:
    """Searches the largest batch. If measuring ran out of memory, memory is the bound."""
    most, bound, memory = search.largest, USERS_BOUND, search.limited_by
    if footprint.at_most is not None and footprint.at_most < least:
        raise DoesNotFit(
            f"a batch of {least} is too large: one of {footprint.at_most} ran, and a larger one ran out of memory",
            footprint.need(least),
            search.limit_bytes,
        )
    if footprint.at_most is not None and footprint.at_most < most:
        most, bound = footprint.at_most, memory
    need, limit_bytes = footprint.need, search.limit_bytes
    largest = largest_batch(need, limit_bytes, at_least=least, at_most=most, bound=bound, growth=GROWTH)
    return replace(largest, stopped_by=memory) if largest.stopped_by == MEMORY else largest


def _budget(search: _Search, footprint: _Footprint, largest: LargestBatch, mode: str) -> MemoryBudget:
    counted, context = count(search.step), search.context_bytes
    held = counted.total_bytes + footprint.optimizer_bytes

    def for_samples(taken_bytes: int) -> int:
        return max(0, int((taken_bytes - context) / (1 + footprint.fragmentation)) - held)

    per_sample = for_samples(largest.need_bytes) // largest.batch_size
    return MemoryBudget(
        total_bytes=search.device.total_bytes,
        free_bytes=search.device.free_bytes,
        limit_bytes=search.limit_bytes,
        need_bytes=largest.need_bytes,
        context_bytes=context,
        parameter_bytes=counted.parameters,
        embedding_bytes=counted.embeddings,
        optimizer_bytes=footprint.optimizer_bytes,
        gradient_bytes=counted.gradients,
        teacher_bytes=counted.teacher,
        available_bytes=for_samples(search.limit_bytes),
        activation_bytes=max(0, per_sample - search.samples.sample_bytes),
        per_sample_bytes=search.samples.sample_bytes,
        fragmentation=footprint.fragmentation,
        batch_size=largest.batch_size,
        mode=mode,
        stopped_by=largest.stopped_by,
    )


def _advised(short: DoesNotFit, search: _Search, utilization: float) -> DoesNotFit:
    device = search.device
    enough_gb = math.ceil(100 * short.need_bytes / utilization / GB) / 100
    needed = f"{enough_gb:.2f} GB" if short.need_bytes > short.limit_bytes else "more"
    limit, remedy = f"{utilization:.0%} of {device.total_bytes / GB:.2f} GB", ""
    if search.limited_by == FREE_MEMORY:
        limit = f"of {device.total_bytes / GB:.2f} GB only {device.free_bytes / GB:.2f} GB are free"
        remedy = f"{WHO_HOLDS_THE_REST}; without them "
    return DoesNotFit(
        f"{short} ({limit}): {remedy}it takes a device with {needed}, a "
        "smaller model, smaller samples or mixed precision (AMP)",
        short.need_bytes,
        short.limit_bytes,
    )


def _check(mode: str, utilization: float, least: int, most: int, total_gb: float | None) -> None:
    if mode not in get_args(Mode):
        raise InputError(f"mode={mode!r}: choose one of {', '.join(get_args(Mode))}")
    if not (_is_number(utilization) and 0 < utilization <= 1):
        raise InputError(f"target_utilization={utilization!r}: give a share above 0 and up to 1")
    if not all(isinstance(size, Integral) for size in (least, most)) or not 1 <= least <= most:
        rule = "give whole numbers, 1 <= min_batch_size <= max_batch_size"
        raise InputError(f"min_batch_size={least!r}, max_batch_size={most!r}: {rule}")
    if total_gb is not None and not (_is_number(total_gb) and 0 < total_gb <= MOST_GB):
        raise InputError(f"total_gb={total_gb!r}: give the device's memory in GB, above 0 and up to {MOST_GB:,.0f}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_model(step: TrainingStep) -> None:
    if any(nn.parameter.is_lazy(parameter) for model in step.models() for parameter in model.parameters()):
        raise InputError("model: it has lazy parameters without a shape; run it once on a sample first")
    if not any(parameter.requires_grad for parameter in step.model.parameters()):
        raise InputError("model: it has no trainable parameter, so nothing would be trained")


def _device(choice: str | torch.device, mode: str, total_gb: float | None) -> Device:
    """The chosen device, with ``total_gb`` as its memory if that is set."""
    chosen = torch_device(choice)
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device={str(choice)!r}: give cpu, cuda or cuda:N")
    detected = ram_device() if chosen.type == "cpu" else _gpu(chosen, mode, total_gb)
    return detected if total_gb is None else replace(detected, total_bytes=int(total_gb * GB))


def _room_bytes(step: TrainingStep, device: Device) -> int:
    """The memory that a training of this model may take beside its context: what is free, and its tensors there."""
    gradients = [p.grad for model in step.models() for p in model.parameters() if p.grad is not None]
    there = {
        tensor.data_ptr(): tensor.nbytes
        for tensor in (*step.tensors(), *gradients)
        if tensor.device.type == device.kind and (tensor.device.index or 0) == device.index
    }
    return device.free_bytes + sum(there.values())


def _gpu(chosen: torch.device, mode: str, total_gb: float | None) -> Device:
    index = chosen.index or 0
    if index < torch.cuda.device_count():
        free, total = torch.cuda.mem_get_info(index)
        free += torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)  # what is cached
        properties = torch.cuda.get_device_properties(index)
        uuid = next((gpu.uuid for gpu in cuda_devices() if gpu.uuid.endswith(str(properties.uuid))), "")
        return Device("", "cuda", index, properties.name, total, free, cores=0, uuid=uuid)
    if mode == "measured" or total_gb is None:
        remedy = 'a GPU that is elsewhere has mode="static" or mode="traced" and its memory as total_gb'
        raise InputError(f"device='{chosen}': this machine has no such GPU; {remedy}")
    return imagined_gpu(0, index)
