"""The workspaces that the products of matrices take on a GPU, and keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tuner.estimation.tracing.corrections.temporaries import TORCH
from tuner.trial import MB

if TYPE_CHECKING:
    from tuner.estimation.cards import CardProperties
    from tuner.estimation.tracing.storage_tracker import StorageTracker

LT_WORKSPACE_BYTES = 1 * MB  # parseCUDABlasLtWorkspaceSize in CublasHandlePool.cpp


class Workspaces:
    """Takes the workspaces of cuBLAS and cuBLASLt at each thread's first product that uses them on a stream.

    Every thread has its own cuBLAS handle, and on a GPU the backward pass has its own thread. A product with a bias
    (``addmm`` with a vector) is cuBLASLt's, whose workspace depends on torch: since 2.12 it is the handle's own, from
    2.9 another one that is kept (``getCUDABlasLtWorkspace``), and before that one for each product.
    """

    def __init__(self, tracker: StorageTracker, card: CardProperties) -> None:
        self._tracker = tracker
        self._bytes = card.cublas_workspace_bytes

    def take(self, *, fused_bias: bool) -> None:
        """Records what the running thread's next product takes."""
        backward = torch._C._current_graph_task_id() >= 0
        self._take_once("cuBLAS", backward, self._bytes)
        if not fused_bias or TORCH >= (2, 12):
            return
        if TORCH < (2, 9):
            self._tracker.run_kernel([LT_WORKSPACE_BYTES], lambda: None)
        else:
            self._take_once("cuBLASLt", backward, LT_WORKSPACE_BYTES)

    def _take_once(self, library: str, backward: bool, size_bytes: int) -> None:
        taken, key = self._tracker.workspaces, (library, backward, self._tracker.pools)
        if key not in taken:
            taken[key] = self._tracker.allocate(size_bytes, "workspace")
