"""GraphSAGE (Hamilton et al. 2017, arXiv 1706.02216) for rating prediction on a bipartite user-item graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuner.workloads.graphsage.sparse import Neighbours, bag_sum

ROWS = 2**14  # of a layer's output that are computed at a time where no gradients are needed
LAYER_GAIN = 0.5


def dropout(x: Tensor, p: float) -> Tensor:
    """``F.dropout`` in training, on a CPU with p rounded to a multiple of 1/256.

    The CPU kernel draws 53 random bits for each number, which takes a fifth of a step's time. Here it is 8 bits.
    """
    dropped = round(256 * p)
    if x.device.type != "cpu" or not dropped:
        return F.dropout(x, p)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * kept.to(x.dtype).mul_(256 / (256 - dropped))


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

    def forward(self, x: Tensor, neighbours: Neighbours | Tensor) -> Tensor:
        """(N, in_channels) → (N, out_channels); ``neighbours`` is a graph, or the means (N, in_channels)."""
        mean = neighbours if isinstance(neighbours, Tensor) else neighbours.mean(x)
        out: Tensor = self.lin_l(mean) + self.lin_r(x)
        if self.dropout is None:
            return out
        return dropout(F.relu(out), self.dropout) if self.training else F.relu(out)


class GraphSAGEModel(nn.Module):
    """Predicts a rating as ``mean + bᵤ + bᵢ + ⟨zᵤ, zᵢ⟩``; z is the sum of the input and every layer's output.

    A node's input is a learned embedding plus its projected features. In training, the neighbours of a batch's users
    and items, and theirs in turn, are all of them or a sample.
    """

    user_features: Tensor
    item_features: Tensor
    rating_scale: Tensor
    crow: Tensor
    col: Tensor
    inverse: Tensor

    def __init__(
        self,
        user_features: Tensor,
        item_features: Tensor,
        graph: Neighbours,
        rating_scale: Tensor,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        fanout: Sequence[int] = (),
    ) -> None:
        """``graph`` has the training ratings as edges; its nodes are the users, then the items.

        ``rating_scale`` (3,) is the mean, the minimum and the maximum of the training ratings. ``dropout`` is applied
        to the input and between layers. ``fanout`` has the number of neighbours to sample for each layer, from the
        batch's own neighbours outwards; without numbers all of them are taken.
        """
        super().__init__()
        self.num_users = len(user_features)
        self.dropout = dropout
        self.fanout = fanout
        nodes = self.num_users + len(item_features)
        # Not part of the state dict, as training does not change them and processes may share their memory.
        features = {"user_features": user_features, "item_features": item_features}
        for name, constant in (graph._asdict() | features).items():
            self.register_buffer(name, constant, persistent=False)
        self.register_buffer("rating_scale", rating_scale)
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
    def graph(self) -> Neighbours:
        """The graph of the layers."""
        return Neighbours(self.crow, self.col, self.inverse)

    def _input(self) -> Tensor:
        users, items = self.user_projection(self.user_features), self.item_projection(self.item_features)
        return self.embedding + torch.cat([users, items])

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training else x

    @torch.no_grad()
    def encode(self) -> Tensor:
        """The vectors z of all nodes, without dropout or gradients: (num_users + num_items, hidden_dim).

        Rows are computed in parts in the memory of the means, so that little more than three such matrices are held.
        """
        x = self._input()
        z = x.clone()
        for layer in self.layers:
            out = self.graph.mean(x)
            for begin in range(0, len(x), ROWS):
                part = slice(begin, begin + ROWS)
                out[part] = layer(x[part], out[part])
            z += out
            x = out
        return z

    def _encode_all(self, nodes: Tensor) -> Tensor:
        """The vectors z of nodes (n,) in training, from all neighbours: (n, hidden_dim)."""
        x = self._dropped(self._input())
        z: Tensor = x
        *inner, last = self.layers
        for layer in inner:
            x = layer(x, self.graph)
            z = z + x
        mean = self.graph.mean(x)
        fewer = len(nodes) < len(x)
        if fewer:  # nothing else is read of the last layer's output
            x, mean, z = (each.index_select(0, nodes) for each in (x, mean, z))
        z = z + last(x, mean)
        return z if fewer else z.index_select(0, nodes)

    def _encode_sampled(self, nodes: Tensor, fanout: Sequence[int]) -> Tensor:
        """The vectors z of nodes (n,) in training, from samples of neighbours: (n, hidden_dim).

        The first half of the nodes are users, the other half items, and all have neighbours, as training ratings are
        edges. A neighbour of a user is an item, and so on.
        """
        hops = [nodes]
        for number in fanout:
            hops.append(self.graph.sample(hops[-1], number))
        # The last hop is only read as means, and so is not built.
        bags = [*((hop, 1) for hop in hops[:-1]), (hops[-1], fanout[-1])]
        x = bag_sum(bags, self.embedding) + torch.cat([self._projected(*bag, i % 2) for i, bag in enumerate(bags)])
        sizes = [len(hop) for hop in hops[:-1]]
        x, outermost = torch.split(x, [sum(sizes), sizes[-1]])
        x = self._dropped(x)
        z = x[: sizes[0]]
        below = [outermost / fanout[-1]]  # the means of what is not in x
        for layer in self.layers:
            hops_of_x = torch.split(x, sizes)[1:]
            means = [hop.view(-1, n, x.shape[1]).mean(1) for hop, n in zip(hops_of_x, fanout, strict=False)] + below
            sizes, below = [len(mean) for mean in means], []
            x = layer(x[: sum(sizes)], torch.cat(means))
            z = z + x[: len(nodes)]
        return z

    def _projected(self, ids: Tensor, size: int, swapped: int) -> Tensor:
        """The sums of the projected features of bags, whose first half has users, or items if they are swapped."""
        halves = list(ids.chunk(2))
        users, items = reversed(halves) if swapped else halves
        user = self.user_projection(bag_sum([(users, size)], self.user_features))
        item = self.item_projection(bag_sum([(items - self.num_users, size)], self.item_features))
        return torch.cat([item, user] if swapped else [user, item])

    def decode(self, z_user: Tensor, z_item: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Predicted ratings (B,) of pairs: their vectors z, each (B, hidden_dim), and their nodes, each (B,)."""
        bias = self.bias.index_select(0, user) + self.bias.index_select(0, item)
        return self.rating_scale[0] + bias + (z_user * z_item).sum(1)

    def predict(self, z: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Predicted ratings (B,) from the vectors of all nodes, limited to the scale of the training ratings.

        Users (B,) and items (B,) are counted from 0.
        """
        item = item + self.num_users
        rating = self.decode(z.index_select(0, user), z.index_select(0, item), user, item)
        return rating.clamp(self.rating_scale[1], self.rating_scale[2])

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Predicted ratings (B,) of users (B,) and items (B,), both counted from 0.

        In evaluation mode they have no gradients, and are limited to the scale of the training ratings.
        """
        if not self.training:
            return self.predict(self.encode(), user, item)
        item = item + self.num_users
        nodes = torch.cat([user, item])
        z = self._encode_sampled(nodes, self.fanout) if self.fanout else self._encode_all(nodes)
        z_user, z_item = z.chunk(2)
        return self.decode(z_user, z_item, user, item)
