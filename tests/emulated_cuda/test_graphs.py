"""CUDA graphs on the emulated card: their private pools, and captures that fail. Kernels compute nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.emulated_cuda.studies import Study, run
from tuner.datasets.ratings import RatingData
from tuner.estimation.estimators import trace_of
from tuner.machine.devices import detect_devices
from tuner.search.configurations import complete
from tuner.training.endings import Fit
from tuner.training.loop import fit
from tuner.trial import Config, Trial
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.graphsage.workload import GraphSAGE

pytestmark = pytest.mark.emulated


class Mlp(Workload):
    """An MLP on ``samples`` random samples, evaluated on ``held`` at once."""

    metric = "val_loss"
    memory_scales_with: ClassVar[str | None] = "batch_size"
    hyperparameters: ClassVar[Any] = {"batch_size": 512, "samples": 4096, "held": 512}

    def load_data(self, source: str, seed: int) -> None:
        return None

    def build_model(self, config: Config, data: object) -> nn.Module:
        model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1))
        model.register_buffer("held", torch.zeros(int(config["held"]), 256))
        return model

    def batches(self, config: Config, data: object) -> Iterator[Batch]:
        for x in torch.randn(int(config["samples"]), 256).split(int(config["batch_size"])):
            yield x.clone(), x[:, :1].clone()  # a view would count as the whole

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, data: object, split: Split) -> dict[str, float]:
        return {"loss": float(model(model.get_buffer("held")).mean())}


class Reading(Mlp):
    """Its loss waits for the GPU through torch, which says so before it does."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        return loss if loss.item() < 1e9 else 2 * loss


class Waiting(Mlp):
    """Its loss makes a call with which CUDA itself refuses the recording."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        torch.cuda.synchronize()
        return super().loss(model, batch)


class Greedy(Mlp):
    """It asks for more than the card has, once it is recorded."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(2**40, device="cuda")
        return super().loss(model, batch)


def reserved(workload: Workload, data: object, config: Config) -> tuple[int, list[str]]:
    """What a training reserves at most, in bytes, and why it had no graph."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    notes: list[str] = []
    *_, result = fit(workload, Trial("t", workload.name, "t", config, seed=0), data, "cuda:0", notes=notes)
    assert isinstance(result, Fit)
    return torch.cuda.max_memory_reserved() - before, notes


SAMPLED = {"fanout": "5,5", "batch_size": 300}


@pytest.mark.parametrize(
    ("workload", "values"),
    [
        (GraphSAGE(), {"hidden_dim": 32, **SAMPLED}),
        (GraphSAGE(), {"hidden_dim": 64, **SAMPLED}),
        (GraphSAGE(), {"hidden_dim": 64, **SAMPLED, "optimizer": "sgd", "amp": 1}),
        (Mlp(), {}),
        (Mlp(), {"samples": 4000}),
        (Mlp(), {"held": 40_000}),
    ],
    ids=["sage32", "sage64", "sage64-sgd-amp", "mlp", "mlp-smaller-last-batch", "mlp-large-evaluation"],
)
def test_the_estimate_is_what_is_reserved_with_the_graphs_pool(
    ratings: RatingData, workload: Workload, values: dict[str, Any]
) -> None:
    data = ratings if isinstance(workload, GraphSAGE) else None
    config = complete({"epochs": 2, "cuda_graphs": 1, **values}, workload.schema)
    (device,) = detect_devices("cuda")
    expected = trace_of(workload, config, data, device).to_estimate("cuda")
    without, _ = reserved(workload, data, {**config, "cuda_graphs": 0})
    taken, notes = reserved(workload, data, config)
    assert notes == []
    assert taken > without, "the pool"
    assert expected.reserved_bytes == pytest.approx(taken, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Reading(), "called a synchronizing CUDA operation"),
        (Waiting(), "CUDA error: operation not permitted when stream is capturing"),
    ],
)
def test_a_failed_capture_leaves_cuda_usable(workload: Workload, reason: str) -> None:
    config = complete({"epochs": 2, "cuda_graphs": 1}, workload.schema)
    _, notes = reserved(workload, None, config)
    assert notes == [f"CUDA graphs: a step cannot be recorded ({reason}); trained eagerly"]
    taken, notes = reserved(Mlp(), None, config)
    assert notes == []
    assert taken == reserved(Mlp(), None, config)[0], "the next trial's graph"


def test_a_card_that_cannot_capture_trains_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    config = complete({"epochs": 2, "cuda_graphs": 1}, Mlp().schema)
    with monkeypatch.context() as patch:
        patch.setenv("EMULATED_NO_CAPTURE", "1")
        (note,) = reserved(Mlp(), None, config)[1]
    assert note.startswith("CUDA graphs: a step cannot be recorded (CUDA error: the emulated card cannot do this")
    assert reserved(Mlp(), None, config)[1] == []


def test_memory_that_runs_out_in_a_capture_is_out_of_memory() -> None:
    config = complete({"epochs": 2, "cuda_graphs": 1}, Mlp().schema)
    with pytest.raises(torch.OutOfMemoryError):
        reserved(Greedy(), None, config)
    assert reserved(Mlp(), None, config)[1] == []


def test_a_studys_trials_keep_to_their_share_and_the_row_says_why_one_has_no_graph(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    sage = {"workload": "graphsage", "hidden_dim": 32, "fanout": "5,5", "cuda_graphs": 1}
    recorded, parts = {"name": "recorded", **sage}, {"name": "parts", "accumulation": 2, **sage}
    run(study, *study.config(recorded, parts), "--auto-memory", "--epochs", "2", "--in-process")
    done = study.finished
    assert {name: line["error"] for name, line in done.items()} == {
        "recorded": "",
        "parts": "CUDA graphs: not with accumulation; trained eagerly",
    }
    assert all(line["peak_memory_gb"] <= line["limit_gb"] for line in done.values())
    assert done["parts"]["peak_memory_gb"] < done["recorded"]["peak_memory_gb"]
