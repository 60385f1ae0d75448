from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.kd_gat_models import config, model_of
from tuner.datasets.can import CanData
from tuner.training.step import evaluate
from tuner.trial import EVALUATION_PARTS
from tuner.workloads.kd_gat.batches import collate
from tuner.workloads.kd_gat.distillation import vgae_loss
from tuner.workloads.kd_gat.evaluation import attack_metrics, auroc, largest_errors
from tuner.workloads.kd_gat.graphs import usable
from tuner.workloads.kd_gat.workload import KDGAT


def test_attacks_that_are_told_are_counted() -> None:
    said = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])
    label = torch.tensor([1, 1, 0, 1, 1, 0, 0, 0])  # 2 found, 1 false alarm, 2 missed
    found = attack_metrics(said, label)
    expected = {"f1": 4 / 7, "precision": 2 / 3, "recall": 1 / 2, "accuracy": 5 / 8}
    assert found == pytest.approx(expected)


def test_where_none_is_told_the_score_is_0() -> None:
    none = torch.zeros(4, dtype=torch.int64)
    assert attack_metrics(none, torch.tensor([1, 0, 0, 1])) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 0.5}
    assert attack_metrics(none, none)["f1"] == 0


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    label = np.array([0, 0, 1, 1])
    assert auroc(np.array([0.1, 0.4, 0.35, 0.8]), label) == 0.75
    assert auroc(np.array([1.0, 2.0, 3.0, 4.0]), label) == 1
    assert auroc(np.array([4.0, 3.0, 2.0, 1.0]), label) == 0
    assert auroc(np.ones(4), label) == 0.5


def test_a_classifier_has_auroc_where_both_classes_are(traffic: CanData) -> None:
    model = model_of(traffic)
    assert 0 <= evaluate(KDGAT(), model, traffic, "test")["test_auroc"] <= 1
    normal = replace(traffic, test=usable(traffic, traffic.test, stage="autoencoder"))
    assert "test_auroc" not in evaluate(KDGAT(), model, normal, "test")


def test_the_largest_error_of_a_graphs_nodes_is_its_error(traffic: CanData) -> None:
    model = model_of(traffic, "autoencoder").student.eval()
    batch = collate(traffic, traffic.train[:4])
    with torch.no_grad():
        output, found = model(batch), largest_errors(model, batch)
    errors = (output.features - batch.x).square()
    for graph in range(4):
        torch.testing.assert_close(found[graph, :10], errors[batch.batch == graph].amax(0))
    assert found.shape == (4, 11)


def test_an_autoencoders_test_tells_attacks(traffic: CanData) -> None:
    model = model_of(traffic, "autoencoder")
    found = evaluate(KDGAT(), model, traffic, "test")
    assert set(found) == {f"test_{name}" for name in ("loss", "f1", "precision", "recall", "accuracy", "auroc")}
    assert set(evaluate(KDGAT(), model, traffic, "validation")) == {"val_loss"}
    normal = replace(traffic, test=usable(traffic, traffic.test, stage="autoencoder"))
    assert set(evaluate(KDGAT(), model, normal, "test")) == {"test_loss"}


def test_an_autoencoders_loss_is_the_mean_over_normal_graphs(traffic: CanData) -> None:
    model = model_of(traffic, "autoencoder")
    found = evaluate(KDGAT(), model, traffic, "validation")["val_loss"]
    batch = collate(traffic, usable(traffic, traffic.validation, stage="autoencoder"))
    with torch.no_grad():
        assert found == pytest.approx(float(vgae_loss(model.student(batch), batch)), rel=1e-5)


@pytest.mark.parametrize("stage", ["classifier", "autoencoder"])
def test_evaluation_in_parts_is_evaluation_at_once(stage: str, traffic: CanData) -> None:
    model, sizes = model_of(traffic, stage), []
    whole = evaluate(KDGAT(), model, traffic, "test")
    with model.student.register_forward_pre_hook(lambda _, given: sizes.append(given[0].num_graphs)):
        parts = evaluate(KDGAT(), model, traffic, "test", config={EVALUATION_PARTS: 3})
    assert parts == pytest.approx(whole, rel=1e-5)
    assert sizes[:3] == [4, 4, 4] if stage == "classifier" else max(sizes) < len(traffic.test)


def test_a_held_out_attack_is_all_that_a_test_is_of(traffic: CanData) -> None:
    model = model_of(traffic, held_out="dos")
    dos = traffic.attacks.index("dos")
    others = traffic.test[~np.isin(traffic.attack[traffic.test], [0, dos])]
    assert len(others) > 0
    without = replace(traffic, test=np.setdiff1d(traffic.test, others))
    assert evaluate(KDGAT(), model, traffic, "test") == evaluate(KDGAT(), model, without, "test")
    assert config(held_out="dos")["held_out"] == model.held_out
