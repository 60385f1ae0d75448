"""GT-SSL: an SGMP encoder of third-order paths, pretrained by subtree growth and hierarchical order.

Encoder: 'Representation Learning on Spatial Networks' (Zhang and Zhao, NeurIPS 2021); pretraining: 'Representation
Learning of Geometric Trees' (KDD 2024, arXiv 2408.08799).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tuner.workloads.gt_ssl.sizes import EVALUATION_PATHS

NEARLY_PI = math.pi - 1e-3  # rounding makes the dihedral of a flat path π or -π; both become π
NEARLY_STRAIGHT = 1e-3  # the sine of an angle below which rounding decides the plane of its sides


class TreeBatch(NamedTuple):
    """B trees with N nodes and P paths in total; nodes are numbered over the batch."""

    graph: Tensor  # (B,) ones: one for each tree
    features: Tensor  # (N, F)
    position: Tensor  # (N, 3)
    path: Tensor  # (4, P) int64: i, j, k, p
    weight: Tensor  # (N, 1): the weight of the messages; above 1 if only some of a tree's paths were drawn
    chain: Tensor  # (4, C) int64: node, parent, grandparent, great-grandparent; and (v, v, v, v) for each node
    edge: Tensor  # (2, E) int64: parent and child
    growth_weight: Tensor  # (N,): 1 / (B · nodes with children in the tree); 0 for leaves
    positive: Tensor  # (2, M) int64: pairs of a parent and its child
    positive_weight: Tensor  # (M,): 1 / (B · pairs of the tree)
    negative: Tensor  # (2, K) int64: pairs whose first node is not an ancestor of the second
    negative_weight: Tensor  # (K,): 1 / (B · pairs of the tree)


class Geometry(NamedTuple):
    """Radial basis functions of each path's geometry; invariant to rotation and translation."""

    first: Tensor  # (P, R): d_ij
    second: Tensor  # (P, R + A): d_jk and θ1
    third: Tensor  # (P, R + A + D): d_jp, θ2 and φ


class RadialBasis(nn.Module):
    """``exp(-½ ((x - μ) / Δ)²)`` for evenly spaced centres μ on [low, high], Δ their distance."""

    centers: Tensor

    def __init__(self, low: float, high: float, num_centers: int) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(low, high, num_centers))
        self.spacing = (high - low) / max(1, num_centers - 1)

    def forward(self, x: Tensor) -> Tensor:
        """(P,) → (P, num_centers)."""
        result: Tensor = torch.exp(-0.5 * ((x[:, None] - self.centers) / self.spacing).square())
        return result


def angle(a: Tensor, b: Tensor) -> Tensor:
    """∠(a, b) = atan2(‖a×b‖, a·b) of (P, 3) vectors, in [0, π]."""
    result: Tensor = torch.atan2(torch.linalg.cross(a, b).norm(dim=1), (a * b).sum(1))
    return result


def dihedral(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """The signed angle in (-π, π] between the planes of u, v and of u, w, (P, 3) each. A reflection flips its sign.

    It is 0 where u and v, or u and w, are collinear, so that there is no plane.
    """
    a, b = torch.linalg.cross(u, v), torch.linalg.cross(u, w)
    size = angle(a, b)
    left = (torch.linalg.cross(a, b) * u).sum(1) < 0
    phi = torch.where(left & (size <= NEARLY_PI), -size, size)
    sides = torch.minimum(a.norm(dim=1) * w.norm(dim=1), b.norm(dim=1) * v.norm(dim=1))
    straight = sides <= NEARLY_STRAIGHT * u.norm(dim=1) * v.norm(dim=1) * w.norm(dim=1)
    return torch.where(straight, 0.0, phi)


class PathGeometry(nn.Module):
    """The geometry of paths i→j→k→p in radial basis functions."""

    def __init__(self, num_distance: int, num_angle: int, num_dihedral: int, cutoff: float) -> None:
        super().__init__()
        self.distance = RadialBasis(0.0, cutoff, num_distance)
        self.angle = RadialBasis(0.0, math.pi, num_angle)
        self.dihedral = RadialBasis(-math.pi, math.pi, num_dihedral)

    @torch.no_grad()
    def forward(self, position: Tensor, path: Tensor) -> Geometry:
        """Positions (N, 3) and paths (4, P) → the three (P, …) inputs of a layer."""
        at_i, at_j, at_k, at_p = (position.index_select(0, row) for row in path)
        ij, jk, ip = at_j - at_i, at_k - at_j, at_p - at_j
        theta1, theta2, phi = angle(ij, jk), angle(ij, ip), dihedral(ij, jk, ip)
        first, second, third = (self.distance(vector.norm(dim=1)) for vector in (ij, jk, ip))
        return Geometry(
            first,
            torch.cat([second, self.angle(theta1)], dim=1),
            torch.cat([third, self.angle(theta2), self.dihedral(phi)], dim=1),
        )


class Interaction(nn.Module):
    """``h_i ← h_i + Σ C([h_i, h_j, h_k, h_p, g1, g2, g3])`` over the paths that begin at i."""

    def __init__(self, hidden: int, sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.geometry = nn.ModuleList(_mlp(size, hidden, hidden) for size in sizes)
        self.message = _mlp(7 * hidden, 4 * hidden, 2 * hidden, hidden)

    def forward(self, h: Tensor, path: Tensor, geometry: Geometry, weight: Tensor) -> Tensor:
        """(N, H) → (N, H)."""
        total = torch.zeros_like(h)
        for part in _parts(path.shape[1]):
            message = self._messages(h, path[:, part], Geometry(*(value[part] for value in geometry)))
            total = total.index_add(0, path[0, part], message.to(total.dtype))
        return h + weight * total

    def _messages(self, h: Tensor, path: Tensor, geometry: Geometry) -> Tensor:
        nodes = [h.index_select(0, row) for row in path]
        shapes = [mlp(value) for mlp, value in zip(self.geometry, geometry, strict=True)]
        message: Tensor = self.message(torch.cat([*nodes, *shapes], dim=1))
        return message


class Encoder(nn.Module):
    """SGMP: an input MLP, then layers that pass messages along third-order paths."""

    def __init__(
        self,
        num_features: int,
        *,
        hidden_channels: int,
        num_interactions: int,
        num_rbf_centers: int,
        num_angle_centers: int = 6,
        num_dihedral_centers: int = 12,
        cutoff: float = 10.0,
    ) -> None:
        super().__init__()
        self.input = _mlp(num_features, hidden_channels, hidden_channels)
        self.geometry = PathGeometry(num_rbf_centers, num_angle_centers, num_dihedral_centers, cutoff)
        second = num_rbf_centers + num_angle_centers
        sizes = (num_rbf_centers, second, second + num_dihedral_centers)
        self.interactions = nn.ModuleList(Interaction(hidden_channels, sizes) for _ in range(num_interactions))

    def forward(self, features: Tensor, position: Tensor, path: Tensor, weight: Tensor) -> Tensor:
        """Features (N, F), positions (N, 3), paths (4, P) and weights (N, 1) → node embeddings (N, H)."""
        geometry = self.geometry(position, path)
        h: Tensor = self.input(features)
        for layer in self.interactions:
            h = layer(h, path, geometry, weight)
        return h


class GtSsl(nn.Module):
    """The encoder with the two pretraining tasks."""

    def __init__(self, encoder: Encoder, *, hidden_channels: int, lambda_order: float, delta: float) -> None:
        """``lambda_order`` is the weight of the order loss, ``delta`` the margin of unordered pairs."""
        super().__init__()
        self.encoder = encoder
        self.growth = _mlp(hidden_channels, hidden_channels, len(encoder.geometry.distance.centers))
        self.lambda_order = lambda_order
        self.delta = delta

    def forward(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """The growth and the order loss of a batch: scalars, means over its trees."""
        h = self.encoder(batch.features, batch.position, batch.path, batch.weight)
        return self.growth_loss(batch), self.order_loss(batch, h)

    def total(self, growth: Tensor, order: Tensor) -> Tensor:
        """Growth + λ · order."""
        return growth + self.lambda_order * order

    def growth_prediction(self, batch: TreeBatch) -> Tensor:
        """Predicted distributions of the distances to a node's children: (N, R), each summing to 1.

        The encoder sees only a node and its ancestors, since the children are to be predicted.
        """
        ones = torch.ones_like(batch.weight)
        h = self.encoder(batch.features, batch.position, batch.chain, ones)
        predicted: Tensor = self.growth(h).float().softmax(dim=1)
        return predicted

    def growth_loss(self, batch: TreeBatch) -> Tensor:
        """The earth mover's distance Δ · ‖cumsum(p̂) - cumsum(p)‖₁ between predicted and true distances of children.

        Δ, the distance of two centres, makes the unit mean edges, independent of the number of centres.
        """
        basis = self.encoder.geometry.distance
        difference = self.growth_prediction(batch) - growth_target(basis, batch)
        return basis.spacing * (difference.cumsum(1).abs().sum(1) * batch.growth_weight).sum()

    def order_loss(self, batch: TreeBatch, h: Tensor) -> Tensor:
        """E = ‖max(0, h_child - h_parent)‖² of ordered pairs, and max(0, δ - E) of unordered pairs."""
        true = violation(h, batch.positive)
        other = (self.delta - violation(h, batch.negative)).relu()
        return (true * batch.positive_weight).sum() + (other * batch.negative_weight).sum()


def violation(h: Tensor, pairs: Tensor) -> Tensor:
    """E(parent, child) = ‖max(0, h_child - h_parent)‖² (order embeddings, Vendrov et al. 2016): (2, M) → (M,)."""
    parent, child = (h.index_select(0, row) for row in pairs)
    return (child - parent).relu().float().square().sum(1)


@torch.no_grad()
def growth_target(basis: RadialBasis, batch: TreeBatch) -> Tensor:
    """For each node Σ rbf(distance to the child) over its children, normalized to sum 1; (N, R), 0 for leaves.

    Distances beyond the last centre are limited to it, since no basis function covers them.
    """
    parent, child = batch.edge
    length = (batch.position.index_select(0, child) - batch.position.index_select(0, parent)).norm(dim=1)
    target = batch.position.new_zeros(len(batch.position), len(basis.centers)).index_add(
        0, parent, basis(length.clamp(max=basis.centers[-1]))
    )
    return target / target.sum(1, keepdim=True).clamp(min=1e-12)


def _parts(paths: int) -> list[slice]:
    """All paths at once if their messages are kept for backward, otherwise ``EVALUATION_PATHS`` at a time."""
    size = paths if torch.is_grad_enabled() else EVALUATION_PATHS
    return [slice(begin, begin + size) for begin in range(0, paths, max(1, size))]


def _mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
