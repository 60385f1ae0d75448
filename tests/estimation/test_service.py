from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.support.toy import Toy
from tests.support.worker_process import measure_here
from tuner.datasets.ratings import RatingData
from tuner.decisions.plan import need_bytes
from tuner.errors import ExecutionError, InputError
from tuner.estimation import calibration
from tuner.estimation.service import EstimationService
from tuner.search.configurations import complete, configurations
from tuner.trial import EVALUATION_PARTS, GB, MB, RANKS, Configuration, Device, MemoryEstimate
from tuner.workloads.base import Batch
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.micro_batches import halved

CPU = Device("", "cpu", 0, "a machine", 16 * GB, 16 * GB, cores=2)


@pytest.fixture(autouse=True)
def _pytest_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workloads below are in this module, which imports it; what it takes would be measured."""
    monkeypatch.setattr("tuner.estimation.estimators.import_bytes", lambda cls, compiler: 0)


class Branching(Toy):
    """A step that depends on its own values: it cannot be traced without computing."""

    name: ClassVar[str] = "branching"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        error = (model(x) - y).square()
        return error.mean() * len(torch.bincount((error > 0).long().flatten()))


class Unmeasurable(Branching):
    """Nor can it be measured."""

    name: ClassVar[str] = "unmeasurable"

    def evaluate(self, model: nn.Module, data: Any, split: str) -> dict[str, float]:
        raise OSError("no such thing")


def config(**values: float) -> dict[str, Any]:
    return complete(values, GraphSAGE.hyperparameters)


def test_the_parts_of_a_traced_step_are_those_of_the_real_one(ratings: RatingData) -> None:
    wide = config(hidden_dim=512)
    found = EstimationService("traced").raw(GraphSAGE(), wide, ratings, CPU)
    model = GraphSAGE().build_model(wide, ratings)
    parameters = sum(p.nbytes for p in model.parameters())
    assert found.parameter_bytes == parameters
    assert found.optimizer_bytes == pytest.approx(2 * parameters, rel=0.01)
    assert (found.method, found.margin, found.note) == ("traced", 0.1, "")


class Varying(Toy):
    """Its third batch is by far the largest."""

    name: ClassVar[str] = "varying"
    batches_vary: ClassVar[bool] = True

    def batches(self, config: Any, data: Any) -> Iterator[Batch]:
        for rows in (10, 20, 500_000, 30):
            x = torch.randn(rows, 1)
            yield x, 2 * x


class Enormous(Varying):
    """So large that its tensors are mapped, each by itself."""

    name: ClassVar[str] = "enormous"

    def batches(self, config: Any, data: Any) -> Iterator[Batch]:
        x = torch.randn(5_000_000, 1)
        yield x, 2 * x


def test_the_largest_batch_of_an_epoch_decides() -> None:
    found = EstimationService("traced").raw(Varying(), complete({}, Toy.hyperparameters), None, CPU)
    assert found.data_bytes >= 2 * 500_000 * 4


def test_the_batch_of_a_forward_pass_can_be_given(ratings: RatingData) -> None:
    configurations = [Configuration("one", config(hidden_dim=256, batch_size=800, dropout=0.0))]

    def inference(batch: int | None) -> int:
        service = EstimationService("traced", calibration=False, inference=True, inference_batch=batch)
        (found,) = service.estimate_all(GraphSAGE(), configurations, ratings, CPU)
        return found.raw.inference_bytes

    assert 0 < inference(10) < inference(800) == inference(None)


def test_micro_batches_take_less_and_their_gradients_stay_meanwhile(ratings: RatingData) -> None:
    whole = config(hidden_dim=256, batch_size=800, dropout=0.0)
    half = halved(GraphSAGE(), whole)
    assert half is not None
    first, second = (EstimationService("traced").raw(GraphSAGE(), config, ratings, CPU) for config in (whole, half))
    assert second.activation_bytes < first.activation_bytes
    assert second.gradient_bytes == second.parameter_bytes


def test_an_evaluation_in_parts_takes_less(ratings: RatingData, gpu_16gb: Device) -> None:
    whole = config(hidden_dim=1024, num_layers=1, batch_size=1)  # an evaluation of it takes more than a step
    first, second = (
        EstimationService("traced").raw(GraphSAGE(), {**whole, EVALUATION_PARTS: parts}, ratings, gpu_16gb)
        for parts in (1, 2)
    )
    assert second.activation_bytes < first.activation_bytes


def test_only_tensors_that_the_heap_holds_leave_gaps_in_it(ratings: RatingData) -> None:
    narrow = EstimationService("traced").raw(GraphSAGE(), config(), ratings, CPU)
    assert narrow.heap_bytes == pytest.approx((narrow.reserved_bytes - narrow.heap_bytes) / 2, rel=0.01)
    large = EstimationService("traced").raw(Varying(), complete({}, Toy.hyperparameters), None, CPU)
    larger = EstimationService("traced").raw(Enormous(), complete({}, Toy.hyperparameters), None, CPU)
    assert larger.heap_bytes < large.heap_bytes < larger.data_bytes


@pytest.mark.parametrize(("hidden_dim", "headroom_mb"), [(64, None), (4096, 32)])
def test_on_the_cpu_a_need_has_room_for_what_is_no_tensor(
    ratings: RatingData, hidden_dim: int, headroom_mb: int | None
) -> None:
    found = EstimationService("traced").raw(GraphSAGE(), config(hidden_dim=hidden_dim), ratings, CPU)
    beyond = need_bytes(found) - found.context_bytes
    assert beyond == 64 * MB if headroom_mb is None else found.headroom_bytes == headroom_mb * MB


def test_on_cuda_what_the_allocator_reserves_is_counted(ratings: RatingData, gpu_16gb: Device) -> None:
    found = EstimationService("traced").raw(GraphSAGE(), config(), ratings, gpu_16gb)
    assert found.reserved_bytes % (2 * MB) == 0
    assert found.reserved_bytes > 0
    assert found.context_bytes == 500 * MB


def test_a_step_that_cannot_be_followed_is_measured_and_the_operation_named(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_here(monkeypatch)
    found = EstimationService("auto").raw(Branching(), complete({}, Toy.hyperparameters), None, CPU)
    assert found.method == "measured"
    assert found.note.startswith("not traced: ")
    assert "aten." in found.note
    assert found.total_bytes > 0


def test_a_workload_without_a_formula_is_traced_and_that_is_said() -> None:
    found = EstimationService("static").raw(Toy(), complete({}, Toy.hyperparameters), None, CPU)
    assert found.method == "traced"
    assert found.note.startswith("not static: workload toy has no memory formula: it can be traced or measured")


def test_where_no_method_works_all_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> None:
        raise ExecutionError("the process died")

    monkeypatch.setattr("tuner.estimation.measure.measure", out_of_memory)
    with pytest.raises(
        InputError, match=r"not traced: .*; not measured: the process died; not static: .*: give model_memory_gb"
    ):
        EstimationService("auto").raw(Unmeasurable(), complete({}, Toy.hyperparameters), None, CPU)


def test_what_a_real_step_fails_of_is_told_alone_and_for_which_configuration() -> None:
    listed = configurations([{"name": "a"}, {"name": "b"}], Toy.hyperparameters)
    with pytest.raises(InputError, match=r"^a: workload unmeasurable: evaluate failed: OSError: no such thing \("):
        EstimationService().estimate_all(Unmeasurable(), listed, None, CPU)


def test_where_no_real_step_could_be_taken_it_is_told_beside_what_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> None:
        raise ExecutionError("out of memory")

    monkeypatch.setattr("tuner.estimation.measure.measure", dies)
    faulty = complete({"fault": 1}, Toy.hyperparameters)
    with pytest.raises(InputError, match=r"not traced: .*loss failed while traced.*; not measured: out of memory"):
        EstimationService("auto").raw(Toy(), faulty, None, CPU)


def test_configurations_that_take_the_same_memory_are_estimated_once(
    ratings: RatingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def count(service: EstimationService, workload: Any, values: Any, *_: Any) -> MemoryEstimate:
        asked.append(values)
        return MemoryEstimate("static", activation_bytes=values["hidden_dim"])

    monkeypatch.setattr(EstimationService, "raw", count)
    listed = configurations([{"lr": 0.1}, {"lr": 0.2, "epochs": 3}, {"hidden_dim": 8}], GraphSAGE.hyperparameters)
    found = EstimationService(calibration=False).estimate_all(GraphSAGE(), listed, ratings, CPU)
    assert [pair.calibrated.activation_bytes for pair in found] == [64, 64, 8]
    assert len(asked) == 2


def test_the_margin_is_added_once_and_not_to_the_context() -> None:
    guess = MemoryEstimate("traced", activation_bytes=GB, context_bytes=GB, margin=0.1)
    assert need_bytes(guess) == GB + -(-GB * 11 // 10)
    assert need_bytes(MemoryEstimate("given", context_bytes=GB)) == GB


def test_a_model_of_ones_own_is_estimated_from_its_step(tmp_path: Path) -> None:
    import tuner

    def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Linear(1000, 1000)
        x = torch.randn(10, 1000)
        return model, torch.optim.SGD(model.parameters()), lambda: model(x).square().mean()

    ((name, found),) = tuner.estimate(step=build, device="cpu")
    tuner.estimate(step=build, device="cuda", snapshot=str(tmp_path / "step.pickle"))
    assert (tmp_path / "step.pickle").stat().st_size > 0
    assert name == "step"
    assert found.parameter_bytes == found.gradient_bytes == 4 * 1_001_000
    assert 0 < found.activation_bytes < found.parameter_bytes


@pytest.mark.parametrize(("method", "learns"), [("traced", True), ("static", False), ("given", False)])
def test_what_trials_took_corrects_later_estimates_of_the_kind_that_it_can(method: str, learns: bool) -> None:
    service, raw = EstimationService(), MemoryEstimate(method, activation_bytes=100 * MB, context_bytes=400 * MB)
    service.learn("toy", f"a machine of {method}", [(raw, 600 * MB)])
    (found,) = service.calibrated([raw], ["toy"], f"a machine of {method}")
    assert found.total_bytes == (600 if learns else 500) * MB
    assert found.method == (f"{method}, calibrated" if learns else method)
    assert EstimationService(calibration=False).calibrated([raw], ["toy"], f"a machine of {method}") == [raw]
    assert len(service.samples("toy", f"a machine of {method}")) == learns


def test_what_one_gpu_took_says_nothing_of_the_ranks_of_several_and_the_reverse() -> None:
    service, raw = EstimationService(), MemoryEstimate("traced", activation_bytes=100 * MB, context_bytes=400 * MB)
    ranks = replace(raw, context_bytes=720 * MB, note="NCCL is a guess", context_note="NCCL is a guess")
    kinds = [calibration.kind_of("toy", {RANKS: number}) for number in (1, 2)]
    service.learn(kinds[0], "two cards", [(raw, 600 * MB)])
    alone, together = service.calibrated([raw, ranks], kinds, "two cards")
    assert (alone.context_bytes, together) == (500 * MB, ranks)
    service.learn(kinds[1], "two cards", [(ranks, 1000 * MB)])
    alone, together = service.calibrated([raw, ranks], kinds, "two cards")
    assert (alone.context_bytes, together.context_bytes) == (500 * MB, 900 * MB)
    assert "guess" in ranks.note and together.note.endswith("as 1 trials took it, no longer a guess")
