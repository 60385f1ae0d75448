"""The two forms of a batch: a tuple of tensors, and a graph of PyTorch Geometric; and the files that PyG leaves."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from tuner.workloads.base import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class Graph(Protocol):
    """The interface of PyTorch Geometric's Data, HeteroData and Batch."""

    stores: Sequence[Mapping[str, object]]  # the attributes of each node and edge type
    num_nodes: int
    num_edges: int
    keys: Callable[[], Iterable[str]]
    clone: Callable[[], Graph]
    apply: Callable[[Callable[[Tensor], Tensor]], Graph]


def is_graph(batch: object) -> TypeGuard[Graph]:
    """Whether it is a graph of PyTorch Geometric, checked without importing that."""
    data = sys.modules.get("torch_geometric.data.data")
    return data is not None and isinstance(batch, data.BaseData)


def parts_of(batch: Batch) -> list[Any]:
    """A tuple's parts, or all attributes of a graph."""
    if is_graph(batch):
        return [value for store in batch.stores for value in store.values()]
    return list(batch)


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors among a batch's parts."""
    from torch import Tensor

    return [part for part in parts_of(batch) if isinstance(part, Tensor)]


def changed(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """A batch with ``change`` applied to each tensor. The given batch stays as it is.

    A graph's own ``apply`` and ``to`` would change a graph that a workload yields in every epoch.
    """
    if is_graph(batch):
        return copy.copy(batch).apply(change)
    return tuple(changed(part, change) if is_graph(part) else change(part) for part in batch)


def to_tensor(array: NDArray[np.generic]) -> Tensor:
    """The array as a tensor over the same memory, to which nothing may write: in Ray's store it is read-only."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def remove_templates() -> None:
    """Removes the files that PyG has written for the classes of layers (``torch_geometric/template.py``).

    It writes a module into the temporary folder for each class, imports it, and leaves the file there.
    """
    if "torch_geometric" not in sys.modules:
        return
    folder = tempfile.gettempdir()
    for name, module in list(sys.modules.items()):
        # Compared as texts: there are thousands of modules, and a model is built for each estimate.
        if (file := str(getattr(module, "__file__", ""))).startswith(f"{folder}{os.sep}{name}_"):
            Path(file).unlink(missing_ok=True)
