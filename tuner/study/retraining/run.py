"""What is trained again, on what, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import InputError, ParameterError, option
from tuner.machine.devices import DeviceChoice, detect_devices
from tuner.spec.commands import TrainOptions
from tuner.spec.settings import Settings
from tuner.study.planning import estimate_requests
from tuner.study.retraining.past_trial import PastTrial
from tuner.trial import GB, Device, MemoryEstimate, Trial
from tuner.workloads.base import numeric_hyperparameter
from tuner.workloads.task import TrainingTask


@dataclass(frozen=True)
class Run:
    """What is trained, and how."""

    past: PastTrial  # the study's trial
    trial: Trial  # what it becomes
    threads: int  # CPU threads
    all_data: bool  # nothing is held out
    last_epoch: int  # training ends after it
    changes: tuple[str, ...]  # options by which this is another training than the study's


def plan_run(past: PastTrial, options: TrainOptions) -> Run:
    """What is trained.

    Raises:
        InputError: with ``exact`` something is not as it was, or the trial has no figures.
    """
    config, row = past.config, past.row
    seed = row.seed if options.seed is None else options.seed
    threads = options.threads or past.threads
    epochs = options.epochs or int(config["epochs"])
    most = numeric_hyperparameter(past.workload, "epochs").high
    if epochs > most:
        raise ParameterError("epochs", epochs, f"must be at most {most:g}")
    was = {"seed": (seed, row.seed), "epochs": (epochs, config["epochs"]), "threads": (threads, past.threads)}
    changes = [option(name, now) for name, (now, before) in was.items() if now != before]
    if options.exact:
        _check_exact(past, changes)
    last = epochs
    if options.all_data and options.epochs is None:
        last = int(row.metrics.get("best_epoch") or 0)
        if not last:
            raise InputError(
                f"{option('all_data')}: {row.trial_id} ({row.status}) has no best epoch: give {option('epochs')}"
            )
    trial = Trial(row.trial_id, row.workload, row.name, {**config, "epochs": epochs}, seed)
    changes += [option("all_data")] * options.all_data
    return Run(past, trial, threads, options.all_data, last, tuple(changes))


def load_data(run: Run, source: str | None, exact: bool) -> tuple[object, bool]:
    """The data, split as the study had them, and whether they are the same.

    Raises:
        InputError: they cannot be read, or with ``exact`` they are others.
    """
    data = run.past.load_data(source)
    same = run.past.has_data(data)
    if exact and not same:
        where = source or run.past.source
        raise InputError(
            f"{option('exact')}: the data in {where} are not those of the study: give them by {option('data')}"
        )
    return data, same


def choose_device(choice: DeviceChoice) -> Device:
    """The device with the most free memory."""
    return max(detect_devices(choice), key=lambda device: device.free_bytes)


def estimate_memory(task: TrainingTask, trial: Trial, device: Device) -> MemoryEstimate:
    """What training will take of the device."""
    settings = Settings()
    (request,) = estimate_requests({trial.workload: task}, [trial], [device], settings).requests
    return request.estimate


def check_room(trial: Trial, device: Device, estimate: MemoryEstimate) -> None:
    """Refuses what does not fit; its margin need not: a study gives such a trial a whole device, too."""
    if estimate.total_bytes > device.free_bytes:
        raise InputError(
            f"{trial.name}: takes {estimate.total_bytes / GB:.2f} GB, but {device.label} has "
            f"{device.free_bytes / GB:.2f} GB free: end what else runs there, or use another {option('device')}"
        )


def _check_exact(past: PastTrial, changes: list[str]) -> None:
    row = past.row
    if row.status != "completed":
        raise InputError(
            f"{option('exact')}: {row.trial_id} is {row.status}: it has no figures that could come out again"
        )
    if not str(row.device).endswith("cpu"):
        raise InputError(
            f"{option('exact')}: {row.trial_id} ran on {row.device}, and on GPUs the last digits differ from run to "
            "run, as sums are made in any order: leave it out"
        )
    if changes:
        raise InputError(
            f"{option('exact')} and {changes[0]}: the study's trial had another value: leave one of them out"
        )
