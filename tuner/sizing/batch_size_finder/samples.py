"""Makes batches of any size from the user's samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tuner.errors import InputError
from tuner.workloads.batches import Graph, is_graph

Batch = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Graph  # the form of samples and of models' inputs


class Extent(NamedTuple):
    """A sample's size: rows of a layer's output, messages between them, and features per row."""

    rows: int
    messages: int
    features: int


class Samples(ABC):
    """The samples that were given; batches repeat them in order.

    Attributes:
        count: how many there are.
        sample_bytes: what one of them takes in a batch, on average and rounded up.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sample_bytes = _share(sum(tensor.nbytes for tensor in tensors_of(self.take(count))), count)

    @abstractmethod
    def take(self, size: int, *, outline: bool = False) -> Batch:
        """A new batch of ``size`` samples on the CPU.

        An ``outline`` has its floats on the device "meta", without values, so it takes little memory.
        """

    @abstractmethod
    def extent(self) -> Extent:
        """The extent of a sample: the average, rounded up."""


class TensorSamples(Samples):
    """Samples along dimension 0 of a tensor, or of all tensors of a sequence or a mapping."""

    def __init__(self, sample: Batch) -> None:
        parts = [*tensors_of(sample)]
        sizes = {len(part) if part.dim() else 0 for part in parts}
        if len(sizes) != 1 or 0 in sizes:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts) or "none"
            raise InputError(f"sample: its tensors need one batch dimension, the first; their shapes are {shapes}")
        self._sample = apply(sample, _copy)
        self._outline = apply(self._sample, without_floats)
        super().__init__(len(parts[0]))

    def take(self, size: int, *, outline: bool = False) -> Batch:
        """A new batch of ``size`` rows of each tensor."""
        index = torch.arange(size) % self.count
        return apply(self._outline if outline else self._sample, lambda part: part[index.to(part.device)])

    def extent(self) -> Extent:
        """Rows are positions: the product of all dimensions but the last or, if larger, but the first (channels)."""
        parts = [*tensors_of(self._sample)]
        rows = [part.shape[2:].numel() for part in parts]
        rows += [(part.shape[1:-1] if part.is_floating_point() else part.shape[1:]).numel() for part in parts]
        return Extent(max(rows), 0, max(max(part.shape[1:], default=1) for part in parts))


class GraphSamples(Samples):
    """Graphs of PyTorch Geometric: a Data or HeteroData is one sample, a Batch as many as it has graphs."""

    def __init__(self, sample: Graph) -> None:
        from torch_geometric.data import Batch

        graphs: list[Graph] = sample.to_data_list() if isinstance(sample, Batch) else [sample]
        if not graphs or not [*tensors_of(sample)] or not sample.num_nodes:
            raise InputError("sample: a graph without nodes says nothing about memory; give one with nodes")
        self._graphs = [graph.clone().apply(_copy) for graph in graphs]
        self._outlines = [graph.clone().apply(without_floats) for graph in self._graphs]
        super().__init__(len(graphs))

    def take(self, size: int, *, outline: bool = False) -> Graph:
        """A new Batch of ``size`` graphs."""
        from torch_geometric.data import Batch

        graphs = self._outlines if outline else self._graphs
        batch: Graph = Batch.from_data_list([graphs[place % self.count] for place in range(size)])
        return batch

    def extent(self) -> Extent:
        """Rows are nodes. Messages are edges, and a self-loop per node, which most layers add."""
        nodes = sum(graph.num_nodes for graph in self._graphs)
        edges = sum(graph.num_edges for graph in self._graphs)
        tensors = (tensor for graph in self._graphs for tensor in tensors_of(graph))
        widths = (tensor.shape[-1] for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 1)
        return Extent(_share(nodes, self.count), _share(nodes + edges, self.count), max(widths, default=1))


def samples_of(sample: Batch) -> Samples:
    """The samples of tensors or graphs. Other types, or tensors without a batch dimension, raise ``InputError``."""
    if is_graph(sample):
        return GraphSamples(sample)
    for part in parts_of(sample):
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            what = f"{part.layout} tensor" if isinstance(part, Tensor) else type(part).__name__
            raise InputError(
                f"sample: {what} has no batch to size; give dense tensors or graphs of PyTorch Geometric"
            )
    return TensorSamples(sample)


def apply(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """A batch with ``change`` applied to each tensor."""
    if isinstance(batch, Tensor):
        return change(batch)
    if is_graph(batch):
        return batch.apply(change)
    if isinstance(batch, Mapping):
        return {name: change(part) for name, part in batch.items()}
    return [change(part) for part in parts_of(batch)]


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """All tensors of a batch, including every node and edge type of a graph."""
    if is_graph(batch):
        for store in batch.stores:
            yield from (value for value in store.values() if isinstance(value, Tensor))
    else:
        yield from parts_of(batch)


def without_floats(tensor: Tensor) -> Tensor:
    """A float tensor on the device "meta", without values; other tensors stay."""
    return tensor.to("meta") if tensor.is_floating_point() or tensor.is_complex() else tensor


def parts_of(batch: Batch) -> Sequence[Tensor]:
    """The tensors of a sequence or a mapping, or the single tensor."""
    if isinstance(batch, Mapping):
        return [*batch.values()]
    return batch if isinstance(batch, (list, tuple)) else [batch]  # type: ignore[list-item]


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU with its own storage, as a view's storage would count completely."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _share(total: int, count: int) -> int:
    return -(-total // count)
