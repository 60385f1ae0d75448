"""GT-SSL: an SGMP encoder of third-order paths, pretrained by subtree growth and hierarchical order.

Encoder: 'Representation Learning on Spatial Networks' (Zhang and Zhao, NeurIPS 2021); pretraining: 'Representation
Learning of Geometric Trees' (KDD 2024, arXiv 2408.08799).
"""

import math
import re
from collections.abc import MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import MLP, MessagePassing, global_add_pool
from torch_geometric.nn.conv.ppf_conv import get_angle
from torch_geometric.nn.models.schnet import GaussianSmearing
from torch_geometric.utils import scatter

EVALUATION_PATHS = 4096  # the number of paths whose messages are computed at a time in an evaluation
LAYER = re.compile(r"(input|growth|geometry\.\d|mlp)\.(\d)\.")  # of an MLP, before these were PyG's
NEARLY_PI = math.pi - 1e-3  # rounding makes the dihedral of a flat path π or -π; both become π
NEARLY_STRAIGHT = 1e-3  # the sine of an angle below which rounding decides the plane of its sides


class Geometry(NamedTuple):
    """Radial basis functions of each path's geometry; invariant to rotation and translation."""

    first: Tensor  # (P, R): d_ij
    second: Tensor  # (P, R + A): d_jk and θ1
    third: Tensor  # (P, R + A + D): d_jp, θ2 and φ


def dihedral(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """The signed angle in (-π, π] between the planes of u, v and of u, w, (P, 3) each. A reflection flips its sign.

    It is 0 where u and v, or u and w, are collinear, so that there is no plane.
    """
    a, b = torch.linalg.cross(u, v), torch.linalg.cross(u, w)
    size = get_angle(a, b)
    negative = (torch.linalg.cross(a, b) * u).sum(1) < 0
    phi = torch.where(negative & (size <= NEARLY_PI), -size, size)
    sides = torch.minimum(a.norm(dim=1) * w.norm(dim=1), b.norm(dim=1) * v.norm(dim=1))
    straight = sides <= NEARLY_STRAIGHT * u.norm(dim=1) * v.norm(dim=1) * w.norm(dim=1)
    return torch.where(straight, 0.0, phi)


class PathGeometry(nn.Module):
    """The geometry of paths i→j→k→p in radial basis functions."""

    def __init__(self, num_distance: int, num_angle: int, num_dihedral: int, cutoff: float) -> None:
        super().__init__()
        self.distance = GaussianSmearing(0.0, cutoff, num_distance)
        self.angle = GaussianSmearing(0.0, math.pi, num_angle)
        self.dihedral = GaussianSmearing(-math.pi, math.pi, num_dihedral)

    @torch.no_grad()
    def forward(self, pos: Tensor, path_index: Tensor) -> Geometry:
        """Positions (N, 3) and paths (4, P) → the three (P, …) inputs of a layer."""
        at_i, at_j, at_k, at_p = (pos.index_select(0, row) for row in path_index)
        ij, jk, ip = at_j - at_i, at_k - at_j, at_p - at_j
        theta1, theta2, phi = get_angle(ij, jk), get_angle(ij, ip), dihedral(ij, jk, ip)
        first, second, third = (self.distance(vector.norm(dim=1)) for vector in (ij, jk, ip))
        return Geometry(
            first,
            torch.cat([second, self.angle(theta1)], dim=1),
            torch.cat([third, self.angle(theta2), self.dihedral(phi)], dim=1),
        )


class Interaction(MessagePassing):  # type: ignore[misc]  # PyG is not typed
    """``h_i ← h_i + Σ C([h_i, h_j, h_k, h_p, g1, g2, g3])`` over the paths that begin at i."""

    def __init__(self, hidden: int, sizes: tuple[int, int, int]) -> None:
        super().__init__(aggr="sum", flow="target_to_source")
        self.geometry = nn.ModuleList(MLP([size, hidden, hidden], norm=None) for size in sizes)
        self.mlp = MLP([7 * hidden, 4 * hidden, 2 * hidden, hidden], norm=None)

    def forward(self, h: Tensor, path_index: Tensor, geometry: Geometry, weight: Tensor | None = None) -> Tensor:
        """(N, H) → (N, H), with the messages to each node weighted by (N, 1)."""
        total = torch.zeros_like(h)
        for part in _parts(path_index.shape[1]):
            ij, k, p = path_index[:2, part], *path_index[2:, part]
            g1, g2, g3 = (value[part] for value in geometry)
            total = total + self.propagate(
                ij, h=h, h_k=h.index_select(0, k), h_p=h.index_select(0, p), g1=g1, g2=g2, g3=g3
            )
        return h + (total if weight is None else weight * total)

    def message(  # noqa: D102  # PyG's
        self, h_i: Tensor, h_j: Tensor, h_k: Tensor, h_p: Tensor, g1: Tensor, g2: Tensor, g3: Tensor
    ) -> Tensor:
        shapes = [mlp(value) for mlp, value in zip(self.geometry, (g1, g2, g3), strict=True)]
        message: Tensor = self.mlp(torch.cat([h_i, h_j, h_k, h_p, *shapes], dim=1))
        return message.float()


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
        self.input = MLP([num_features, hidden_channels, hidden_channels], norm=None)
        self.geometry = PathGeometry(num_rbf_centers, num_angle_centers, num_dihedral_centers, cutoff)
        second = num_rbf_centers + num_angle_centers
        sizes = (num_rbf_centers, second, second + num_dihedral_centers)
        self.interactions = nn.ModuleList(Interaction(hidden_channels, sizes) for _ in range(num_interactions))

    def forward(self, x: Tensor, pos: Tensor, path_index: Tensor, weight: Tensor | None = None) -> Tensor:
        """Features (N, F), positions (N, 3), paths (4, P) and weights (N, 1) → node embeddings (N, H)."""
        geometry = self.geometry(pos, path_index)
        h: Tensor = self.input(x)
        for layer in self.interactions:
            h = layer(h, path_index, geometry, weight)
        return h

    def embed(self, batch: Batch) -> Tensor:
        """The embeddings of a batch's nodes, (N, H)."""
        weight = batch.path_weight.index_select(0, batch.batch)[:, None]
        h: Tensor = self(batch.x, batch.pos, batch.path_index, weight)
        return h


class GtSsl(nn.Module):
    """The encoder with the two pretraining tasks."""

    def __init__(self, encoder: Encoder, *, hidden_channels: int, lambda_order: float, delta: float) -> None:
        """``lambda_order`` is the weight of the order loss, ``delta`` the margin of unordered pairs."""
        super().__init__()
        self.encoder = encoder
        self.growth = MLP([hidden_channels, hidden_channels, len(encoder.geometry.distance.offset)], norm=None)
        self.lambda_order = lambda_order
        self.delta = delta
        self.register_load_state_dict_pre_hook(_rename)  # type: ignore[no-untyped-call]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The growth and the order loss of a batch: scalars, means over its trees."""
        h = self.encoder.embed(batch)
        return self.growth_loss(batch), self.order_loss(batch, h)

    def total(self, growth: Tensor, order: Tensor) -> Tensor:
        """Growth + λ · order."""
        return growth + self.lambda_order * order

    def growth_prediction(self, batch: Batch) -> Tensor:
        """Predicted distributions of the distances to a node's children: (N, R), each summing to 1.

        The encoder sees only a node and its ancestors, since the children are to be predicted.
        """
        predicted: Tensor = self.growth(self.encoder(batch.x, batch.pos, batch.chain_index)).float().softmax(dim=1)
        return predicted

    def growth_loss(self, batch: Batch) -> Tensor:
        """The earth mover's distance Δ · ‖cumsum(p̂) - cumsum(p)‖₁ between predicted and true distances of children.

        It is a tree's mean over nodes with children. Δ, the distance of two centres, makes the unit mean edges,
        independent of the number of centres.
        """
        basis = self.encoder.geometry.distance
        target = growth_target(basis, batch)
        inner = target.sum(1).round()  # 1 for nodes with children, 0 for leaves
        distance = (self.growth_prediction(batch) - target).cumsum(1).abs().sum(1) * inner
        total, nodes = (global_add_pool(values, batch.batch, batch.num_graphs) for values in (distance, inner))
        mean: Tensor = (total / nodes.clamp(min=1)).mean()
        spacing: Tensor = basis.offset[1] - basis.offset[0]
        return spacing * mean

    def order_loss(self, batch: Batch, h: Tensor) -> Tensor:
        """E = ‖max(0, h_child - h_parent)‖² of ordered pairs, and max(0, δ - E) of unordered pairs."""
        ordered = violation(h, batch.positive_index)
        unordered = (self.delta - violation(h, batch.negative_index)).relu()
        return _tree_mean(ordered, batch.positive_index, batch) + _tree_mean(unordered, batch.negative_index, batch)


def _tree_mean(values: Tensor, pairs: Tensor, batch: Batch) -> Tensor:
    """The mean over the trees of the mean over a tree's pairs, which is 0 without any."""
    tree = batch.batch.index_select(0, pairs[0])
    mean: Tensor = scatter(values, tree, dim_size=batch.num_graphs, reduce="mean").mean()
    return mean


def violation(h: Tensor, pairs: Tensor) -> Tensor:
    """E(parent, child) = ‖max(0, h_child - h_parent)‖² (order embeddings, Vendrov et al. 2016): (2, M) → (M,)."""
    parent, child = (h.index_select(0, row) for row in pairs)
    return (child - parent).relu().float().square().sum(1)


@torch.no_grad()
def growth_target(basis: GaussianSmearing, batch: Batch) -> Tensor:
    """For each node Σ rbf(distance to the child) over its children, normalized to sum 1; (N, R), 0 for leaves.

    Distances beyond the last centre are limited to it, since no basis function covers them.
    """
    parent, child = batch.edge_index
    length = (batch.pos.index_select(0, child) - batch.pos.index_select(0, parent)).norm(dim=1)
    near = basis(length.clamp(max=basis.offset[-1]))
    target: Tensor = scatter(near, parent, dim_size=batch.num_nodes, reduce="sum")
    return target / target.sum(1, keepdim=True).clamp(min=1e-12)


def _parts(paths: int) -> list[slice]:
    """All paths at once if their messages are kept for backward, otherwise ``EVALUATION_PATHS`` at a time."""
    size = paths if torch.is_grad_enabled() else EVALUATION_PATHS
    return [slice(begin, begin + size) for begin in range(0, paths, max(1, size))]


def _rename(module: GtSsl, state: MutableMapping[str, Tensor], *_: object) -> None:
    """Renames weights that were saved before the parts of this model were PyG's."""
    for name in list(state):
        new = name.replace(".message.", ".mlp.").replace(".centers", ".offset")
        new = LAYER.sub(lambda layer: f"{layer[1]}.lins.{int(layer[2]) // 2}.", new)
        state[new] = state.pop(name)
