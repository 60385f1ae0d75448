"""What a GT-SSL training step takes, part by part, beside the table of the GT-SSL memory guide.

Batches of 4 and of 16 graphs with 100 nodes and 10,000 third-order paths each, as in the guide: no tree of 100 nodes
has so many, so the paths are those of random graphs of which the tree is a spanning tree. H = 64, 3 interactions, 20
RBF centres, Adam. What is kept for backward is counted on a real step by autograd's own hooks, storage by storage;
the peak is traced, as the estimator does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import click
import numpy as np
import torch
from torch import Tensor, nn

from tuner.datasets.paths import random_spanning_tree, third_order_paths
from tuner.datasets.swc import Tree, preorder
from tuner.datasets.trees import TreeData, build
from tuner.estimation.tracing.tracer import trace_step
from tuner.search.configurations import complete
from tuner.training.optimizers import build_optimizer
from tuner.trial import MB
from tuner.workloads.gt_ssl.model import GtSsl, TreeBatch
from tuner.workloads.gt_ssl.workload import GTSSL

NODES, PATHS, EDGES = 100, 10_000, 345
# MB for batches of 4 and 16 graphs.
GUIDE = {"input graph": (20, 80), "third-order paths": (200, 800), "SGMP activations": (80, 320)}
GUIDE |= {"growth predictor": (40, 160), "gradients": (680, 2600), "total": (1000, 4000)}


def graphs(count: int) -> TreeData:
    """Random graphs with the paths of all their edges, and the rest of what a batch holds of a spanning tree."""
    random = np.random.default_rng(0)
    trees, paths = [], []
    for _ in range(count):
        tree, path = _graph(random)
        trees.append(tree)
        paths.append(path)
    data = build(trees, np.zeros(count, dtype=np.int64), "random graphs", ("",))
    first = np.arange(count + 1) * (PATHS + NODES)
    return replace(data, path=np.concatenate(paths, axis=1).astype(np.int32), first_path=first)


def _graph(random: np.random.Generator) -> tuple[Tree, np.ndarray]:
    pairs = np.stack(np.triu_indices(NODES, 1))
    while True:
        edges = pairs[:, random.choice(pairs.shape[1], EDGES, replace=False)]
        spanning = random_spanning_tree(edges, NODES, seed=0)
        path = third_order_paths(edges, NODES)
        if spanning.shape[1] == NODES - 1 and path.shape[1] >= PATHS + NODES:
            break
    rows, parent = preorder(_parents(spanning), 0)
    number = np.argsort(rows)
    kept = random.permutation(path.shape[1] - NODES)[:PATHS]
    own = np.tile(np.arange(NODES), (4, 1))
    tree = Tree(random.normal(size=(NODES, 3))[rows], np.ones(NODES), parent)
    return tree, np.concatenate([number[path[:, kept]], own], axis=1)


def _parents(edges: np.ndarray) -> np.ndarray:
    """Each node's parent in a tree with its root at node 0."""
    parent, waiting = np.full(NODES, -1), [0]
    while waiting:
        node = waiting.pop()
        near = np.concatenate([edges[1, edges[0] == node], edges[0, edges[1] == node]])
        for other in near[near != parent[node]].tolist():
            parent[other] = node
            waiting.append(other)
    return parent


def parts(batch_size: int) -> dict[str, float]:
    """MB of each part of the guide's table."""
    workload = GTSSL()
    values = {"batch_size": batch_size, "max_paths_per_batch": 10**8}
    config = complete(values, workload.schema)
    data = graphs(batch_size)
    batch = TreeBatch(*workload.largest_batch(config, data))
    indices = (batch.path, batch.chain)

    def make(loss: Callable[[GtSsl], Tensor]) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
        model = workload.build_model(config, data)
        return model, build_optimizer(workload, model, config), lambda: loss(model)

    def full(model: GtSsl) -> Tensor:
        return workload.loss(model, batch)

    def order(model: GtSsl) -> Tensor:
        h = model.encoder(batch.features, batch.position, batch.path, batch.weight)
        return model.order_loss(batch, h)

    model = workload.build_model(config, data)
    of_paths, of_chains = (sum(part.nbytes for part in model.encoder.geometry(batch.position, p)) for p in indices)
    kept_all, kept_order = (kept_for_backward(model, batch, loss) for loss in (full, order))
    trace = trace_step(lambda: make(full))
    data_bytes, index_bytes = (sum(part.nbytes for part in parts) for parts in (batch, indices))
    found = {
        "input graph": data_bytes - index_bytes,
        "third-order paths": index_bytes + of_paths + of_chains,
        "SGMP activations": kept_order - of_paths,
        "growth predictor": kept_all - kept_order - of_chains,
    }
    found["gradients"] = trace.peak_bytes() + data_bytes - sum(found.values())
    found["total"] = trace.peak_bytes() + data_bytes
    return {name: value / MB for name, value in found.items()}


def kept_for_backward(model: GtSsl, batch: TreeBatch, loss: Callable[[GtSsl], Tensor]) -> int:
    """Bytes of the storages that autograd keeps of a forward pass, without parameters, buffers and the batch."""
    known = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers(), *batch)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss(model)
    total = sum(each.untyped_storage().nbytes() for pointer, each in kept.items() if pointer not in known)
    del value
    return total


@click.command(help=__doc__)
def main() -> None:
    click.echo(f"{'MB':<20} {'guide, 4':>9} {'traced, 4':>10} {'guide, 16':>10} {'traced, 16':>11}")
    small, large = parts(4), parts(16)
    for name, (guide_small, guide_large) in GUIDE.items():
        click.echo(f"{name:<20} {guide_small:>9} {small[name]:>10.1f} {guide_large:>10} {large[name]:>11.1f}")


if __name__ == "__main__":
    main()
