"""Makes batches of any size from the user's samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tuner.errors import InputError
from tuner.workloads import batches
from tuner.workloads.batches import Graph, is_graph

Batch = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Graph  # the form of samples and of models' inputs


class Extent(NamedTuple):
    """A sample's size: rows of a layer's output, messages between them, and features per row."""

    rows: int
    messages: int
    features: int


@dataclass(frozen=True)
class Samples:
    """The samples that were given; batches repeat them in order."""

    count: int
    sample_bytes: int  # what one of them takes in a batch, on average and rounded up
    extent: Extent  # of a sample: the average, rounded up
    batch: Callable[[int, bool], Batch]

    def take(self, size: int, *, outline: bool = False) -> Batch:
        """A new batch of ``size`` samples on the CPU.

        An ``outline`` has its floats on the device "meta", without values, so it takes little memory.
        """
        return self.batch(size, outline)


def samples_of(sample: Batch) -> Samples:
    """The samples of tensors or graphs. Other types, or tensors without a batch dimension, raise ``InputError``."""
    if is_graph(sample):
        return _graphs(sample)
    for part in parts_of(sample):
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            what = f"{part.layout} tensor" if isinstance(part, Tensor) else type(part).__name__
            raise InputError(
                f"sample: {what} has no batch to size; give dense tensors or graphs of PyTorch Geometric"
            )
    return _rows(sample)


def _rows(sample: Batch) -> Samples:
    """Samples along dimension 0 of a tensor, or of all tensors of a sequence or a mapping.

    Rows are positions: the product of all dimensions but the last or, if larger, but the first (channels).
    """
    parts = [*tensors_of(sample)]
    sizes = {len(part) if part.dim() else 0 for part in parts}
    if len(sizes) != 1 or 0 in sizes:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts) or "none"
        raise InputError(f"sample: its tensors need one batch dimension, the first; their shapes are {shapes}")
    whole, count = apply(sample, _copy), len(parts[0])
    outlines = apply(whole, without_floats)

    def batch(size: int, outline: bool) -> Batch:
        index = torch.arange(size) % count
        return apply(outlines if outline else whole, lambda part: part[index.to(part.device)])

    positions = [part.shape[2:].numel() for part in parts]
    positions += [(part.shape[1:-1] if part.is_floating_point() else part.shape[1:]).numel() for part in parts]
    extent = Extent(max(positions), 0, max(max(part.shape[1:], default=1) for part in parts))
    return Samples(count, _share(sum(part.nbytes for part in tensors_of(whole)), count), extent, batch)


def _graphs(sample: Graph) -> Samples:
    """Graphs of PyTorch Geometric: a Data or HeteroData is one sample, a Batch as many as it has graphs.

    Rows are nodes. Messages are edges, and a self-loop per node, which most layers add.
    """
    from torch_geometric.data import Batch

    given: list[Graph] = sample.to_data_list() if isinstance(sample, Batch) else [sample]
    if not given or not [*tensors_of(sample)] or not sample.num_nodes:
        raise InputError("sample: a graph without nodes says nothing about memory; give one with nodes")
    graphs, count = [graph.clone().apply(_copy) for graph in given], len(given)
    outlines = [graph.clone().apply(without_floats) for graph in graphs]

    def batch(size: int, outline: bool) -> Graph:
        chosen = outlines if outline else graphs
        made: Graph = Batch.from_data_list([chosen[place % count] for place in range(size)])
        return made

    nodes = sum(graph.num_nodes for graph in graphs)
    messages = nodes + sum(graph.num_edges for graph in graphs)
    tensors = [tensor for graph in graphs for tensor in tensors_of(graph)]
    widths = (tensor.shape[-1] for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 1)
    extent = Extent(_share(nodes, count), _share(messages, count), max(widths, default=1))
    return Samples(count, _share(sum(part.nbytes for part in tensors_of(batch(count, False))), count), extent, batch)


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
    return iter(batches.tensors_of(batch) if is_graph(batch) else parts_of(batch))


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
