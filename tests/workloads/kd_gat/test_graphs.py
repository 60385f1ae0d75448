from __future__ import annotations

import numpy as np
import pytest

from tests.support.kd_gat_models import config, model_of
from tuner.datasets.can import CanData
from tuner.workloads.kd_gat.batches import select
from tuner.workloads.kd_gat.workload import KDGAT

# Twenty normal graphs, graph k with difficulty k, and two attacks.
GRAPHS = np.arange(22)
LABEL = np.array([0] * 20 + [1] * 2, dtype=np.int8)
DIFFICULTY = np.arange(22, dtype=np.float32)


def normal(progress: float, label: np.ndarray = LABEL) -> list[int]:
    chosen = select(GRAPHS, label, DIFFICULTY, progress)
    assert set(np.flatnonzero(label)) <= set(chosen.tolist())
    return [graph for graph in chosen.tolist() if not label[graph]]


def test_it_begins_with_as_many_hard_graphs_as_attacks() -> None:
    assert normal(0.0) == [18, 19]


def test_then_there_may_be_more_of_those_above_a_percentile_that_rises() -> None:
    many = np.array([0] * 12 + [1] * 10, dtype=np.int8)  # of difficulties 0 to 11, percentile 75 is 8.25, 95 is 10.45
    assert normal(0.0, many) == [9, 10, 11]
    assert normal(1.0, many) == [11]
    assert normal(0.5) == [17, 18, 19]  # percentile 85 of 0 to 19 is 16.15, and at most 11 are wanted


def test_graphs_stay_in_their_order() -> None:
    mixed = np.random.default_rng(0).permutation(22)
    chosen = select(mixed, LABEL, DIFFICULTY, 0.0)
    assert chosen.tolist() == [graph for graph in mixed.tolist() if graph >= 18]


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_without_attacks_one_graph_is_left(progress: float) -> None:
    assert normal(progress, np.zeros(22, dtype=np.int8)) == [21]


def test_an_epochs_graphs_follow_from_the_scorers_difficulties(traffic: CanData) -> None:
    chosen = config(curriculum=1, epochs=3)
    model = model_of(traffic, curriculum=1, epochs=3)
    assert KDGAT().epoch_data(model, chosen, traffic, 1) is traffic  # nothing is scored yet
    KDGAT().prepare(model, chosen, traffic)
    assert model.difficulty is not None
    assert (model.difficulty[traffic.train] > 0).all()
    first, last = (KDGAT().epoch_data(model, chosen, traffic, epoch).train for epoch in (1, 3))
    assert first.tolist() == select(traffic.train, traffic.label, model.difficulty, 0.0).tolist()
    assert last.tolist() == select(traffic.train, traffic.label, model.difficulty, 1.0).tolist()
    assert model.frozen == []  # the scorer has done its work
