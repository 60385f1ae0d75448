"""Trials an hour on one GPU: tuner's ways to share it against one by one and Ray Tune with fractions set by hand.

    fresh       one by one, each in a process of its own, from the first start to the last end
    warm        one by one in one process
    ray-tune    Ray Tune with the same training code, ``reuse_actors`` and 1/2 to 1/16 of the GPU for each trial
    ours        tuner with so many workers, and with each of the levers cuda_graphs and adaptive_workers

All train the same models with the same seeds for the same epochs; the number of epochs is chosen so that all cells
fit into the time. Trials of the parallel ways are counted while all workers are busy. After each
cell the table goes to ``trials_per_hour.md``, and every figure to ``trials_per_hour.json``. Exits with 1 if a bar is
missed. On anything but a real GPU the figures show nothing, and no bar is judged.

Where packages cannot be installed but lie in .site:

    PYTHONPATH=.site:. python3 -m scripts.gpu.trials_per_hour --output DIR
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tuner
from scripts.benchmarks.verdicts import print_verdicts
from scripts.gpu import cells as gpu_cells
from scripts.gpu.cells import ADAPTIVE, GRAPHS, MAIN, WAYS, Cell, Measured, Sample, Timed, Trial
from scripts.gpu.models import MODELS, has_constant_shapes, train, values
from tuner.errors import one_line
from tuner.execution.cluster import RayConnection, local_ray
from tuner.machine.caps import worker_environment
from tuner.machine.devices import available_cores, cuda_devices, detect_devices, driver_version
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS
from tuner.trial import GB

SAMPLE_SECONDS = 0.2
TIMED_SECONDS = 120.0  # for the trials by which the epochs are chosen
COLUMNS = (
    *("model", "way", "workers", "trials/h", "× fresh", "GPU busy", "J/trial", "metric", "lost", "out of memory"),
    "estimate",
)
EMULATED = "EMULATED_GPU"  # a variable that is set where CUDA runs on the emulated card


class Meter:
    """Samples the first GPU with NVML in a thread; it has no samples where there is none."""

    def __init__(self, device: str) -> None:
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if device == "cuda":
            self._thread.start()

    def _run(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(cuda_devices()[0].index)

        def asked(name: str) -> Any:
            with suppress(pynvml.NVMLError):
                return getattr(pynvml, name)(handle)
            return None

        while not self._ended.wait(SAMPLE_SECONDS):
            busy, power = asked("nvmlDeviceGetUtilizationRates"), asked("nvmlDeviceGetPowerUsage")
            energy = asked("nvmlDeviceGetTotalEnergyConsumption")
            shares = None if busy is None else busy.gpu / 100
            watts, joules = (None if value is None else value / 1000 for value in (power, energy))
            self.samples.append(Sample(time.time(), shares, watts, joules))

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()


def version(package: str) -> str:
    """A package's version; copied without what pip writes, it has none."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "unknown"


def card_of(device: str) -> tuple[str, str, bool]:
    """The name of the device, its driver, and whether it is a real GPU."""
    if device == "cpu":
        return platform.processor() or platform.machine(), "", False
    emulated = EMULATED in os.environ
    return f"{'emulated ' * emulated}{cuda_devices()[0].name}", driver_version(), not emulated


def alone(cell: Cell, epochs: int, device: str, seeds: Sequence[int], seconds: float) -> list[Trial]:
    """Trials in a process of their own, one after another; the first begins with the process.

    Raises:
        RuntimeError: the process failed.
        TimeoutExpired: it took longer than ``seconds``.
    """
    graphs = str(int(GRAPHS in cell.levers))
    command = [sys.executable, "-m", "scripts.gpu.models", cell.model, str(epochs), device, graphs, *map(str, seeds)]
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output")
    trials = [to_trial(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if cell.way == "fresh":
        trials = [replace(trial, epochs=(began, *trial.epochs[1:])) for trial in trials]
    return trials


def to_trial(record: dict[str, Any]) -> Trial:
    times = tuple(record["epochs"])
    return Trial(record["seed"], times, record["ended"], record["value"], record["reserved_bytes"])


def one_by_one(cell: Cell, epochs: int, device: str, seconds: float) -> tuple[Measured, list[Trial]]:
    """Either all trials in one process, or each in its own."""
    seeds = range(cell.trials)
    groups = [[seed] for seed in seeds] if cell.way == "fresh" else [list(seeds)]
    trials = [trial for group in groups for trial in alone(cell, epochs, device, group, seconds)]
    return Measured(cell, workers=1, lost=cell.trials - len(trials)), trials


def by_ray_tune(cell: Cell, epochs: int, device: str, seconds: float) -> tuple[Measured, list[Trial]]:
    """Trials of Ray Tune, of which each has the same fraction."""
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        tune.report(train(cell.model, epochs, device, config["seed"]))

    part = 1 / cell.workers
    cpus = min(1.0, available_cores() * part)
    needs = {"gpu": part, "cpu": cpus} if device == "cuda" else {"cpu": available_cores() * part}
    with tempfile.TemporaryDirectory() as folder:
        found = tune.Tuner(
            tune.with_resources(trainable, needs),
            param_space={"seed": tune.grid_search(list(range(cell.trials)))},
            tune_config=tune.TuneConfig(reuse_actors=True, time_budget_s=seconds),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        records = [result.metrics for result in found if result.error is None and result.metrics]
    ran_out = sum("out of memory" in str(error) for error in found.errors)
    lost = cell.trials - len(records)
    return Measured(cell, workers=cell.workers, lost=lost, ran_out=ran_out), [to_trial(record) for record in records]


def by_tuner(cell: Cell, epochs: int, device: str, seconds: float) -> tuple[Measured, list[Trial]]:
    """Trials of a study of ours."""
    adaptive = ADAPTIVE in cell.levers
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "study"
        result = tuner.run(
            MODELS[cell.model][0],
            config=[{"name": cell.model, **values(cell.model, epochs, graphs=GRAPHS in cell.levers)}],
            seeds=cell.trials,
            split_seed=0,
            device=device,  # type: ignore[arg-type]
            max_workers=None if adaptive else cell.workers,
            adaptive_workers=adaptive,
            threads=1,
            time_limit=seconds,
            calibration=False,
            report=False,
            output=output,
        )
        assert result.plan is not None
        attempts = [json.loads(line) for line in (output / "attempts.jsonl").read_text().splitlines()]
        lines = read_epochs(output / EPOCHS)
    metric = next(iter(result.objectives.values())).metric
    trials = []
    for attempt in attempts:
        if attempt["status"] == "completed":
            mine = (attempt["trial_id"], attempt["attempts"])
            times = tuple(line.at for line in lines if (line.trial_id, line.attempt) == mine)
            trials.append(Trial(attempt["seed"], times, attempt["ended_at"], attempt[metric]))
    ran_out = sum(attempt["status"] == "out_of_memory" for attempt in attempts)
    note = "; ".join(sorted({attempt["error"] for attempt in attempts if attempt["error"]}))
    workers = sum(result.plan.at_first)
    empty = Measured(cell, workers=workers, lost=cell.trials - len(trials), ran_out=ran_out, note=note)
    return empty, trials


def estimated(model: str, device: str, *, graphs: bool) -> int:
    """The bytes that the estimate expects the allocator to reserve, before any calibration."""
    config = [{"name": model, **values(model, 1, graphs=graphs)}]
    ((_, guess),) = tuner.estimate(
        workload=MODELS[model][0],
        config=config,
        device=device,  # type: ignore[arg-type]
        calibration=False,
    )
    return guess.reserved_bytes


def run_cell(cell: Cell, epochs: int, device: str, meter: Meter, best: int, seconds: float) -> Measured:
    """Measures a cell in at most this time; ``best`` is Ray Tune's best fraction. A failure is part of the result.

    What studies print is left out.
    """
    way = {"fresh": one_by_one, "warm": one_by_one, "ray-tune": by_ray_tune, "ours": by_tuner}[cell.way]
    cell = cell if cell.workers else replace(cell, workers=best, trials=gpu_cells.trials_at(best))
    began = time.perf_counter()
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            empty, trials = way(cell, epochs, device, seconds)
        took = time.perf_counter() - began
        if cell.way == "warm" and device == "cuda":
            expected = estimated(cell.model, device, graphs=GRAPHS in cell.levers)
            trials = [replace(trial, estimated_bytes=expected) for trial in trials]
        return gpu_cells.measured(empty, trials, epochs, meter.samples, took)
    except Exception as error:
        return Measured(cell, "failed", wall_seconds=time.perf_counter() - began, note=failure(error))


def failure(error: Exception) -> str:
    """What a table says of an exception."""
    return one_line(str(error), 200).replace("|", "/") or type(error).__name__


def timed(model: str, device: str) -> tuple[Timed, float]:
    """How long the parts of a trial take in a warm process, and how long a process takes until it trains."""
    cell = Cell(model, "warm", 1, 2)
    began = time.time()
    first, second = alone(cell, 3, device, [0, 1], TIMED_SECONDS)
    epoch = (second.epochs[-1] - second.epochs[0]) / 3
    return Timed(epoch, max(0.0, second.ended - first.ended - 3 * epoch)), first.epochs[0] - began


@contextmanager
def shared_ray(device: str) -> Iterator[None]:
    """One Ray for all cells: it takes seconds to start. Without Ray the cells that need it fail."""
    if find_spec("ray") is None:
        print("Ray is not installed", flush=True)
        yield
        return
    first = detect_devices(device)[:1]  # type: ignore[arg-type]
    path = os.pathsep.join(map(str, sys.path))
    connection = RayConnection(local_ray(first, {**worker_environment(first[0]), "PYTHONPATH": path}))
    try:
        connection.wait()
        yield
    finally:
        connection.stop()


def table(cells: Sequence[Measured], about: dict[str, Any]) -> str:
    """The table as Markdown, under what it was measured on."""
    fresh = {row.cell.model: row for row in cells if row.cell.way == "fresh" and row.trials_an_hour}
    number = lambda value, form: "—" if value is None else format(value, form)  # noqa: E731
    lines = [
        f"{about['caption']}",
        "",
        f"| {' | '.join(COLUMNS)} | |",
        f"| {' | '.join(['---'] * (len(COLUMNS) + 1))} |",
    ]
    for row in cells:
        base = fresh.get(row.cell.model)
        ratio = row.trials_an_hour / base.trials_an_hour if base and row.trials_an_hour else None  # type: ignore[operator]
        shown = [
            row.cell.model,
            row.cell.label,
            str(row.workers or row.cell.workers),
            number(row.trials_an_hour, ",.0f"),
            number(ratio, ".1f"),
            number(row.busy, ".0%"),
            number(row.joules, ".0f"),
            number(row.value, ".4f"),
            str(row.lost) if row.state in ("measured", "cut short") else "—",
            str(row.ran_out) if row.state in ("measured", "cut short") else "—",
            number(row.estimate_off, "+.1%"),
            "; ".join(filter(None, [row.state if row.state != "measured" else "", row.note])),
        ]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="the time for everything")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("."), help="the folder for the table and the figures")
    parser.add_argument("--quick", action="store_true", help="the main model alone, one epoch a trial: a try")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    began = time.perf_counter()
    left = lambda: 60 * options.minutes - (time.perf_counter() - began)  # noqa: E731
    models = [MAIN] if options.quick else options.models
    name, driver, real = card_of(options.device)
    cores = available_cores()
    what = "" if real else "NOT A REAL GPU, so that no figure of speed shows anything. "
    about: dict[str, Any] = {
        **{"device": name, "driver": driver, "real": real, "cores": cores, "python": platform.python_version()},
        **{package: version(package) for package in ("torch", "ray")},
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "memory_gb": cuda_devices()[0].total_bytes / GB if options.device == "cuda" else None,
    }
    levers = {model: [*[GRAPHS] * (has_constant_shapes(model) and options.device == "cuda")] for model in models}
    for model in models if options.device == "cuda" else []:
        levers[model].append(ADAPTIVE)
    found, parts = list[Measured](), dict[str, tuple[Timed, float]]()
    for model in models:
        try:
            parts[model] = timed(model, options.device)
        except Exception as error:
            found.append(Measured(Cell(model, "warm", 1, 2), "failed", note=failure(error)))
            print(f"{model} cannot be trained: {found[-1].note}", flush=True)
    if not parts:
        return 1
    models = list(parts)
    main = gpu_cells.main_of(models)
    cells = gpu_cells.plan(models, options.ways, options.workers, levers)
    times = {model: seconds for model, (seconds, _) in parts.items()}
    start = parts[main][1]
    epochs = dict.fromkeys(models, 1)
    if not options.quick:
        epochs = gpu_cells.choose_epochs(cells, times, start, left(), cores)
    trained = ", ".join(f"{count} of {model}" for model, count in epochs.items())
    about |= {"epochs": epochs, "start_seconds": start}
    versions = f"driver {driver}, torch {about['torch']}, Ray {about['ray']}, {cores} cores, {about['date']}"
    about["caption"] = (
        f"{what}{name}, {versions}. A trial is so many epochs: {trained}. One by one a trial of {main} takes "
        f"{gpu_cells.trial_seconds(times[main], epochs[main]):.1f} s in a warm process, and a fresh process takes "
        f"{start:.1f} s until it trains, so that longer trials gain less over fresh processes. "
        "Trials an hour are counted while all workers are busy; of fresh processes with their start. The estimate is "
        "compared with what was reserved in a warm process. The metric is its mean over the trials."
    )
    print(about["caption"], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    meter, best = Meter(options.device), max(options.workers)
    with shared_ray(options.device):
        for cell in cells:
            a_trial = gpu_cells.trial_seconds(times[cell.model], epochs[cell.model])
            if gpu_cells.predicted_seconds(cell, a_trial, start, cores) > left():
                found.append(Measured(cell))
            else:
                found.append(run_cell(cell, epochs[cell.model], options.device, meter, best, left()))
            best = gpu_cells.best_fraction(found, main) or best
            print(f"{left():4.0f} s left  {cell.model}, {found[-1].cell.label}, {found[-1].state}", flush=True)
            (options.output / "trials_per_hour.md").write_text(table(found, about))
            records = {**about, "cells": [asdict(row) for row in found]}
            (options.output / "trials_per_hour.json").write_text(json.dumps(records, indent=1))
    meter.close()
    print(f"\n{table(found, about)}")
    if not real or options.quick:
        return 0
    return 0 if print_verdicts(gpu_cells.verdicts(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
