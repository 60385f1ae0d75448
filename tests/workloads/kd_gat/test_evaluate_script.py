"""What ``scripts/benchmark evaluate_kd_gat`` says of attacks that training never had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scripts.benchmarks import evaluate_kd_gat as script
from tests.support.can_files import write_recordings
from tuner.datasets.can import CanData, synthetic_can

DOS = script.Test("masked, no dos", 0, "dos")


def found(classifier: float, autoencoder: float) -> script.Found:
    """A test's models, with these values of F1 and recall."""
    values = {"classifier": classifier, "autoencoder": autoencoder}
    metrics = {stage: [{"f1": value, "recall": value, "auroc": value}] for stage, value in values.items()}
    return {(stage, model): metrics[stage] for stage in values for model in ("teacher", "taught student")}


def test_an_attack_that_a_classifier_misses_is_said_although_no_bar_is_missed() -> None:
    metrics = found(0.0, 0.98)
    assert script.missed(DOS, metrics, {"rule": 0.0, "logistic, means": 0.5}) == (3, [])
    by, not_by = script.unseen(DOS, metrics)
    assert by == "dos, held out, is found by teacher (autoencoder) 98%, taught student (autoencoder) 98%"
    assert not_by == "dos, held out, is not found by teacher (classifier) 0%, taught student (classifier) 0%"
    assert (script.finds(metrics, "classifier"), script.finds(metrics, "autoencoder")) == (False, True)


@pytest.mark.parametrize(("attack", "reason"), [("gone", "no file or folder"), ("", "has no graph with injected")])
def test_data_that_cannot_be_used_are_refused_before_anything_is_trained(
    attack: str, reason: str, tmp_path: Path
) -> None:
    folder = write_recordings(tmp_path, {"attack_free_x": synthetic_can(400)["attack_free_synthetic"]})
    result = CliRunner().invoke(script.main, ["--data", str(folder / attack)])
    assert (result.exit_code, reason in result.output) == (2, True), result.output


def test_a_single_kind_of_attack_is_not_held_out(traffic: CanData) -> None:
    tests = script.main_tests(replace(traffic, attacks=("none", "dos")))
    assert [test.name for test in tests] == ["plain", "masked"]


def test_an_autoencoder_below_a_simple_rule_misses_a_bar() -> None:
    _, faults = script.missed(DOS, found(0.9, 0.4), {"rule": 0.0, "logistic, means": 0.5})
    assert faults == ["masked, no dos: the autoencoder's teacher has 0.4000, logistic, means 0.5000"]


def test_what_is_outside_of_normal_traffics_range_is_an_attack(traffic: CanData) -> None:
    x = np.where(traffic.label[:, None] == 1, 9.0, np.linspace(0, 1, len(traffic))[:, None])
    assert script.normal_range(traffic, x, DOS) == 1
    assert script.normal_range(traffic, np.zeros_like(x), DOS) == 0
    assert len(script.with_sizes(traffic, DOS)) == len(traffic)
