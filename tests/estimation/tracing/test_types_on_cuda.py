"""Functions under autocast, and recurrent cells, on the emulated card: the trace has the blocks of its allocator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.estimation.tracing.test_kernels_on_cuda import holds, labels, of
from tests.support.cuda_events import Make, warm_up

pytestmark = [pytest.mark.emulated, pytest.mark.filterwarnings("ignore:Using a target size")]
TYPES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True, scope="module")
def _without_cudnn() -> None:
    torch.backends.cudnn.enabled = False
    warm_up()


def of_images(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.reshape(64, 16, 32, 32))


def of_volumes(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.reshape(16, 16, 16, 16, 16))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "interpolate": of_images(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "interpolate to the nearest": of_images(lambda x: F.interpolate(x, scale_factor=2)),
    "lp_pool2d": of_images(lambda x: F.lp_pool2d(x, 2, 2)),
    "avg_pool3d": of_volumes(lambda x: F.avg_pool3d(x, 2)),
    "adaptive_avg_pool3d": of_volumes(lambda x: F.adaptive_avg_pool3d(x, 2)),
    "group_norm": of_images(lambda x: F.group_norm(x, 4)),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "matrix_norm": torch.linalg.matrix_norm,
    "softmin": lambda x: F.softmin(x, 1),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=1),
    "reciprocal": lambda x: 1 / x,
    "multilabel_soft_margin_loss": lambda x: F.multilabel_soft_margin_loss(x, torch.zeros_like(x)),
    "pairwise_distance": lambda x: F.pairwise_distance(x, torch.zeros_like(x)),
    "tensordot of two types": lambda x: torch.tensordot(x, x.float(), dims=([1], [1])),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "addcmul of two types": lambda x: torch.addcmul(x, x.float(), x),
    "cross_entropy, smoothed": lambda x: F.cross_entropy(x, labels(len(x), x.device), label_smoothing=0.1),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1).detach(), reduction="sum"),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, x * 2, x.new_ones(len(x))),
    "prelu": lambda x: F.prelu(x, torch.ones(1, device=x.device)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_gives_each_function_the_types_of_a_gpu(name: str) -> None:
    dtype = TYPES[len(name) % 2]

    def cast(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype):
            out = FUNCTIONS[name](x @ weight)
        return out.float()

    holds(of(cast, (4096, 256), (256, 256)))


CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "rnn": nn.RNNCell}


def unrolled(build: Callable[[], nn.Module], dtype: torch.dtype | None) -> Make:
    """A loop of a cell, or all steps of a network."""

    def make(device: str) -> Callable[[], object]:
        model, x = build().to(device), torch.randn(4, 512, 128, device=device)

        def run() -> None:
            with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                if isinstance(model, nn.RNNBase):
                    out = model(x)[0]
                else:
                    state, results = None, []
                    for step in x:
                        state = model(step, state)
                        results.append(state[0] if isinstance(state, tuple) else state)
                    out = torch.stack(results)
            out.float().sum().backward()

        return run

    return make


@pytest.mark.parametrize("dtype", [None, *TYPES])
@pytest.mark.parametrize("name", CELLS)
def test_a_loop_of_cells(name: str, dtype: torch.dtype | None) -> None:
    holds(unrolled(lambda: CELLS[name](128, 256, bias=dtype is not torch.float16), dtype))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_all_steps_under_autocast(kind: Callable[..., nn.Module]) -> None:
    holds(unrolled(lambda: kind(128, 256, 2), torch.bfloat16))
