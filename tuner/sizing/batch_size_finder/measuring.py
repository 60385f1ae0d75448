"""Measures batches by training steps on the device, with copies of the model and its teacher."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from tuner.errors import InputError, TunerError, one_line
from tuner.estimation.measure import tensor_changes
from tuner.estimation.overheads import HEAP_SLACK
from tuner.estimation.tracing.tracer import STEPS
from tuner.machine.caps import MMAP_THRESHOLD_BYTES, is_out_of_memory
from tuner.sizing.batch_size_finder.samples import Samples, apply
from tuner.sizing.batch_size_finder.training_step import TrainingStep, copied

SAME_LINE = 0.02  # the maximum relative difference of neighbouring slopes on one line


@dataclass(frozen=True)
class Line:
    """A footprint as a line through the two largest measured batches."""

    peaks: dict[int, int]  # bytes by batch size in ascending order; a batch of 0 is the model alone
    at_most: int | None = None  # the largest batch that ran, if a larger one ran out of memory

    def at(self, size: int) -> int:
        """The bytes of a batch of this size, at least those of every smaller measured batch."""
        ran = [peak for batch, peak in self.peaks.items() if batch <= size]
        (low, low_bytes), (high, high_bytes) = [*self.peaks.items()][-2:]
        slope = (high_bytes - low_bytes) / (high - low)
        return max(*ran, round(high_bytes + slope * (size - high)))

    def is_settled(self, least_bytes: int, count: int) -> bool:
        """Whether larger batches would lie on the line.

        The peak is the maximum of several lines. If the optimizer or the gradients set it, samples do not show. So
        samples must take more than ``least_bytes``, three sizes must be on one line, and the last two must include
        all ``count`` samples.
        """
        if len(self.peaks) < 4:  # the model alone is no step
            return False
        (a, a_bytes), (b, b_bytes), (c, c_bytes) = [*self.peaks.items()][-3:]
        before, slope = (b_bytes - a_bytes) / (b - a), (c_bytes - b_bytes) / (c - b)
        return b >= count and slope * c > least_bytes and abs(slope - before) <= SAME_LINE * slope


def measure_line(
    peak_bytes: Callable[[int], int], model_bytes: int, room_bytes: int, first: int, most: int, count: int = 1
) -> Line:
    """Runs batches of doubling size, from ``first`` to ``most``, until they are on one line.

    ``peak_bytes`` runs a batch. A batch that is predicted to take more than ``room_bytes`` is not run. The number of
    samples, ``count``, is one of the sizes, as samples may differ. If the first batch does not fit, it raises.
    """
    line = Line({0: model_bytes, first: peak_bytes(first)})
    size = first
    while size < most and not line.is_settled(model_bytes, count):
        following = min(count if size < count <= 2 * size else 2 * size, most)
        if line.at(following) > room_bytes:
            break
        try:
            line = Line({**line.peaks, following: peak_bytes(following)})
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return replace(line, at_most=size)
        size = following
    return line


class Rehearsal:
    """Training steps of a model on its device."""

    def __init__(self, step: TrainingStep, samples: Samples, device: torch.device, base_bytes: int) -> None:
        """Takes a step on its device. ``base_bytes`` of CUDA's memory belong to others."""
        self._step, self._samples, self._device, self._base_bytes = step, samples, device, base_bytes
        self._optimizer = step.make_optimizer()
        self._started = False

    def peak_bytes(self, size: int) -> int:
        """The peak of a step's tensors, with the model, in bytes.

        CUDA: by the allocator's statistics, whose peak is reset. CPU: by the profiler, plus the heap's gaps
        (``HEAP_SLACK``). A step that fails for another reason than memory raises ``InputError``.
        """
        try:
            if not self._started:
                self._run(size)  # the optimizer's state appears in the first step
                self._started = True
            return self._cuda_peak_bytes(size) if self._device.type == "cuda" else self._cpu_peak_bytes(size)
        except Exception as error:
            if isinstance(error, TunerError) or is_out_of_memory(error):
                raise
            raise step_failed(size, error) from error

    def first_steps_bytes(self, size: int) -> tuple[int, int]:
        """What the tensors of a training's first steps take, and what CUDA's allocator reserves for them, in bytes.

        The cache is empty before, as in a trace: the optimizer's state appears between the blocks of the first step.
        """
        self._optimizer = self._step.make_optimizer()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._run(size, steps=STEPS)
        taken = torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)
        return int(taken[0]) - self._base_bytes, int(taken[1]) - self._base_bytes

    def optimizer_bytes(self) -> int:
        """The bytes of the optimizer's state on the device, after the first step."""
        return sum(tensor.nbytes for tensor in self._state())

    def _run(self, size: int, steps: int = 1) -> None:
        batch = apply(self._samples.take(size), lambda tensor: tensor.to(self._device))
        for _ in range(steps):
            self._step.value(batch).backward()  # type: ignore[no-untyped-call]
            if all(parameter.grad is None for parameter in self._step.model.parameters()):
                raise InputError("loss: it must use the model that it is given, which is a copy")
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)  # now, as the profiler misses releases of older tensors

    def _cuda_peak_bytes(self, size: int) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._run(size)
        return int(torch.cuda.max_memory_allocated(self._device)) - self._base_bytes

    def _cpu_peak_bytes(self, size: int) -> int:
        held = [tensor.nbytes for tensor in (*self._step.tensors(), *self._state())]
        changes = tensor_changes(lambda: self._run(size))
        return _peak(held, changes) + round(HEAP_SLACK * _peak(_in_heap(held), _in_heap(changes)))

    def _state(self) -> list[torch.Tensor]:
        values = (value for state in self._optimizer.state.values() for value in state.values())
        return [value for value in values if torch.is_tensor(value) and value.device.type == self._device.type]


def step_failed(size: int, error: BaseException) -> InputError:
    """The error of a step that fails for another reason than memory, mostly because of the sample."""
    reason = one_line(error, 200)
    return InputError(f"the step failed on a batch of {size}: {type(error).__name__}: {reason}")


@contextmanager
def rehearsal(step: TrainingStep, samples: Samples, device: torch.device) -> Iterator[Rehearsal]:
    """Steps with copies on a device. The originals and torch's random state stay as they are.

    A model that cannot be copied raises ``InputError``.
    """
    cuda = device.type == "cuda"
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if cuda else []))
        stack.enter_context(torch.enable_grad())
        if cuda:
            stack.enter_context(torch.cuda.device(device))
        base_bytes = int(torch.cuda.memory_allocated(device)) if cuda else 0
        copy = copied(step, device)
        stack.enter_context(copy.flags())
        stack.enter_context(step.frozen())
        yield Rehearsal(copy, samples, device, base_bytes)


def _in_heap(changes: Sequence[int]) -> list[int]:
    return [change for change in changes if abs(change) < MMAP_THRESHOLD_BYTES]


def _peak(held: Sequence[int], changes: Sequence[int]) -> int:
    return sum(held) + max(itertools.accumulate(changes, initial=0))
