"""Trials an hour on one GPU: tuner against Ray Tune with fractions set by hand, the most important first.

    estimates   what a CUDA context takes, and ten training steps beside what is expected of them
    ours        tuner with so many workers, also with CUDA graphs; a function with fresh processes and with warm ones
    ray-tune    Ray Tune with the same training code, ``reuse_actors`` and 1/16 and 1/8 of the GPU for each trial
    fresh       one by one, each in a process of its own, from the first start to the last end
    warm        one by one in one process

All train the same models with the same seeds for the same epochs. Trials of the parallel ways are counted while all
workers are busy. After each cell the table goes to ``trials_per_hour.md``, and every figure to
``trials_per_hour.json``, with samples of the GPU, and with ``--profile`` of where this process was. Cells that are
already in the folder are not measured again, so that a second command does what the first one had no time for. It
ends by itself. Exits with 1 if a bar is missed; on anything but a real GPU none is judged.

Where packages cannot be installed but lie in .site, in two commands of 8 and 4 minutes, with what the first one has
left in DIR:

    export PYTHONPATH=.site:.
    python3 -m scripts.gpu.trials_per_hour --output $OUT
    cp DIR/trials_per_hour.json $OUT; python3 -m scripts.gpu.trials_per_hour --minutes 3.6 --output $OUT
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_stack
from typing import Any

import tuner
from scripts.benchmarks.memory import trace_on_card
from scripts.benchmarks.memory_models import Step, read_steps
from scripts.benchmarks.verdicts import print_verdicts
from scripts.gpu import cells as gpu_cells
from scripts.gpu.cells import FRESH, FUNCTION, GRAPHS, MAIN, WAYS, Cell, Measured, Sample, Trial
from scripts.gpu.measure_gpu_memory import card_kind, in_new_process, measure, without_cudnn_if_emulated
from scripts.gpu.models import MODELS, has_constant_shapes, train, values
from tuner.errors import one_line
from tuner.estimation.overheads import context_of
from tuner.execution.cluster import RayConnection, local_ray
from tuner.machine.caps import worker_environment
from tuner.machine.devices import available_cores, cuda_devices, detect_devices, driver_version
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS
from tuner.trial import MB

SAMPLE_SECONDS = 0.2
LEAST_SECONDS = 20.0  # with less no cell is begun, as its workers would hardly have started
END_SECONDS = 15  # after its minutes, whatever hangs
# Of each kind one, whose estimates are held against this card.
STEPS = (
    *("sage-300x500-h64-l2-b2048", "gpt-l6-d384-v50257-b2-t256-amp", "unet-i64-w16-l4-b8"),
    *("lstm-v2000-w128-h512-l1-t100-b32", "gat-n2708-e10556-h8x8-l2", "transformer-sdpa-v5000-w256-l4-t128-b8"),
    *("kdgat-gat-alone-b32", "gtssl-t80-h32-l3-b4", "vae-d3072-h1024-z128-b1024-mse", "mlp-adam-w1024-d3-b512"),
)
COLUMNS = ("model", "way", "workers", "trials/h", "GPU busy", "J/trial", "metric", "lost", "out of memory")


class Meter:
    """Samples the first GPU with NVML in a thread, if there is one, and with ``profiles`` where the main thread is.

    That holds frames for a moment, and so tensors that a trace takes for freed: its estimates are too high then.
    """

    def __init__(self, device: str, *, profiles: bool) -> None:
        self.samples: list[Sample] = []
        self.stacks: dict[str, Counter[str]] = {}  # by cell: how often the main thread was where
        self.cell = ""  # that is being measured
        self._device, self._profiles, self._ended = device, profiles, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        import pynvml

        handle = None
        if self._device == "cuda":
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(cuda_devices()[0].index)

        def asked(name: str) -> Any:
            with suppress(pynvml.NVMLError):
                return getattr(pynvml, name)(handle)
            return None

        while not self._ended.wait(SAMPLE_SECONDS):
            if self._profiles and self.cell:
                self._look()
            if handle is None:
                continue
            busy, power = asked("nvmlDeviceGetUtilizationRates"), asked("nvmlDeviceGetPowerUsage")
            energy = asked("nvmlDeviceGetTotalEnergyConsumption")
            shares = None if busy is None else busy.gpu / 100
            watts, joules = (None if value is None else value / 1000 for value in (power, energy))
            self.samples.append(Sample(time.time(), shares, watts, joules))

    def _look(self) -> None:
        """Notes where the main thread is; on return no frame is held."""
        calls = reversed(extract_stack(sys._current_frames()[threading.main_thread().ident or 0])[-8:])
        places = [f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls]
        self.stacks.setdefault(self.cell, Counter())[" < ".join(places)] += 1

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()


def card_of(device: str) -> tuple[str, str, bool]:
    """The name of the device, its driver, and whether it is a real GPU."""
    if device == "cpu":
        return platform.processor() or platform.machine(), "", False
    emulated = card_kind() == "emulated"
    return f"{'emulated ' * emulated}{cuda_devices()[0].name}", driver_version(), not emulated


def estimates(names: Sequence[str], before: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """What is known of the steps with these names after each, with what was known ``before``."""
    rows = [dict(row) for row in before]
    steps = [step for step in read_steps() if step.name in set(names) - {row["step"] for row in rows}]
    steps = [step for step in steps if not step.why_not(card_kind())]

    def taken(step: Step) -> tuple[Step, int | Exception]:
        try:
            return step, in_new_process(measure, step).peak_reserved
        except Exception as error:  # the others are still wanted
            return step, error

    with ThreadPoolExecutor(5) as threads:  # so many steps are measured side by side
        for done in as_completed([threads.submit(taken, step) for step in steps]):
            step, size = done.result()
            try:
                if isinstance(size, Exception):
                    raise size
                expected = trace_on_card(detect_devices("cuda")[0], step).sizes["reserved"]
                rows.append({"step": step.name, "reserved": size, "expected": expected, "error": expected / size - 1})
            except Exception as error:
                rows.append({"step": step.name, "note": failure(error)})
            yield rows


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
        records = [one.metrics for one in found if one.error is None and "epochs" in (one.metrics or {})]
    ran_out = sum("out of memory" in str(error) for error in found.errors)
    empty = Measured(cell, workers=cell.workers, lost=len(found.errors), ran_out=ran_out)
    return empty, [to_trial(record) for record in records]


def by_tuner(cell: Cell, epochs: int, device: str, seconds: float) -> tuple[Measured, list[Trial]]:
    """Trials of a study of ours."""
    compared: dict[str, Any] = {"split_seed": 0}
    if cell.model == FUNCTION:
        compared = {"metric": "val_loss", "direction": "minimize"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "study"
        result = tuner.run(
            MODELS[cell.model][0],
            config=[{"name": cell.model, **values(cell.model, epochs, graphs=GRAPHS in cell.levers)}],
            **compared,
            seeds=cell.trials,
            device=device,  # type: ignore[arg-type]
            max_workers=cell.workers,
            adaptive_workers=False,
            fresh_processes="on" if FRESH in cell.levers else "off",
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
    last = {attempt["trial_id"]: attempt["status"] for attempt in attempts}
    trials = []
    for attempt in attempts:
        if attempt["status"] == "completed":
            mine = (attempt["trial_id"], attempt["attempts"])
            times = tuple(line.at for line in lines if (line.trial_id, line.attempt) == mine)
            trials.append(Trial(attempt["seed"], times, attempt["ended_at"], attempt[metric]))
    lost = sum(status not in ("completed", "interrupted") for status in last.values())
    ran_out = sum(attempt["status"] == "out_of_memory" for attempt in attempts)
    note = "; ".join(sorted({attempt["error"] for attempt in attempts if attempt["error"]}))
    return Measured(cell, workers=sum(result.plan.at_first), lost=lost, ran_out=ran_out, note=note), trials


def run_cell(cell: Cell, epochs: int, device: str, meter: Meter, seconds: float) -> Measured:
    """Measures a cell in at most this time. A failure is part of the result. What studies print is left out."""
    way = {"fresh": one_by_one, "warm": one_by_one, "ray-tune": by_ray_tune, "ours": by_tuner}[cell.way]
    began = time.perf_counter()
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            empty, trials = way(cell, epochs, device, seconds)
        return gpu_cells.measured(empty, trials, epochs, meter.samples, time.perf_counter() - began)
    except Exception as error:
        return Measured(cell, "failed", wall_seconds=time.perf_counter() - began, note=failure(error))


def failure(error: Exception) -> str:
    """What a table says of an exception."""
    return one_line(str(error), 200).replace("|", "/") or type(error).__name__


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


def table(cells: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """The tables as Markdown, under what they were measured on."""
    number = lambda value, form: "—" if value is None else format(value, form)  # noqa: E731
    lines = [
        about["caption"],
        "",
        "| step | reserved, MB | expected, MB | error | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in about["steps"]:
        sizes = [number(row.get(key) and row[key] / MB, ",.1f") for key in ("reserved", "expected")]
        lines.append(
            f"| {' | '.join([row['step'], *sizes, number(row.get('error'), '+.2%'), row.get('note', '')])} |"
        )
    lines += ["", f"| {' | '.join(COLUMNS)} | |", f"| {' | '.join(['---'] * (len(COLUMNS) + 1))} |"]
    for cell in cells:
        counted = cell.state in ("measured", "cut short")
        shown = [
            *(cell.cell.model, cell.cell.label, str(cell.workers or cell.cell.workers)),
            number(cell.trials_an_hour, ",.0f"),
            number(cell.busy, ".0%"),
            number(cell.joules, ".0f"),
            number(cell.value, ".4f"),
            *[str(count) if counted else "—" for count in (cell.lost, cell.ran_out)],
            "; ".join(filter(None, [cell.state if cell.state != "measured" else "", cell.note])),
        ]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.6, help="the time for everything but imports")
    parser.add_argument("--model", choices=list(MODELS), default=MAIN)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 8])
    parser.add_argument("--trials", type=int, default=10, help="of each worker")
    parser.add_argument("--epochs", type=int, default=6, help="of each trial")
    parser.add_argument("--steps", type=int, default=len(STEPS), help="whose estimates are judged")
    parser.add_argument("--cell-seconds", type=float, default=75.0, help="the most for one cell")
    parser.add_argument("--profile", action="store_true", help="sample where this process is during cells")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("."), help="the folder for the table and the figures")
    return parser.parse_args()


def time_is_over(*_: object) -> None:
    """Ends what is being measured; if that hangs, the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_SECONDS)
    raise TimeoutError("the time is over")


def main() -> int:
    options = parsed()
    ends = time.perf_counter() + 60 * options.minutes
    signal.signal(signal.SIGALRM, time_is_over)
    signal.alarm(max(1, int(60 * options.minutes)))
    left = lambda: ends - time.perf_counter()  # noqa: E731
    options.output.mkdir(parents=True, exist_ok=True)
    file, (name, driver, real) = options.output / "trials_per_hour.json", card_of(options.device)
    before = json.loads(file.read_text()) if file.exists() else {"steps": [], "cells": []}
    known = {row.cell: row for row in map(Measured.of, before["cells"]) if row.trials_an_hour}
    about: dict[str, Any] = {
        **{"device": name, "driver": driver, "real": real, "cores": available_cores()},
        **{package: metadata.version(package) for package in ("torch", "ray")},
        **{"python": platform.python_version(), "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"},
        **{"epochs": options.epochs, "context_mb": None, "steps": before["steps"]},
    }
    meter, found = Meter(options.device, profiles=options.profile), dict[Cell, Measured]()
    graphs = options.device == "cuda" and has_constant_shapes(options.model)
    cells = gpu_cells.plan(options.model, options.ways, options.workers, options.trials, graphs=graphs)

    def write(say: str) -> None:
        about["caption"] = (
            f"{'' if real else 'NOT A REAL GPU: no figure of speed shows anything. '}{name}, driver {driver}, "
            f"torch {about['torch']}, Ray {about['ray']}, {about['cores']} cores, {about['date']}. A context takes "
            f"{about['context_mb'] or '?'} MB. A trial is {options.epochs} epochs. Trials an hour are counted while "
            "all workers are busy; of fresh processes with their start. The metric is its mean over the trials."
        )
        rows = [found.get(cell) or known.get(cell) or Measured(cell) for cell in cells]
        records = {"cells": [asdict(row) for row in rows], "samples": [asdict(sample) for sample in meter.samples]}
        records["stacks"] = {cell: dict(stacks.most_common()) for cell, stacks in meter.stacks.items()}
        (options.output / "trials_per_hour.md").write_text(table(rows, about))
        file.write_text(json.dumps({**about, **records}, indent=1))
        print(f"{left():4.0f} s left  {say}", flush=True)

    with suppress(TimeoutError):
        if options.device == "cuda":
            without_cudnn_if_emulated()
            about["context_mb"] = round(context_of(detect_devices("cuda")[0])[0] / MB)
            write("the context")
            for about["steps"] in estimates(STEPS[: options.steps], before["steps"]):
                write(f"{about['steps'][-1]['step']}")
        with shared_ray(options.device):
            for cell in [cell for cell in cells if cell not in known]:
                if left() < LEAST_SECONDS:
                    break
                meter.cell = f"{cell.model}, {cell.label}, {cell.workers} at once"
                found[cell] = run_cell(cell, options.epochs, options.device, meter, min(left(), options.cell_seconds))
                write(f"{meter.cell}: {found[cell].state}")
    signal.alarm(END_SECONDS)
    meter.close()
    print((options.output / "trials_per_hour.md").read_text())
    rows = [*known.values(), *found.values()]
    errors = [row["error"] for row in about["steps"] if "error" in row]
    return 0 if not real or print_verdicts(gpu_cells.verdicts(rows, errors, options.model)) else 1


if __name__ == "__main__":
    sys.exit(main())
