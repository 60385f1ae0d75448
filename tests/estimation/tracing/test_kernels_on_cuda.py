"""Kernels on the emulated card: what torch's own allocator records, and what a trace says, block by block.

Each program runs forward and backward on generated tensors. Blocks of up to 4 KiB do not count. Reductions, whose
temporaries depend on the card most, are compared to the byte, on several cards.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.emulated_cuda.cards import on_cards
from tests.support.cuda_events import Make, on_card, traced, warm_up

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]
N, C, H = 4096, 256, 64  # rows, columns, and the columns of a narrow matrix
EDGES, NODES = 60000, 5000


@pytest.fixture(autouse=True, scope="module")
def _workspaces() -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    warm_up()


def of(function: Callable[..., object], *shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> Make:
    """A function of random tensors of these shapes: the first needs a gradient, and the first result has one."""

    def make(device: str) -> Callable[[], object]:
        first, *others = (torch.randn(*shape, device=device, dtype=dtype) for shape in shapes)
        first.requires_grad_()

        def run() -> None:
            out = function(first, *others)
            out = out if isinstance(out, Tensor) else out[0]  # type: ignore[index]
            out.backward(torch.ones_like(out))

        return run

    return make


def holds(make: Make) -> None:
    real, said = on_card(make), traced(make)
    assert said.blocks == real.blocks
    assert said.peak == real.peak


def labels(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.long, device=device)


POINTWISE: dict[str, Callable[[Tensor], object]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "glu": F.glu,
    "dropout": lambda x: F.dropout(x, 0.3),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(0),  # cumprod's backward chooses its kernels by values, which are any on this card
    "normalize": F.normalize,
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "quantile": lambda x: x.quantile(0.5, dim=0),
}
PATCHES: dict[str, Callable[[Tensor], object]] = {
    "unfold": lambda x: F.unfold(x.view(64, 16, 32, 32), 3, padding=1),
    "fold": lambda x: F.fold(x.view(64, 64, 256), (32, 32), 2, stride=2).square(),
    "largest of parts": lambda x: F.adaptive_max_pool2d(x.view(8, 64, 64, 32).movedim(3, 1), 7),
    "distances of all pairs": lambda x: F.pdist(x[:300]),
    "distances, city block": lambda x: torch.cdist(x[:300], x[:200], p=1.0),
}
REDUCED: dict[str, Callable[[Tensor], object]] = {
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(0),
    "amax": lambda x: x.amax(0),
    "var": lambda x: x.var(0),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "sum in float64": lambda x: x.sum(0, dtype=torch.float64),
    "count of booleans": lambda x: x.sum() * (x > 0).sum(0),
}
SORTED: dict[str, Callable[[Tensor], object]] = {
    "sort of short rows": lambda x: x.sort(0),
    "sort of long rows": lambda x: x.view(64, -1).sort(1),
    "stable sort of long columns": lambda x: x.view(-1, 16).sort(dim=0, stable=True),
    "sort of all": lambda x: x.flatten().sort(),
    "topk": lambda x: x.topk(5),
}
NORMS: dict[str, Callable[[Tensor], object]] = {
    "layer norm": lambda x: F.layer_norm(x, (C,)),
    "layer norm of strided rows": lambda x: F.layer_norm(x.view(64, 64, C).transpose(0, 1), (C,)),
    "rms norm": lambda x: F.rms_norm(x, (C,)),
    "rms norm of two types": lambda x: F.rms_norm(x.half(), (C,), torch.ones(C, device=x.device)),
    "batch norm of rows": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm of images": lambda x: F.batch_norm(x.view(64, 64, 16, 16), None, None, training=True),
    "group norm": lambda x: F.group_norm(x.view(64, 64, 16, 16), 8),
    "group norm with weights": lambda x: F.group_norm(x.view(64, 64, 16, 16), 8, torch.ones(64, device=x.device)),
    "instance norm": lambda x: F.instance_norm(x.view(64, 64, 16, 16)),
}


FUNCTIONS = POINTWISE | PATCHES | REDUCED | SORTED | NORMS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_a_matrix(name: str) -> None:
    make = of(FUNCTIONS[name], (N, C))
    if name not in PATCHES:
        return holds(make)
    assert traced(make).peak == on_card(make).peak  # im2col enlarges what it has made


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "weighted l1": lambda x, y: F.l1_loss(x, y, weight=y, reduction="none"),
    "smooth l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "from logits": F.binary_cross_entropy_with_logits,
    "binary cross-entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "soft margin": F.soft_margin_loss,
    "divergence": lambda x, y: F.kl_div(x, y, reduction="batchmean"),
    "cosine similarity": lambda x, y: F.cosine_similarity(x, y).mean(),
    "cross-entropy": lambda x, y: F.cross_entropy(x, labels(len(x), x.device)),
    "weighted cross-entropy": lambda x, y: F.cross_entropy(x, labels(len(x), x.device), weight=y[0]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss(name: str) -> None:
    holds(of(LOSSES[name], (N, C), (N, C)))


def drawn(count: int, most: int, device: torch.device) -> Tensor:
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(0)).to(device)


def scattered(x: Tensor) -> Tensor:
    index = drawn(EDGES, NODES, x.device)
    return torch.zeros_like(x).scatter_add(0, index.view(-1, 1).expand(-1, H), x[index])


LOOKUPS: dict[str, Callable[[Tensor], object]] = {
    "few embeddings": lambda x: F.embedding(drawn(1000, NODES, x.device), x),
    "embeddings": lambda x: F.embedding(drawn(20_000, NODES, x.device), x),
    "bags, summed": lambda x: F.embedding_bag(drawn(20_480, NODES, x.device).view(512, 40), x, mode="sum"),
    "bags, averaged": lambda x: F.embedding_bag(drawn(20_480, NODES, x.device).view(512, 40), x, mode="mean"),
    "bags, the largest": lambda x: F.embedding_bag(drawn(20_480, NODES, x.device).view(512, 40), x, mode="max"),
    "positions": lambda x: x[drawn(EDGES, NODES, x.device)],
    "scatter_add": scattered,
    "index_add": lambda x: torch.zeros_like(x).index_add(
        0, drawn(EDGES, NODES, x.device), x.index_select(0, drawn(EDGES, NODES, x.device))
    ),
    "index_select": lambda x: x.index_select(0, drawn(EDGES, NODES, x.device)),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup(name: str) -> None:
    holds(of(LOOKUPS[name], (NODES, H)))


@pytest.mark.parametrize("name", ["embeddings", "bags, summed"])
def test_a_lookup_in_float64(name: str) -> None:
    holds(of(LOOKUPS[name], (NODES, H), dtype=torch.float64))


def test_rows_and_columns_at_once() -> None:
    """Both indices are expanded before they are sorted, which takes less."""
    make = of(lambda x: x[drawn(300, N, x.device)[:, None], drawn(200, C, x.device)], (N, C))
    assert traced(make).peak == on_card(make).peak


ATTENTION = {
    "float32": (torch.float32, (4, 8, 200, 64), {}),
    "float32, causal, large heads": (torch.float32, (2, 4, 1000, 128), {"is_causal": True}),
    "float32, dropout": (torch.float32, (4, 8, 128, 32), {"dropout_p": 0.1}),
    "bfloat16": (torch.bfloat16, (4, 8, 200, 64), {}),
    "bfloat16, heads of 36": (torch.bfloat16, (2, 4, 200, 36), {}),
    "float32, heads of 80": (torch.float32, (2, 4, 130, 80), {}),
    "bfloat16, long": (torch.bfloat16, (1, 4, 2000, 128), {"is_causal": True}),
}


def attention(name: str, *, strided: bool) -> Make:
    dtype, (batch, heads, length, head), options = ATTENTION[name]

    def attend(x: Tensor) -> Tensor:
        query, key, value = x.permute(2, 0, 3, 1, 4).unbind(0) if strided else x.unbind(0)
        return F.scaled_dot_product_attention(query, key, value, **options)

    shape = (batch, length, 3, heads, head) if strided else (3, batch, heads, length, head)
    return of(attend, shape, dtype=dtype)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("strided", [False, True])
def test_attention(name: str, strided: bool) -> None:
    holds(attention(name, strided=strided))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_heads_that_share_a_key(dtype: torch.dtype) -> None:
    shared = partial(F.scaled_dot_product_attention, enable_gqa=True)
    make = of(shared, (2, 8, 300, 64), (2, 4, 300, 64), (2, 4, 300, 64), dtype=dtype)
    assert traced(make).peak == on_card(make).peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_attention(dtype: torch.dtype) -> None:
    shape = (4, 4, 100, 64)
    holds(of(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m[0, 0] > 0), *[shape] * 3, (1, 1, 100, 100)))


def test_attention_with_a_mask_whose_heads_are_last_in_memory() -> None:
    """As T5's of positions: no kernel but the plain one takes it."""
    attend = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.permute(0, 3, 1, 2))  # noqa: E731
    holds(of(attend, *[(2, 8, 128, 64)] * 3, (1, 128, 128, 8)))


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return super().forward(x, x, x)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(H, 512), (N, H)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(H, H), nn.RMSNorm(H)), (N, H)),
    "linear on three dimensions": (lambda: nn.Linear(H, 512), (8, 512, H)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(C, 8, 512, 0.1, batch_first=True), (8, 100, C)),
    "encoder layer, batch second": (lambda: nn.TransformerEncoderLayer(C, 8, 512, 0.0), (100, 8, C)),
    "attention with its weights": (lambda: SelfAttention(C, 8, batch_first=True), (8, 100, C)),
    "convolution": (lambda: nn.Conv2d(16, 32, 3, padding=1), (8, 16, 28, 28)),
    "pointwise convolution": (lambda: nn.Conv2d(16, 32, 1), (8, 16, 28, 28)),
    "convolution with strides": (lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1), (8, 16, 28, 28)),
    "convolution by depth": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (8, 16, 28, 28)),
    "convolution of groups": (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=4), (8, 16, 28, 28)),
    "convolution over time": (lambda: nn.Conv1d(16, 32, 3, padding=1), (8, 16, 1000)),
    "pointwise convolution of volumes": (lambda: nn.Conv3d(4, 8, 1), (2, 4, 16, 16, 16)),
    "convolution of volumes": (lambda: nn.Conv3d(4, 8, 3, padding=1), (2, 4, 16, 16, 16)),
    "lstm": (lambda: nn.LSTM(H, 128, 2), (3, 1000, H)),
    "lstm, batch first": (lambda: nn.LSTM(H, 128, batch_first=True), (1000, 3, H)),
    "lstm, both ways": (lambda: nn.LSTM(H, 128, 2, dropout=0.1, bidirectional=True), (3, 1000, H)),
    "gru": (lambda: nn.GRU(H, 128, 2, dropout=0.2), (3, 1000, H)),
    "gru without biases": (lambda: nn.GRU(H, 128, bias=False), (3, 1000, H)),
}


def module(name: str, *, amp: bool = False) -> Make:
    build, shape = MODULES[name]

    def make(device: str) -> Callable[[], object]:
        model, x = build().to(device), torch.randn(*shape, device=device)

        def run() -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                out = model(x)
            out = out if isinstance(out, Tensor) else out[0]
            out.backward(torch.ones_like(out))

        return run

    return make


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name: str) -> None:
    holds(module(name))


@pytest.mark.parametrize("name", ["rms norm", "attention with its weights"])
def test_a_module_under_autocast(name: str) -> None:
    holds(module(name, amp=True))


AUTOCAST: dict[str, Callable[[Tensor], object]] = {
    "relu": F.relu,
    "softmax": lambda x: x.softmax(-1),
    "exp": torch.exp,
    "pow": lambda x: x**2,
    "square": torch.square,
    "layer norm": lambda x: F.layer_norm(x, (C,)),
    "sum": lambda x: x.sum(0),
    "norm": lambda x: x.norm(dim=1),
    "cumsum": lambda x: x.cumsum(0),  # cumprod's backward chooses its kernels by values, which are any on this card
    "normalize": F.normalize,
    "cat of two types": lambda x: torch.cat([x, x.float()]),
    "cross-entropy": lambda x: F.cross_entropy(x, labels(len(x), x.device)),
    "mse": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "from logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    def cast(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype):
            out = AUTOCAST[name](x @ weight)
            return (out if isinstance(out, Tensor) else out[0]).float()  # type: ignore[index]

    holds(of(cast, (N, C), (C, C)))


ON_EACH_CARD = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
from tests.estimation.tracing.test_kernels_on_cuda import attention_differs, reductions
for device in range(torch.cuda.device_count()):
    with torch.cuda.device(device):
        print(torch.cuda.get_device_name(device), attention_differs(), *reductions(device, int(sys.argv[1])))
"""


def attention_differs() -> list[str]:
    """The kinds of attention whose trace for the present card is not what its allocator records."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    warm_up()
    return [name for name in ATTENTION if on_card(make := attention(name, strided=False)) != traced(make)]


def reductions(device: int, count: int) -> tuple[int, int, list[str]]:
    """How many random reductions were compared on a card, how many have staging memory, and which ones differ."""
    from tuner.estimation.cards import find_card
    from tuner.estimation.tracing.corrections.reductions import staging

    card, draw = find_card(torch.cuda.get_device_name(device)), random.Random(0)
    staged, wrong = 0, []
    kinds: dict[str, tuple[Callable[[Tensor, list[int]], Tensor], int, int]] = {  # bytes of an accumulator, vector
        "sum": (lambda x, dims: x.sum(dims), 4, 4),
        "amax": (lambda x, dims: x.amax(dims), 4, 4),
        "max": (lambda x, dims: x.argmax(dims[0]), 16, 4),
        "var": (lambda x, dims: x.var(dims), 16, 2),
    }
    for _ in range(count):
        sizes = [draw.choice((1, 2, 3, 7, 16, 64, 100, 256, 1000, 4096, 20000)) for _ in range(draw.randint(1, 3))]
        x = torch.empty(sizes, device=f"cuda:{device}") if torch.Size(sizes).numel() < 2e7 else None
        if x is None:
            continue
        x = x.permute(draw.sample(range(x.dim()), x.dim()))
        name, dims = draw.choice(list(kinds)), sorted(draw.sample(range(x.dim()), draw.randint(1, x.dim())))
        reduce, accumulator, vector = kinds[name]
        torch.cuda.memory._record_memory_history("all", context=None)
        reduce(x, dims)
        recorded = torch.cuda.memory._snapshot()["device_traces"][device]
        torch.cuda.memory._record_memory_history(None)
        real = [event["size"] for event in recorded if event["action"] == "alloc"][1:]  # after the result
        said = staging(x, dims[:1] if name == "max" else dims, accumulator, card, vector)
        staged += bool(real)
        if said != real:
            wrong.append(f"{name} {tuple(x.shape)} {x.stride()} {dims}: {said}, not {real}")
    return count, staged, wrong


@pytest.mark.parametrize("names", [("T4", "A10"), ("A100", "RTX5090")])
def test_attention_and_the_staging_memory_of_reductions_are_exact_on_every_card(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_EACH_CARD, "150"],
        env=on_cards(tmp_path / "cards", names=names, sizes=(24000, 24000)),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(names)
    for line in lines:
        assert line.endswith("[]") and " [] " in line, line
        assert int(line.split()[-2]) > 5
