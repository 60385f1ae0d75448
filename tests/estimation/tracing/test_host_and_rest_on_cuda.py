"""Tensors that leave the emulated card or are kept there, and steps without fake kernels: their peaks on the card."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.estimation.tracing.test_kernels_on_cuda import holds, labels, of
from tests.support.cuda_events import warm_up
from tuner.estimation.caching_allocator import largest_peaks
from tuner.estimation.cards import find_card
from tuner.estimation.tracing.tracer import Parts, trace_step

pytestmark = pytest.mark.emulated
Loss = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True, scope="module")
def _without_cudnn() -> None:
    torch.backends.cudnn.enabled = False
    warm_up()


def step(loss: Loss, make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> Parts:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)]).to("cuda")
    x = torch.randn(2048, 512).to("cuda")
    return model, make_optimizer(model.parameters(), lr=0.1), lambda: loss(model, x)


def peak_on_card(make: Callable[[], Parts]) -> int:
    gc.collect()  # of earlier models in cycles: else they end within the step, and the peak is lower by them
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()  # a block that is reused may be split where a new one is not, and counts by its size
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _model, optimizer, loss = make()
    assert optimizer is not None
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated() - before


def agrees(make: Callable[[], Parts]) -> None:
    trace = trace_step(make, device_kind="cuda", card=find_card(torch.cuda.get_device_name()))
    said = largest_peaks(trace.events).peak_allocated_bytes
    assert said == pytest.approx(peak_on_card(make), rel=0.001)


def saved(model: nn.Module, x: Tensor) -> Tensor:
    with save_on_cpu(pin_memory=True):
        return model(x).square().mean()


def hooked(model: nn.Module, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda tensor: tensor.to("cpu"), lambda tensor: tensor.to("cuda")):
        return model(x).square().mean()


LOSSES: dict[str, Loss] = {
    "save_on_cpu": saved,
    "hooks": hooked,
    "a loss on the host": lambda model, x: model(x).cpu().square().mean(),
    "there and back": lambda model, x: model((x * 2).to("cpu").add(1).to("cuda")).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_leaves_for_the_host_does_not_count(name: str) -> None:
    agrees(lambda: step(LOSSES[name]))


def copied(model: nn.Module, x: Tensor) -> object:
    with torch.device("cuda"):
        return torch.randn(20_000, 512)


KEPT: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "made there": lambda model, x: torch.randn(20_000, 512, device="cuda"),
    "moved": lambda model, x: torch.randn(20_000, 512).cuda(),
    "moved as another type": lambda model, x: torch.randn(20_000, 512).to("cuda", torch.float16),
    "of numpy": lambda model, x: torch.from_numpy(np.zeros((20_000, 512), "float32")).to(torch.device("cuda")),
    "integers": lambda model, x: torch.zeros(1_000_000, dtype=torch.long, device="cuda"),
    "computed there": lambda model, x: torch.cat([x] * 10),
    "by a device as a context": copied,
    "a teacher": lambda model, x: copy.deepcopy(model),
    "a layer of the host": lambda model, x: nn.Linear(5000, 5000),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_lies_on_the_card_counts_though_no_step_touches_it(name: str) -> None:
    def make() -> Parts:
        model, optimizer, loss = step(lambda model, x: model(x).mean())
        kept = KEPT[name](model, torch.zeros(2048, 512, device="cuda"))
        return model, optimizer, lambda kept=kept: loss()

    agrees(make)


def test_a_loader_of_the_host_fills_the_card_with_one_batch() -> None:
    def make() -> Parts:
        batches = torch.utils.data.DataLoader(torch.randn(20_000, 512), 2048)
        model, optimizer, _ = step(lambda model, x: model(x).mean())
        return model, optimizer, lambda: model(next(iter(batches)).to("cuda")).mean()

    agrees(make)


def test_an_optimizer_that_computes_the_loss_itself() -> None:
    model, _, loss = step(lambda model, x: model(x).mean())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    trace = trace_step(lambda: (model, optimizer, loss), device_kind="cuda")
    assert trace.peak_bytes() > 4 * sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adafactor", "ASGD"])
def test_an_optimizer_that_counts(name: str) -> None:
    agrees(lambda: step(lambda model, x: model(x).mean(), getattr(torch.optim, name)))


def ctc(lengths: object, count: object) -> Callable[[Tensor], Tensor]:
    targets = torch.ones(32, 10, dtype=torch.long)
    return lambda x: F.ctc_loss(x.view(128, 32, 256).log_softmax(-1), targets.to(x.device), lengths, count)  # type: ignore[arg-type]


def packed(x: Tensor) -> Tensor:
    sequences = nn.utils.rnn.pack_padded_sequence(x.view(64, 64, 256), torch.arange(64, 0, -1), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(sequences, batch_first=True)[0]


WITHOUT_FAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "ctc, tensors": ctc(torch.full((32,), 128), torch.full((32,), 10)),
    "ctc, lists": ctc([128] * 32, [10] * 32),
    "packed sequence": packed,
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x, labels(x.numel(), x.device).view_as(x)),
}


@pytest.mark.parametrize("name", WITHOUT_FAKES)
def test_a_kernel_without_a_fake_version(name: str) -> None:
    make = of(WITHOUT_FAKES[name], (4096, 256))
    if name == "multilabel_margin":  # a number for each row
        return agrees(lambda: step(lambda model, x: WITHOUT_FAKES[name](model(x))))
    holds(make)


def test_gradients_of_each_sample() -> None:
    model = nn.Linear(256, 64)

    def of_samples(x: Tensor) -> Tensor:
        one = lambda given, row: torch.func.functional_call(model, given, (row[None],)).square().sum()  # noqa: E731
        given = {"weight": x.detach().new_zeros(64, 256), "bias": x.detach().new_zeros(64)}
        found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(given, x[:64].detach())
        return x.sum() * found["weight"].sum()

    holds(of(of_samples, (4096, 256)))


def test_a_checkpointed_step_is_traced_where_cuda_is_in_use() -> None:
    model = nn.Linear(64, 64)

    def loss() -> Tensor:
        return checkpoint(model, torch.ones(4096, 64), use_reentrant=False).sum()

    assert torch.cuda.is_initialized()
    assert trace_step(lambda: (model, None, loss), device_kind="cuda").peak_bytes() > 4 * 4096 * 64
