"""Sparse matrices and sparse gradients: a trace has the blocks of the emulated card, and the CPU's peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from tests.estimation.tracing.test_kernels_on_cuda import EDGES, NODES, H, drawn, holds
from tests.estimation.tracing.test_tracer import check_against_profiler
from tests.support.cuda_events import on_card, traced
from tuner.estimation.tracing.tracer import Parts

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "SGD": partial(SGD, lr=0.1),
    "SGD with momentum": partial(SGD, lr=0.1, momentum=0.9),
    "Adagrad": Adagrad,
    "SparseAdam": lambda parameters: SparseAdam(list(parameters)),
}
TABLES: dict[str, Callable[[], nn.Module]] = {
    "embeddings": partial(nn.Embedding, NODES, H, sparse=True),
    "bags, summed": partial(nn.EmbeddingBag, NODES, H, sparse=True, mode="sum"),
    "bags, averaged": partial(nn.EmbeddingBag, NODES, H, sparse=True),
}


@pytest.mark.emulated
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_table_with_a_sparse_gradient(name: str, is_expanded: bool) -> None:
    def make(device: str) -> Callable[[], object]:
        table, rows, scale = TABLES[name]().to(device), drawn(6000, NODES, torch.device(device)), torch.randn(H)
        optimizer, rows, scale = SGD(table.parameters(), 0.1), rows.view(100, 60), scale.to(device)

        def run() -> None:
            (table(rows) if is_expanded else table(rows) * scale).sum().backward()
            optimizer.step()

        return run

    holds(make)


@pytest.mark.emulated
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_a_sparse_gradient(name: str) -> None:
    """Its rows differ, as the emulated card's sorts find no element."""

    def make(device: str) -> Callable[[], object]:
        table = nn.Parameter(torch.randn(NODES, H, device=device))
        optimizer, rows = OPTIMIZERS[name]([table]), torch.arange(3000, device=device)[None]

        def run() -> None:
            for _ in range(2):
                values = torch.randn(3000, H, device=device)
                table.grad = torch.sparse_coo_tensor(rows, values, table.shape, is_coalesced=True)
                del values
                optimizer.step()

        return run

    holds(make)


@pytest.mark.emulated
def test_rows_of_a_sparse_gradient_are_sorted_and_summed() -> None:
    def make(device: str) -> Callable[[], object]:
        rows = drawn(EDGES, NODES, torch.device(device))[None]
        gradient = torch.sparse_coo_tensor(rows, torch.randn(EDGES, 2, device=device), (NODES, 2))
        return lambda: gradient.coalesce()

    real, said = on_card(make), traced(make)
    assert said.peak == real.peak


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("table", TABLES)
def test_a_sparse_gradient_on_the_cpu(optimizer: str, table: str) -> None:
    def make() -> Parts:
        model, rows, scale = TABLES[table](), drawn(6000, NODES, torch.device("cpu")).view(100, 60), torch.randn(H)
        return model, OPTIMIZERS[optimizer](model.parameters()), lambda: (model(rows) * scale).sum()

    check_against_profiler(make)


@pytest.mark.emulated
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_a_product_with_a_sparse_matrix(layout: torch.layout) -> None:
    """The emulated card's sorts find no element, so a transposed matrix in COO has no conversion."""
    places = torch.stack([drawn(EDGES, NODES, torch.device("cpu")), torch.arange(EDGES) % NODES])
    edges = torch.sparse_coo_tensor(places, torch.ones(EDGES), (NODES, NODES)).coalesce()
    matrix = edges.to_sparse_csr() if layout is torch.sparse_csr else edges

    def make(device: str) -> Callable[[], object]:
        adjacency, x = matrix.to(device) if device == "cuda" else matrix, torch.randn(NODES, H, device=device)
        needed = x.requires_grad_(layout is torch.sparse_csr)
        return lambda: (adjacency @ needed).sum().backward() if needed.requires_grad else adjacency @ needed

    real, said = on_card(make), traced(make)
    assert said.peak == pytest.approx(real.peak, rel=0.01)
