"""What the ranks of a workload's trial exchange, so that they train as one process would."""

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tuner.errors import WorkloadError
from tuner.training.process_state import set_seeds
from tuner.trial import MB

BUCKET_BYTES = 25 * MB  # of gradients that are exchanged at once: DistributedDataParallel's ``bucket_cap_mb``


@dataclass
class Ranks:
    """What one rank of a workload's trial exchanges with the others, in a block of ``joined``.

    All ranks draw the same batches, as their random states are the same. Each takes its own micro-batches of a step.
    """

    rank: int
    size: int
    seed: int
    epoch: int = 0
    steps: int = 0  # of the epoch that were begun

    @property
    def own(self) -> slice:
        """Where this rank's micro-batches are in a step."""
        return slice(self.rank, None, self.size)

    def begin(self, model: nn.Module) -> None:
        """Gives all ranks the weights of rank 0."""
        for value in model.parameters():
            _from_first(value.detach())

    def begin_epoch(self, model: nn.Module, epoch: int) -> None:
        """Gives all ranks the buffers and the random state of rank 0, which alone has evaluated.

        On a GPU each has random numbers of its own.
        """
        self.epoch, self.steps = epoch, 0
        for value in model.buffers():
            _from_first(value)
        state = torch.get_rng_state()
        _from_first(state)
        torch.set_rng_state(state)
        set_seeds(self._number(0), of_torch=False)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(self._number(0, self.rank))

    def _number(self, *of: int) -> int:
        """A number from 0 to 2³² - 1 for this epoch of the trial and what else is given."""
        return int(np.random.SeedSequence([self.seed, self.epoch, *of]).generate_state(1)[0])

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """A block with random numbers of this rank alone, such as dropout's; after it, all have the same again."""
        states = random.getstate(), np.random.get_state(legacy=False)
        self.steps += 1
        seed = self._number(self.steps, self.rank)
        with torch.random.fork_rng(devices=[]):
            set_seeds(seed, of_torch=False)
            torch.default_generator.manual_seed(seed)
            try:
                yield
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])

    def add_up(self, optimizer: torch.optim.Optimizer, loss: Tensor | None, micro_batches: int) -> Tensor:
        """Gives all ranks the sums of the gradients and of the loss; a rank without a micro-batch adds nothing.

        Raises ``WorkloadError`` if they have drawn steps of another number of micro-batches.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        used = [int(parameter.grad is not None) for parameter in parameters]
        counts = torch.tensor([micro_batches, -micro_batches, *used])
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        most, least, *used = counts.tolist()
        if most != -least:
            raise WorkloadError(f"one rank has drawn {most} micro-batches for a step, and another one {-least}")
        gradients: list[Tensor] = []
        for parameter, by_any in zip(parameters, used, strict=True):
            if by_any:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            if len(bucket) == 1 and bucket[0].is_contiguous():  # it may be large
                dist.all_reduce(bucket[0])
                continue
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat)
            place = 0
            for gradient in bucket:
                gradient.copy_(flat[place : place + gradient.numel()].view_as(gradient))
                place += gradient.numel()
        total = parameters[0].new_zeros((), dtype=torch.float32) if loss is None else loss.float()
        dist.all_reduce(total)
        return total

    def agree(self, metrics: Mapping[str, float], *names: str) -> dict[str, float]:
        """The metrics; another rank than 0 gets those with these names from it, as they decide how all go on."""
        values = torch.tensor([metrics.get(name, math.nan) for name in names], dtype=torch.float64)
        dist.broadcast(values, 0)
        return {**metrics, **dict(zip(names, values.tolist(), strict=True))} if self.rank else dict(metrics)


def _from_first(value: Tensor) -> None:
    """Replaces the content of a tensor by rank 0's, as bytes, as gloo does not know all types."""
    content = value.contiguous()
    if content.numel():
        dist.broadcast(content.view(-1).view(torch.uint8), 0)
        if content is not value:
            value.copy_(content)


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive gradients of one type, grouped for one exchange."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        size = sum(part.nbytes for part in bucket) + gradient.nbytes
        if bucket and (bucket[0].dtype != gradient.dtype or size > BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
