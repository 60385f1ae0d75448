"""``tuner plan``: how a study would be packed and how long it would take, without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.api.capacity import Capacity, capacity, card_sizes
from tuner.decisions.plan import Plan
from tuner.decisions.seconds import Pace
from tuner.errors import InputError, ParameterError, both_given, option
from tuner.execution.simulation import Schedule, simulate
from tuner.hyperparameters import is_auto
from tuner.machine.devices import detect_with_idle_cores, imagined_gpu
from tuner.records.attempts import Attempt
from tuner.records.files import ATTEMPTS
from tuner.records.journal import read_attempts
from tuner.records.study_record import UNKNOWN, read_study
from tuner.spec.commands import PlanOptions
from tuner.spec.options import public
from tuner.spec.searched import check_search, choose_searched, is_up_front, with_search
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.auto_batch import SizedTrials
from tuner.study.planning import plan_requests, to_trials
from tuner.study.prepare import Study, load, prepare
from tuner.study.prerequisites import needed
from tuner.study.show import left_out
from tuner.trial import GB, Config, Device, Request, Trial, title
from tuner.values import config_key
from tuner.workloads.task import describe

Seconds = Callable[[Request], float]


@dataclass(frozen=True)
class Forecast:
    """The expected course of a study."""

    plan: Plan  # how its trials share the devices
    requests: Sequence[Request]  # its trials, with what each needs
    sized: SizedTrials  # the trials, with the batches that were found for them
    data: str  # the data sets in a few words, a line for each
    # Every trial's place and time; the times are in seconds if ``measured``, else in units of their own.
    schedule: Schedule
    one_by_one: float  # how long the trials take one after another, in the same unit
    uniform: float  # how long they take when each is given what the largest needs
    measured: bool  # whether the times follow from timed steps, or from trials that have run
    left_out: Sequence[str] = ()  # a line for each trial that fits no device
    searched: str = ""  # what the trials of a search are that depends on results; else empty
    first: Sequence[Request] = ()  # what is trained before these trials, one after another, such as a teacher

    def title(self, trial: Trial) -> str:
        """The trial's name in texts."""
        several = len({request.trial.workload for request in self.requests}) > 1
        seeds = {request.trial.seed for request in self.requests}
        return title(trial.workload, trial.name, several=several, seed=trial.seed if len(seeds) > 1 else None)


@public(PlanOptions)
def plan(options: PlanOptions) -> Forecast | Capacity:
    """Shows the packing of a study without running it: what ``tuner plan`` prints.

    Where a trial's time is unknown, times are taken to grow with epochs and memory.

    Returns:
        The forecast; with ``gpu`` a ``Capacity``.

    Raises:
        InputError: something given cannot be used.
    """
    settings = Settings.of(options.given())
    settings.check()
    sizes = card_sizes(options.gpu) if options.gpu is not None else []
    for name in ("device", "gpus", "device_memory_gb", "like", "seeds") if sizes else ():
        if name in options.changes():
            raise both_given("gpu", name)
    gpus = options.gpus
    if gpus is None:
        devices = () if sizes else detect_with_idle_cores(options.device)
    else:
        devices = tuple(_imagined(gpus, options.device_memory_gb))
    settings = with_search(settings)
    check_search(settings)
    is_live = settings.search is not None and not is_up_front(settings)
    up_front = settings.changed(search="random", search_options=()) if is_live else settings
    selections = choose_searched(up_front, UNKNOWN).selections
    rows = _finished_rows(options.like, [selection.workload.name for selection in selections]) if options.like else []
    loaded = load(StudySpec(selections, settings))
    if sizes:
        _refuse_auto(loaded.trials)
        return capacity(loaded.tasks, loaded.trials, sizes, loaded.settings)
    study, _ = prepare(loaded, devices)
    tasks, plan = study.tasks, study.plan
    requests = with_times(study.requests, rows) if rows else study.requests
    measured = all(request.seconds for request in requests)
    seconds: Seconds = (lambda request: request.seconds or 0.0) if measured else speed([])
    alike = study.settings.changed(packing="uniform")
    unfit = {request.trial.trial_id for request in study.infeasible}
    fit = [request for request in study.estimates.requests if request.trial.trial_id not in unfit]
    uniform, _ = plan_requests(replace(study.needs, settings=alike), fit)
    return Forecast(
        plan=plan,
        requests=requests,
        sized=study.sized,
        data=describe(tasks),
        schedule=simulate(requests, plan, seconds),
        one_by_one=sum(map(seconds, requests)),
        uniform=simulate(requests, uniform, seconds).seconds,
        measured=measured,
        left_out=left_out(study),
        searched=f"{settings.search_name}: planned by random points, as it suggests by results" if is_live else "",
        first=_first(study),
    )


def _first(study: Study) -> Sequence[Request]:
    """The requests of what is trained before the trials."""
    before = [replace(selection, configurations=needed(selection)) for selection in study.spec.selections]
    trials = to_trials(before, study.settings.changed(seeds=1, epochs=None))
    return plan_requests(study.needs, study.needs.of(trials).requests)[1] if trials else []


def with_times(requests: Sequence[Request], rows: Sequence[Attempt]) -> list[Request]:
    """The requests with the time of an epoch as in ``rows``, if the number of epochs is known."""
    seconds = speed(rows)
    return [
        replace(request, estimate=replace(request.estimate, epoch_seconds=seconds(request) / request.trial.epochs))
        if request.trial.epochs
        else request
        for request in requests
    ]


def speed(rows: Sequence[Attempt]) -> Seconds:
    """A function that predicts a trial's time from trials that have run.

    A configuration that has run takes for an epoch what it took; another one follows by its memory from those of its
    workload that have run. Without any, an epoch takes 1 second for each GB.
    """
    by_config = {(row.workload, _key(row.config)): row.duration_s / row.epochs for row in rows}
    timed: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if size := row.estimated_memory_gb or row.peak_memory_gb:
            timed.setdefault(row.workload, []).append((size, row.duration_s / row.epochs))
    paces = {workload: Pace(pairs) for workload, pairs in timed.items()}

    def seconds(request: Request) -> float:
        trial = request.trial
        size = request.estimate.total_bytes / GB
        by_size = paces[trial.workload].seconds(size) if trial.workload in paces else size
        an_epoch = by_config.get((trial.workload, _key(trial.config)), by_size)
        return max(1e-9, float(trial.epochs * (an_epoch or 0.0)))

    return seconds


def to_record(forecast: Forecast) -> dict[str, object]:
    """A forecast as plain values: seconds, and GB of 2**30 bytes."""
    plan = forecast.plan
    unit = "seconds" if forecast.measured else "relative_time"
    return {
        "packing": plan.packing,
        "workers_at_least": plan.guaranteed,
        "workers_at_most": plan.workers,
        "bound": plan.bound,
        "ram_footprint_gb": round(plan.ram_footprint_bytes / GB, 4),
        "ram_budgets_gb": {node or "here": round(size / GB, 4) for node, size in plan.ram_budgets.items()},
        "threads": plan.threads,
        unit: round(forecast.schedule.seconds, 3),
        f"{unit}_uniform": round(forecast.uniform, 3),
        f"{unit}_one_by_one": round(forecast.one_by_one, 3),
        "auto_batch": forecast.sized.by_trial(),
        "devices": [_device_record(forecast, device) for device in plan.devices],
        "left_out": list(forecast.left_out),
        "trained_first": [
            {"name": request.trial.name, "share_gb": round(request.need_bytes / GB, 4)} for request in forecast.first
        ],
        "trials": [
            {
                "trial_id": placement.trial.trial_id,
                "name": forecast.title(placement.trial),
                "device": placement.label,
                "share_gb": round(placement.limit_bytes / GB, 4),
                "epoch_seconds": placement.estimate.epoch_seconds,
                "start": round(start, 3),
                "end": round(end, 3),
            }
            for placement, start, end in forecast.schedule.placements
        ],
    }


def _device_record(forecast: Forecast, device: Device) -> dict[str, object]:
    budget = forecast.plan.budgets[forecast.plan.devices.index(device)]
    return {
        "device": device.label,
        "name": device.name,
        "budget_gb": round(budget / GB, 4),
        "trials": len(forecast.schedule.by_device[device]),
        "most_at_once": forecast.schedule.most_at_once(device),
        "busy": round(forecast.schedule.busy(device, budget), 4),
    }


def _refuse_auto(trials: Sequence[Trial]) -> None:
    for trial in trials:
        if is_auto(trial.config):
            raise InputError(
                f"{option('gpu')}: {trial.name} has a batch that is auto, which differs from card to card: plan one "
                f"card with {option('gpus')} and {option('device_memory_gb')}, or give a number"
            )


def _imagined(gpus: int, memory_gb: float | None) -> list[Device]:
    if memory_gb is None:
        raise ParameterError("gpus", gpus, f"say how much memory each has, with {option('device_memory_gb')}")
    return [imagined_gpu(int(memory_gb * GB), index) for index in range(gpus)]


def _finished_rows(folder: str, names: Sequence[str]) -> list[Attempt]:
    """The completed trials of a study; raises ``InputError`` if a workload has none."""
    study = read_study(Path(folder), option("like", folder))
    its = study.workloads
    rows, _ = read_attempts(Path(folder) / ATTEMPTS, study)
    took: dict[str, float] = defaultdict(float)  # in all attempts, of which an earlier version had each by itself
    for row in rows:
        took[row.trial_id] += row.own_seconds
    finished = [
        replace(row, duration_s=max(row.duration_s, took[row.trial_id]))
        for row in rows
        if row.status == "completed" and row.duration_s and row.epochs
    ]
    for name in names:
        if name not in its:
            raise InputError(f"{option('like', str(folder))}: its workload is {study.workload!r}, not {name!r}")
        if not any(row.workload == name for row in finished):
            which = f"{name} trials" if len(its) > 1 else "trials"
            raise InputError(f"{option('like', str(folder))}: none of its {which} is completed yet")
    return finished


def _key(config: Config) -> str:
    """The part of a configuration that decides how long an epoch takes."""
    return config_key(config, ("epochs", "lr"))
