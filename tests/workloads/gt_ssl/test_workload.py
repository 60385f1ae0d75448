from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool
from torch_geometric.nn.models.schnet import GaussianSmearing

from tests.support.changed_batch import changed
from tuner.datasets.swc import Tree
from tuner.datasets.trees import TreeData, build, split
from tuner.estimation.tracing.tracer import trace_workload
from tuner.search.configurations import complete
from tuner.training.endings import Fit
from tuner.training.loop import fit
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import representative_batches
from tuner.training.step import Steps, evaluate
from tuner.trial import EVALUATION_PARTS, EpochReport, Trial
from tuner.workloads.batches import tensors_of
from tuner.workloads.gt_ssl import model as model_module
from tuner.workloads.gt_ssl.batches import Limits, collate
from tuner.workloads.gt_ssl.evaluation import embed
from tuner.workloads.gt_ssl.model import (
    Encoder,
    GtSsl,
    Interaction,
    dihedral,
    growth_target,
    violation,
)
from tuner.workloads.gt_ssl.workload import GTSSL
from tuner.workloads.lookup import find_workload

SMALL: dict[str, Any] = {"hidden_channels": 8, "num_interactions": 2, "num_rbf_centers": 6, "n_negatives": 0}


class SGMP(nn.Module):
    """The supervised model of the paper: the encoder and a readout of the nodes' sum."""

    def __init__(self, encoder: Encoder, hidden_channels: int, num_outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.readout = nn.Sequential(
            nn.Linear(hidden_channels, hidden_channels // 2), nn.ReLU(), nn.Linear(hidden_channels // 2, num_outputs)
        )

    def forward(self, batch: Batch) -> Tensor:
        """(B, num_outputs)."""
        result: Tensor = self.readout(global_add_pool(self.encoder.embed(batch), batch.batch))
        return result


def config(**values: Any) -> dict[str, Any]:
    return complete({**SMALL, **values}, GTSSL.hyperparameters)


def model_of(data: TreeData, **values: Any) -> GtSsl:
    torch.manual_seed(0)
    return GTSSL().build_model(config(**values), data)


def batch_of(data: TreeData, *trees: int, negatives: int = 0) -> Batch:
    return collate(data, trees, Limits(100, 10**9, 0, negatives), np.random.default_rng(0))


@pytest.fixture
def model(trees: TreeData) -> GtSsl:
    return model_of(trees)


@pytest.fixture
def batch(trees: TreeData) -> Batch:
    return batch_of(trees, 0, 1, negatives=16)


# ------------------------------------------------------------------------------------------------ symmetries


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(5, hidden_channels=32, num_interactions=3, num_rbf_centers=20)


class Blind(nn.Module):
    """A basis that does not see a dihedral's sign."""

    def __init__(self, basis: nn.Module) -> None:
        super().__init__()
        self.basis = basis

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.basis(x.abs())
        return seen


def orthogonal(seed: int, determinant: int) -> Tensor:
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    if np.sign(np.linalg.det(q)) != determinant:
        q[:, 0] *= -1
    return torch.from_numpy(q)


def moved(batch: Batch, seed: int, *, mirrored: bool = False) -> Batch:
    """The same trees turned, and shifted as a whole."""
    turned = batch.pos.double() @ orthogonal(seed, -1 if mirrored else 1).T
    shift = torch.from_numpy(np.random.default_rng(seed).normal(scale=5, size=3))
    return changed(batch, pos=(turned + shift).float())


@torch.no_grad()
def embedded(encoder: Encoder, batch: Batch) -> Tensor:
    return encoder.embed(batch)


@torch.no_grad()
def change(encoder: Encoder, one: Batch, other: Batch) -> float:
    return float((embedded(encoder, one) - embedded(encoder, other)).abs().max())


FLATTENED = {"as it is": [1.0, 1.0, 1.0], "flat": [1.0, 1.0, 0.0], "in a line": [1.0, 0.0, 0.0], "a point": [0.0] * 3}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", FLATTENED)
def test_embeddings_do_not_change_by_rotation_and_translation(
    shape: str, seed: int, encoder: Encoder, batch: Batch
) -> None:
    batch = changed(batch, pos=batch.pos * torch.tensor(FLATTENED[shape]))
    assert change(encoder, batch, moved(batch, seed)) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_nor_where_nodes_are_on_a_grid(seed: int, encoder: Encoder, batch: Batch) -> None:
    batch = changed(batch, pos=batch.pos.round())  # many right angles, straight paths and nodes in one place
    assert change(encoder, batch, moved(batch, seed)) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_changes_embeddings_by_the_dihedrals_sign_alone(seed: int, encoder: Encoder, batch: Batch) -> None:
    mirrored = moved(batch, seed, mirrored=True)
    assert change(encoder, batch, mirrored) > 1e-2
    encoder.geometry.dihedral = Blind(encoder.geometry.dihedral)  # type: ignore[assignment]
    assert change(encoder, batch, mirrored) < 1e-4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["flat", "in a line"])
def test_flat_trees_are_their_own_mirror_images(shape: str, seed: int, encoder: Encoder, batch: Batch) -> None:
    batch = changed(batch, pos=batch.pos * torch.tensor(FLATTENED[shape]))
    assert change(encoder, batch, moved(batch, seed, mirrored=True)) < 1e-4


def test_other_shapes_have_other_embeddings(encoder: Encoder, batch: Batch) -> None:
    assert change(encoder, batch, changed(batch, pos=batch.pos * 1.1)) > 1e-2
    assert change(encoder, batch, changed(batch, pos=batch.pos + 0.1)) < 1e-4


def test_renaming_nodes_renames_their_embeddings(encoder: Encoder, batch: Batch) -> None:
    order = torch.randperm(len(batch.x), generator=torch.Generator().manual_seed(0))
    name = order.argsort()  # node v is now called name[v]
    shuffled = torch.randperm(batch.path_index.shape[1], generator=torch.Generator().manual_seed(1))
    renamed = changed(batch, x=batch.x[order], pos=batch.pos[order], path_index=name[batch.path_index][:, shuffled])
    torch.testing.assert_close(embedded(encoder, renamed), embedded(encoder, batch)[order], atol=1e-5, rtol=1e-5)


def test_dihedrals_are_those_of_known_paths() -> None:
    u, v = torch.tensor([[1.0, 0, 0]]).expand(4, 3), torch.tensor([[0.0, 1, 0]]).expand(4, 3)
    w = torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, -1, 0], [0, 0, -1]])
    quarter = torch.pi / 2
    assert dihedral(u, v, w).tolist() == pytest.approx([0, quarter, 2 * quarter, -quarter])
    assert dihedral(u, -u, w).tolist() == [0, 0, 0, 0]  # in a line there is no plane to turn from


def test_sizes_are_those_of_the_paper() -> None:
    sizes = {"num_rbf_centers": 50, "num_angle_centers": 6, "num_dihedral_centers": 12}
    encoder = Encoder(5, hidden_channels=64, num_interactions=3, **sizes)
    counted = (encoder.interactions[0], SGMP(encoder, 64, 2))
    assert isinstance(counted[0], Interaction)
    assert [sum(p.numel() for p in module.parameters()) for module in counted] == [179_904, 546_402]


def test_the_readout_sums_each_trees_nodes(trees: TreeData) -> None:
    sgmp = SGMP(model_of(trees).encoder, 8, 2)
    both, alone = batch_of(trees, 0, 1), [batch_of(trees, tree) for tree in (0, 1)]
    torch.testing.assert_close(sgmp(both), torch.cat([sgmp(tree) for tree in alone]))


# ------------------------------------------------------------------------------------------------ no leak


def subtree(data: TreeData, node: int) -> list[int]:
    return list(range(node, int(data.end[node])))


def perturbed(batch: Batch, nodes: Sequence[int]) -> Batch:
    """Some nodes elsewhere, and all that features tell of them with them."""
    position, features = batch.pos.clone(), batch.x.clone()
    position[nodes] += 3
    features[nodes] += 1
    return changed(batch, pos=position, x=features)


def test_a_growth_prediction_knows_nothing_of_what_is_below(model: GtSsl, trees: TreeData) -> None:
    batch = batch_of(trees, 0)
    before = model.growth_prediction(batch)
    for parent, child in batch.edge_index.T.tolist():
        after = model.growth_prediction(perturbed(batch, subtree(trees, child)))
        outside = [node for node in range(len(before)) if node not in subtree(trees, child)]
        assert torch.equal(after[outside], before[outside])
        assert parent in outside


def test_nor_whether_there_is_anything_below(model: GtSsl) -> None:
    deep = Tree(np.random.default_rng(0).normal(size=(9, 3)), np.ones(9), np.array([-1, 0, 1, 2, 3, 4, 4, 2, 0]))
    data = build([deep], np.zeros(1, dtype=np.int64), "", ("",))
    kept = [0, 1, 2, 3, 4]  # a line, of which all that hangs on it is gone
    batch = batch_of(data, 0)
    line = collate(_cut(data, kept), [0], Limits(1, 10**9, 0, 0), np.random.default_rng(0))
    assert torch.equal(line.x, batch.x[kept])
    torch.testing.assert_close(model.growth_prediction(line), model.growth_prediction(batch)[kept])


def _cut(data: TreeData, kept: list[int]) -> TreeData:
    """The first nodes of a tree, in the units of the whole."""
    short = Tree(data.position[kept].astype(float), np.ones(len(kept)), data.parent[kept].astype(np.int64))
    cut = build([short], np.zeros(1, dtype=np.int64), "", ("",))
    values = {name: getattr(cut, name) for name in cut.__dataclass_fields__}
    return TreeData(**{**values, "position": data.position[kept], "features": data.features[kept]})


def test_it_does_know_the_node_and_its_ancestors(model: GtSsl, trees: TreeData) -> None:
    batch = batch_of(trees, 0)
    chain = batch.chain_index[:, 0].tolist()
    before = model.growth_prediction(batch)[chain[0]]
    for node in chain:
        position = batch.pos.clone()
        position[node] += 0.5
        assert not torch.equal(model.growth_prediction(changed(batch, pos=position))[chain[0]], before)


def test_embeddings_do_know_what_is_below(model: GtSsl, trees: TreeData) -> None:
    batch = batch_of(trees, 0)
    before, after = (embedded(model.encoder, given) for given in (batch, perturbed(batch, subtree(trees, 1))))
    assert not torch.equal(before[0], after[0])


# ------------------------------------------------------------------------------------------------ losses


def test_growth_targets_sum_to_one_where_there_are_children(trees: TreeData) -> None:
    batch = batch_of(trees, 0, 1)
    for basis in (
        GaussianSmearing(0, 10, 20),
        GaussianSmearing(0, 0.1, 50),
    ):  # nearly all edges are beyond the latter
        total = growth_target(basis, batch).sum(1)
        inner = torch.isin(torch.arange(len(total)), batch.edge_index[0])
        torch.testing.assert_close(total, inner.float())


def test_a_growth_target_is_where_the_children_are() -> None:
    tree = Tree(np.array([[0.0, 0, 0], [2, 0, 0], [0, 6, 0], [0, 6, 40]]), np.ones(4), np.array([-1, 0, 0, 2]))
    batch = batch_of(build([tree], np.zeros(1, dtype=np.int64), "", ("",)), 0)
    target = growth_target(GaussianSmearing(0, 1, 9), changed(batch, pos=batch.pos * 2))
    near, far = 4 / 16, 12 / 16  # the mean edge is 16
    assert target[0].topk(2).indices.sort().values.tolist() == [near * 8, far * 8]
    assert target[2].argmax() == 8
    assert target[[1, 3]].sum() == 0


def test_the_growth_loss_is_the_earth_movers_distance(model: GtSsl, trees: TreeData) -> None:
    batch = batch_of(trees, 0)
    predicted = model.growth_prediction(batch).detach()
    torch.testing.assert_close(predicted.sum(1), torch.ones(len(predicted)))
    target = growth_target(model.encoder.geometry.distance, batch)
    inner = sorted(set(batch.edge_index[0].tolist()))
    distances = [
        sum(abs(float(predicted[node, : end + 1].sum() - target[node, : end + 1].sum())) for end in range(6))
        for node in inner
    ]
    near, far = model.encoder.geometry.distance.offset[:2].tolist()
    assert model.growth_loss(batch).item() == pytest.approx((far - near) * np.mean(distances), rel=1e-4)


def test_ordered_embeddings_have_no_order_loss(model: GtSsl, trees: TreeData) -> None:
    batch = batch_of(trees, 0, negatives=500)
    nodes = torch.arange(len(batch.x))
    below = (nodes >= nodes[:, None]) & (nodes < torch.from_numpy(trees.end[nodes.numpy()])[:, None])
    assert float(model.order_loss(batch, below.float())) == 0  # each node's set holds those of its descendants
    assert float(model.order_loss(batch, -below.float())) > 1
    assert violation(torch.tensor([[1.0, 0], [2, -3]]), torch.tensor([[0, 1], [1, 0]])).tolist() == [1, 9]


def test_losses_are_means_over_trees(model: GtSsl, trees: TreeData) -> None:
    together = torch.stack(model(batch_of(trees, 0, 1, 2)))
    alone = torch.stack([torch.stack(model(batch_of(trees, tree))) for tree in (0, 1, 2)])
    torch.testing.assert_close(together, alone.mean(0))


def test_the_order_loss_counts_by_its_weight(trees: TreeData) -> None:
    batch = batch_of(trees, 0)
    growth, order = model_of(trees)(batch)
    for weight in (0.0, 0.3):
        loss = GTSSL().loss(model_of(trees, lambda_order=weight), batch)
        torch.testing.assert_close(loss, growth + weight * order)


def test_micro_batches_have_the_gradients_of_the_whole(trees: TreeData) -> None:
    def gradients(*batches: Batch) -> tuple[Tensor, list[Tensor]]:
        model = model_of(trees)
        step = Steps(GTSSL(), model, build_optimizer(GTSSL(), model, config(weight_decay=0.0)), {})
        loss = step(*batches)
        return loss, [p.grad for p in model.parameters() if p.grad is not None]

    whole = gradients(batch_of(trees, 0, 1, 2))
    parts = gradients(batch_of(trees, 0, 1), batch_of(trees, 2))
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)
    assert len(whole[1]) == len(list(model_of(trees).parameters()))


def test_subsampled_paths_stand_for_all(trees: TreeData) -> None:
    encoder = model_of(trees, num_interactions=1).encoder
    whole = embedded(encoder, batch_of(trees, 0)).sum(0)
    limits = Limits(1, int(trees.first_path[1]) * 2 // 3, 0, 0)
    draws = [collate(trees, [0], limits, np.random.default_rng(seed)) for seed in range(30)]
    mean = torch.stack([embedded(encoder, draw).sum(0) for draw in draws]).mean(0)
    assert float((mean - whole).norm() / whole.norm()) < 0.2


# ------------------------------------------------------------------------------------------------ the workload


def test_an_epoch_is_every_training_tree_once_in_a_new_order(trees: TreeData) -> None:
    torch.manual_seed(0)
    epochs = [list(GTSSL().batches(config(batch_size=3), trees)) for _ in range(2)]
    assert [[batch.num_graphs for batch in epoch] for epoch in epochs] == [[3, 3, 2]] * 2
    one, other = (torch.cat([batch.x for batch in epoch]) for epoch in epochs)
    assert len(one) == sum(int(trees.first[tree + 1] - trees.first[tree]) for tree in trees.train)
    assert not torch.equal(one, other)
    assert torch.equal(one.sort(0).values, other.sort(0).values)


def test_the_same_generator_gives_the_same_batches(trees: TreeData) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(list(GTSSL().batches(config(n_negatives=8), trees)))
    for one, other in zip(*drawn, strict=True):
        assert all(map(torch.equal, tensors_of(one), tensors_of(other)))


def test_evaluation_is_the_same_every_time(model: GtSsl, trees: TreeData) -> None:
    first = evaluate(GTSSL(), model, trees, "validation")
    torch.manual_seed(99)
    assert evaluate(GTSSL(), model, trees, "validation") == first
    assert set(first) == {"val_loss", "val_growth_loss", "val_order_loss"}
    assert first["val_loss"] == pytest.approx(first["val_growth_loss"] + first["val_order_loss"])


def test_the_splits_are_evaluated_apart(model: GtSsl, trees: TreeData) -> None:
    validation, test = (evaluate(GTSSL(), model, trees, split) for split in ("validation", "test"))
    assert validation["val_loss"] != test["test_loss"]


def test_the_test_holds_the_probes_accuracy(model: GtSsl, trees: TreeData) -> None:
    found = evaluate(GTSSL(), model, trees, "test")
    assert set(found) == {"test_loss", "test_growth_loss", "test_order_loss", "test_probe_accuracy"}
    assert 0 <= found["test_probe_accuracy"] <= 1


def test_without_labels_there_is_no_probe(model: GtSsl, trees: TreeData) -> None:
    values = {name: getattr(trees, name) for name in trees.__dataclass_fields__}
    nameless = TreeData(**{**values, "label": np.zeros(12, dtype=np.int32), "classes": ("",)})
    assert "test_probe_accuracy" not in evaluate(GTSSL(), model, nameless, "test")


def test_evaluation_in_parts_is_evaluation_at_once(
    model: GtSsl, trees: TreeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(GTSSL(), model, trees, "test")
    monkeypatch.setattr(model_module, "EVALUATION_PATHS", 37)
    parts = {EVALUATION_PARTS: 8}
    assert evaluate(GTSSL(), model, trees, "test", config=parts) == pytest.approx(whole, rel=1e-5)


def test_evaluation_agrees_with_the_training_loss(model: GtSsl, trees: TreeData) -> None:
    found = evaluate(GTSSL(), model, trees, "validation")
    growth = model.growth_loss(batch_of(trees, *trees.validation.tolist()))
    assert found["val_growth_loss"] == pytest.approx(growth.item(), rel=1e-5)


def test_a_trees_embedding_is_mean_and_deviation_of_its_nodes_or_their_sum(model: GtSsl, trees: TreeData) -> None:
    with torch.inference_mode():
        moments, total = (embed(model.encoder, trees, 5, readout) for readout in ("moments", "sum"))  # type: ignore[arg-type]
        h = embedded(model.encoder, batch_of(trees, 7))
    assert (moments.shape, total.shape) == ((12, 16), (12, 8))
    torch.testing.assert_close(total[7], h.sum(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(moments[7], torch.cat([h.mean(0), h.std(0, correction=0)]), atol=1e-4, rtol=1e-5)


def test_a_model_comes_back_from_its_weights_alone(model: GtSsl, trees: TreeData) -> None:
    again = find_workload("gt-ssl").restore_model(config(), model.state_dict())
    assert isinstance(again, GtSsl)
    batch = batch_of(trees, 0, negatives=8)
    assert torch.equal(torch.stack(again(batch)), torch.stack(model(batch)))


def test_data_are_described(trees: TreeData) -> None:
    text = GTSSL().describe(trees)
    assert text.startswith("12 trees: 12 trees, ")
    assert text.endswith("; 8 training, 2 validation and 2 test trees; classes: bushy 6, stemmed 6")
    label = np.array([0, 0, *range(10)], dtype=np.int32)
    many = dataclasses.replace(trees, label=label, classes=("", *"bcdefghijkl"))
    assert GTSSL().describe(many).endswith("in no folder 3, b 1, c 1, d 1, e 1, f 1, g 1, h 1, i 1, j 1 and 2 more")


def test_training_lowers_both_losses(trees: TreeData) -> None:
    chosen = config(hidden_channels=16, n_negatives=64, batch_size=2, lr=3e-3, epochs=12)
    *reports, result = fit(GTSSL(), Trial("001", "gt-ssl", "t", chosen, seed=0), trees, "cpu")
    assert isinstance(result, Fit)
    first, last = (report.metrics for report in (reports[1], reports[-1]) if isinstance(report, EpochReport))
    torch.manual_seed(0)
    untrained = evaluate(GTSSL(), GTSSL().build_model(chosen, trees), trees, "validation")
    for name in ("val_growth_loss", "val_order_loss"):
        assert last[name] < 0.8 * untrained[name], name
    assert last["train_loss"] < first["train_loss"]
    assert 0 <= result.metrics["test_probe_accuracy"] <= 1


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_trees_too_small_for_a_path_are_trained_on(nodes: int) -> None:
    tree = Tree(np.random.default_rng(0).normal(size=(nodes, 3)), np.ones(nodes), np.array([-1, 0, 0, 0][:nodes]))
    data = split(build([tree] * 4, np.array([0, 1, 0, 1]), "tiny", ("a", "b")), 0)
    chosen = config(n_negatives=4, epochs=2)
    *_, result = fit(GTSSL(), Trial("001", "gt-ssl", "t", chosen, seed=0), data, "cpu")
    assert isinstance(result, Fit)
    assert all(np.isfinite(value) for value in result.metrics.values())


# ------------------------------------------------------------------------------------------------ memory


def lowest() -> dict[str, Any]:
    """The smallest of everything that is a size."""
    sizes = ("hidden_channels", "num_interactions", "num_rbf_centers", "num_angle_centers", "num_dihedral_centers")
    return config(**{name: int(GTSSL.hyperparameters[name].low) for name in (*sizes, "batch_size", "n_negatives")})


def test_the_smallest_configuration_is_traced(trees: TreeData) -> None:
    trace = trace_workload(GTSSL(), lowest(), trees, device_kind="cuda")
    assert all(trace.parts_at_peak()[part] > 0 for part in ("parameters", "gradients", "optimizer", "data"))


def traced(data: TreeData, **values: Any) -> int:
    """Of a model whose training takes more than its evaluation."""
    return trace_workload(GTSSL(), config(hidden_channels=32, **values), data).peak_bytes()


def test_a_trace_is_of_the_largest_batch(trees: TreeData) -> None:
    chosen = config(batch_size=3)
    batch = next(iter(representative_batches(GTSSL(), chosen, trees)))
    paths = np.diff(trees.first_path)[trees.train]
    assert batch.path_index.shape[1] == np.sort(paths)[-3:].sum()
    one, eight = (traced(trees, batch_size=size) for size in (1, 8))
    assert eight > 1.5 * one


def test_weights_of_earlier_versions_give_the_same_losses(model: GtSsl, batch: Batch) -> None:
    def old(name: str) -> str:
        name = name.replace("mlp.", "message.").replace("offset", "centers")
        return re.sub(r"lins\.(\d)\.", lambda place: f"{2 * int(place[1])}.", name)

    weights = {old(name): value for name, value in model.state_dict().items()}
    assert {"encoder.input.0.weight", "encoder.interactions.0.message.4.bias"} <= weights.keys()
    again = GTSSL().restore_model(config(), weights)
    assert torch.equal(torch.stack(again(batch)), torch.stack(model(batch)))
