"""Batches of any size made of the samples that were given."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from tuner.errors import InputError


class Graph(Protocol):
    """What PyTorch Geometric's Data, HeteroData and Batch have."""

    stores: Sequence[Mapping[str, object]]  # of each kind of nodes and edges, its attributes
    num_nodes: int
    num_edges: int
    keys: Callable[[], Iterable[str]]
    clone: Callable[[], Graph]
    apply: Callable[[Callable[[Tensor], Tensor]], Graph]


Batch = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Graph  # what samples are given as, and models called with


class Extent(NamedTuple):
    """What a sample has to be computed for: rows of a layer's output, messages between them, features of a row."""

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
        """A new batch of so many samples on the CPU; an ``outline`` has its floats on torch's device "meta".

        There they have shapes and no content, so an outline takes little memory at any size.
        """

    @abstractmethod
    def extent(self) -> Extent:
        """The extent of one sample: of several the average, rounded up."""


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
        """A new batch of so many rows of each tensor."""
        index = torch.arange(size) % self.count
        return apply(self._outline if outline else self._sample, lambda part: part[index.to(part.device)])

    def extent(self) -> Extent:
        """Rows are positions: all but features at the end or, with channels first, all but these; the larger."""
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
        """A new Batch of so many graphs."""
        from torch_geometric.data import Batch

        graphs = self._outlines if outline else self._graphs
        batch: Graph = Batch.from_data_list([graphs[place % self.count] for place in range(size)])
        return batch

    def extent(self) -> Extent:
        """Rows are nodes; messages are edges and, as most layers add one, a loop at each node."""
        nodes = sum(graph.num_nodes for graph in self._graphs)
        edges = sum(graph.num_edges for graph in self._graphs)
        tensors = (tensor for graph in self._graphs for tensor in tensors_of(graph))
        widths = (tensor.shape[-1] for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 1)
        return Extent(_share(nodes, self.count), _share(nodes + edges, self.count), max(widths, default=1))


def samples_of(sample: Batch) -> Samples:
    """The samples of a tensor, a sequence or mapping of tensors, or a graph or batch of PyTorch Geometric.

    Raises:
        InputError: it is something else, or its tensors have no common batch dimension.
    """
    if is_graph(sample):
        return GraphSamples(sample)
    for part in parts_of(sample):
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            what = f"{part.layout} tensor" if isinstance(part, Tensor) else type(part).__name__
            raise InputError(
                f"sample: {what} has no batch to size; give dense tensors or graphs of PyTorch Geometric"
            )
    return TensorSamples(sample)


def is_graph(sample: object) -> TypeGuard[Graph]:
    """Whether it is a graph of PyTorch Geometric, which is not imported to find out."""
    data = sys.modules.get("torch_geometric.data.data")
    return data is not None and isinstance(sample, data.BaseData)


def apply(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """A batch with each of its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if is_graph(batch):
        return batch.apply(change)
    if isinstance(batch, Mapping):
        return {name: change(part) for name, part in batch.items()}
    return [change(part) for part in parts_of(batch)]


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """All tensors of a batch; of a graph, those of each of its kinds of nodes and edges."""
    if is_graph(batch):
        for store in batch.stores:
            yield from (value for value in store.values() if isinstance(value, Tensor))
    else:
        yield from parts_of(batch)


def without_floats(tensor: Tensor) -> Tensor:
    """A tensor of floats without its content, on torch's device "meta"; integers as they are."""
    return tensor.to("meta") if tensor.is_floating_point() or tensor.is_complex() else tensor


def parts_of(batch: Batch) -> Sequence[Tensor]:
    """What a sequence or a mapping has, else the batch itself; it is no graph."""
    if isinstance(batch, Mapping):
        return [*batch.values()]
    return batch if isinstance(batch, (list, tuple)) else [batch]  # type: ignore[list-item]


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU: with a storage of its own, where a view's would count as a whole."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _share(total: int, count: int) -> int:
    return -(-total // count)
