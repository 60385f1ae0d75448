"""Traces what recording a CUDA graph does to the allocator: ``training.graphs.CudaRecorder`` without a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tuner.estimation.allocator.caching_allocator import DEFAULT, PRIVATE, SIDE
from tuner.training.graphs import CudaRecorder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tuner.estimation.tracing.storage_tracker import StorageTracker
    from tuner.workloads.base import Batch, Workload


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
