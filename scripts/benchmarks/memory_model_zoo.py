"""Further models that people use, each as a small function of a row's sizes: graphs, sequences, images and tables.

Plain torch or PyG, as a user would write it. Each returns the model, one batch on the CPU, and the loss of both. What
a kernel would read off the device to know a shape (a graph's number of nodes, a causal mask) is given instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.benchmarks.gpt_model import Built

Sizes = Mapping[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]


def detection(out: Tensor, target: Tensor) -> Tensor:
    """(B, anchors, classes and a box): the focal loss of classes, and of boxes smooth L1 and one minus their IoU."""
    (scores, boxes), (labels, wanted) = (part.split([part.shape[-1] - 4, 4], -1) for part in (out, target))
    surprise = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    low, high = torch.maximum(boxes[..., :2], wanted[..., :2]), torch.minimum(boxes[..., 2:], wanted[..., 2:])
    width, height = (high - low).clamp(min=0).unbind(-1)
    first, second = ((part[..., 2] - part[..., 0]) * (part[..., 3] - part[..., 1]) for part in (boxes, wanted))
    iou = width * height / (first + second - width * height + 1e-6)
    focal = (surprise * (1 - torch.exp(-surprise)).square()).mean()
    return focal + F.smooth_l1_loss(boxes, wanted) + (1 - iou).mean()


LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "nll": lambda out, target: F.nll_loss(F.log_softmax(out, dim=1), target),
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "bce": F.binary_cross_entropy_with_logits,
    "detection": detection,
    # Those of torch.nn that take more than a result and a target.
    "BCELoss": lambda out, target: F.binary_cross_entropy(out.sigmoid(), target.sigmoid()),
    "CTCLoss": lambda out, target: F.ctc_loss(
        out.unflatten(0, (50, -1)).log_softmax(2),
        torch.ones(len(out) // 50, 20, dtype=torch.long, device=out.device),
        torch.full((len(out) // 50,), 50),
        torch.full((len(out) // 50,), 20),
    ),
    "CosineEmbeddingLoss": lambda out, target: F.cosine_embedding_loss(out, target, target[:, 0].sign()),
    "GaussianNLLLoss": lambda out, target: F.gaussian_nll_loss(out, target, target.exp()),
    "MarginRankingLoss": lambda out, target: F.margin_ranking_loss(out, target, target.sign()),
    "MultiLabelMarginLoss": lambda out, target: F.multilabel_margin_loss(out, target.argsort(1)),
    "TripletMarginLoss": lambda out, target: F.triplet_margin_loss(out, target, target.flip(0)),
    "TripletMarginWithDistanceLoss": lambda out, target: F.triplet_margin_with_distance_loss(
        out, target, target.flip(0)
    ),
}


def loss_of(sizes: Sizes, usual: str) -> Callable[..., Tensor]:
    """The loss that a row names, or the usual one; the last of a batch is the target, the rest the model's inputs."""
    name = sizes.get("loss", usual)  # ours, or one of torch.nn
    judge = LOSSES.get(name) or getattr(nn, name)()

    def loss(model: nn.Module, *batch: Tensor) -> Tensor:
        *inputs, target = batch
        offload = torch.autograd.graph.save_on_cpu if "offload" in sizes else nullcontext
        with offload(), torch.autocast(target.device.type, torch.bfloat16) if sizes.get("amp") else nullcontext():
            return judge(model(*inputs), target)

    return loss


def random_edges(nodes: int, edges: int) -> Tensor:
    """(2, edges) of node numbers, the same on fake tensors as on real ones, where a model's weights draw nothing."""
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))


class GraphModel(nn.Module):
    """Layers of PyG with ReLU and dropout between them."""

    def __init__(self, layers: list[nn.Module], dropout: float, norms: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.layers, self.dropout = nn.ModuleList(layers), dropout
        self.norms = nn.ModuleList(norms or [])

    def forward(self, x: Tensor, edges: Tensor, *edge_values: Tensor) -> Tensor:
        """(N, features), (2, E), and the edges' weights or features if any → (N, classes)."""
        for number, layer in enumerate(self.layers[:-1]):
            x = layer(x, edges, *edge_values)
            if self.norms:
                x = self.norms[number](x)
            x = F.dropout(F.relu(x), self.dropout, self.training)
        out: Tensor = self.layers[-1](x, edges, *edge_values)
        return out


def _widths(sizes: Sizes, factor: int = 1) -> list[tuple[int, int]]:
    """Each layer's width before and after; ``factor`` for layers whose heads are concatenated."""
    hidden, layers = sizes["hidden"], sizes["layers"]
    before = [sizes["features"]] + [hidden * factor] * (layers - 1)
    return list(zip(before, [hidden] * (layers - 1) + [sizes["classes"]], strict=True))


def _graph_batch(sizes: Sizes, *edge_values: Tensor, edges: Tensor | None = None) -> tuple[Tensor, ...]:
    nodes = sizes["nodes"]
    edges = random_edges(nodes, sizes["edges"]) if edges is None else edges
    classes = torch.randint(sizes["classes"], (nodes,))
    return torch.randn(nodes, sizes["features"]), edges, *edge_values, classes


def make_gcn(sizes: Sizes) -> Built:
    """GCNConv without its own normalisation: loops and weights are computed once, as by PyG's ``T.GCNNorm``."""
    from torch_geometric.nn import GCNConv

    nodes = sizes["nodes"]
    edges = torch.cat([random_edges(nodes, sizes["edges"]), torch.arange(nodes).repeat(2, 1)], dim=1)
    row, column = edges
    degree = torch.zeros(nodes).scatter_add_(0, column, torch.ones(len(column))).rsqrt()
    layers: list[nn.Module] = [GCNConv(before, after, normalize=False) for before, after in _widths(sizes)]
    model = GraphModel(layers, sizes.get("dropout", 0.0))
    return model, _graph_batch(sizes, degree[row] * degree[column], edges=edges), loss_of(sizes, "cross_entropy")


class GIN(nn.Module):
    """Sums over graphs after GINConv layers of two linear ones with batch norm."""

    def __init__(self, sizes: Sizes) -> None:
        from torch_geometric.nn import GINConv

        super().__init__()
        hidden = sizes["hidden"]
        self.graphs, self.dropout = sizes["graphs"], sizes.get("dropout", 0.0)
        self.layers = nn.ModuleList(
            GINConv(
                nn.Sequential(
                    nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
                )
            )
            for width in [sizes["features"]] + [hidden] * (sizes["layers"] - 1)
        )
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, sizes["classes"]))

    def forward(self, x: Tensor, edges: Tensor, graph_of: Tensor) -> Tensor:
        """(N, features), (2, E), (N,) → (graphs, classes)."""
        from torch_geometric.nn import global_add_pool

        for layer in self.layers:
            x = layer(x, edges)
        pooled = global_add_pool(x, graph_of, size=self.graphs)
        out: Tensor = self.head(F.dropout(pooled, self.dropout, self.training))
        return out


def make_gin(sizes: Sizes) -> Built:
    """Classes of graphs; ``nodes`` and ``edges`` are the batch's."""
    nodes, graphs = sizes["nodes"], sizes["graphs"]
    batch = (
        torch.randn(nodes, sizes["features"]),
        random_edges(nodes, sizes["edges"]),
        torch.arange(nodes) * graphs // nodes,
        torch.randint(sizes["classes"], (graphs,)),
    )
    return GIN(sizes), batch, loss_of(sizes, "cross_entropy")


def make_pna(sizes: Sizes) -> Built:
    """PNAConv with PyG's usual aggregators and scalers, and batch norm; edges may have features."""
    from torch_geometric.nn import PNAConv

    warnings.filterwarnings("ignore", "The usage of `scatter")  # its advice to install another package
    options = {
        "aggregators": ["mean", "min", "max", "std"],
        "scalers": ["identity", "amplification", "attenuation"],
        "deg": torch.tensor([1, 4, 9, 12, 9, 4, 1]),  # the training set's histogram of degrees
        "edge_dim": sizes.get("edge_features"),
        "towers": sizes.get("towers", 1),
    }
    widths = _widths(sizes)
    layers: list[nn.Module] = [PNAConv(before, after, **options) for before, after in widths]
    norms: list[nn.Module] = [nn.BatchNorm1d(after) for _, after in widths[:-1]]
    values = [torch.randn(sizes["edges"], sizes["edge_features"])] if "edge_features" in sizes else []
    model = GraphModel(layers, sizes.get("dropout", 0.0), norms)
    return model, _graph_batch(sizes, *values), loss_of(sizes, "cross_entropy")


def make_attention(name: str, sizes: Sizes) -> Built:
    """TransformerConv or GATv2Conv with dropout in its attention, without adding loops; edges may have features."""
    from torch_geometric import nn as layers_of

    heads, dropout = sizes["heads"], sizes.get("dropout", 0.0)
    options = {"heads": heads, "dropout": dropout, "edge_dim": sizes.get("edge_features"), "beta": True}
    if name == "GATv2Conv":
        options |= {"add_self_loops": False, "share_weights": bool(sizes.get("shared"))}
        del options["beta"]
    kind = getattr(layers_of, name)
    *widths, last = _widths(sizes, heads)
    layers: list[nn.Module] = [kind(before, after, **options) for before, after in widths]
    layers.append(kind(*last, concat=False, **options))
    values = [torch.randn(sizes["edges"], sizes["edge_features"])] if "edge_features" in sizes else []
    return GraphModel(layers, dropout), _graph_batch(sizes, *values), loss_of(sizes, "cross_entropy")


class Seq2Seq(nn.Module):
    """``nn.Transformer`` between embeddings of two vocabularies and a projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.source, self.target = (nn.Embedding(sizes["vocabulary"], width) for _ in range(2))
        self.places = nn.Embedding(max(sizes["length"], sizes["target_length"]), width)
        self.transformer = nn.Transformer(
            width,
            sizes["heads"],
            sizes["layers"],
            sizes["layers"],
            4 * width,
            sizes.get("dropout", 0.0),
            batch_first=True,
            norm_first=bool(sizes.get("norm_first")),
        )
        self.head = nn.Linear(width, sizes["vocabulary"])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, S), (B, T) → (B · T, vocabulary)."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        out = self.transformer(
            self.source(source) + self.places(torch.arange(source.shape[1], device=source.device)),
            self.target(target) + self.places(torch.arange(target.shape[1], device=target.device)),
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        scores: Tensor = self.head(out)
        return scores.flatten(0, 1)


def make_seq2seq(sizes: Sizes) -> Built:
    """Translation of random tokens into others."""
    batch, vocabulary = sizes["batch"], sizes["vocabulary"]
    source = torch.randint(vocabulary, (batch, sizes["length"]))
    target = torch.randint(vocabulary, (batch, sizes["target_length"]))
    following = torch.randint(vocabulary, (batch * sizes["target_length"],))
    return Seq2Seq(sizes), (source, target, following), loss_of(sizes, "cross_entropy")


class RNN(nn.Module):
    """An embedding, ``nn.LSTM`` or ``nn.GRU``, and a projection of every place."""

    def __init__(self, sizes: Sizes, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        width, hidden, both = sizes["width"], sizes["hidden"], bool(sizes.get("bidirectional"))
        self.tokens = nn.Embedding(sizes["vocabulary"], width)
        options = {"dropout": sizes.get("dropout", 0.0), "batch_first": True, "bidirectional": both}
        self.rnn = kind(width, hidden, sizes["layers"], **options)
        self.head = nn.Linear(hidden * (2 if both else 1), sizes["vocabulary"])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B · T, vocabulary)."""
        out, _ = self.rnn(self.tokens(tokens))
        scores: Tensor = self.head(out)
        return scores.flatten(0, 1)


class Unrolled(nn.Module):
    """A recurrent cell of torch.nn in a loop, and a projection of every place."""

    def __init__(self, sizes: Sizes, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes["vocabulary"], sizes["width"])
        self.cell, self.head = kind(sizes["width"], sizes["hidden"]), nn.Linear(sizes["hidden"], sizes["vocabulary"])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (T · B, vocabulary)."""
        state, scores = None, []
        for x in self.tokens(tokens).unbind(1):
            state = self.cell(x, state)
            scores.append(self.head(state[0] if isinstance(state, tuple) else state))
        return torch.cat(scores)


def make_rnn(model: type[nn.Module], kind: type[nn.Module], sizes: Sizes) -> Built:
    """A language model on random tokens."""
    shape = sizes["batch"], sizes["length"]
    tokens, following = (torch.randint(sizes["vocabulary"], shape) for _ in range(2))
    return model(sizes, kind), (tokens, following.flatten()), loss_of(sizes, "cross_entropy")


class ViT(nn.Module):
    """Patches by a strided convolution, or cut out and projected; a class token, encoder layers and a head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.patch = sizes["width"], sizes["patch"]
        self.convolution = nn.Conv2d(3, width, self.patch, self.patch) if sizes.get("convolution") else None
        self.linear = None if self.convolution else nn.Linear(3 * self.patch**2, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (sizes["image"] // self.patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width,
            sizes["heads"],
            4 * width,
            sizes.get("dropout", 0.0),
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, sizes["layers"], nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, sizes["classes"])

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, classes)."""
        if self.convolution:
            x = self.convolution(images).flatten(2).transpose(1, 2)
        else:
            x = self.linear(cut(images, self.patch))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


def cut(images: Tensor, patch: int) -> Tensor:
    """(B, 3, H, W) → (B, patches, 3 · patch²)."""
    squares = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def of_images(model: Callable[[Sizes], nn.Module], sizes: Sizes) -> Built:
    """Classes of random images."""
    side, batch = sizes["image"], sizes["batch"]
    images, classes = torch.randn(batch, 3, side, side), torch.randint(sizes["classes"], (batch,))
    return model(sizes), (images, classes), loss_of(sizes, "cross_entropy")


class Mixing(nn.Module):
    """A block of the MLP-mixer: over the patches, then over the channels."""

    def __init__(self, patches: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = (
            nn.Sequential(
                nn.Linear(size, inner), nn.GELU(), nn.Dropout(dropout), nn.Linear(inner, size), nn.Dropout(dropout)
            )
            for size, inner in ((patches, width // 2), (width, 4 * width))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, patches, width) → (B, patches, width)."""
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm_channels(x))
        return out


class Mixer(nn.Module):
    """The MLP-mixer on patches that are cut out and projected."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.patch = sizes["width"], sizes["patch"]
        patches = (sizes["image"] // self.patch) ** 2
        self.project = nn.Linear(3 * self.patch**2, width)
        blocks = (Mixing(patches, width, sizes.get("dropout", 0.0)) for _ in range(sizes["layers"]))
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes["classes"])

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, classes)."""
        out: Tensor = self.head(self.norm(self.blocks(self.project(cut(images, self.patch)))).mean(dim=1))
        return out


class DeepFM(nn.Module):
    """A factorisation machine and an MLP on the embeddings of a row's fields, all from one table."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        fields, width, hidden = sizes["fields"], sizes["width"], sizes["hidden"]
        self.register_buffer("offsets", torch.arange(fields) * sizes["values"])
        self.linear, self.factors = (nn.Embedding(fields * sizes["values"], size) for size in (1, width))
        self.mlp = nn.Sequential(
            nn.Linear(fields * width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Dropout(sizes.get("dropout", 0.0)),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, values: Tensor) -> Tensor:
        """(B, fields) → (B,)."""
        places = values + self.offsets
        factors = self.factors(places)
        pairs = 0.5 * (factors.sum(dim=1).square() - factors.square().sum(dim=1)).sum(dim=1)
        out: Tensor = self.linear(places).sum(dim=(1, 2)) + pairs + self.mlp(factors.flatten(1)).squeeze(1)
        return out


def make_deepfm(sizes: Sizes) -> Built:
    """Clicks on random rows of ``fields`` categories."""
    values = torch.randint(sizes["values"], (sizes["batch"], sizes["fields"]))
    return DeepFM(sizes), (values, torch.rand(sizes["batch"]).round()), loss_of(sizes, "bce")


class Bags(nn.Module):
    """``nn.EmbeddingBag`` over a row's words, and an MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, hidden = sizes["width"], sizes["hidden"]
        self.words = nn.EmbeddingBag(sizes["values"], width, mode=sizes["mode"], sparse=bool(sizes.get("sparse")))
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, sizes["classes"]))

    def forward(self, words: Tensor) -> Tensor:
        """(B, words) → (B, classes)."""
        out: Tensor = self.mlp(self.words(words))
        return out


def make_bags(sizes: Sizes) -> Built:
    """Classes of rows of random words."""
    words = torch.randint(sizes["values"], (sizes["batch"], sizes["fields"]))
    return Bags(sizes), (words, torch.randint(sizes["classes"], (sizes["batch"],))), loss_of(sizes, "cross_entropy")


class VAE(nn.Module):
    """A variational autoencoder of linear layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        features, hidden, latent = sizes["features"], sizes["hidden"], sizes["latent"]
        self.encoder = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, features))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, features) → (B, features), and the mean and log-variance, both (B, latent)."""
        inner = self.encoder(x)
        mean, log_variance = self.mean(inner), self.log_variance(inner)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(latent), mean, log_variance


def make_vae(sizes: Sizes) -> Built:
    """Reconstruction and Kullback-Leibler divergence (Kingma and Welling, 2014, appendix B), both summed."""
    reconstruction = LOSSES[sizes.get("loss", "bce")]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16) if sizes.get("amp") else nullcontext():
            out, mean, log_variance = model(x)
            divergence = -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())
            return reconstruction(out, x) + divergence / len(x)

    return VAE(sizes), (torch.rand(sizes["batch"], sizes["features"]),), loss


def double_convolution(before: int, after: int) -> nn.Sequential:
    """Two 3x3 convolutions with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def function_of(sizes: Sizes) -> Callable[[Tensor], Tensor]:
    """The function of torch that a row names, or none."""
    name = sizes.get("function")
    found: Callable[[Tensor], Tensor] = getattr(torch, name, None) or getattr(F, name) if name else nn.Identity()
    return found


class UNet(nn.Module):
    """A U-Net; upwards by transposed convolutions, or by interpolation and a 1x1 convolution."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes["width"] * 2**level for level in range(sizes["levels"])]
        self.down = nn.ModuleList(
            double_convolution(before, after) for before, after in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(wide, narrow, 1))
            if sizes.get("interpolate")
            else nn.ConvTranspose2d(wide, narrow, 2, stride=2)
            for narrow, wide in pairwise(widths)
        )
        self.join = nn.ModuleList(double_convolution(2 * width, width) for width in widths[:-1])
        self.head = nn.Conv2d(widths[0], sizes["classes"], 1)
        self.function = function_of(sizes)  # of what the deepest level gives

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, classes, H, W)."""
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.function(self.down[-1](x))
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([kept.pop(), self.up[level](x)], dim=1))
        out: Tensor = self.head(x)
        return out


def make_unet(sizes: Sizes) -> Built:
    """A class for each pixel of random images, or with ``loss=bce`` a mask."""
    side, batch, classes = sizes["image"], sizes["batch"], sizes["classes"]
    target = torch.randint(classes, (batch, side, side))
    if sizes.get("loss", "cross_entropy") not in ("cross_entropy", "nll"):
        target = torch.rand(batch, classes, side, side).round()
    return UNet(sizes), (torch.randn(batch, 3, side, side), target), loss_of(sizes, "cross_entropy")


class FPN(nn.Module):
    """A feature pyramid with one head for all levels: each pixel's class, or with ``anchors`` classes and boxes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.anchors = sizes["width"], sizes.get("anchors", 0)
        widths = [width * 2**level for level in range(sizes["levels"])]
        self.down = nn.ModuleList(double_convolution(*pair) for pair in pairwise([3, *widths]))
        self.side = nn.ModuleList(nn.Conv2d(before, width, 1) for before in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths)
        self.head = nn.Conv2d(width, (sizes["classes"] + 4) * self.anchors or sizes["classes"], 3, padding=1)
        self.function = function_of(sizes)  # of what each level gives to the head

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, classes, H, W), or (B, anchors of all levels, classes + 4)."""
        side, levels = x.shape[-1], []
        for block, lateral in zip(self.down, self.side, strict=True):
            x = F.max_pool2d(block(x), 2)
            levels.append(lateral(x))
        for place in reversed(range(len(levels) - 1)):
            levels[place] = levels[place] + F.interpolate(levels[place + 1], scale_factor=2)
        out = [self.head(self.function(smooth(x))) for smooth, x in zip(self.smooth, levels, strict=True)]
        if self.anchors:
            return torch.cat([x.unflatten(1, (self.anchors, -1)).movedim(2, -1).flatten(1, 3) for x in out], 1)
        return torch.stack([F.interpolate(x, (side, side), mode="bilinear") for x in out]).sum(0)


def make_fpn(sizes: Sizes) -> Built:
    """A class for each pixel of random images, or of each anchor a class and a box."""
    side, batch, classes = sizes["image"], sizes["batch"], sizes["classes"]
    images, anchors = torch.randn(batch, 3, side, side), sizes.get("anchors", 0)
    if not anchors:
        return FPN(sizes), (images, torch.randint(classes, (batch, side, side))), loss_of(sizes, "cross_entropy")
    places = sum((side // 2 ** (level + 1)) ** 2 for level in range(sizes["levels"]))
    return FPN(sizes), (images, torch.rand(batch, places * anchors, classes + 4)), loss_of(sizes, "detection")


class Residual(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm, self.norm_second = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) → (B, after, H / stride, W / stride)."""
        out = F.relu(self.norm(self.first(x)))
        out = self.norm_second(self.second(out))
        return F.relu(out + self.shortcut(x))


def resnet(sizes: Sizes) -> nn.Module:
    """A ResNet of basic blocks, ``depth`` in each of ``levels`` widths."""
    width = sizes["width"]
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for level in range(sizes["levels"]):
        before, after = width * 2 ** max(0, level - 1), width * 2**level
        layers += [Residual(before, after, 1 if level == 0 else 2)]
        layers += [Residual(after, after, 1) for _ in range(sizes["depth"] - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(after, sizes["classes"]))


ZOO: dict[str, Callable[[Sizes], Built]] = {
    "gcn": make_gcn,
    "gin": make_gin,
    "pna": make_pna,
    "transformerconv": partial(make_attention, "TransformerConv"),
    "gatv2": partial(make_attention, "GATv2Conv"),
    "seq2seq": make_seq2seq,
    "lstm": partial(make_rnn, RNN, nn.LSTM),
    "gru": partial(make_rnn, RNN, nn.GRU),
    **{name: partial(make_rnn, Unrolled, getattr(nn, name)) for name in ("LSTMCell", "GRUCell", "RNNCell")},
    "vit": partial(of_images, ViT),
    "mixer": partial(of_images, Mixer),
    "deepfm": make_deepfm,
    "bags": make_bags,
    "vae": make_vae,
    "unet": make_unet,
    "fpn": make_fpn,
    "resnet": partial(of_images, resnet),
}
