from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.kd_gat_models import STAGES, best_pt, config, model_of
from tuner.datasets.can import CanData
from tuner.estimation.tracing.tracer import trace_workload
from tuner.training.optimizers import build_optimizer
from tuner.training.step import Steps, offload, place
from tuner.workloads.kd_gat.model import Distilled, load_teacher, outputs, student, width_ratio
from tuner.workloads.kd_gat.workload import KDGAT

WAYS = ("live", "offloaded", "kept")


def taught(way: str, stage: str, data: CanData) -> tuple[Distilled, dict[str, object]]:
    """A student with a teacher of the usual size, ready for its first step."""
    torch.manual_seed(0)
    chosen = config(stage, use_kd=1, use_teacher_cache=int(way == "kept"))
    model = place(KDGAT(), chosen, data, "cpu")
    assert isinstance(model, Distilled)
    for module in model.frozen if way == "offloaded" else []:
        offload(module, "cpu")
    model.train()
    return model, chosen


@pytest.mark.parametrize("stage", STAGES)
def test_a_student_learns_the_same_however_its_teacher_is_kept(stage: str, traffic: CanData) -> None:
    losses = {}
    for way in WAYS:
        model, chosen = taught(way, stage, traffic)
        step = Steps(KDGAT(), model, build_optimizer(KDGAT(), model, chosen), {})
        steps = [step(batch) for batch in KDGAT().batches(chosen, traffic)]
        losses[way] = torch.stack(steps)
    assert len(losses["live"]) >= 2
    for way in WAYS[1:]:
        torch.testing.assert_close(losses[way], losses["live"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("stage", STAGES)
def test_a_teacher_changes_the_loss_by_its_weight(stage: str, traffic: CanData) -> None:
    batch = KDGAT().largest_batch(config(stage), traffic)
    alone, *weighted = (
        model_of(traffic, stage, **values).eval().loss(batch).item()
        for values in ({}, *({"use_kd": 1, "kd_weight": weight} for weight in (0.0, 0.5)))
    )
    same, other = weighted
    assert other != pytest.approx(same, rel=1e-3)
    if stage == "classifier":  # the projection's weights are drawn before the student's
        assert alone != other


@pytest.mark.parametrize("stage", STAGES)
def test_who_teaches_is_no_part_of_what_is_trained_or_kept(stage: str, traffic: CanData) -> None:
    alone = model_of(traffic, stage)
    values = {"use_kd": 1} | ({"curriculum": 1} if stage == "classifier" else {})
    model = model_of(traffic, stage, **values)
    assert len(model.frozen) == len(values)
    added = {"projection.weight", "projection.bias"} if stage == "autoencoder" else set()
    assert set(model.state_dict()) == set(alone.state_dict()) | added
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in alone.named_parameters()} | added
    assert not any(p.requires_grad for guest in model.frozen for p in guest.parameters())


def test_kept_outputs_are_no_part_of_it_either(traffic: CanData) -> None:
    before = model_of(traffic, use_kd=1)
    names = set(before.state_dict())
    before.prepare(traffic)
    assert before.kept is not None
    assert before.frozen == []
    assert set(before.state_dict()) == names
    assert sum(rows.nbytes for rows in before.kept.buffers()) == 8 * len(traffic) + 2 * 4 * len(traffic.train)


def test_who_teaches_moves_with_the_model(traffic: CanData) -> None:
    model = model_of(traffic, use_kd=1, curriculum=1).to(torch.float64)
    assert {p.dtype for guest in model.frozen for p in guest.parameters()} == {torch.float64}
    model = model_of(traffic, use_kd=1)
    model.prepare(traffic)
    assert {buffer.device.type for buffer in model.to("meta").buffers()} == {"meta"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_student_has_less_than_a_tenth_of_its_teachers_parameters(stage: str) -> None:
    usual = dict.fromkeys(("hidden_channels", "num_layers", "latent_channels", "heads"), 0)
    sizes = {
        role: sum(p.numel() for p in student(config(stage, role=role, **usual), 28).parameters())
        for role in ("teacher", "student")
    }
    assert sizes["student"] < 0.1 * sizes["teacher"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_teacher_says_the_same_of_a_batch_and_of_shares_of_it(stage: str, traffic: CanData) -> None:
    model = model_of(traffic, stage, use_kd=1)
    (teacher,) = model.frozen
    batch = KDGAT().largest_batch(config(stage), traffic)
    torch.testing.assert_close(outputs(teacher, batch, 3), outputs(teacher, batch), atol=1e-6, rtol=1e-5)
    assert width_ratio(model.student, model.student) == 1
    assert width_ratio(teacher, model.student) == (72 if stage == "classifier" else 40)


def test_outputs_are_kept_for_each_graph_that_is_trained_on(traffic: CanData) -> None:
    for stage in STAGES:
        live, kept = model_of(traffic, stage, use_kd=1), model_of(traffic, stage, use_kd=1)
        (teacher,) = live.frozen
        kept.prepare(traffic)
        assert kept.kept is not None
        for batch in KDGAT().batches(config(stage), traffic):
            torch.testing.assert_close(kept.kept.get(batch), outputs(teacher, batch), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_a_teacher_from_a_file_is_the_one_that_was_saved(stage: str, traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "best.pt", traffic, stage)
    saved = model_of(traffic, stage, role="teacher").student.eval()
    (teacher,) = model_of(traffic, stage, use_kd=1, teacher_path=path).frozen
    batch = KDGAT().largest_batch(config(stage), traffic)
    assert all(torch.equal(a, b) for a, b in zip(outputs(teacher, batch), outputs(saved, batch), strict=True))
    assert not teacher.training


def test_a_student_comes_back_from_its_weights_without_its_teacher(traffic: CanData) -> None:
    for stage in STAGES:
        model = model_of(traffic, stage, use_kd=1).eval()
        again = KDGAT().restore_model(config(stage, use_kd=1), model.state_dict()).eval()
        batch = KDGAT().largest_batch(config(stage), traffic)
        one, other = outputs(again, batch), outputs(model.student, batch)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kept", [0, 1])
def test_a_gpus_traced_peak_is_the_same_with_a_teacher_from_a_file(
    kept: int, traffic: CanData, tmp_path: Path
) -> None:
    values = {"role": "teacher", **dict.fromkeys(("hidden_channels", "num_layers", "heads"), 0)}
    path = best_pt(tmp_path / "best.pt", traffic, **values)
    load_teacher(path, "classifier", len(traffic.identifiers) + 1)  # as a check before has
    new, from_file = (
        trace_workload(
            KDGAT(), config(use_kd=1, use_teacher_cache=kept, teacher_path=teacher), traffic, device_kind="cuda"
        ).peak_bytes()
        for teacher in ("", path)
    )
    assert new == from_file
