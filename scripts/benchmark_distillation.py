"""What a teacher takes of a device, three ways to have one, what they cost, and scoring in chunks of 500 graphs.

The ways are ``live`` (the teacher is on the device and looks at every batch), ``offloaded`` (offload_teacher_to_cpu:
there only while it looks) and ``kept`` (use_teacher_cache: its outputs are computed once, and it leaves). For both
stages, with students and teachers of the usual sizes:

- The estimated peak of a GPU, which needs none: traced, before any allocator rounds. Offloading lowers it by the
  teacher's size, keeping by that size less the outputs'. Where there is a GPU, it is measured too.
- The losses of an epoch of training. All three are equal to 1e-6.
- The time of an epoch, as a ratio of medians. Without a GPU the copies of an offloaded teacher are simulated: they go
  from the machine's memory to the machine's memory.

Then the peak of all tensors, by torch's profiler, while a VGAE of the teacher's size scores graphs in chunks: of
1,000 and of 20,000 it is the same, to a tenth, and scores are those of all graphs at once, to 1e-6.

Exits with 1 if one of these is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate, count
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuner.datasets.can import CanData, build, load_can
from tuner.datasets.synthetic_can import synthetic_can
from tuner.estimation.measure import measure, tensor_changes
from tuner.estimation.tracing.tracer import trace_workload
from tuner.machine.devices import cuda_devices, torch_has_cuda
from tuner.search.configurations import complete
from tuner.training.loop import train_epoch
from tuner.training.offload import offload
from tuner.training.optimizers import build_optimizer
from tuner.training.step import place, train_step
from tuner.trial import MB, OFFLOADING
from tuner.workloads.kd_gat.batches import chunks, collate
from tuner.workloads.kd_gat.distillation import difficulty, score
from tuner.workloads.kd_gat.model import Distilled, student
from tuner.workloads.kd_gat.networks import VGAE
from tuner.workloads.kd_gat.workload import KDGAT, STAGES

WORKLOAD = KDGAT()
RECOMPUTING = {"gradient_checkpointing": 1}
WAYS: Mapping[str, Mapping[str, int]] = {
    "live": {"use_teacher_cache": 0},
    "offloaded": {"use_teacher_cache": 0, OFFLOADING: 1},
    "kept": {"use_teacher_cache": 1},
}
SAME, NEAR, FLAT = 1e-6, 0.1, 0.1  # of losses and scores; of a fall, as a share; of peaks, as a share
FEW, WINDOW = 1_000, 100
missed = []


def config_of(**values: Any) -> dict[str, Any]:
    return WORKLOAD.finish(complete({"optimize_batch_size": 0, **values}, WORKLOAD.schema))


def verdict(text: str, met: bool) -> None:
    """Prints a bar, and remembers one that is missed."""
    print(f"  {'bar met   ' if met else 'BAR MISSED'}  {text}")
    if not met:
        missed.append(text)


def compare(stage: str, data: CanData, batch_size: int, epochs: int) -> None:
    """Everything about the three ways for one stage."""
    configs = {way: config_of(stage=stage, use_kd=1, batch_size=batch_size, **values) for way, values in WAYS.items()}
    teacher, outputs = sizes(configs["live"], configs["kept"], data)
    print(
        f"\n{stage}, batches of {batch_size}: the teacher has {teacher / MB:.2f} MiB, its outputs for "
        f"{len(data.train):,} graphs {outputs / MB:.2f} MiB"
    )
    traced = {
        way: trace_workload(WORKLOAD, config, data, device_kind="cuda").peak_bytes()
        for way, config in configs.items()
    }
    judge("a GPU's peak, traced", traced, teacher, outputs)
    if torch_has_cuda():
        (gpu, *_) = cuda_devices()
        found = {way: measure(WORKLOAD, config, data, gpu).allocated_bytes for way, config in configs.items()}
        judge(f"the peak on {gpu.name}, measured", found, teacher, outputs)
    else:
        print("  no GPU here: its peak is traced, not measured")
    losses, seconds = train(configs, data, epochs)
    for way in ("offloaded", "kept"):
        apart = float((losses["live"] - losses[way]).abs().max())
        verdict(f"{way}: the {len(losses[way])} losses of an epoch differ by {apart:.1e} at most", apart <= SAME)
    simulated = "" if torch_has_cuda() else " (copies simulated on the CPU)"
    slower = {way: median(seconds[way]) / median(seconds["live"]) for way in seconds}
    print(f"  an epoch's time: live {median(seconds['live']):.2f} s, of {epochs} epochs the median")
    print(f"  offloaded {slower['offloaded']:.2f} times that{simulated}, kept {slower['kept']:.2f} times")


def sizes(live: Mapping[str, Any], kept: Mapping[str, Any], data: CanData) -> tuple[int, int]:
    """Bytes of the teacher, and of its outputs for the training graphs."""
    (teacher,) = WORKLOAD.frozen(WORKLOAD.build_model(live, data))
    prepared = place(WORKLOAD, kept, data, "cpu", rehearsal=True)
    assert isinstance(prepared, Distilled)
    assert prepared.kept is not None
    return sum(each.nbytes for each in [*teacher.parameters(), *teacher.buffers()]), prepared.kept.nbytes


def judge(what: str, peaks: Mapping[str, int], teacher: int, outputs: int) -> None:
    """Holds the falls of a peak against the sizes of what has left the device and what has come."""
    print(f"  {what}: " + ", ".join(f"{way} {peak / MB:.2f}" for way, peak in peaks.items()) + " MiB")
    falls = {way: peaks["live"] - peaks[way] for way in ("offloaded", "kept")}
    for way, expected in (("offloaded", teacher), ("kept", teacher - outputs)):
        text = f"{way}: less by {falls[way] / MB:.2f} MiB, {expected / MB:.2f} expected"
        verdict(text, abs(falls[way] - expected) <= NEAR * teacher)


def train(
    configs: Mapping[str, Mapping[str, Any]], data: CanData, epochs: int
) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
    """The losses of each way's first epoch, and the seconds of all of its epochs, the ways taking turns."""
    device = "cuda:0" if torch_has_cuda() else "cpu"
    models, losses = {}, {}
    for way, config in configs.items():
        torch.manual_seed(0)
        model = place(WORKLOAD, config, data, device)
        if device == "cpu" and way == "offloaded":
            for module in WORKLOAD.frozen(model):
                offload(module, device)
        optimizer = build_optimizer(WORKLOAD, model, config)
        model.train()
        batches = WORKLOAD.batches(config, data)
        losses[way] = torch.stack(
            [train_step(WORKLOAD, model, optimizer, batch, device=device, config=RECOMPUTING) for batch in batches]
        ).cpu()
        models[way] = model, optimizer
    seconds: dict[str, list[float]] = {way: [] for way in configs}
    for _ in range(epochs):
        for way, (model, optimizer) in models.items():
            began = time.perf_counter()
            train_epoch(WORKLOAD, model, optimizer, configs[way], data, device, lambda _: None, count(1))
            seconds[way].append(time.perf_counter() - began)
    return losses, seconds


def compare_scoring(graphs: int) -> None:
    """The peak of scoring few graphs and many, in chunks."""
    data = build(synthetic_can(-(-graphs // 3) * WINDOW).items(), WINDOW, "generated")
    mixed = np.random.default_rng(0).permutation(len(data))[:graphs]  # so that all chunks are alike
    torch.manual_seed(0)
    model = student(config_of(stage="autoencoder", role="teacher"), len(data.identifiers) + 1).eval()
    assert isinstance(model, VGAE)
    print(f"\nscoring by a VGAE of the teacher's size: the peak of all tensors, of {FEW:,} and of {graphs:,} graphs")
    found: dict[str, Tensor] = {}

    def at_once() -> None:
        found["at once"] = difficulty(model, collate(data, mixed[:FEW]))

    def in_chunks(number: int) -> None:
        found["in chunks"] = score(model, chunks(data, mixed[:number], "cpu"))

    whole = peak(at_once)
    few, many = peak(lambda: in_chunks(FEW)), 0
    apart = float((found["in chunks"] - found["at once"]).abs().max())
    many = peak(lambda: in_chunks(graphs))
    print(f"  in chunks {few / MB:.1f} and {many / MB:.1f} MiB; {FEW:,} at once {whole / MB:.1f} MiB")
    verdict(f"{many / few:.3f} times, about 1", abs(many / few - 1) <= FLAT)
    verdict(f"scores differ from those at once by {apart:.1e} at most", apart <= SAME)


def peak(run: Any) -> int:
    """The most bytes of CPU tensors that there are at once while this runs."""
    return max(accumulate(tensor_changes(run), initial=0))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic", metavar="SOURCE", help="of the three ways (default synthetic)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="of the three ways (default 32)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="that are timed (default 5)")
    parser.add_argument("--graphs", type=int, default=20_000, metavar="N", help="that are scored (default 20,000)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = load_can(options.data)
    print(WORKLOAD.describe(data))
    for stage in STAGES:
        compare(stage, data, options.batch_size, options.epochs)
    compare_scoring(options.graphs)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
