"""How long an epoch takes, from a few steps, and how busy launching it on a GPU keeps a CPU core."""

import time
from collections.abc import Callable
from itertools import chain, islice

import torch
from torch import nn

from tuner.training.graphs import steps_of
from tuner.training.step import evaluate
from tuner.trial import Config
from tuner.workloads.base import Workload
from tuner.workloads.micro_batches import sample_count, training_steps
from tuner.workloads.protocols import training_samples

STEPS = 5  # the number of timed steps, after the warm-up
MOST_SECONDS = 2.0  # no further step is timed after so long
# So many of an epoch's first steps show what launching one takes, after one that warms up. More might fill the queue
# of the GPU, which holds about a thousand kernels: a thread that waits for room in it is busy with nothing.
LAUNCHED = 4


class Launching:
    """The part of a CPU core that launching the kernels of an epoch's steps keeps busy.

    A trial on a GPU runs ahead of it until the queue is full. The CPU time of the first steps is spent on launching
    alone; it includes the thread in which torch runs the backward pass.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        """Both clocks are in seconds; ``cpu`` is that of all threads of the process."""
        self._clock, self._cpu = clock, cpu

    def begin(self) -> None:
        """An epoch begins, and the GPU's queue is empty."""
        self._began, self._steps, self._launched = self._clock(), 0, [0.0, 0.0]

    def step(self) -> None:
        """A step has been launched."""
        self._steps += 1
        if self._steps in (1, 1 + LAUNCHED):
            self._launched[self._steps > 1] = self._cpu()

    def core_share(self) -> float | None:
        """The share in the epoch that now ends, at most 1; None if it had too few steps."""
        if self._steps <= LAUNCHED:
            return None
        a_step = (self._launched[1] - self._launched[0]) / LAUNCHED
        return min(1.0, a_step * self._steps / (self._clock() - self._began))


def epoch_seconds(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    data: object,
    device: str,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """An epoch's training and its evaluation: timed steps, times the training samples over theirs.

    None if the number of training samples is unknown. The model is trained by it. Exceptions are the workload's.
    """
    samples = training_samples(workload, data)
    if not samples:
        return None

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return clock()

    step = steps_of(workload, model, optimizer, config, device)
    model.train()
    # As many epochs as may be needed if each has one step. Batches are drawn within the time, as in training.
    groups = chain.from_iterable(training_steps(workload, config, data) for _ in range(step.warm_up + STEPS))
    for group in islice(groups, step.warm_up):
        step(*group)
    began = trained = now()
    timed = 0
    for group in islice(groups, STEPS):
        step(*group)
        timed += sum(sample_count(workload, batch) for batch in group)
        trained = now()
        if trained - began >= MOST_SECONDS:
            break
    evaluate(workload, model, data, "validation", config=config)
    return (trained - began) / timed * samples + now() - trained
