"""The training steps whose memory estimates are judged: read from memory_steps.csv, built here, run on any device.

One builder serves the benchmark on the CPU, the measurement on a GPU and the traces that are held against both, so
that all are about the same step. Models that are no workload's are plain torch or PyG, as a user would write them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.benchmarks.gpt_model import Built, Parts
from scripts.benchmarks.gpt_model import build as build_gpt
from scripts.benchmarks.memory_model_zoo import ZOO, loss_of, random_edges
from tuner.datasets.can import build as build_can
from tuner.datasets.can import synthetic_can
from tuner.datasets.synthetic import synthetic_ratings
from tuner.datasets.trees import build as build_trees
from tuner.datasets.trees import split, synthetic_trees
from tuner.search.configurations import complete
from tuner.sizing.transformers.formula import TransformerConfig
from tuner.training.optimizers import build_optimizer
from tuner.training.rehearsal import rehearse, representative_batches
from tuner.training.step import place, to_device
from tuner.workloads.lookup import find_workload
from tuner.workloads.protocols import finish_of

if TYPE_CHECKING:
    from tuner.datasets.can import CanData
    from tuner.datasets.ratings import RatingData
    from tuner.datasets.trees import TreeData
    from tuner.estimation.cards import CardProperties
    from tuner.estimation.tracing.trace import Trace
    from tuner.trial import Config
    from tuner.workloads.base import Workload

STEPS_FILE = Path(__file__).with_name("memory_steps.csv")
OPTIMIZER_STEPS = 2  # the second has the optimizer's state, which the first one makes
WORKLOADS = ("graphsage", "gt-ssl", "kd-gat")

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One row of the list.

    Attributes:
        name: the row's.
        model: which model.
        sizes: its sizes by name (numbers are numbers, the rest is text).
        excluded: where it cannot be measured, and why, as ``emulated: reason``; empty if it can everywhere.
    """

    name: str
    model: str
    sizes: Sizes
    excluded: str = ""

    def why_not(self, place: Literal["cpu", "emulated", "real"]) -> str:
        """Why it cannot be measured on the CPU, an emulated or a real card; empty if it can."""
        where, _, reason = self.excluded.partition(": ")
        return reason if where == place else ""


def read_steps(path: Path = STEPS_FILE) -> list[Step]:
    """The steps in the order of the file; a row's sizes are ``name=value`` with spaces between."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file, restval="")
        return [Step(row["name"], row["model"], parse_sizes(row["sizes"]), row["excluded"]) for row in rows]


def parse_sizes(text: str) -> dict[str, Any]:
    """``width=64 block=sdpa`` as a mapping."""
    pairs = (word.partition("=") for word in text.split())
    return {key: _number(value) for key, _, value in pairs}


def _number(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed (nearest rank)."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def run(step: Step, device: str) -> None:
    """Builds the model and takes its first two optimizer steps; a workload is evaluated after them."""
    torch.manual_seed(0)
    if step.model in WORKLOADS:
        _run_workload(*workload_parts(step), device)
        return
    _, optimizer, loss = make(step, device)

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        (value := loss()).backward()
        return value

    for _ in range(OPTIMIZER_STEPS):
        if isinstance(optimizer, torch.optim.LBFGS):
            value = optimizer.step(closure)
            continue
        optimizer.zero_grad(set_to_none=True)
        value = loss()  # as in a plain loop: the last loss lives until this one is there
        value.backward()
        optimizer.step()


def _run_workload(workload: Workload, config: Config, data: Any, device: str) -> None:
    """What a trial does to memory, in short, by the training loop's own functions."""
    model = place(workload, config, data, device, rehearsal=True)
    batches = (to_device(batch, device) for batch in representative_batches(workload, config, data))
    rehearse(workload, model, build_optimizer(workload, model, config), batches, data, config=config)


def trace(step: Step, device_kind: Literal["cpu", "cuda"], card: CardProperties | None = None) -> Trace:
    """The same step as the estimator sees it."""
    from tuner.estimation.tracing.tracer import trace_step, trace_workload

    options: dict[str, Any] = {"device_kind": device_kind, "card": card}
    if step.model in WORKLOADS:
        return trace_workload(*workload_parts(step), **options)
    explicit = "kept" in step.sizes or "offload" in step.sizes
    return trace_step(lambda: make(step, device_kind if explicit else "cpu"), **options)


def workload_parts(step: Step) -> tuple[Workload, Config, Any]:
    """The workload, a complete configuration and the data of a workload's row."""
    workload = find_workload(step.model)
    config = {key: value for key, value in step.sizes.items() if key in workload.schema}
    return workload, finish_of(workload)(complete(config, workload.schema)), _data(step.sizes)


def _data(sizes: Sizes) -> Any:
    if "trees" in sizes:
        return trees(sizes["trees"])
    return can(sizes["frames"]) if "frames" in sizes else ratings(sizes["users"], sizes["items"], sizes["ratings"])


@lru_cache
def can(frames: int) -> CanData:
    """Graphs of generated CAN traffic: so many frames in each of three recordings."""
    return build_can(synthetic_can(frames).items(), 100, "generated")


@lru_cache
def trees(count: int) -> TreeData:
    """Generated geometric trees."""
    listed, labels, classes = synthetic_trees(count)
    return split(build_trees(listed, labels, "generated", classes), seed=0)


@lru_cache
def ratings(users: int, items: int, count: int) -> RatingData:
    """Generated ratings; there are three sizes in the list, and many steps share one."""
    return synthetic_ratings(users, items, count)


def make(step: Step, device: str = "cpu") -> Parts:
    """The model on the device, its optimizer, and the loss of one batch that lies on the device too."""
    model, batch, loss = build(step)
    if device != "cpu":
        model = model.to(device)
    kept = torch.zeros(step.sizes.get("kept", 0), device=device)
    optimizer = optimizer_of(step, model)
    on_device = to_device(batch, device)
    return model, optimizer, lambda kept=kept: loss(model, *on_device)


def build(step: Step) -> Built:
    """A plain model and its batch, on the CPU."""
    return MODELS[step.model](step.sizes)


def optimizer_of(step: Step, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a plain step names, at torch's defaults but for ``fused=1``."""
    name = step.sizes.get("optimizer", "adam")  # ours, or one of torch.optim
    optimizer = OPTIMIZERS.get(name) or getattr(torch.optim, name)
    trained = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]  # Muon takes matrices alone
    if name == "SparseAdam":
        trained = [p for module in model.modules() if getattr(module, "sparse", False) for p in module.parameters()]
    return optimizer(trained, **({"fused": True} if step.sizes.get("fused") else {}))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def make_mlp(sizes: Sizes) -> Built:
    """``depth`` hidden layers of ``width``: linear, norm if named, activation (ReLU), dropout if named."""
    widths = [sizes["features"]] + [sizes["width"]] * sizes["depth"]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers.append(nn.Linear(before, after))
        layers += [NORMS[sizes["norm"]](after)] if "norm" in sizes else []
        layers.append(ACTIVATIONS[sizes.get("activation", "relu")]())
        layers += [nn.Dropout(sizes["dropout"])] if "dropout" in sizes else []
    model = nn.Sequential(*layers, nn.Linear(widths[-1], sizes["classes"]))
    x = torch.randn(sizes["batch"], sizes["features"])
    if sizes.get("loss", "nll") not in ("nll", "CrossEntropyLoss", "MultiMarginLoss"):
        return model, (x, torch.randn(sizes["batch"], sizes["classes"])), loss_of(sizes, "mse")
    return model, (x, torch.randint(sizes["classes"], (sizes["batch"],))), loss_of(sizes, "cross_entropy")


NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class GAT(nn.Module):
    """PyG's GATConv layers with ELU between; the last one averages its heads."""

    def __init__(self, sizes: Sizes) -> None:
        from torch_geometric.nn import GATConv

        super().__init__()
        heads, hidden, layers = sizes["heads"], sizes["hidden"], sizes["layers"]
        options = {"heads": heads, "dropout": sizes.get("dropout", 0.0), "add_self_loops": bool(sizes["self_loops"])}
        channels = [sizes["features"]] + [hidden * heads] * (layers - 1)
        self.layers = nn.ModuleList(GATConv(width, hidden, **options) for width in channels[:-1])
        self.last = GATConv(channels[-1], sizes["classes"], concat=False, **options)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """(N, features), (2, E) → (N, classes)."""
        for layer in self.layers:
            x = F.elu(layer(x, edges))
        out: Tensor = self.last(x, edges)
        return out


def make_gat(sizes: Sizes) -> Built:
    """Node classification on a random directed graph; a few of its edges are loops."""
    nodes = sizes["nodes"]
    x, edges = torch.randn(nodes, sizes["features"]), random_edges(nodes, sizes["edges"])
    return GAT(sizes), (x, edges, torch.randint(sizes["classes"], (nodes,))), loss_of({}, "cross_entropy")


class Attention(nn.Module):
    """A causal pre-norm block on ``F.scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class Transformer(nn.Module):
    """Token and place embeddings, encoder blocks of one of two kinds, and a projection onto the vocabulary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, heads = sizes["width"], sizes["heads"]
        self.tokens, self.places = nn.Embedding(sizes["vocabulary"], width), nn.Embedding(sizes["length"], width)
        dropout = sizes.get("dropout", 0.0)
        self.blocks = nn.ModuleList(
            Attention(width, heads)
            if sizes["block"] == "sdpa"
            else nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
            for _ in range(sizes["layers"])
        )
        self.head = nn.Linear(width, sizes["vocabulary"])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B · T, vocabulary)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores.flatten(0, 1)


def make_transformer(sizes: Sizes) -> Built:
    """Cross-entropy of random tokens against other random tokens."""
    shape = sizes["batch"], sizes["length"]
    tokens, others = (torch.randint(sizes["vocabulary"], shape) for _ in range(2))
    return Transformer(sizes), (tokens, others.flatten()), loss_of({}, "cross_entropy")


def gpt_config(sizes: Sizes) -> TransformerConfig:
    """The sizes of a GPT's row, by the names that ``tune estimate`` has for them."""
    names = {field.name for field in fields(TransformerConfig)}
    known = {key: value for key, value in sizes.items() if key in names}
    return TransformerConfig(
        **{**known, **{key: bool(known[key]) for key in ("checkpointing", "tied") if key in known}}
    )


def make_gpt(sizes: Sizes) -> Built:
    """The model that the closed formula for transformers is of."""
    return build_gpt(gpt_config(sizes), sizes["precision"])


MODELS: dict[str, Callable[[Sizes], Built]] = {
    "mlp": make_mlp,
    "gat": make_gat,
    "transformer": make_transformer,
    "gpt": make_gpt,
    **ZOO,
}
