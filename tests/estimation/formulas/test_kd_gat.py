from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.kd_gat_models import best_pt
from tuner.datasets.can import CanData
from tuner.datasets.can import build as build_can
from tuner.datasets.synthetic_can import synthetic_can
from tuner.estimation.estimators.static import estimate_static
from tuner.estimation.formulas.kd_gat import parameters
from tuner.estimation.tracing.tracer import trace_workload
from tuner.search.configurations import complete
from tuner.workloads.kd_gat.model import load_teacher
from tuner.workloads.kd_gat.workload import KDGAT

VGAE: dict[str, Any] = {"stage": "autoencoder"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "classifier that keeps all activations": {"gradient_checkpointing": 0, "dropout": 0.0},
    "classifier's teacher": {"role": "teacher", "gradient_checkpointing": 0},
    "taught classifier": {"use_kd": 1, "use_teacher_cache": 0},
    "taught classifier, outputs kept, and a curriculum": {"use_kd": 1, "curriculum": 1, "batch_size": 4096},
    "deep classifier": {"num_layers": 16, "hidden_channels": 2, "heads": 32},
    "wide classifier, one graph": {"hidden_channels": 256, "heads": 4, "batch_size": 1},
    "autoencoder": VGAE,
    "autoencoder that keeps all activations": {**VGAE, "gradient_checkpointing": 0},
    "autoencoder's teacher": {**VGAE, "role": "teacher", "batch_size": 4, "gradient_checkpointing": 0},
    "taught autoencoder": {**VGAE, "use_kd": 1, "use_teacher_cache": 0, "use_id": 0},
    "taught autoencoder, outputs kept": {**VGAE, "use_kd": 1, "batch_size": 8},
    "autoencoder in bfloat16": {**VGAE, "amp": 1},
}


def config(**values: Any) -> dict[str, Any]:
    given = {"batch_size": 32, "optimize_batch_size": 0, **values}
    return KDGAT().finish(complete(given, KDGAT().schema))


@pytest.fixture(scope="module")
def short() -> CanData:
    """Fifteen generated graphs: each is evaluated, and what evaluates is traced too."""
    return build_can(synthetic_can(500).items(), 100, "15 graphs")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_formula_is_above_what_is_traced_and_below_three_times_that(name: str, short: CanData) -> None:
    chosen = config(**CONFIGURATIONS[name])
    formula = estimate_static("kd-gat", chosen, short)
    traced = trace_workload(KDGAT(), chosen, short).peak_bytes()
    assert traced < formula.total_bytes - formula.context_bytes < 3 * traced


@pytest.mark.parametrize("values", [{}, VGAE, {"use_id": 0}, {**VGAE, "use_id": 0}, {"role": "teacher"}])
def test_parameters_are_counted_exactly_with_the_norms_buffers(values: dict[str, Any], traffic: CanData) -> None:
    student = KDGAT().build_model(config(**values), traffic).student
    floats = [each for each in [*student.parameters(), *student.buffers()] if each.is_floating_point()]
    assert parameters(config(**values), len(traffic.identifiers) + 1) == sum(each.numel() for each in floats)


def test_a_teacher_from_a_file_counts_by_its_own_size(traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "best.pt", traffic)
    counted, real = [], []
    for each in ("", path):
        chosen = config(use_kd=1, use_teacher_cache=0, teacher_path=each)
        (teacher,) = KDGAT().build_model(chosen, traffic).frozen
        counted.append(estimate_static("kd-gat", chosen, traffic).parameter_bytes)
        real.append(sum(p.nbytes for p in teacher.parameters()))
    assert counted[0] - counted[1] == real[0] - real[1] > 2**20


@pytest.mark.parametrize("kept", [0, 1])
def test_a_gpus_traced_peak_is_the_same_with_a_teacher_from_a_file(
    kept: int, traffic: CanData, tmp_path: Path
) -> None:
    values = {"role": "teacher", **dict.fromkeys(("hidden_channels", "num_layers", "heads"), 0)}
    path = best_pt(tmp_path / "best.pt", traffic, **values)
    load_teacher(path, "classifier", len(traffic.identifiers) + 1)  # as a check before has
    new, from_file = (
        trace_workload(
            KDGAT(), config(use_kd=1, use_teacher_cache=kept, teacher_path=each), traffic, device_kind="cuda"
        ).peak_bytes()
        for each in ("", path)
    )
    assert new == from_file
