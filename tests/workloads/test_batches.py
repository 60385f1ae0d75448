"""Batches that are graphs of PyTorch Geometric, wherever the training loop touches a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import SAGEConv

from tests.support.toy import Batched, Toy
from tests.training.test_graphs import Again
from tuner.estimation.tracing.tracer import trace_workload
from tuner.search.configurations import complete
from tuner.training.graphs import GraphedSteps
from tuner.training.loop import fit
from tuner.training.optimizers import build_optimizer
from tuner.trial import Config, Trial
from tuner.workloads.batches import changed, tensors_of
from tuner.workloads.contract import built
from tuner.workloads.micro_batches import sample_count

X = torch.arange(8.0).view(8, 1)


def hetero() -> HeteroData:
    graph = HeteroData()
    graph["user"].x, graph["item"].x = X, X[:4]
    return graph


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (Data(x=X), 1),
        (hetero(), 1),
        (Data(x=X, batch_size=3), 3),  # as NeighborLoader's
        (Batch.from_data_list([Data(x=X), Data(x=X)]), 2),
    ],
)
def test_a_graphs_samples_are_counted(graph: Any, count: int) -> None:
    assert sample_count(Toy(), graph) == count


@pytest.mark.parametrize("graph", [Data(x=X, name="a graph"), hetero()])
def test_a_changed_graph_leaves_the_given_one_as_it_was(graph: Any) -> None:
    first, in_a_tuple = changed(graph, lambda part: part + 1), changed((graph, X), lambda part: part + 1)
    for found in (first, in_a_tuple[0]):
        assert type(found) is type(graph)
        torch.testing.assert_close(tensors_of(found)[0], X + 1)
    torch.testing.assert_close(tensors_of(graph)[0], torch.arange(8.0).view(8, 1))


class InGraphs(Batched):
    """The batches of ``Batched``, each as a graph."""

    def batches(self, config: Config, data: Any) -> Iterator[Any]:
        for x, y in super().batches(config, data):
            yield Data(x=x, y=y, batch_size=len(x))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, (batch.x, batch.y))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_graphs_are_trained_and_traced_as_tuples_are(accumulation: int) -> None:
    def found(workload: Batched) -> tuple[list[float], int]:
        config = complete({"batch_size": 8, "accumulation": accumulation}, workload.schema)
        _, *reports, _ = fit(workload, Trial("t", workload.name, "t", config, seed=0), None, "cpu")
        traced = trace_workload(workload, config, None, device_kind="cuda")
        return [report.metrics["val_loss"] for report in reports], traced.peak_bytes()

    assert found(InGraphs()) == found(Batched())


def test_a_step_on_graphs_is_recorded_as_a_cuda_graph() -> None:
    config = complete({}, InGraphs().schema)
    model = InGraphs().build_model(config, None)
    optimizer = build_optimizer(InGraphs(), model, config)
    notes: list[str] = []
    recorder = Again()
    graphed = GraphedSteps(InGraphs(), model, optimizer, config, None, notes, recorder=recorder)
    for _ in range(2):
        for batch in InGraphs().batches(config, None):
            graphed(Data(x=batch.x, y=batch.y))
    assert (recorder.launched, notes) == (5, [])


def test_pyg_leaves_no_file_for_the_layers_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class New(SAGEConv):
        pass

    class Layered(Toy):
        def build_model(self, config: Config, data: Any) -> nn.Module:
            layer = New(1, 1)
            assert [path.suffix for path in tmp_path.iterdir()] == [".py"], "PyG writes one for each new class"
            return layer

    assert type(built(Layered(), complete({}, Layered().schema), None)).__name__ == "New"
    assert list(tmp_path.iterdir()) == []
