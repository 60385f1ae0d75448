from __future__ import annotations

import numpy as np
import pytest
import torch

from tuner.datasets.can import CanData
from tuner.workloads.kd_gat.batches import collate, largest, parts


def test_a_batch_holds_its_graphs_one_after_another(traffic: CanData) -> None:
    graphs = np.array([41, 3, 17])
    batch = collate(traffic, graphs)
    assert batch.graph.tolist() == graphs.tolist()
    assert batch.y.tolist() == traffic.label[graphs].tolist()
    begin = 0
    for place, graph in enumerate(graphs.tolist()):
        nodes, edges = (slice(*first[graph : graph + 2]) for first in (traffic.first, traffic.first_edge))
        own = batch.batch == place
        assert batch.ids[own].tolist() == traffic.ids[nodes].tolist()
        assert torch.equal(batch.x[own], torch.tensor(np.array(traffic.features[nodes])))
        of_graph = batch.batch[batch.edge_index[0]] == place
        assert (batch.edge_index[:, of_graph] - begin).tolist() == traffic.edge[:, edges].tolist()
        assert batch.edge_attr[of_graph, 0].tolist() == traffic.edge_count[edges].tolist()
        begin += int(own.sum())
    assert begin == len(batch.ids)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 50])
def test_a_batchs_parts_are_batches_of_its_graphs(count: int, traffic: CanData) -> None:
    graphs = np.array([41, 3, 17, 58, 0, 22, 9])
    found = list(parts(collate(traffic, graphs), count))
    size = -(-7 // count)
    expected = [collate(traffic, graphs[begin : begin + size]) for begin in range(0, 7, size)]
    assert len(found) == len(expected) <= count
    for one, other in zip(found, expected, strict=True):
        assert {"x", "ids", "edge_index", "edge_attr", "batch", "ptr"} == set(one.keys())
        assert all(torch.equal(one[name], other[name]) for name in one.keys())  # noqa: SIM118


def test_the_largest_graphs_are_those_of_the_most_edges_and_nodes(traffic: CanData) -> None:
    sizes = (np.diff(traffic.first_edge) + np.diff(traffic.first)).tolist()
    found = largest(traffic, traffic.train, 5)
    assert [sizes[graph] for graph in found] == sorted((sizes[graph] for graph in traffic.train), reverse=True)[:5]
    assert set(found.tolist()) <= set(traffic.train.tolist())
    assert len(largest(traffic, traffic.train, 10**6)) == 36
