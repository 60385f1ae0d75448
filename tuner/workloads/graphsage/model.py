"""GraphSAGE (Hamilton et al. 2017, arXiv 1706.02216) for rating prediction on a bipartite user-item graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuner.workloads.graphsage.sparse import Csr, csr_matmul

LAYER_GAIN = 0.5


def dropout(x: Tensor, p: float) -> Tensor:
    """``F.dropout`` in training. Its CPU kernel draws the mask four times more slowly: a fifth of a step's time."""
    if x.device.type != "cpu" or not p:
        return F.dropout(x, p)
    return x * torch.rand_like(x).ge_(p).div_(1 - p)


class SAGELayer(nn.Module):
    """``h'ᵢ = W_l · mean(hⱼ over neighbours j) + b + W_r · hᵢ``, as in ``torch_geometric.nn.SAGEConv``.

    Its parameters have the same names, so that weights can be exchanged.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float | None = None) -> None:
        """If ``dropout`` is a probability, ReLU and dropout are applied to the output."""
        super().__init__()
        self.dropout = dropout
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)
        for linear in (self.lin_l, self.lin_r):
            nn.init.normal_(linear.weight, std=LAYER_GAIN / in_channels**0.5)
        nn.init.zeros_(self.lin_l.bias)

    def forward(self, x: Tensor, graph: Csr) -> Tensor:
        """(N, in_channels) → (N, out_channels)."""
        out: Tensor = self.lin_l(csr_matmul(*graph, x)) + self.lin_r(x)
        if self.dropout is None:
            return out
        return dropout(F.relu(out), self.dropout) if self.training else F.relu(out)


class GraphSAGEModel(nn.Module):
    """Predicts a rating as ``mean + bᵤ + bᵢ + ⟨zᵤ, zᵢ⟩``; z is the sum of the input and every layer's output.

    A node's input is a learned embedding plus its projected features. The graph and the features are buffers, so
    a saved model does not need its data set.
    """

    user_features: Tensor
    item_features: Tensor
    rating_scale: Tensor
    crow: Tensor
    col: Tensor
    value: Tensor
    value_t: Tensor

    def __init__(
        self,
        user_features: Tensor,
        item_features: Tensor,
        graph: Csr,
        rating_scale: Tensor,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        """``graph`` averages over the neighbours in the training ratings; its nodes are the users, then the items.

        ``rating_scale`` (3,) is the mean, the minimum and the maximum of the training ratings. ``dropout`` is applied
        to the input and between layers.
        """
        super().__init__()
        self.num_users = len(user_features)
        self.dropout = dropout
        nodes = self.num_users + len(item_features)
        self.register_buffer("user_features", user_features)
        self.register_buffer("item_features", item_features)
        self.register_buffer("rating_scale", rating_scale)
        # D⁻¹A and its transpose share crow and col; see bipartite_mean.
        self.register_buffer("crow", graph.crow)
        self.register_buffer("col", graph.col)
        self.register_buffer("value", graph.value)
        self.register_buffer("value_t", graph.value_t)
        # ⟨zᵤ, zᵢ⟩ starts small beside a rating, at any width and number of features.
        std = min(0.1, 0.8 / hidden_dim**0.5)
        self.embedding = nn.Parameter(std * torch.randn(nodes, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(nodes))
        self.user_projection = nn.Linear(user_features.shape[1], hidden_dim, bias=False)
        self.item_projection = nn.Linear(item_features.shape[1], hidden_dim, bias=False)
        for projection in (self.user_projection, self.item_projection):
            nn.init.normal_(projection.weight, std=std / projection.in_features**0.5)
        shares = [dropout] * (num_layers - 1) + [None]  # neither ReLU nor dropout after the last layer
        self.layers = nn.ModuleList(SAGELayer(hidden_dim, hidden_dim, share) for share in shares)

    @property
    def graph(self) -> Csr:
        """The aggregation matrix of the layers."""
        return Csr(self.crow, self.col, self.value, self.crow, self.col, self.value_t)

    def encode(self) -> Tensor:
        """The vectors z of all nodes: (num_users + num_items, hidden_dim)."""
        users, items = self.user_projection(self.user_features), self.item_projection(self.item_features)
        x = self.embedding + torch.cat([users, items])
        x = dropout(x, self.dropout) if self.training else x
        z: Tensor = x
        for layer in self.layers:
            x = layer(x, self.graph)
            z = z + x
        return z

    def decode(self, z: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Predicted ratings (B,) of the pairs user (B,), item (B,), both counted from 0."""
        item = item + self.num_users
        product = (z.index_select(0, user) * z.index_select(0, item)).sum(1)
        bias = self.bias.index_select(0, user) + self.bias.index_select(0, item)
        return self.rating_scale[0] + bias + product

    def clamp(self, predicted: Tensor) -> Tensor:
        """Predictions (B,) limited to the scale of the training ratings."""
        return predicted.clamp(self.rating_scale[1], self.rating_scale[2])

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Predicted ratings (B,), in evaluation mode limited to the scale of the training ratings."""
        predicted = self.decode(self.encode(), user, item)
        return predicted if self.training else self.clamp(predicted)
