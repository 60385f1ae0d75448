from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv

from tests.support.can_graphs import NUM_IDS, random_batch, random_graphs
from tests.support.changed_batch import changed
from tuner.errors import InputError
from tuner.training.step import recomputing
from tuner.workloads.kd_gat import networks
from tuner.workloads.kd_gat.distillation import difficulty, gat_loss, vgae_loss
from tuner.workloads.kd_gat.networks import GAT, VGAE, GraphAttention, edges_of, graph_mean

SIZES = {
    "teacher": {"hidden_channels": 480, "latent_channels": 48, "heads": 4},
    "student": {"hidden_channels": 80, "latent_channels": 16, "heads": 1},
}
GAT_SIZES = {
    "teacher": {"hidden_channels": 48, "num_layers": 3, "heads": 8},
    "student": {"hidden_channels": 24, "num_layers": 2, "heads": 4},
}


def vgae(seed: int = 0, **options: Any) -> VGAE:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_channels": 16, "latent_channels": 4, "heads": 2, "dropout": 0.2}
    return VGAE(NUM_IDS, **{**sizes, **options})


def gat(seed: int = 0, **options: Any) -> GAT:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_channels": 8, "num_layers": 2, "heads": 2, "dropout": 0.2}
    return GAT(NUM_IDS, **{**sizes, **options})


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return vgae_loss(model(batch), batch) if isinstance(model, VGAE) else gat_loss(model(batch), batch)


MODELS: dict[str, Callable[..., nn.Module]] = {"vgae": vgae, "gat": gat}


@pytest.fixture
def batch() -> Batch:
    return random_batch(6)


# ------------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("part", [5, 10_000])
def test_attention_and_its_gradients_are_those_of_pyg(
    part: int, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "PART", part)
    ours, theirs = GraphAttention(10, 4, heads=3), GATConv(10, 4, heads=3, edge_dim=1, add_self_loops=False)
    theirs.load_state_dict(ours.state_dict())
    edges, found = edges_of(batch), []
    for layer in (ours, theirs):
        x = batch.x.clone().requires_grad_()
        out = layer(x, *edges)
        out.square().sum().backward()
        found.append([out.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_the_gradients_of_the_sum_over_edges_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "PART", 3)
    edge_index = torch.tensor([[0, 1, 3, 3, 0, 0, 1, 2, 3], [1, 1, 2, 0, 3, 0, 1, 2, 3]])
    inputs = [torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in ((4, 2, 3), (9, 2))]
    layer = GraphAttention(3, 3, heads=2)
    assert torch.autograd.gradcheck(lambda x, alpha: layer.message_and_aggregate(edge_index, x, alpha), inputs)


def test_a_node_that_nothing_leads_to_attends_to_itself() -> None:
    layer, x = GraphAttention(3, 2, heads=2), torch.randn(2, 3)
    out = layer(x, *edges_of(Data(x=x, edge_index=torch.tensor([[0], [1]]), edge_attr=torch.ones(1, 1))))
    torch.testing.assert_close(out[0], layer.lin(x)[0])


def test_scores_of_a_thousand_are_no_trouble() -> None:
    layer = GraphAttention(3, 2, heads=1)
    edge_index = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [3, 3, 0, 0, 1, 2, 3]])
    out = layer(torch.randn(4, 3) * 1e4, edge_index, torch.full((7, 1), 1e4))
    out.sum().backward()
    assert out.isfinite().all()
    assert layer.att_edge.grad.isfinite().all()


def test_weights_of_earlier_versions_give_the_same_results(batch: Batch) -> None:
    layer = GraphAttention(10, 4, heads=3)
    state, edge = layer.state_dict(), (layer.lin_edge.weight.view(3, 4) * layer.att_edge[0]).sum(1)
    old = {"linear.weight": state["lin.weight"], "source": state["att_src"][0], "target": state["att_dst"][0]}
    again = GraphAttention(10, 4, heads=3)
    again.load_state_dict({**old, "edge": edge[None], "bias": state["bias"]})
    torch.testing.assert_close(again(batch.x, *edges_of(batch)), layer(batch.x, *edges_of(batch)))


# ---------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("use_id", [True, False])
@pytest.mark.parametrize("num_ids", [30, 300])
def test_a_student_has_less_than_a_tenth_of_its_teachers_parameters(num_ids: int, use_id: bool) -> None:
    for build, sizes in ((VGAE, SIZES), (GAT, GAT_SIZES)):
        teacher, student = (
            sum(p.numel() for p in build(num_ids, dropout=0.0, use_id=use_id, **sizes[who]).parameters())
            for who in ("teacher", "student")
        )
        assert student < 0.1 * teacher


@pytest.mark.parametrize("channels", [{"hidden_channels": 18}, {"latent_channels": 3}])
def test_heads_that_do_not_divide_the_channels_are_refused(channels: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"hidden_channels.*latent_channels.*must be multiples of heads"):
        vgae(**channels)


def reordered(batch: Batch, seed: int) -> Batch:
    """The same graphs with their nodes and edges in another order."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.ids), generator=random)
    edges = torch.randperm(batch.num_edges, generator=random)
    return changed(
        batch,
        batch=batch.batch[order],
        ids=batch.ids[order],
        x=batch.x[order],
        edge_index=order.argsort()[batch.edge_index][:, edges],
        edge_attr=batch.edge_attr[edges],
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_of_a_graph_does_not_depend_on_the_order_of_its_nodes(seed: int, batch: Batch) -> None:
    classifier, autoencoder = gat().eval(), vgae().eval()
    torch.testing.assert_close(classifier(reordered(batch, seed)), classifier(batch))
    torch.testing.assert_close(difficulty(autoencoder, [reordered(batch, seed)]), difficulty(autoencoder, [batch]))


def test_nor_on_the_other_graphs_of_its_batch() -> None:
    graphs, model = random_graphs(3), gat().eval()
    alone = torch.cat([model(Batch.from_data_list([graph])) for graph in graphs])
    torch.testing.assert_close(model(Batch.from_data_list(graphs)), alone)


@pytest.mark.parametrize("name", MODELS)
def test_with_ids_left_out_no_id_makes_a_difference(name: str, batch: Batch) -> None:
    other = changed(batch, ids=torch.zeros_like(batch.ids))
    for use_id, same in ((False, True), (True, False)):
        model = MODELS[name](use_id=use_id).eval()
        with torch.no_grad():
            losses = [float(loss_of(model, given)) for given in (batch, other)]
        assert (losses[0] == losses[1]) is same


def test_latent_variables_are_drawn_in_training_only(batch: Batch) -> None:
    model = vgae()
    output = model(batch)
    assert not torch.equal(output.z, output.mean)
    output = model.eval()(batch)
    assert torch.equal(output.z, output.mean)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_the_same_again(name: str, batch: Batch) -> None:
    def step() -> list[Tensor | None]:
        model = MODELS[name]()
        loss_of(model, batch).backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, step(), step()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("amp", [False, True])
def test_computed_again_in_backward_all_is_the_same_to_the_last_digit(name: str, amp: bool, batch: Batch) -> None:
    def step(again: bool) -> list[Tensor | None]:
        model: Any = MODELS[name]()
        with recomputing(model.checkpointed if again else []), torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = loss_of(model, batch)
        loss.backward()
        assert loss.dtype == torch.float32
        return [parameter.grad for parameter in model.parameters()] + [*model.buffers()]

    assert all(map(torch.equal, step(again=True), step(again=False)))


@pytest.mark.parametrize("name", MODELS)
def test_losses_in_bfloat16_are_about_those_in_float32(name: str, batch: Batch) -> None:
    model = MODELS[name]().eval()
    plain = loss_of(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss_of(model, batch).item() == pytest.approx(plain.item(), rel=0.02)


def trained(model: nn.Module, batch: Batch, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def test_a_classifier_learns_a_handful_of_graphs_by_heart(batch: Batch) -> None:
    marked = batch.x.clone()
    marked[:, 0] = batch.y[batch.batch].float()
    batch, model = changed(batch, x=marked), gat(dropout=0.0)
    trained(model, batch, 20)
    assert torch.equal(model(batch).argmax(1), batch.y)


def test_an_autoencoder_learns_whose_nodes_they_are() -> None:
    batch, model = random_batch(6, frames=8), vgae(dropout=0.0, hidden_channels=32, latent_channels=16)
    before = difficulty(model.eval(), [batch])
    trained(model.train(), batch, 50)
    output = model.eval()(batch)
    assert output.ids is not None and (output.ids.argmax(1) == batch.ids).float().mean() > 0.6  # chance: 1 in 9
    assert (difficulty(model, [batch]) < 0.8 * before).all()


# --------------------------------------------------------------------------------------------------------- scoring


def test_difficulties_in_chunks_are_those_of_all_at_once() -> None:
    graphs, model = random_graphs(10), vgae().eval()
    chunks = (Batch.from_data_list(graphs[begin : begin + 3]) for begin in range(0, 10, 3))
    whole = difficulty(model, [Batch.from_data_list(graphs)])
    torch.testing.assert_close(difficulty(model, chunks), whole, rtol=1e-6, atol=1e-6)


def test_an_unknown_id_makes_a_normal_graph_more_difficult() -> None:
    """What CE(id) is for: the vocabulary's entry 0 never occurs while the VGAE is trained."""
    graph = random_batch(4)
    normal = changed(graph, ids=graph.ids.clamp(min=1))
    model = vgae(dropout=0.0)
    trained(model, normal, 40)
    strange = changed(normal, ids=torch.zeros_like(graph.ids))
    assert (difficulty(model.eval(), [strange]) > difficulty(model, [normal])).all()


def test_every_graph_counts_the_same_however_many_nodes_it_has(batch: Batch) -> None:
    expected = torch.stack([batch.x[batch.batch == graph].mean(0) for graph in range(6)])
    torch.testing.assert_close(graph_mean(batch.x, batch), expected)
