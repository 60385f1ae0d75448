"""Traced steps against known bytes, and against the peaks that torch.profiler records of real ones."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from tests.support.can_graphs import NUM_IDS, random_batch
from tests.support.own_loop import WithRMSprop
from tests.support.toy import Batched, Toy
from tuner.datasets.ratings import RatingData
from tuner.datasets.synthetic import synthetic_ratings
from tuner.errors import WorkloadError
from tuner.estimation.caching_allocator import RELEASE, replay
from tuner.estimation.cards import find_card
from tuner.estimation.tracing.dispatch_mode import LT_WORKSPACE_BYTES
from tuner.estimation.tracing.trace import DeviceKind, Trace
from tuner.estimation.tracing.tracer import Parts, Untraceable, trace_step, trace_workload
from tuner.search.configurations import complete
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import rehearse, representative_batches
from tuner.training.step import recomputing
from tuner.workloads.graphsage.workload import GraphSAGE

FLOAT = 4


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), **options)


def of(step: Callable[[Tensor], Tensor], *shape: int, **options: Any) -> Trace:
    """A step whose only parameter is a tensor of this shape."""

    def make() -> Parts:
        model = nn.ParameterList([nn.Parameter(torch.empty(shape))])
        return model, None, lambda: step(model[0])

    return trace_step(make, **options)


def allocated(trace: Trace) -> list[int]:
    """Sizes of the allocations in order, those of scalars apart."""
    return [size for _, size in trace.events if size > 8]


# ------------------------------------------------------------------------------------------------ known bytes


def test_a_linear_layer_with_adam_is_exact() -> None:
    def make() -> Parts:
        model = nn.Linear(100, 50)
        x = torch.randn(10, 100)
        return model, adam(model, fused=True), lambda: model(x).square().sum()

    parts = trace_step(make).parts_at_peak()
    weights = FLOAT * (100 * 50 + 50)
    assert (parts["parameters"], parts["gradients"]) == (weights, weights)
    assert parts["optimizer"] == 2 * weights + 2 * FLOAT  # two moments, and a step count for each parameter
    assert parts["data"] == FLOAT * 10 * 100


def test_what_the_first_loss_finds_was_there_before_it() -> None:
    model, x, y = nn.Linear(30, 20), torch.randn(10, 30), torch.randn(10, 20)
    trace = trace_step(lambda: (model, adam(model), lambda: F.smooth_l1_loss(model(x), y)))
    found = [trace.categories[key] for key, size in trace.events if size != RELEASE]
    assert found[:4] == ["parameters", "parameters", "data", "data"]


def test_views_and_operations_in_place_are_no_new_memory() -> None:
    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            (x + 1).view(-1).mul_(2).relu_()[:5].t()
        return x.sum()

    assert allocated(of(step, 30, 40)).count(FLOAT * 1200) == 1 + 2 * 2  # x; in each step x + 1, and x's gradient


def test_ids_are_never_used_again() -> None:
    events = of(lambda x: (x.exp() * 2).sum(), 100).events
    ids = [key for key, size in events if size >= 0]
    assert len(ids) == len(set(ids))
    assert replay(events).peak_allocated_bytes >= 400


def test_a_model_larger_than_any_machine_costs_nothing() -> None:
    trace = of(lambda x: x.sum(), 2**23, 2**23)
    assert trace.parts_at_peak()["parameters"] == FLOAT * 2**46


def test_gradients_that_meet_are_added_in_place_as_on_a_device() -> None:
    trace = of(lambda x: (lambda y: y.exp() + y.sin())(x * 2).sum(), 1000)
    check_against_profiler(parameter_step(lambda x: (lambda y: y.exp() + y.sin())(x * 2).sum(), 1000), exact=True)
    assert trace.parts_at_peak()["gradients"] == 0  # the peak is before x's gradient is there


# ---------------------------------------------------------------------------------------------- what can be traced


def test_integers_are_real_so_that_shapes_may_follow_from_them() -> None:
    def step(x: Tensor) -> Tensor:
        index = torch.tensor([3, 1, 1, 0])
        index = torch.unique(index[index > 0])
        assert index.tolist() == [1, 3]
        return x[index][torch.argsort(index)].sum() * int(index.max())

    assert FLOAT * 2 * 7 in allocated(of(step, 9, 7))


def test_values_that_leave_torch_stand_in_for_unknown_ones() -> None:
    def step(x: Tensor) -> Tensor:
        assert (x.sum().item(), bool(x.isnan().any()), float(x.detach()[0])) == (1.0, False, 1.0)
        np.testing.assert_array_equal(x.detach().numpy(), np.ones(5, dtype=np.float32))
        return x.sum()

    of(step, 5)


def test_a_shape_that_follows_from_floats_names_the_operator() -> None:
    with pytest.raises(Untraceable, match=r"aten\.bincount.*: give memory_gb, or leave estimate out"):
        of(lambda x: x.sum() * x.long().bincount(), 5)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: x[x > 0].sum(), 8 * 1000),
        (lambda x: x.masked_select(x > 0).sum(), 4 * 1000),
        (lambda x: x.sum() + x.detach().unique().sum(), 4 * 1000),
        (lambda x: x.sum() + (x > 0).nonzero().sum(), 8 * 1000),
    ],
)
def test_a_size_that_values_decide_is_at_most_that_of_all(step: Callable[[Tensor], Tensor], expected: int) -> None:
    trace = of(step, 1000)
    assert expected in allocated(trace)
    assert "sizes that values decide" in trace.to_estimate("cpu").note


def test_an_operator_whose_memory_is_unknown_is_refused() -> None:
    with pytest.raises(Untraceable, match=r"aten\.mkldnn_rnn_layer\.default.*unknown size"):
        of(lambda x: nn.LSTM(4, 4)(x)[0].sum(), 3, 2, 4)


def test_a_fault_of_the_users_own_is_told_with_its_text() -> None:
    with pytest.raises(WorkloadError, match=r"loss failed while traced: ValueError: no such thing \(toy.py, line "):
        trace_workload(Toy(), {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, "fault": 1}, None)


def test_a_failure_leaves_no_mode_behind() -> None:
    state = torch.get_rng_state()
    with pytest.raises(Untraceable):
        of(lambda x: x.long().bincount().sum() + x.sum(), 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(torch.ones(2)) is Tensor
    assert type(copy.deepcopy(nn.Linear(2, 2).to("cpu").double()).weight) is nn.Parameter


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_that_exists_is_left_as_it_was_found(fails: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = adam(model)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))

    def loss() -> Tensor:
        y = model(torch.randn(8, 4))
        return y[y > 0].sum() if fails else y.square().sum()

    for kind in ("cpu", "cuda"):
        try:
            trace_step(lambda: (model, optimizer, loss), device_kind=kind)  # type: ignore[arg-type]
        except Untraceable:
            assert fails
    after = (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()


# ------------------------------------------------------------------------------------------------- what CUDA changes


@pytest.mark.parametrize("module", [False, True])
def test_dropout_keeps_floats_on_the_cpu_and_booleans_on_cuda(module: bool) -> None:
    drop = nn.Dropout(0.5) if module else lambda x: F.dropout(x, 0.5)
    cpu, cuda = (of(lambda x: drop(x).sum(), 1000, device_kind=kind) for kind in ("cpu", "cuda"))
    assert 1000 not in allocated(cpu)
    assert 1000 in allocated(cuda)


def test_children_are_moved_to_the_gpu_before_a_modules_own_parameters() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.child = nn.Parameter(torch.ones(100)), nn.Linear(20, 30, bias=False)

    def make() -> Parts:
        model = Outer()
        return model, None, lambda: model.child(torch.ones(1, 20)).sum() + model.own.sum()

    assert allocated(trace_step(make, device_kind="cuda"))[:2] == [FLOAT * 600, FLOAT * 100]


def test_dropout_on_cuda_has_its_mask_first() -> None:
    sizes = allocated(of(lambda x: F.dropout(x, 0.5).exp().sum(), 1000, device_kind="cuda"))
    assert sizes[1:3] == [1000, FLOAT * 1000]


def test_tensors_say_that_they_are_on_the_gpu() -> None:
    def step(x: Tensor) -> Tensor:
        assert (x.device.type, x.is_cuda) == ("cuda", True)
        return (x + torch.ones(5, device=x.device).to("cuda:0").cuda()).sum()

    assert of(step, 5, device_kind="cuda").parts_at_peak()["parameters"] == 20


def test_attention_with_dropout_builds_no_scores_on_cuda() -> None:
    def make() -> Parts:
        model = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        x = torch.randn(4, 64, 16)
        return model, None, lambda: model(x, x, x, need_weights=False)[0].sum()

    scores = FLOAT * 4 * 2 * 64 * 64
    assert scores in allocated(trace_step(make))
    assert scores not in allocated(trace_step(make, device_kind="cuda"))


def test_an_optimizer_left_to_choose_takes_the_foreach_path_on_cuda() -> None:
    def make() -> Parts:
        model = nn.Sequential(*(nn.Linear(50, 50) for _ in range(8)))
        return model, adam(model), lambda: model(torch.randn(2, 50)).sum()

    cpu, cuda = trace_step(make), trace_step(make, device_kind="cuda")
    assert cuda.peak_bytes() > cpu.peak_bytes() + 4 * FLOAT * 50 * 50  # a temporary for all weights at once


@pytest.mark.parametrize(("version", "kept"), [((2, 8), 0), ((2, 11), 1), ((2, 13), 0)])
def test_cublaslt_has_a_workspace_by_torchs_version(
    version: tuple[int, int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.estimation.tracing.dispatch_mode.TORCH", version)
    step = lambda x: F.linear(x, x, x[0]).sum()  # noqa: E731
    trace = of(step, 64, 64, device_kind="cuda", card=find_card("Tesla T4"))
    taken = [key for key, size in trace.events if size == LT_WORKSPACE_BYTES]
    assert len(taken) == {(2, 8): 2, (2, 11): 1, (2, 13): 0}[version]  # one for each product, one for all, or none
    assert sum((key, RELEASE) not in trace.events for key in taken) == kept


UNUSUAL: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "sum of a number": (lambda x: x.sum(0) + x.mean(-1), ()),
    "largest of a number": (lambda x: x.max(dim=-1).values + x.argmax(0) * x.norm(dim=0), ()),
    "variance of a number": (lambda x: x.var(0, unbiased=False) + x.logsumexp(0), ()),
    "attention of nothing": (lambda x: F.scaled_dot_product_attention(x[..., :0, :], x, x).sum(), (2, 3, 8, 16)),
    "attention to nothing": (lambda x: F.scaled_dot_product_attention(x, *[x[..., :0, :]] * 2).sum(), (2, 3, 8, 16)),
    "no rows": (lambda x: (F.layer_norm(x, (8,)).sort(0).values @ x.new_ones(8, 8)).var(), (0, 8)),
    "vectorized norm": (lambda x: torch.func.vmap(lambda row: F.rms_norm(row, (8,)))(x).sum(), (4, 8)),
}


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_no_rule_for_cuda_hinders_an_unusual_step(name: str, dtype: torch.dtype | None) -> None:
    function, shape = UNUSUAL[name]

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            return function(x).float()

    assert of(step, *shape, device_kind="cuda", card=find_card("Tesla T4")).peak_bytes() > 0


def test_a_penalty_on_the_gradient_of_an_rms_norm_is_traced_for_cuda() -> None:
    def step(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(F.rms_norm(x, (30,), x[0]).sum(), x, create_graph=True)
        return gradient.square().sum()

    sizes = allocated(of(step, 20, 30, device_kind="cuda"))
    assert sizes.count(FLOAT * 600) > allocated(of(lambda x: F.rms_norm(x, (30,)).sum(), 20, 30)).count(FLOAT * 600)


def test_the_reserve_of_an_lstm_with_projections_is_of_its_cells() -> None:
    def make(**options: int) -> Parts:
        model, x = nn.LSTM(16, 256, **options), torch.randn(50, 4, 16)
        return model, None, lambda: model(x)[0].sum()

    plain, projected = (trace_step(partial(make, proj_size=size), device_kind="cuda") for size in (0, 8))
    assert max(allocated(projected)) == max(allocated(plain))


def test_cublas_has_a_workspace_for_each_pass_and_keeps_it() -> None:
    trace = of(lambda x: (x @ x @ x).sum(), 64, 64, device_kind="cuda", card=find_card("Tesla T4"))
    assert allocated(trace).count(8_519_680) == 2
    assert allocated(trace)[1:3] == [FLOAT * 64 * 64, 8_519_680]  # the result comes first
    released = {key for key, size in trace.events if size == RELEASE}
    assert all(key not in released for key, size in trace.events if size == 8_519_680)


@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("workload", "values", "states"),
    [
        (Batched(), {}, 2),
        (Batched(), {"optimizer": "sgd", "momentum": 0.9}, 1),
        (Batched(), {"optimizer": "sgd"}, 0),
        (WithRMSprop(), {}, 1),
    ],
)
def test_the_state_is_that_of_the_optimizer_that_trains(
    workload: Batched, values: dict[str, Any], states: int, device_kind: DeviceKind
) -> None:
    trace = trace_workload(workload, complete(values, workload.schema), None, device_kind=device_kind)
    parts = trace.to_estimate(device_kind, False)
    counters = 4 * 512  # a step's number for each parameter; on CUDA in blocks of 512 bytes
    assert states * parts.parameter_bytes <= parts.optimizer_bytes <= states * (parts.parameter_bytes + counters)


def test_on_cuda_a_workloads_host_work_takes_no_memory(ratings: RatingData) -> None:
    config = {"hidden_dim": 8, "num_layers": 1, "dropout": 0.3, "lr": 0.01, "weight_decay": 0.0, "batch_size": 100}
    cuda = trace_workload(GraphSAGE(), config, ratings, device_kind="cuda")
    assert cuda.categories[cuda.events[0][0]] in ("parameters", "data")  # nothing before the model
    assert 100 * 8 in allocated(cuda) or (40 + 60) * 8 in allocated(cuda)  # dropout's mask of booleans


# ----------------------------------------------------------------------------- against the profiler, on the CPU


def profiled_peak(run: Callable[[], object]) -> int:
    """The most bytes that ``run`` held at once, from the profiler's record of every allocation and release."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def run_for_real(make: Callable[[], Parts]) -> None:
    model, optimizer, loss = make()
    value = None
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        if optimizer is not None:
            optimizer.step()
    del value


def check_against_profiler(make: Callable[[], Parts], *, exact: bool = False) -> None:
    run_for_real(make)  # so that nothing is allocated for the first time only
    real, traced = profiled_peak(lambda: run_for_real(make)), trace_step(make).peak_bytes()
    assert real * 0.98 <= traced <= real * (1.001 if exact else 1.03)


def parameter_step(step: Callable[[Tensor], Tensor], *shape: int) -> Callable[[], Parts]:
    def make() -> Parts:
        model = nn.ParameterList([nn.Parameter(torch.randn(*shape))])
        return model, None, lambda: step(model[0])

    return make


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_from_logits_is_exact_whether_it_is_reduced_or_not(reduction: str) -> None:
    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            F.binary_cross_entropy_with_logits(x, torch.rand(100_000), reduction=reduction)
        return x[:1].sum()

    check_against_profiler(parameter_step(step, 100_000), exact=True)


def mlp() -> Parts:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 10))
    x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
    return model, adam(model), lambda: F.cross_entropy(model(x), y)


def gat(own_loops: bool) -> Callable[[], Parts]:
    def make() -> Parts:
        from torch_geometric.nn import GATConv
        from torch_geometric.utils import add_self_loops

        edges, x = torch.randint(0, 500, (2, 4000)), torch.randn(500, 32)
        if own_loops:
            edges, _ = add_self_loops(edges, num_nodes=500)
        model = GATConv(32, 16, heads=4, add_self_loops=not own_loops)
        return model, adam(model), lambda: F.elu(model(x, edges)).square().mean()

    return make


def gat_with_edge_features() -> Parts:
    """Loops among the edges are masked out, and with them their features."""
    from torch_geometric.nn import GATConv

    edges, x, features = torch.randint(0, 500, (2, 4000)), torch.randn(500, 32), torch.randn(4000, 4)
    model = GATConv(32, 16, heads=4, edge_dim=4)
    return model, adam(model), lambda: F.elu(model(x, edges, features)).square().mean()


def can_classifier(*, amp: bool = False) -> Parts:
    from tuner.workloads.kd_gat.distillation import gat_loss
    from tuner.workloads.kd_gat.networks import GAT

    model, batch = GAT(NUM_IDS, hidden_channels=16, num_layers=3, heads=4, dropout=0.2), random_batch(30)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            return gat_loss(model(batch), batch)

    return model, adam(model), loss


def can_autoencoder(*, again: bool = False) -> Parts:
    from tuner.workloads.kd_gat.distillation import vgae_loss
    from tuner.workloads.kd_gat.networks import VGAE

    model = VGAE(NUM_IDS, hidden_channels=80, latent_channels=16, heads=4, dropout=0.2)
    batch = random_batch(30)

    def loss() -> Tensor:
        with recomputing(model.checkpointed if again else []):
            return vgae_loss(model(batch), batch)

    return model, adam(model), loss


def taught_can_autoencoder() -> Parts:
    """Teacher and student at once, the teacher without gradients."""
    from tuner.workloads.kd_gat.distillation import distilled_vgae_loss
    from tuner.workloads.kd_gat.networks import VGAE

    teacher = VGAE(NUM_IDS, hidden_channels=80, latent_channels=16, heads=4, dropout=0.2).eval()
    student = VGAE(NUM_IDS, hidden_channels=32, latent_channels=8, heads=1, dropout=0.2)
    trained = nn.ModuleList([student, nn.Linear(8, 16)])
    batch = random_batch(30)

    def loss() -> Tensor:
        with torch.no_grad():
            said = teacher(batch)
        return distilled_vgae_loss(student(batch), batch, said.z, said.features, trained[1])

    return trained, adam(trained), loss


def transformer() -> Parts:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 100))
    tokens = torch.randint(0, 100, (8, 32))
    return model, adam(model), lambda: F.cross_entropy(model(tokens).view(-1, 100), tokens.view(-1))


def causal_attention() -> Parts:
    model = nn.Linear(64, 192)
    x = torch.randn(4, 128, 64)

    def loss() -> Tensor:
        q, k, v = model(x).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

    return model, adam(model), loss


def masked_ranking() -> Parts:
    """A mask of booleans times floats, indices, log-sum-exp, and a loss that keeps its buffer."""
    model = nn.Linear(50, 50)
    x, index = torch.randn(2000, 50), torch.randint(0, 2000, (3000,))

    def loss() -> Tensor:
        y = model(x)[index]
        return F.binary_cross_entropy_with_logits(y * (y > 0), torch.rand(3000, 50)) + y.logsumexp(1).mean()

    return model, adam(model), loss


STEPS = {
    "mlp": mlp,
    "gat": gat(own_loops=False),
    "gat with loops of its own": gat(own_loops=True),
    "gat with features of edges": gat_with_edge_features,
    "can classifier": can_classifier,
    "can classifier in bfloat16": partial(can_classifier, amp=True),
    "can autoencoder": can_autoencoder,
    "can autoencoder, computed again": partial(can_autoencoder, again=True),
    "can autoencoder with its teacher": taught_can_autoencoder,
    "transformer": transformer,
    "causal attention": causal_attention,
    "masks and losses": masked_ranking,
    "mse": parameter_step(lambda x: F.mse_loss(x.exp(), torch.zeros(20_000)), 20_000),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", STEPS)
def test_the_peak_is_the_profilers(name: str) -> None:
    check_against_profiler(STEPS[name])


@pytest.mark.parametrize(
    ("hidden", "layers", "batch", "accumulation", "fanout"),
    [
        (16, 1, 64, 1, "all"),
        (64, 2, 512, 1, "all"),
        (128, 3, 20_000, 1, "all"),
        (128, 3, 8_000, 4, "all"),
        (64, 1, 512, 1, "5"),
        (64, 2, 512, 1, "10,10"),
        (32, 3, 400, 2, "4,3,2"),
    ],
)
def test_graphsages_peak_is_the_profilers(
    hidden: int, layers: int, batch: int, accumulation: int, fanout: str
) -> None:
    data, workload = synthetic_ratings(200, 300, 10_000), GraphSAGE()
    config: dict[str, Any] = {name: value.default for name, value in workload.hyperparameters.items()}
    config |= {"hidden_dim": hidden, "num_layers": layers, "batch_size": batch, "accumulation": accumulation}
    config["fanout"] = fanout

    def run() -> None:
        model = workload.build_model(config, data)
        optimizer, batches = build_optimizer(workload, model, config), representative_batches(workload, config, data)
        rehearse(workload, model, optimizer, batches, data, config=config)

    run()
    real, traced = profiled_peak(run), trace_workload(workload, config, data).peak_bytes()
    assert real * 0.98 <= traced <= real * 1.03


# --------------------------------------------------------------------------------- mixed precision, shared weights


def test_autocast_for_a_gpu_is_followed_without_one() -> None:
    def make(kind: str) -> Parts:
        model = nn.Linear(256, 256, bias=False)
        x = torch.randn(512, 256)

        def loss() -> Tensor:
            with torch.autocast(kind, torch.bfloat16):
                return model(x).relu().relu().float().sum()

        return model, adam(model, fused=True), loss

    on_gpu = trace_step(lambda: make("cuda"), device_kind="cuda")
    assert on_gpu.peak_bytes() == trace_step(lambda: make("cpu")).peak_bytes()


def test_a_softmax_under_autocast_is_in_float32_on_a_gpu_only() -> None:
    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.softmax(x @ x.T, dim=-1).sum()

    wide = {kind: allocated(of(step, 100, 90, device_kind=kind)).count(FLOAT * 100 * 100) for kind in ("cpu", "cuda")}
    assert wide["cpu"] < wide["cuda"]


def test_a_shared_weight_stays_shared_and_trained_when_its_type_changes() -> None:
    def make() -> Parts:
        model = nn.ModuleList([nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)])
        model[1].weight = model[0].weight
        model = model.to(torch.bfloat16)
        x = torch.randn(10, 100, dtype=torch.bfloat16)
        return model, adam(model), lambda: model[1](model[0](x)).sum()

    assert trace_step(make).parts_at_peak()["parameters"] == 2 * 100 * 100


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": 1}])
def test_a_slice_of_all_data_is_moved_to_a_gpu_without_the_rest(options: dict[str, int]) -> None:
    class Sliced(Toy):
        def batches(self, config: Any, data: Any) -> Any:
            yield from ((x, x[:, :1]) for x in torch.randn(2**20, 1).split(2**16))

    class Copied(Sliced):
        def batches(self, config: Any, data: Any) -> Any:
            yield from ((x.clone(), y.clone()) for x, y in super().batches(config, data))

    config = {**complete({}, Toy.hyperparameters), **options}
    sliced, copied = (
        trace_workload(workload, config, None, device_kind="cuda", card=find_card("H100")).to_estimate("cuda", False)
        for workload in (Sliced(), Copied())
    )
    assert sliced == copied


def test_the_device_of_what_a_step_is_made_of_is_the_hosts_until_it_is_put_elsewhere() -> None:
    def make(asks: bool) -> Parts:
        model, x = nn.Linear(64, 64), torch.randn(512, 64)
        if asks:
            torch.arange(3, device=x.device)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(x).sum()

    t4: dict[str, Any] = {"device_kind": "cuda", "card": find_card("Tesla T4")}
    assert trace_step(partial(make, True), **t4).peak_bytes() == trace_step(partial(make, False), **t4).peak_bytes()
