from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tuner.workloads.gt_ssl import evaluation
from tuner.workloads.gt_ssl.evaluation import STRENGTHS, probe_accuracy, ridge


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def accuracy(embeddings: Tensor, labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    found = probe_accuracy(embeddings, labels)
    assert found is not None
    return float(found)


@pytest.mark.parametrize("classes", [2, 3])
def test_what_can_be_separated_is_told_apart(classes: int) -> None:
    labels = np.arange(60) % classes
    embeddings = noise(60, 8)
    embeddings[torch.arange(60), torch.from_numpy(labels)] += 20
    assert accuracy(embeddings, labels) == 1.0


def test_noise_tells_nothing() -> None:
    found = [accuracy(noise(80, 8, seed=seed), np.arange(80) % 2) for seed in range(10)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


def test_more_channels_than_samples_do_no_harm() -> None:
    labels = np.arange(20) % 2
    assert accuracy(noise(20, 200) + 5 * torch.from_numpy(labels)[:, None], labels) == 1.0
    found = [accuracy(noise(20, 200, seed=seed), labels) for seed in range(20)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("labels", [[0] * 9, [0] * 8 + [1], [0, 1, 2], [3, 3, 3, 3]])
def test_without_two_classes_of_two_samples_there_is_none(labels: list[int]) -> None:
    assert probe_accuracy(noise(len(labels), 4), np.array(labels)) is None


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 1, 1, 2], [1, 1, 4, 4]])
def test_the_fewest_samples_give_a_number(labels: list[int]) -> None:
    assert 0 <= accuracy(noise(len(labels), 4), np.array(labels)) <= 1


def test_the_order_of_classes_does_not_matter() -> None:
    labels = np.array([0] * 23 + [1] * 14 + [2] * 9)
    embeddings = noise(46, 8)
    found = {accuracy(embeddings, np.array(names)[labels]) for names in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [5, 3, 4])}
    assert len(found) == 1


def test_neither_scale_nor_shift_of_a_channel_matters() -> None:
    labels = np.arange(40) % 2
    embeddings = noise(40, 6) + torch.from_numpy(labels)[:, None] * 0.5
    changed = embeddings * torch.tensor([1e-3, 1, 10, 1e4, 1, 1]) + 100
    assert accuracy(changed, labels) == accuracy(embeddings, labels)
    assert accuracy(torch.cat([embeddings, torch.ones(40, 1)], dim=1), labels) == accuracy(embeddings, labels)


def test_folds_are_of_equal_size_and_stratified() -> None:
    labels = np.array([0] * 25 + [1] * 15)
    folds = evaluation._folds(labels, 10, 0)
    assert np.bincount(folds).tolist() == [4] * 10
    assert set(np.bincount(folds[labels == 0])) == {2, 3}
    assert set(np.bincount(folds[labels == 1])) == {1, 2}


# ------------------------------------------------------------------------------------------------ ridge


def by_normal_equations(x: Tensor, targets: Tensor, held: Tensor, strength: float) -> Tensor:
    """With an intercept that is not penalised, on features as they are."""
    center, middle = targets.mean(0), x.mean(0)
    x = x - middle
    weight = torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1]).double(), x.T @ (targets - center))
    predicted: Tensor = (held - middle) @ weight + center
    return predicted


def leave_one_out(x: Tensor, targets: Tensor, strength: float) -> float:
    total = 0.0
    for row in range(len(x)):
        rest = torch.arange(len(x)) != row
        predicted = by_normal_equations(x[rest], targets[rest], x[row : row + 1], strength)
        total += float((predicted - targets[row]).square().sum())
    return total


@pytest.mark.parametrize(("signal", "seed"), [(0.0, 0), (0.3, 1), (3.0, 2)])
def test_ridge_is_the_normal_equations_solution_of_the_best_penalty(signal: float, seed: int) -> None:
    targets, held = noise(25, 3, seed=seed), noise(7, 6, seed=seed + 10)
    x = noise(25, 6, seed=seed + 20) + signal * targets.repeat(1, 2)
    mean, scale = x.mean(0), x.std(0)
    errors = [leave_one_out((x - mean) / scale, targets, strength) for strength in STRENGTHS]
    best = STRENGTHS[int(np.argmin(errors))]
    expected = by_normal_equations((x - mean) / scale, targets, (held - mean) / scale, best)
    torch.testing.assert_close(ridge(x, targets, held), expected)


def test_the_penalty_is_larger_where_there_is_nothing_to_learn() -> None:
    x, held = noise(30, 5), noise(50, 5, seed=1)
    learned = ridge(x, x[:, :1], held)
    nothing = ridge(x, noise(30, 1, seed=3), held)
    torch.testing.assert_close(learned, held[:, :1], atol=0.02, rtol=0.02)
    assert float(nothing.std()) < 0.2
