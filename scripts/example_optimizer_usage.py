"""Sizes a run for a GPU from Python: a footprint's curriculum, a workload of ours, and a model of your own.

Run it with the project's environment: .venv/bin/python scripts/example_optimizer_usage.py [--gpu-memory GB]
"""

from __future__ import annotations

import click

import tuner


def curriculum(gpu_memory_gb: float) -> None:
    """A model that is not at hand, by its footprint: one batch for all stages."""
    found = tuner.optimize(footprint="contrastive_encoder", gpu_memory=gpu_memory_gb)
    for stage in found.chosen:
        print(
            f"stage {stage.name}: batch {stage.batch_size} x {stage.accumulation}, "
            f"{stage.variables['n_negatives']} negatives, {stage.need_bytes / 2**30:.1f} GB"
        )


def workload(gpu_memory_gb: float) -> None:
    """A built-in model, by tracing its training step; batches as near to 4096 as fits."""
    found = tuner.optimize(
        workload="graphsage",
        mode="architecture",
        limit=2,
        gpu_memory=gpu_memory_gb,
        target_effective_batch=4096,
        max_batch_size=4096,
    )
    for row in found.chosen:
        print(f"{row.name}: batch {row.batch_size}, stopped by {row.stopped_by}, {row.need_bytes / 2**30:.2f} GB")
    print(*found.explanations, sep="\n")


def own_model(gpu_memory_gb: float) -> None:
    """Any torch model and one sample."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    sample = torch.randn(1, 256)
    print(tuner.compute_batch_size(model, sample, "cuda", mode="traced", total_gb=gpu_memory_gb))


@click.command()
@click.option("--gpu-memory", type=float, default=24, show_default=True, metavar="GB", help="The GPU to size for.")
def main(gpu_memory: float) -> None:
    """Print what fits."""
    curriculum(gpu_memory)
    workload(gpu_memory)
    own_model(gpu_memory)


if __name__ == "__main__":
    main()
