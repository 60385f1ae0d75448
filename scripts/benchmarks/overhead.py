"""What a study costs beside its trials, with trials that do nothing but wait.

    sleep    12 trials of 3 s, two at a time: from Ray being ready to the last row, against 18 s (bar 1.12 times)
    trivial  200 trials that end at once, two at a time: seconds for each, after the workers are warm (bar 0.02 s),
             and what the driver computes of them (bar 0.003 s); `scripts/benchmark driver` runs more of them
    mixed    40 trials of 0.3 s with shares of 0.2 to 0.9 on two declared GPUs, against the shortest possible time
             (bar 2.5 times)
    small    4 trials of 0.1 s that import no torch, in the study's process: from the command to its exit (bar 3 s)
    optuna   16 trials of 0.1 s of an Optuna study, in the study's process, against study.optimize (bar 1.5 times)

Everything but the trials is real: Ray, its workers, the loop, the journal and the table. Exits with 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scripts.benchmarks.packing import shortest_possible
from tuner.decisions.events import Event, Opened, Reported
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan, make_plan
from tuner.decisions.policies import Engine
from tuner.decisions.retry import Retrying, RetryPolicy
from tuner.decisions.state import State
from tuner.execution.loop import StudyLoop
from tuner.execution.ray_executor import RayExecutor, Worker
from tuner.hyperparameters import Hyperparameter
from tuner.integrations.trackers.adapter import Trackers
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.objective import Objective
from tuner.records.study_folder import StudyFolder
from tuner.reporting.console import make_console
from tuner.reporting.progress import StudyProgress
from tuner.study.recorder import Recorder
from tuner.trial import GB, Config, Device, MemoryEstimate, Request, Trial
from tuner.workloads.base import Batch, Split, Workload
from tuner.workloads.task import TrainingTask


class Waiting(Workload):
    """Waits for so many seconds, in one step of one epoch."""

    name: ClassVar[str] = "waiting"
    metric: ClassVar[str] = "val_loss"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lr": Hyperparameter(0.1, 0, 10, ""),
        "weight_decay": Hyperparameter(0.0, 0, 1, ""),
        "epochs": Hyperparameter(1, 1, 1, ""),
        "seconds": Hyperparameter(0.0, 0, 100, ""),
    }

    def load_data(self, source: str, seed: int) -> Any:
        return None

    def build_model(self, config: Config, data: Any) -> nn.Module:
        return nn.Linear(1, 1)

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        time.sleep(config["seconds"])
        yield (torch.ones(1, 1),)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).square().mean()

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        return {"loss": 1.0}


class DeclaredWorker(Worker):
    """A worker of a GPU that is only declared: it computes on the CPU, and has no context to make."""

    def prepare(self, device: Device, threads: int) -> PeakMeter:
        self.device = ram_device()
        return super().prepare(self.device, threads)


class DeclaredGpus(RayExecutor):
    """Ray with GPUs that are only declared."""

    worker_class = DeclaredWorker


class Clock(Recorder):
    """The study's recorder, which also looks at the clock, and at what this process has computed."""

    first: float | None = None
    began = ended = 0.0

    def hear(self, state: State, event: Event) -> None:
        if isinstance(event, Reported) and self.first is None:
            self.first, self.began = time.perf_counter(), time.process_time()
        super().hear(state, event)

    def append(self, *arguments: Any) -> None:
        super().append(*arguments)
        self.ended = time.process_time()


def requests(seconds: Sequence[float], shares: Sequence[float], device_bytes: int) -> list[Request]:
    """A trial for each; the footprint is its share of the device."""
    found = []
    for number, (wait, share) in enumerate(zip(seconds, shares, strict=True)):
        config = {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, "seconds": wait}
        need = int(share * device_bytes)
        trial = Trial(f"t{number:04d}", "waiting", str(number), config, 0)
        found.append(Request(trial, MemoryEstimate("given", context_bytes=need), need))
    return found


def run(
    trials: list[Request], devices: Sequence[Device], executor: RayExecutor, **limits: int
) -> tuple[Clock, float]:
    """Runs the trials; returns the clock, and the seconds from Ray being ready to the last row."""
    plan = make_plan(devices, [trial.need_bytes for trial in trials], packing="per-trial", buffer_bytes=0, **limits)
    with tempfile.TemporaryDirectory() as folder, closing(executor):
        executor.prepare(devices)
        executor.wait()
        began = time.perf_counter()
        objectives = {"waiting": Objective("val_loss")}
        study = StudyFolder(Path(folder) / "study", objectives)
        clock = Clock(
            study,
            len(trials),
            trials,
            StudyProgress(make_quiet(), len(trials), [], objectives, 1),
            Trackers(),
        )
        executor.open({"waiting": TrainingTask(Waiting(), None)}, plan, None)
        packer = Packer()
        course = Engine(State(), [Retrying(RetryPolicy(), lambda *_: None), packer])
        loop = StudyLoop(course, packer, executor, clock)
        loop.take(Opened(plan, tuple(trials)))
        loop.run()
        clock.close("")
        assert {row.status for row in study.rows()} == {"completed"}, study.rows()[0].error
        return clock, time.perf_counter() - began


def make_quiet() -> Any:
    console = make_console()
    console.quiet = True
    return console


def sleep() -> bool:
    _, took = run(requests([3.0] * 12, [0.2] * 12, 4 * GB), [machine()], RayExecutor(), max_workers=2)
    return say("sleep", f"{took:.1f} s against 18 s", took / 18, 1.12)


def trivial() -> bool:
    clock, took = run(requests([0.0] * 200, [0.2] * 200, 4 * GB), [machine()], RayExecutor(), max_workers=2)
    assert clock.first
    warm, computed = (time.perf_counter() - clock.first) / 200, (clock.ended - clock.began) / 200
    met = say("computed", "s of the driver's CPU each", computed, 0.003)
    return say("trivial", f"{warm:.4f} s each ({took:.1f} s in all, with the workers' start)", warm, 0.02) and met


def mixed() -> bool:
    draw = random.Random(0)
    shares = [draw.choice([0.2, 0.3, 0.5, 0.7, 0.9]) for _ in range(40)]
    # Two cores each: with more of them more workers start than the real cores can warm up in the time.
    gpus = [Device("", "cuda", index, "declared", 16 * GB, 16 * GB, 2, f"GPU-{index}") for index in range(2)]
    trials = requests([0.3] * 40, shares, 16 * GB)
    plan: Plan = make_plan(gpus, [trial.need_bytes for trial in trials], packing="per-trial", buffer_bytes=0)
    ideal = shortest_possible(trials, plan, lambda _: 0.3)
    clock, took = run(trials, gpus, DeclaredGpus(caps=False))
    assert clock.first
    warm = time.perf_counter() - clock.first
    text = f"{took:.1f} s against {ideal:.1f} s ({warm:.1f} s from the first trial's start)"
    return say("mixed", text, took / ideal, 2.5)


SMALL = """
import time, tuner
def train(config):
    time.sleep(0.1)
    tuner.report(loss=config["x"])
if __name__ == "__main__":
    tuner.run(train, space={"x": {"choice": [1, 2, 3, 4]}}, metric="loss", direction="minimize", in_process=True)
    import sys
    assert "torch" not in sys.modules
"""


def small() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "small.py").write_text(SMALL)
        root = str(Path(__file__).parents[2])
        began = time.perf_counter()
        command, environment = [sys.executable, "small.py"], {**os.environ, "PYTHONPATH": root}
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - began
    return say("small", "s from the command to the exit, of which the trials wait 0.4", took, 3.0)


def waiting_objective(trial: Any) -> float:
    time.sleep(0.1)
    return float(trial.suggest_float("x", -1, 1) ** 2 + trial.suggest_int("y", 0, 3))


def suggestions() -> bool:
    import optuna  # the users' programs import both before they begin

    from tuner.optuna import optimize

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    theirs, ours = (optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0)) for _ in range(2))
    began = time.perf_counter()
    theirs.optimize(waiting_objective, n_trials=16)
    between = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        optimize(ours, waiting_objective, 16, in_process=True, memory_gb=1, output=f"{folder}/study")
    took, alone = time.perf_counter() - between, between - began
    assert theirs.best_params == ours.best_params
    return say("optuna", f"{took:.1f} s against {alone:.1f} s", took / alone, 1.5)


def machine() -> Device:
    return Device("", "cpu", 0, "this machine", 4 * GB, 4 * GB, 2)


def say(name: str, text: str, figure: float, bar: float) -> bool:
    print(f"{name:<8} {figure:7.3f} (bar {bar:g}): {text}", flush=True)
    return figure <= bar


def main() -> int:
    parts = {
        "sleep": sleep,
        "trivial": trivial,
        "mixed": mixed,
        "small": small,
        "optuna": suggestions,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Python 3.11's argparse refuses an empty list where there are choices.
    parser.add_argument("parts", nargs="*", metavar="PART", help="which; all without any")
    chosen = parser.parse_args().parts or list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
    met = [parts[name]() for name in chosen]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
