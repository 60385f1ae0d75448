"""The probe of few labels in ``scripts/benchmark probe_gt_ssl``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from scripts.benchmarks.probe_gt_ssl import Few, drawn, few_accuracy, few_of_seed, main
from tuner.datasets.trees import TreeData
from tuner.workloads.gt_ssl.workload import GTSSL

LABEL = np.array([0, 1] * 20)


def test_a_draw_has_so_many_trees_of_each_class_and_is_the_same_again() -> None:
    trees = drawn(LABEL, 5, 3)
    assert np.bincount(LABEL[trees]).tolist() == [5, 5]
    assert trees.tolist() == drawn(LABEL, 5, 3).tolist() != drawn(LABEL, 5, 4).tolist()


def test_a_probe_of_few_labels_is_tested_on_the_other_trees() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0] += 20 * torch.from_numpy(LABEL) - 10
    trees = drawn(LABEL, 5, 0)
    assert few_accuracy(x, LABEL, trees) == 100
    x[trees, 0] *= -1  # what is learned from these is wrong of all others
    assert few_accuracy(x, LABEL, trees) == pytest.approx(0, abs=10)


def test_frozen_and_fine_tuned_encoders_are_compared_on_the_same_draws(trees: TreeData) -> None:
    small = {"hidden_channels": 4, "num_interactions": 1, "num_rbf_centers": 4, "epochs": 1}
    config = {key: option.default for key, option in GTSSL().schema.items()} | small
    found = few_of_seed(trees, config, Few("sum", (2,), draws=2, fine_tuned=1, epochs=1), 0)
    assert set(found) == {2} and len(found[2]) == 6
    assert all(0 <= value <= 100 for value in found[2].values())


def test_a_folder_that_holds_no_study_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--data", "synthetic"])
    assert (result.exit_code, "holds no study.json" in result.output) == (2, True), result.output
