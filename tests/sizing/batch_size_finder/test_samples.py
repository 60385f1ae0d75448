"""Batches of any size made of the samples that were given."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from tuner.errors import InputError
from tuner.sizing.batch_size_finder.samples import samples_of, tensors_of


def graph(nodes: int) -> Data:
    return Data(x=torch.rand(nodes, 4), edge_index=torch.zeros(2, 2 * nodes, dtype=torch.long))


def test_rows_of_tensors_are_repeated_in_order() -> None:
    samples = samples_of({"a": torch.arange(3), "b": torch.eye(3)})
    assert samples.count == 3
    batch = samples.take(5)
    assert batch["a"].tolist() == [0, 1, 2, 0, 1]
    assert batch["b"].shape == (5, 3)
    assert samples.sample_bytes == 8 + 12


def test_graphs_of_a_batch_are_samples_and_repeated_in_order() -> None:
    samples = samples_of(Batch.from_data_list([graph(2), graph(5)]))
    assert samples.count == 2
    assert samples.take(3).num_nodes == 2 + 5 + 2
    assert samples.take(3).num_graphs == 3
    assert samples.extent == (4, 11, 4)


def test_a_graph_with_several_kinds_of_nodes_is_one_sample() -> None:
    mixed = HeteroData(a={"x": torch.rand(3, 2)}, b={"x": torch.rand(4, 2)})
    mixed["a", "to", "b"].edge_index = torch.zeros(2, 6, dtype=torch.long)
    samples = samples_of(mixed)
    assert samples.count == 1
    assert samples.take(2)["b"].x.shape == (8, 2)
    assert samples.extent.rows == 7


def test_an_outline_has_integers_and_no_floats() -> None:
    batch = samples_of(Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))).take(2, outline=True)
    assert batch.x.is_meta and batch.x.shape == (6, 2)
    assert batch.edge_index.tolist() == [[0, 1, 3, 4], [1, 2, 4, 5]]


def test_a_view_counts_as_what_it_shows() -> None:
    samples = samples_of(torch.zeros(1000, 10)[:2])
    assert sum(part.untyped_storage().nbytes() for part in tensors_of(samples.take(1))) == 40


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (torch.tensor(1.0), r"one batch dimension, the first; their shapes are \(\)"),
        ((torch.zeros(2), torch.zeros(3)), r"shapes are \(2,\), \(3,\)"),
        ([], "shapes are none"),
        ((torch.zeros(2), "words"), "str has no batch"),
        (torch.eye(2).to_sparse(), r"torch\.sparse_coo tensor has no batch"),
        (Data(), "a graph without nodes"),
    ],
)
def test_what_has_no_batch_is_refused(sample: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        samples_of(sample)
