"""Small graphs of CAN traffic, drawn at random, for models that need no more of them."""

from __future__ import annotations

import torch
from torch_geometric.data import Batch, Data

NUM_IDS = 9


def random_graphs(count: int, seed: int = 0, *, frames: int = 30, num_ids: int = NUM_IDS) -> list[Data]:
    """So many graphs: IDs follow one another at random, and every other graph is an attack."""
    random = torch.Generator().manual_seed(seed)
    return [_graph(number, random, frames, num_ids) for number in range(count)]


def random_batch(count: int, seed: int = 0, *, frames: int = 30, num_ids: int = NUM_IDS) -> Batch:
    """The graphs of ``random_graphs`` in one batch."""
    return Batch.from_data_list(random_graphs(count, seed, frames=frames, num_ids=num_ids))


def _graph(number: int, random: torch.Generator, frames: int, num_ids: int) -> Data:
    sequence = torch.randint(num_ids, (frames,), generator=random)
    ids, node = sequence.unique(return_inverse=True)
    edge_index, count = torch.stack([node[:-1], node[1:]]).unique(dim=1, return_counts=True)
    return Data(
        x=torch.rand(len(ids), 10, generator=random),
        ids=ids,
        edge_index=edge_index,
        edge_attr=count[:, None].float(),
        y=torch.tensor([number % 2]),
        graph=torch.tensor([number]),
    )
