"""Compares the closed formula for transformers with traced and with real training steps.

The steps are the GPTs of memory_steps.csv, each in float32, under autocast and in pure half precision. The truth on
the CPU is the tensors' peak by torch.profiler, as in memory.py; on a GPU it is ``max_memory_allocated``.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import click
import torch

from scripts.benchmarks.memory import true_peak
from scripts.benchmarks.memory_models import Step, gpt_config, read_steps, run, trace
from scripts.benchmarks.verdicts import print_verdicts
from scripts.gpu.measure_gpu_memory import without_cudnn_if_emulated
from tuner.estimation.cards import card_of, cublas_workspace_bytes
from tuner.machine.devices import detect_devices
from tuner.sizing.transformers.formula import PRECISIONS, footprint
from tuner.sizing.transformers.gpu_memory import HANDLES
from tuner.trial import MB

Kind = Literal["cpu", "cuda"]
MOST = 0.05  # the formula's error, as a share of the truth


def steps() -> list[Step]:
    """Each GPT of the list once, in all precisions."""
    gpts = [step for step in read_steps() if step.model == "gpt" and step.sizes["precision"] == "float32"]
    first = [step for step in gpts if step.sizes.get("optimizer", "adamw") == "adamw"]  # the formula's optimizer
    return [
        replace(one, name=f"{one.name.removesuffix('-fp32')} {kind}", sizes={**one.sizes, "precision": kind})
        for one in first
        for kind in PRECISIONS
    ]


def peaks(step: Step, kind: Kind) -> tuple[int, int, int]:
    """Bytes by the formula, by the trace, and in truth."""
    device = detect_devices(kind)[0]
    workspaces = HANDLES * cublas_workspace_bytes(device)
    formula = footprint(gpt_config(step.sizes), step.sizes["precision"], kind).total_bytes + workspaces
    traced = trace(step, kind, card_of(device)).peak_bytes()
    return formula, traced, true_peak(step) if kind == "cpu" else cuda_peak(step)


def cuda_peak(step: Step) -> int:
    """The most that torch had allocated on the GPU during the step, cuBLAS' workspaces with it."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    run(step, "cuda")
    return torch.cuda.max_memory_allocated()


def worst(errors: Sequence[float]) -> str:
    return f"{min(0.0, *errors):+.2%} to {max(0.0, *errors):+.2%}"


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.pass_context
def main(ctx: click.Context, device: Kind) -> None:
    if device == "cuda":
        without_cudnn_if_emulated()
    torch.set_num_threads(1)  # kernels' temporaries grow with the threads: one, so that every machine has the same
    click.echo(f"MiB on the {device}, torch {torch.__version__}")
    click.echo(f"{'step':<56} {'real':>9} {'traced':>9} {'formula':>9} {'traced':>8} {'formula':>8}")
    errors: list[tuple[float, float]] = []
    for step in steps():
        formula, traced, real = peaks(step, device)
        errors.append((traced / real - 1, formula / real - 1))
        sizes = " ".join(f"{size / MB:>9.2f}" for size in (real, traced, formula))
        click.echo(f"{step.name:<56} {sizes} {errors[-1][0]:>+8.2%} {errors[-1][1]:>+8.2%}")
    of_trace, of_formula = zip(*errors, strict=True)
    click.echo(f"\nerrors: traced {worst(of_trace)}, formula {worst(of_formula)}")
    near = max(abs(error) for error in of_formula) <= MOST
    ctx.exit(0 if print_verdicts([(near, f"formula: within {MOST:.0%} of every real step")]) else 1)


if __name__ == "__main__":
    main()
