"""Small graphs of CAN traffic, drawn at random, for models that need no more of them."""

from __future__ import annotations

import torch

from tuner.workloads.kd_gat.batches import CanBatch

NUM_IDS = 9


def random_graphs(count: int, seed: int = 0, *, frames: int = 30, num_ids: int = NUM_IDS) -> list[CanBatch]:
    """So many batches of one graph each: IDs follow one another at random, and every other graph is an attack."""
    random = torch.Generator().manual_seed(seed)
    return [_graph(number, random, frames, num_ids) for number in range(count)]


def joined(graphs: list[CanBatch]) -> CanBatch:
    """One batch of several."""
    nodes = torch.tensor([0, *(len(graph.ids) for graph in graphs)]).cumsum(0).tolist()
    return CanBatch(
        graph=torch.cat([graph.graph for graph in graphs]),
        label=torch.cat([graph.label for graph in graphs]),
        node_graph=torch.cat([graph.node_graph + place for place, graph in enumerate(graphs)]),
        ids=torch.cat([graph.ids for graph in graphs]),
        features=torch.cat([graph.features for graph in graphs]),
        edge=torch.cat([graph.edge + first for first, graph in zip(nodes, graphs, strict=False)], dim=1),
        edge_count=torch.cat([graph.edge_count for graph in graphs]),
    )


def random_batch(count: int, seed: int = 0, *, frames: int = 30, num_ids: int = NUM_IDS) -> CanBatch:
    """The graphs of ``random_graphs`` in one batch."""
    return joined(random_graphs(count, seed, frames=frames, num_ids=num_ids))


def _graph(number: int, random: torch.Generator, frames: int, num_ids: int) -> CanBatch:
    sequence = torch.randint(num_ids, (frames,), generator=random)
    ids, node = sequence.unique(return_inverse=True)
    edge, count = torch.stack([node[:-1], node[1:]]).unique(dim=1, return_counts=True)
    return CanBatch(
        graph=torch.tensor([number]),
        label=torch.tensor([number % 2]),
        node_graph=torch.zeros(len(ids), dtype=torch.long),
        ids=ids,
        features=torch.rand(len(ids), 10, generator=random),
        edge=edge,
        edge_count=count[:, None].float(),
    )
