"""Whole studies of a function: searches, constraints, populations and pruners, with all that they keep in folders.

Every stage is the real one, from the options to the journal and back, and so are trials' checkpoints. Only what they
compute is made up: see ``Pretended``. A kill leaves a folder as it is at that moment. The next process goes on with
a copy, and maybe with another number of workers.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from rich.console import Console

from tests.simulated.books import Books
from tuner.execution.executor import Executor, ExecutorEvent, Happening
from tuner.execution.loop import EndedEarly
from tuner.integrations.trackers.adapter import Trackers
from tuner.machine.interrupts import Immediate
from tuner.objective import Objective
from tuner.spec.settings import Settings
from tuner.spec.specify import specify
from tuner.study.execute import RunContext, execute
from tuner.study.prepare import load, prepare
from tuner.study.study_json import open_folder, to_record
from tuner.training.program_checkpoints import ProgramCheckpoints, Progress
from tuner.trial import GB, Began, Device, EpochReport, Outcome, Placement, Trial

KINDS = (
    *("pbt", "random", "tpe", "qmc", "pbt", "bruteforce", "cmaes", "nsgaii", "random", "nsgaiii"),
    *("pbt", "grid", "tpe", "qmc", "pbt", "bruteforce", "cmaes", "nsgaii", "random", "gp"),
)
PRUNERS: Mapping[str, Mapping[str, object]] = {
    "fifo": {},
    "asha": {"reduction_factor": 2},
    "hyperband": {"min_resource": 1, "max_resource": 4},
    "median": {"n_startup_trials": 2},
    "percentile": {"percentile": 50, "n_startup_trials": 1},
    "patient": {"patience": 1},
    "threshold": {"upper": 1.2},
    "wilcoxon": {"n_startup_steps": 1},
}
RANGES = {"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}}
FINITE = {"w": {"choice": [1, 2, 4]}, "n": {"int": [1, 4]}}
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where nothing waits for a disk
FITS = "estimated_gb <= 2"
EVENTS = (20, 60, 150)  # the most of a process that ends early
ONCE = ("bruteforce", "grid", "qmc", "random")  # searches that suggest nothing twice
REPLAYED = tuple({*KINDS} - {"gp"})  # with one worker, a resume of these changes nothing


# A thread and a process of git take longer than a study.
QUICK = (
    patch("tuner.study.execute.recording", lambda *_: nullcontext()),
    patch.multiple("tuner.study.study_json", git_revision=lambda _: "", versions=dict),
)


class Crash(BaseException):
    """The study's process is killed."""


@dataclass(frozen=True)
class Whole:
    """A study, and what is true of it."""

    seed: int
    kind: str  # its search, or "pbt"
    options: Mapping[str, Any]
    devices: tuple[Device, ...]
    epochs: int
    factor: float  # how much more memory its trials take than they are given
    alone: bool  # it has a single worker throughout, so that nothing depends on who is faster

    @classmethod
    def of(cls, seed: int) -> Whole:
        """The study of a seed."""
        draw = Random(f"whole {seed}")
        kind, epochs, alone = KINDS[seed % len(KINDS)], draw.choice([2, 3, 4]), draw.random() < 0.4
        gpu = draw.random() < 0.3
        device = Device("a", "cuda" if gpu else "cpu", 0, "device", 12 * GB, 12 * GB, draw.choice([2, 4]))
        finite = kind in ("bruteforce", "grid") or (kind == "random" and draw.random() < 0.5)
        options: dict[str, Any] = {
            "space": {**(FINITE if finite else RANGES | ({} if kind == "cmaes" else {"w": FINITE["w"]}))},
            "search": "random" if kind == "pbt" else kind,
            "num_samples": None if kind == "grid" else draw.choice([3, 4, 6, 8]),
            "metric": "loss",
            "direction": "minimize",
            "memory_gb": needs_gb,
            "max_failures": draw.choice([0, 1]),
            "backoff": 0,
            "patience": draw.choice([None, None, 3]),
            "target": draw.choice([None, None, 0.5]),
            "on_oom": draw.choice(["grow", "fail"]),
            "seed": draw.randrange(1000),
            "gpu_memory_buffer_gb": 0,
            "packing": "per-trial",
            "report": False,
        }
        if kind == "pbt":
            epochs = 6
            options |= {"scheduler": "pbt", "scheduler_options": {"interval": 2, "epochs": epochs}}
        elif kind.startswith("nsga"):
            options |= {"metric": ["loss", "ms"], "direction": ["minimize", "minimize"], "target": None}
            options["search_options"] = {"population_size": 3}
        else:
            options["scheduler"] = draw.choice(list(PRUNERS))
            options["scheduler_options"] = PRUNERS[options["scheduler"]]
        if kind == "tpe":
            options["search_options"] = {"n_startup_trials": 2}
        if kind == "gp":
            options |= {"num_samples": 4, "search_options": {"n_startup_trials": 2}}
        if kind == "random" or (kind not in ("pbt", "grid", "cmaes", "gp") and draw.random() < 0.4):
            options["constraints"] = draw.choice([[FITS], [FITS, "ms <= 0.9"]])
        if kind != "pbt" and draw.random() < 0.5:
            options["space"]["epochs"] = epochs  # then it is known how many there are
        return cls(seed, kind, options, (device,), epochs, draw.choice([1.0, 1.0, 1.4]), alone)

    def metrics(self, trial: Trial, epoch: int, gain: float) -> dict[str, float]:
        """What a trial reports after an epoch."""
        x, w = float(trial.config.get("x", 0.5)), int(trial.config.get("w", 1))
        return {
            "loss": (x - 0.3) ** 2 + 0.1 * int(trial.config.get("n", w)) + 1 / (1 + gain),
            "ms": w / 3 + x / epoch,
        }


def needs_gb(config: Mapping[str, Any]) -> float:
    """What each trial is given."""
    return float(config.get("w", 1))


def train(config: Mapping[str, Any]) -> None:
    """Is never called."""


@dataclass
class Pretended(Executor):
    """Trials that take steps in turn: they begin, report, write and take over checkpoints, and end somehow."""

    world: Whole
    books: Books
    draw: Random
    lives: dict[str, Iterator[Happening]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def submit(self, placement: Placement) -> None:
        self._stop_requests.forget_prune(placement.trial.trial_id)
        self.lives[placement.trial.trial_id] = self._life(placement)

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        events: list[ExecutorEvent] = []
        for _ in range(1 if self.world.alone else self.draw.choice([1, 1, 3])):
            if not self.lives:
                break
            trial_id = self.draw.choice(sorted(self.lives))
            happening = next(self.lives[trial_id])
            if isinstance(happening, Outcome):
                del self.lives[trial_id]
            events.append((happening, trial_id.encode))
        return events

    def _life(self, placement: Placement) -> Iterator[Happening]:
        world, trial = self.world, placement.trial
        folder, requests = self._options.checkpoints, self._stop_requests
        fate = Random(f"{world.seed}/{trial.trial_id}/{0 if world.alone else trial.attempt}")
        store = ProgramCheckpoints(folder, trial)
        self.books.takes_over(trial, folder)
        progress = store.restore()
        self.books.begins(trial, progress.epoch)
        yield Began(trial.trial_id, 1, 0.0)
        yield (begun := EpochReport(trial.trial_id, progress.epoch, trial.epochs))
        for epoch, metrics in progress.reports:
            yield EpochReport(trial.trial_id, epoch, trial.epochs, metrics, again=True)
        if progress.reports and not begun.is_last and requests.prune_requested(trial.trial_id):
            yield Outcome(trial, "pruned", placement, progress.best, progress.epoch)
        if trial.until and progress.epoch >= trial.until:
            store.pause()
            yield Outcome(trial, "paused", placement, progress.reports[-1][1], progress.epoch)
        needs = int(needs_gb(trial.config) * world.factor * GB) if not trial.begun else 0
        status = "out_of_memory" if needs > placement.limit_bytes else ""
        status = status or ("failed" if fate.random() < 0.06 else "diverged" if fate.random() < 0.03 else "")
        ends = fate.randrange(world.epochs) if status else world.epochs
        metrics: dict[str, float] = dict(progress.best)
        while progress.epoch < ends:
            gain = float((store.last() or {}).get("gain", 0.0)) + float(trial.config.get("x", 0.5)) + 0.1  # type: ignore[union-attr]
            progress.epoch += 1
            metrics = world.metrics(trial, progress.epoch, gain)
            self._save(store, progress, metrics, gain)
            report = EpochReport(trial.trial_id, progress.epoch, trial.epochs, metrics, GB // 2, seconds=1e-9)
            yield report
            if report.is_last or progress.epoch == world.epochs:
                break
            if (world.alone or self.draw.random() < 0.7) and requests.prune_requested(
                trial.trial_id
            ):  # else it hears it too late
                yield Outcome(trial, "pruned", placement, progress.best, progress.epoch)
            if trial.until and progress.epoch >= trial.until:
                store.pause()
                yield Outcome(trial, "paused", placement, metrics, progress.epoch)
            if requests.stop_requested():
                self.books.stopped(trial, progress.epoch)
                yield Outcome(trial, "interrupted", placement, epochs=progress.epoch)
        if status:
            phase = "training" if status == "out_of_memory" else ""
            peak = needs if status == "out_of_memory" else GB // 2
            yield Outcome(trial, status, placement, {}, progress.epoch, 0.1, peak, status, phase=phase)  # type: ignore[arg-type]
        yield Outcome(trial, "completed", placement, progress.best, progress.epoch, 0.1, GB // 2)

    def _save(self, store: ProgramCheckpoints, progress: Progress, metrics: dict[str, float], gain: float) -> None:
        if is_best := metrics["loss"] < progress.best.get("loss", 1e9):
            progress.best = {**metrics, "best_epoch": progress.epoch}
        progress.reports = [*progress.reports, (progress.epoch, metrics)]
        store.save({"gain": gain}, progress, is_best=is_best)


def run_whole(seed: int) -> Books:
    """Runs the study of a seed, which up to three times ends early and is resumed; raises AssertionError."""
    with TemporaryDirectory(dir=IN_MEMORY) as folder:
        books = _run(seed, Path(folder) / "a", ends=True)
        world = Whole.of(seed)
        if world.alone and world.kind in REPLAYED:
            same = _run(seed, Path(folder) / "b", ends=False)
            assert books.configs == same.configs, "a resume changes what is suggested"
            assert books.ended == same.ended, "a resume changes how trials end"
    return books


def _run(seed: int, folder: Path, *, ends: bool) -> Books:
    world, draw = Whole.of(seed), Random(f"ends {seed}")
    bound = min([4.0, *(2.0 for text in world.options.get("constraints", ()) if text == FITS)])
    books = Books(world.kind, _objectives(world), world.options["num_samples"] or 12, bound, once=world.kind in ONCE)
    most, over = (draw.choice([1, 2, 3, 4]) if ends else 1), False
    for number in range(most):
        on_gpu = world.devices[0].kind == "cuda"  # where only a number that nobody gave is adapted
        workers = 1 if world.alone else draw.choice([None, None, 3, None] if on_gpu else [1, 2, 3, None])
        given = {"resume" if number else "output": str(folder / str(number)), "max_workers": workers}
        end = draw.randrange(2, draw.choice(EVENTS)), draw.random() < 0.6
        over = _process(world, books, given, folder / str(number + 1), end if number < most - 1 else None)
        books.audit(folder / str(number + 1))
    assert over, "the study does not end"
    return books


def _objectives(world: Whole) -> tuple[Objective, ...]:
    names = [world.options["metric"]] if isinstance(world.options["metric"], str) else world.options["metric"]
    return tuple(map(Objective, names))


def _process(world: Whole, books: Books, given: Mapping[str, Any], copy: Path, ends: tuple[int, bool] | None) -> bool:
    """Runs the study until it is over, or until a number of events; returns whether it is over.

    What is then on disk is in ``copy``.
    """
    interrupt, draw, number = Immediate(), Random(f"{world.seed} {copy.name}"), 0

    def hear(event: Any) -> None:
        nonlocal number
        number += 1
        books.check(steering.engine.state, event)
        assert number < 5000, "the study does not end"
        if ends and number >= ends[0]:
            if ends[1]:
                shutil.copytree(path, copy)
                raise Crash
            if number == ends[0]:
                interrupt.remember()

    spec = specify(Settings(workload=train, callbacks=[hear], **{**world.options, **given}))
    study, steering = prepare(load(spec), world.devices)
    books.planned(steering, study)
    with QUICK[1]:
        record, console = to_record(study), Console(file=io.StringIO(), quiet=True)
    folder = open_folder(study, console)
    path = folder.path
    executor = Pretended(world, books, draw)
    with closing(folder):
        if record is not study.record:
            folder.describe(record)
        around = RunContext(executor, console, interrupt, Trackers())
        try:
            with QUICK[0]:
                broken = execute(study, steering, folder, record, around)
        except Crash:
            return False
        finally:
            books.suggested(steering)
            executor.close()
    shutil.copytree(path, copy)
    return broken is None or isinstance(broken, EndedEarly)
