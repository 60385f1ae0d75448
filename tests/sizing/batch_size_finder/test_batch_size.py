"""The largest batch of any model, in three modes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GAT, GCN, GCNConv, GraphSAGE

from tuner import MemoryBudget, compute_batch_size
from tuner.errors import InputError
from tuner.estimation.tracing.tracer import Untraceable
from tuner.machine.devices import ram_device
from tuner.sizing.choices import DoesNotFit
from tuner.trial import GB, MB

MODES = ("static", "traced", "measured")
GRAPH = Data(x=torch.rand(30, 16), edge_index=torch.arange(90).repeat(2, 1) % 30)
# What is left for tensors of this much memory, on the CPU and at the default utilization, is a hundred MB.
SMALL_GB = (350 + 100) * MB / 0.7 / GB


def mlp(width: int = 256) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def size(model: nn.Module, sample: Any, mode: str, **options: Any) -> MemoryBudget:
    device = options.pop("device", "cpu")
    return compute_batch_size(
        model, sample, device, mode, **{"total_gb": SMALL_GB, "max_batch_size": 10**6, **options}
    )


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (mlp(), torch.rand(2, 64)),
        (nn.Sequential(nn.Embedding(500, 32), nn.GELU(), nn.Dropout(), nn.Linear(32, 50)), torch.ones(2, 8).long()),
        (GCN(16, 64, 3, 5), GRAPH),
        (GraphSAGE(16, 64, 3, 5, dropout=0.5, norm="BatchNorm"), GRAPH),
        (GAT(16, 64, 3, 5, heads=4), GRAPH),
        (GAT(16, 64, 2, 5, heads=4, v2=True, dropout=0.5), GRAPH),
    ],
    ids=["mlp", "embedding", "gcn", "sage", "gat", "gatv2"],
)
def test_counting_is_on_the_safe_side_of_tracing(model: nn.Module, sample: Any) -> None:
    for device, context in (("cpu", 350), ("cuda", 500 + 2 * 32)):  # with cuBLAS' workspaces of the largest card
        options = {"device": device, "total_gb": (context + 60) * MB / 0.7 / GB}
        static = size(model, sample, "static", **options)
        assert static.stopped_by == "memory"
        chosen = {"min_batch_size": static.batch_size, "max_batch_size": static.batch_size}
        assert size(model, sample, "traced", **options, **chosen).stopped_by == "max_batch_size"  # so it fits


@pytest.mark.parametrize("model", [GCN(16, 64, 2, 5), GAT(16, 32, 2, 5, heads=2)])
def test_tracing_and_measuring_agree_on_graphs(model: nn.Module) -> None:
    options = {"total_gb": (350 + 30) * MB / 0.7 / GB}  # small tensors, with gaps in the heap at all sizes
    traced, measured = size(model, GRAPH, "traced", **options), size(model, GRAPH, "measured", **options)
    assert measured.batch_size == pytest.approx(traced.batch_size, rel=0.03)
    assert measured.model_bytes == pytest.approx(traced.model_bytes, rel=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_the_parts_add_up_to_what_fits_and_one_sample_more_does_not(mode: str) -> None:
    found = size(mlp(), torch.rand(1, 64), mode)
    per_sample = found.activation_bytes + found.per_sample_bytes
    taken = found.context_bytes + (1 + found.fragmentation) * (found.model_bytes + found.batch_size * per_sample)
    assert taken == pytest.approx(found.need_bytes, rel=0.01)
    assert found.need_bytes <= found.limit_bytes == int(found.total_bytes * 0.7)
    assert found.available_bytes // per_sample - found.batch_size <= 0.01 * found.batch_size
    assert found.stopped_by == "memory"


def test_on_cuda_tracing_is_exact_at_the_size_that_was_chosen() -> None:
    model = mlp()
    found = size(model, torch.rand(1, 64), "traced", device="cuda", total_gb=1)
    assert (found.fragmentation, found.context_bytes) == (0, 500 * MB)
    assert found.need_bytes <= found.limit_bytes
    bounds = {"device": "cuda", "min_batch_size": found.batch_size + 1, "total_gb": 1}
    with pytest.raises(DoesNotFit, match=f"a batch of {found.batch_size + 1} takes"):
        size(model, torch.rand(1, 64), "traced", **bounds)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_model_holds_is_counted(mode: str) -> None:
    model = nn.Sequential(nn.Embedding(1000, 32), nn.Linear(32, 1000))
    model[1].weight = model[0].weight  # shared: counted once
    model[1].bias.requires_grad_(False)
    teacher = nn.Sequential(nn.Embedding(1000, 8), nn.BatchNorm1d(4, affine=False)).requires_grad_(False)
    found = size(model, torch.ones(2, 4).long(), mode, teacher=teacher, max_batch_size=2)
    assert (found.embedding_bytes, found.parameter_bytes) == (128_000, 4000)
    assert found.gradient_bytes == 128_000
    assert found.optimizer_bytes == pytest.approx(256_000, abs=8)
    assert found.teacher_bytes == 32_000 + 2 * 16 + 8


@pytest.mark.parametrize("mode", ["traced", "measured"])
def test_a_teacher_s_outputs_live_until_the_loss(mode: str) -> None:
    teacher = nn.Linear(64, 4096).requires_grad_(False)
    options = {"total_gb": 1, "min_batch_size": 512, "max_batch_size": 512}
    alone = size(mlp(), torch.rand(1, 64), mode, **options)
    taught = size(mlp(), torch.rand(1, 64), mode, teacher=teacher, **options)
    assert taught.activation_bytes - alone.activation_bytes >= 4096 * 4


@pytest.mark.parametrize(
    ("optimizer", "moments"), [(torch.optim.SGD, 0), (torch.optim.Adagrad, 1), (torch.optim.Adam, 2)]
)
@pytest.mark.parametrize("mode", MODES)
def test_the_optimizer_is_asked_for_its_state(mode: str, optimizer: Any, moments: int) -> None:
    found = size(mlp(), torch.rand(1, 64), mode, optimizer=optimizer, max_batch_size=1)
    assert found.optimizer_bytes == pytest.approx(moments * found.parameter_bytes, abs=100)


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_left_as_it_was(mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()).eval()
    model[1].train()
    model(torch.rand(3, 4)).sum().backward()
    sample = torch.rand(4, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradient, random = model[0].weight.grad.clone(), torch.get_rng_state()
    size(model, sample, mode, max_batch_size=8)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, gradient)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == [False, False, True, False]


class Remembers(nn.Linear):
    """Keeps what it computes: in attributes, as an output of one's own, and in place of its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "cache"):
            self.cache = self.weight.detach() * 2
        self.last = nn.functional.linear(x, self.weight + self.cache)
        return self.last


@pytest.mark.parametrize(
    ("model", "sample", "inputs"),
    [
        (GCNConv(16, 8, cached=True), GRAPH, (GRAPH.x, GRAPH.edge_index)),
        (Remembers(16, 8), GRAPH.x, (GRAPH.x,)),
    ],
    ids=["gcn", "attributes"],
)
def test_a_model_that_keeps_what_it_computes_works_after_a_trace(
    model: nn.Module, sample: Any, inputs: tuple[torch.Tensor, ...]
) -> None:
    before = set(vars(model))
    assert size(model, sample, "traced", max_batch_size=8).batch_size == 8
    assert set(vars(model)) == before
    out = model(*inputs)
    assert type(out) is torch.Tensor and out.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_what_a_model_has_computed_from_its_weights_is_in_nobody_s_way(mode: str) -> None:
    model = Remembers(16, 8)
    last = model(GRAPH.x)
    assert size(model, GRAPH.x, mode, max_batch_size=4).batch_size == 4
    assert model.last is last


class Replaces(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data.clamp(-1, 1)
        return super().forward(x)


def test_a_weight_that_the_step_replaces_is_left_as_it_was() -> None:
    model = Replaces(4, 3)
    weight = model.weight.detach().clone()
    with pytest.raises(Untraceable, match='mode="measured"'):
        size(model, torch.rand(1, 4), "traced")
    assert torch.equal(model.weight, weight)


@pytest.mark.parametrize("mode", ["traced", "measured"])
def test_a_loss_or_an_optimizer_of_another_model_is_refused_and_leaves_that_as_it_was(mode: str) -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(InputError, match=r"the loss is not a scalar .* of the model that it gets"):
        size(model, torch.rand(1, 4), mode, loss=lambda copy, batch: model(batch).sum())
    with pytest.raises(InputError, match="optimizer: it must use the parameters that it is given"):
        size(model, torch.rand(1, 4), mode, optimizer=lambda _: torch.optim.SGD(model.parameters()))
    assert model.weight.requires_grad
    assert model.weight.grad is None


class Keywords(nn.Linear):
    def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"sum": super().forward(left) + (0 if right is None else right), "count": torch.ones(1).long()}


class WholeGraph(nn.Linear):
    def forward(self, data: Data) -> torch.Tensor:
        return super().forward(data.x)


class Kinds(nn.Linear):
    def forward(self, x_dict: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [super(Kinds, self).forward(x) for x in x_dict.values()]


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (Kinds(16, 3), HeteroData(a={"x": torch.rand(3, 16)}, b={"x": torch.rand(4, 16)})),
        (Keywords(4, 3), {"left": torch.rand(2, 4), "right": torch.rand(2, 3)}),
        (Keywords(4, 3), (torch.rand(2, 4), torch.rand(2, 3))),
        (WholeGraph(16, 3), GRAPH),
        (WholeGraph(16, 3), Batch.from_data_list([GRAPH, GRAPH])),
    ],
    ids=["kinds", "mapping", "tuple", "graph", "batch"],
)
@pytest.mark.parametrize("mode", ["traced", "measured"])
def test_models_are_called_as_they_take_it(model: nn.Module, sample: Any, mode: str) -> None:
    assert size(model, sample, mode, max_batch_size=4).batch_size == 4


def test_a_loss_of_one_s_own_calls_the_model() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    sample = torch.rand(4, 64), torch.zeros(4, dtype=torch.long)
    assert size(mlp(), sample, "measured", loss=loss, max_batch_size=4).batch_size == 4
    with pytest.raises(InputError, match=r"Sequential\.forward.* does not take the sample .*: give loss="):
        size(mlp(), sample, "traced")


@pytest.mark.parametrize("mode", MODES)
def test_batch_normalisation_gets_two_samples(mode: str) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))
    assert size(model, torch.rand(1, 64), mode, max_batch_size=2).batch_size == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_does_not_fit_says_what_would(mode: str) -> None:
    model = nn.Linear(4096, 1024)
    with pytest.raises(DoesNotFit, match=r"GB more than .* takes a device with \d+\.\d\d GB, a smaller") as raised:
        size(model, torch.rand(1, 4096), mode, total_gb=0.5)
    assert "\n" not in str(raised.value)
    needed_gb = float(re.findall(r"device with (\S+) GB", str(raised.value))[0])
    assert size(model, torch.rand(1, 4096), mode, total_gb=needed_gb).batch_size >= 1


@pytest.mark.parametrize("mode", MODES)
def test_what_is_free_is_the_limit_where_it_is_less(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(free_mb: int, **options: Any) -> MemoryBudget:
        machine = replace(ram_device(), total_bytes=GB, free_bytes=free_mb * MB)
        monkeypatch.setattr("tuner.sizing.batch_size_finder.batch_size.ram_device", lambda: machine)
        return size(mlp(), torch.rand(1, 64), mode, **{"total_gb": None, **options})

    little, much = found(60), found(900)
    assert (little.stopped_by, much.stopped_by) == ("free memory", "memory")
    assert 55 * MB < little.need_bytes - little.context_bytes < 61 * MB, "the context is there, and so is the model"
    assert much.limit_bytes == int(0.7 * GB)
    if mode != "measured":  # which runs here
        assert found(60, total_gb=1).batch_size == much.batch_size
    with pytest.raises(
        DoesNotFit, match=r"of 1.00 GB only 0.00 GB are free\): other programs, .* hold .*without them it"
    ):
        found(1, min_batch_size=4000)


def test_memory_that_runs_out_in_the_first_step_is_no_crash() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(DoesNotFit, match=r"a batch of 1 ran out of memory on cpu .*it takes a device with more, a"):
        size(mlp(), torch.rand(1, 64), "measured", loss=loss)


def test_a_batch_that_ran_out_of_memory_is_not_chosen() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return model(batch).sum()

    assert size(mlp(), torch.rand(1, 64), "measured", loss=loss, min_batch_size=4).batch_size == 4
    with pytest.raises(DoesNotFit, match=r"a batch of 8 is too large: one of 4 ran, .* a device with more, a"):
        size(mlp(), torch.rand(1, 64), "measured", loss=loss, min_batch_size=8)


class Undecided(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bins = torch.bincount((x > 0.5).long().flatten())  # as many as the largest value says
        return super().forward(x.reshape(-1, 1)) * len(bins)


def test_what_cannot_be_traced_can_be_measured() -> None:
    model, sample = Undecided(1, 8), torch.linspace(0, 1, 20).reshape(2, 10)
    with pytest.raises(Untraceable, match='mode="measured"'):
        size(model, sample, "traced", max_batch_size=8)
    assert size(model, sample, "measured", max_batch_size=8).batch_size == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "guessed"}, "mode='guessed': choose one of static, traced, measured"),
        ({"target_utilization": 0}, "target_utilization=0: give a share above 0"),
        ({"target_utilization": 70}, "target_utilization=70: give a share above 0"),
        ({"min_batch_size": 9, "max_batch_size": 8}, "min_batch_size=9, max_batch_size=8"),
        ({"total_gb": 0}, "total_gb=0: give the device's memory"),
        ({"total_gb": 1e300}, r"total_gb=1e\+300: give the device's memory in GB, above 0 and up to 1,000,000"),
        ({"total_gb": True}, "total_gb=True: give the device's memory"),
        ({"max_batch_size": 100.0}, r"max_batch_size=100\.0: give whole numbers"),
        ({"min_batch_size": "4"}, "min_batch_size='4', max_batch_size=1000000: give whole"),
        ({"target_utilization": "x"}, "target_utilization='x': give a share"),
        ({"device": "gpu"}, "device='gpu': give cpu, cuda or cuda:N"),
        ({"device": "mps"}, "device='mps': give cpu, cuda or cuda:N"),
        ({"device": "cuda:99", "total_gb": None}, "device='cuda:99': this machine has no such GPU; .*total_gb"),
        ({"device": "cuda:99", "mode": "measured"}, "device='cuda:99': this machine has no such GPU"),
        ({"model": nn.LazyLinear(3)}, "lazy parameters"),
        ({"model": nn.ReLU()}, "no trainable parameter"),
        ({"model": Keywords(4, 3), "mode": "measured"}, r"the step failed on a batch of 1: RuntimeError: mat1"),
        ({"model": Keywords(4, 3), "mode": "traced"}, r"the step failed on a batch of 1: RuntimeError: a and b"),
        ({"model": nn.BatchNorm2d(4), "mode": "traced"}, "the step failed on a batch of 2: ValueError: expected 4D"),
        ({"loss": lambda model, batch: batch.sum(), "mode": "measured"}, "the loss is not a scalar tensor"),
        ({"loss": lambda model, batch: batch.sum(), "mode": "traced"}, "the loss is not a scalar tensor"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_used_is_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    options = {"mode": "static", "model": mlp(), **options}
    with pytest.raises(InputError, match=words) as raised:
        size(options.pop("model"), torch.rand(1, 64), options.pop("mode"), **options)
    assert "\n" not in str(raised.value)


def test_every_tensor_of_a_batch_is_traced_once() -> None:
    found = size(nn.Linear(100_000, 1), torch.rand(1, 100_000), "traced", max_batch_size=64, min_batch_size=64)
    assert found.per_sample_bytes == 400_000
    assert found.activation_bytes < 100_000  # the heap's gaps


def test_a_detail_that_there_is_not_is_an_error() -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nosuch'"):
        compute_batch_size(nn.Linear(1, 1), torch.ones(1, 1), "cpu", nosuch=1)  # type: ignore[call-arg]
