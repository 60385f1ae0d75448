"""One configuration of a study again: longer, on all the data, or to the same digits. ``tune train``."""

from __future__ import annotations

import inspect
import json
import os
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.again import arguments
from tuner.caps import is_out_of_memory
from tuner.devices import DeviceChoice, detect_devices
from tuner.errors import ExecutionError, InputError, TunerError
from tuner.execution.worker import to_bytes
from tuner.interrupts import Immediate, orderly
from tuner.journal import replace_file
from tuner.past_trial import PastTrial, find_trial
from tuner.planning import estimate_requests
from tuner.settings import Settings
from tuner.study_folder import BEST, written
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Trial
from tuner.views.tables import make_console
from tuner.views.training import TrainingProgress, figures_table
from tuner.workloads.base import Job

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.checkpoints import Progress
    from tuner.training import Fit

TRAIN = "train.json"
PACKAGES = ("torch", "numpy")


class Differs(TunerError):
    """The study's figures were to come out again, and did not."""


@dataclass(frozen=True)
class TrainingResult:
    """What training one configuration came to.

    Attributes:
        folder: where the model is: ``tuner.load_best(folder)`` gives it.
        metrics: of the epoch that was kept, as they are written; with all data the training loss alone.
        study: those of the study's trial.
        differences: where nothing was changed, the metrics that are others, with the study's value first; else None.
    """

    folder: Path
    metrics: Mapping[str, float | None]
    study: Mapping[str, float | None]
    differences: Mapping[str, tuple[float | None, float | None]] | None


@dataclass(frozen=True)
class _Run:
    """What is trained, and how.

    Attributes:
        past: the study's trial.
        trial: what it becomes.
        threads: CPU threads.
        all_data: nothing is held out.
        last_epoch: training ends after it.
        changes: options by which this is another training than the study's.
    """

    past: PastTrial
    trial: Trial
    threads: int
    all_data: bool
    last_epoch: int
    changes: tuple[str, ...]


def train(
    study: str | Path | None = None,
    *,
    trial: str = "best",
    workload: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    all_data: bool = False,
    exact: bool = False,
    data: str | None = None,
    device: DeviceChoice = "auto",
    threads: int | None = None,
    output: str | None = None,
) -> TrainingResult:
    """Trains one configuration of a study again, in this process: what ``tune train`` does.

    Ctrl-C ends it at once; the weights of the best epoch so far are saved then, too.

    Args:
        study: the study's folder.
        trial: "best", a trial's id such as "t003", or the name of a configuration.
        workload: whose trial, where the study has several workloads.
        seed: of weights, batches and dropout; by default the trial's. Where a configuration was trained with several,
            it says which trial is meant. The data stay split as in the study.
        epochs: train for so many; by default as many as the trial. The learning rate falls over all of them.
        all_data: train on training, validation and test data together. The last epoch is kept then; without
            ``epochs`` it is the one that was best in the study, with the learning rates that led there.
        exact: fail unless the study's figures come out again, to the last digit as they are written; on the CPU.
        data: where the data are now, if no longer where the study had them.
        device: "cuda", "cpu", or "auto" for a GPU where there is any; with ``exact`` it is the CPU.
        threads: CPU threads; by default as many as the study's trials had, as the last digits depend on that.
        output: a folder for the model, new or empty; by default a new one under ``results/``.

    Raises:
        InputError: something given cannot be used, or there is not enough memory; nothing has been written.
        Differs: ``exact``, and a figure is another; the model has been saved.
        Diverged: the training loss is no longer a finite number, or has exploded.
        ExecutionError: memory has run out, or the model cannot be written.
        KeyboardInterrupt: after the best epoch's weights have been saved, if there was one.
    """
    options = dict(locals())
    _check(options)
    past = find_trial(Path(options["study"]), trial, workload, seed)
    run = _plan(past, options)
    found, same = _load(run, data, exact)
    target = _device("cpu" if exact and device == "auto" else device)
    job = Job(past.workload, past.workload.all_data(found) if all_data else found)
    estimate = _estimate(job, run.trial, target)
    console = make_console()
    _say(console, _head(run, past.workload.describe(found), target, estimate))
    if not same:
        _say(console, f"note: the data are not the study's, so figures are of something else: {data or past.source}")
    _check_room(run.trial, target, estimate)
    folder = _make_folder(output, run.trial.workload)
    interrupt, began = Immediate(), time.time()
    with orderly(interrupt):
        fitted, broken = _trained(run, job, target, folder, console, interrupt)
        about = _about(options, run, target, fitted, broken, began)
        _save(folder, {BEST: to_bytes(run.trial, fitted), TRAIN: (json.dumps(about, indent=2) + "\n").encode()})
    here = _written(fitted)
    changed = run.changes or not same or broken or past.row["status"] != "completed"
    result = TrainingResult(folder, here, past.metrics, None if changed else _differences(here, past.metrics))
    with suppress(OSError):  # nobody reads it any more
        console.print(figures_table(here, past.metrics))
        _say(console, f"saved: {folder / BEST}; tuner.load_best({str(folder)!r}) gives the model")
    if broken:
        _say(console, f"interrupted: what is saved are the weights of epoch {here['best_epoch']}, the best so far")
        raise KeyboardInterrupt
    if result.differences is not None:
        _judge(console, result.differences, past, target, exact)
    return result


def _check(options: Mapping[str, Any]) -> None:
    """Refuses what cannot be used whatever the study is."""
    names = ("seed", "epochs", "threads", "device", "output")
    given = {name: options[name] for name in names if options[name] is not None}
    Settings.from_options(given).check()
    if options["study"] is None:
        raise InputError("--from DIR: give the folder of a study")
    if options["exact"] and options["device"] == "cuda":
        raise InputError(
            "--exact: on GPUs the last digits differ from run to run, as sums are made in any order: use --device cpu"
        )
    if options["exact"] and options["all_data"]:
        raise InputError("--exact and --all-data were both given: on other data other figures come out")


def _plan(past: PastTrial, options: Mapping[str, Any]) -> _Run:
    """What is trained.

    Raises:
        InputError: with ``exact`` something is not as it was, or the trial has no figures.
    """
    config, row = past.config, past.row
    seed = row["seed"] if options["seed"] is None else options["seed"]
    threads = options["threads"] or past.threads
    epochs = options["epochs"] or config["epochs"]
    most = past.workload.number("epochs").high
    if epochs > most:
        raise InputError(f"--epochs {epochs}: must be at most {most:g}")
    was = {"seed": (seed, row["seed"]), "epochs": (epochs, config["epochs"]), "threads": (threads, past.threads)}
    changes = [f"--{name} {now}" for name, (now, before) in was.items() if now != before]
    if options["exact"]:
        _check_exact(past, changes)
    last = epochs
    if options["all_data"] and options["epochs"] is None:
        last = int(row.get("best_epoch") or 0)
        if not last:
            raise InputError(f"--all-data: {row['trial_id']} ({row['status']}) has no best epoch: say --epochs N")
    trial = Trial(row["trial_id"], row["workload"], row["name"], {**config, "epochs": epochs}, seed)
    changes += ["--all-data"] * options["all_data"]
    return _Run(past, trial, threads, options["all_data"], last, tuple(changes))


def _check_exact(past: PastTrial, changes: list[str]) -> None:
    row = past.row
    if row["status"] != "completed":
        raise InputError(
            f"--exact: {row['trial_id']} is {row['status']}: it has no figures that could come out again"
        )
    if not str(row["device"]).endswith("cpu"):
        raise InputError(
            f"--exact: {row['trial_id']} ran on {row['device']}, and on GPUs the last digits differ from run to "
            "run, as sums are made in any order: leave it out"
        )
    if changes:
        raise InputError(f"--exact and {changes[0]}: the study's trial had another value: leave one of them out")


def _load(run: _Run, source: str | None, exact: bool) -> tuple[Any, bool]:
    """The data as the study had them split, and whether they are the same."""
    data = run.past.load_data(source)
    same = run.past.has_data(data)
    if exact and not same:
        where = source or run.past.source
        raise InputError(f"--exact: the data in {where} are not those of the study: give them by --data")
    return data, same


def _device(choice: DeviceChoice) -> Device:
    """The device with the most free memory."""
    return max(detect_devices(choice), key=lambda device: device.free_bytes)


def _estimate(job: Job, trial: Trial, device: Device) -> MemoryEstimate:
    settings = Settings(auto_memory=True)
    (request,) = estimate_requests({trial.workload: job}, [trial], [device], settings).requests
    return request.estimate


def _check_room(trial: Trial, device: Device, estimate: MemoryEstimate) -> None:
    """Refuses what does not fit.

    Its margin need not: a study gives such a trial a whole device, too.
    """
    if estimate.total_bytes > device.free_bytes:
        raise InputError(
            f"{trial.name}: takes {estimate.total_bytes / GB:.2f} GB, but {device.label} has "
            f"{device.free_bytes / GB:.2f} GB free: end what else runs there, or use another --device"
        )


def _head(run: _Run, about: str, device: Device, estimate: MemoryEstimate) -> str:
    past, trial = run.past, run.trial
    ends = f", of which the first {run.last_epoch}" if run.last_epoch < trial.config["epochs"] else ""
    threads = f"{run.threads} thread{'s' if run.threads > 1 else ''}"
    lines = {
        "from": f"{past.folder}: {past.row['trial_id']} {trial.name}, {past.row['status']}",
        "data": about + ("; all of it to train on" if run.all_data else ""),
        "training": f"{trial.config['epochs']} epochs{ends}, seed {trial.seed}, {threads} on {device.label}",
        "memory": f"{estimate}; {device.free_bytes / GB:.2f} GB free on {device.label}",
    }
    return "\n".join(f"{label:<10} {text}" for label, text in lines.items())


def _make_folder(output: str | None, workload: str) -> Path:
    """The folder that was asked for, or a new one under ``results/``."""
    base = Path(output or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload}-train")
    path, number = base, 1
    while True:
        try:
            path.mkdir(parents=True, exist_ok=output is not None)
            return path
        except FileExistsError as error:
            if output is not None:
                raise InputError(f"--output {path}: it is no folder") from error
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        except OSError as error:
            raise InputError(f"--output {path}: cannot be written: {error.strerror}; give another folder") from error


def _trained(
    run: _Run, job: Job, device: Device, folder: Path, console: Console, interrupt: Immediate
) -> tuple[Fit, bool]:
    """What training leaves, and whether it was broken off; then it is the best epoch so far, without a test.

    Raises:
        KeyboardInterrupt: it was broken off before an epoch had ended.
        ExecutionError: memory has run out.
        Exception: what training raises. In all these cases the folder is gone again.
    """
    from tuner.checkpoints import Progress
    from tuner.training import Fit

    progress = Progress()
    try:
        with _on(device, run.threads) as name:
            shown = TrainingProgress(console, job.workload.metric)
            return _fit(run, job, name, progress, shown, interrupt), False
    except KeyboardInterrupt:
        if progress.weights:
            return Fit(progress.best, progress.weights), True
        _remove(folder)
        raise
    except Exception as error:
        _remove(folder)
        if is_out_of_memory(error):
            said = " ".join(str(error).split())
            raise ExecutionError(f"{run.trial.name}: out of memory in epoch {progress.epoch + 1}: {said}") from error
        raise


def _fit(run: _Run, job: Job, device: str, progress: Progress, shown: TrainingProgress, interrupt: Immediate) -> Fit:
    from tuner.training import fit

    training = fit(
        job.workload,
        run.trial,
        job.data,
        device,
        progress=progress,
        held_out=not run.all_data,
        last_epoch=run.last_epoch,
    )
    while True:
        with interrupt.at_once():
            said = next(training)
        if not isinstance(said, EpochReport):
            return said
        shown.reported(said)


@contextmanager
def _on(device: Device, threads: int) -> Iterator[str]:
    """In this block torch computes on the device, which is called so, and with so many threads on the CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if device.kind == "cpu":
            yield "cpu"
        else:
            index = _cuda_index(device)
            with torch.cuda.device(index):
                yield f"cuda:{index}"
    finally:
        torch.set_num_threads(before)


def _cuda_index(device: Device) -> int:
    """Which of this process's GPUs it is: CUDA need not count them as NVML does."""
    import torch

    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    for index, uuid in enumerate(uuids):
        if device.uuid.endswith(uuid):
            return index
    raise ExecutionError(f"{device.label}: torch does not see this GPU: use --device cpu")


def _about(
    options: Mapping[str, Any], run: _Run, device: Device, fitted: Fit, broken: bool, began: float
) -> dict[str, Any]:
    """What ``train.json`` holds."""
    past, trial = run.past, run.trial
    return {
        "command": _command(options),
        "status": "interrupted" if broken else "completed",
        "study": str(past.folder),
        "trial": trial.trial_id,
        "workload": trial.workload,
        "name": trial.name,
        "seed": trial.seed,
        "config": dict(trial.config),
        "epochs": run.last_epoch,
        "all_data": run.all_data,
        "data": options["data"] or past.source,
        "device": device.label,
        "threads": run.threads,
        "metrics": _written(fitted),
        "study_metrics": past.metrics,
        "versions": _versions(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        "duration_s": round(time.time() - began, 3),
    }


def _command(options: Mapping[str, Any]) -> str:
    defaults = {name: parameter.default for name, parameter in inspect.signature(train).parameters.items()}
    return shlex.join(["tune", "train", *arguments(options, defaults)])


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def _save(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        for name, content in files.items():
            replace_file(folder / name, content)
    except OSError as error:
        raise ExecutionError(f"{folder} can no longer be written: {error.strerror}") from error


def _remove(folder: Path) -> None:
    """Takes back a folder in which nothing is."""
    with suppress(OSError):
        os.rmdir(folder)


def _written(fitted: Fit) -> dict[str, float | None]:
    return {name: written(value) for name, value in fitted.metrics.items()}


def _differences(
    here: Mapping[str, float | None], study: Mapping[str, float | None]
) -> dict[str, tuple[float | None, float | None]]:
    names = dict.fromkeys([*study, *here])
    return {name: (study.get(name), here.get(name)) for name in names if study.get(name) != here.get(name)}


def _judge(
    console: Console,
    differences: Mapping[str, tuple[float | None, float | None]],
    past: PastTrial,
    device: Device,
    exact: bool,
) -> None:
    """Says whether the study's figures came out again.

    Raises:
        Differs: they did not, and were to.
    """
    if not differences:
        _say(console, "the study's figures came out again, to the last digit")
        return
    both = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differences.items())
    why = "; ".join(_reasons(past, device)) or "no reason is known"
    text = f"not the study's figures: {both} ({why})"
    if exact:
        raise Differs(f"--exact: {text}")
    _say(console, text)


def _reasons(past: PastTrial, device: Device) -> list[str]:
    """What may have made the figures others."""
    reasons = []
    known = past.study.get("versions", {})
    others = [f"{name} {known.get(name)}" for name, now in _versions().items() if known.get(name) != now]
    if others:
        reasons.append(f"the study ran with {', '.join(others)}")
    names = [each["name"] for each in past.study["plan"]["devices"]]
    if device.name not in names:
        reasons.append(f"the study ran on {', '.join(dict.fromkeys(names))}")
    if device.kind == "cuda":
        reasons.append("on a GPU the last digits differ from run to run")
    if len(set(past.accumulations)) > 1:
        reasons.append(f"its attempts took batches in {' and '.join(map(str, past.accumulations))} parts")
    return reasons


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
