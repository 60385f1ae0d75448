"""Turns configurations into requests and a plan, for ``tuner run`` and ``tuner plan`` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from tuner.decisions.capacity import TrialLimits, largest_ram, limited, ram_budgets
from tuner.decisions.constraints import INFERENCE
from tuner.decisions.plan import Plan, budget_bytes, host_need_bytes, make_plan, need_bytes
from tuner.decisions.state import State
from tuner.errors import InputError, ParameterError, one_line, option
from tuner.estimation.calibration import Sample
from tuner.estimation.estimators import first_share, with_room
from tuner.estimation.feedback import corrected
from tuner.estimation.overheads import with_host
from tuner.estimation.service import IN_RAM, EstimatePair, EstimationService
from tuner.machine.leases import with_leased
from tuner.reporting import phases
from tuner.reporting.texts import count_text
from tuner.spec.memory_groups import check_gb
from tuner.spec.settings import Settings
from tuner.study.ranks import check_place, check_ranks, refusal
from tuner.trial import (
    AUTO,
    GB,
    MOST_RANKS,
    MOST_TRIALS,
    NODES,
    RANKS,
    Config,
    Configuration,
    Device,
    History,
    MemoryEstimate,
    Phase,
    Request,
    Trial,
    title,
)
from tuner.workloads.base import Trainable, Workload, numeric_hyperparameter
from tuner.workloads.task import Selection, Tasks, TrainingTask, smaller


@dataclass(frozen=True)
class Estimates:
    """The estimated needs of a study's trials."""

    requests: tuple[Request, ...] = ()  # one for each trial, in their order, with its estimate and its need
    # Each trial's estimate before calibration, by trial id.
    raw: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    # Samples of each workload's earlier trials on these devices, by which its estimates were calibrated.
    known: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    # The same of what trials on GPUs took of their host's RAM.
    known_in_ram: Mapping[str, Sequence[Sample]] = field(default_factory=dict)

    def with_more(self, more: Estimates) -> Estimates:
        """These estimates together with those of further trials."""
        return replace(self, requests=(*self.requests, *more.requests), raw={**self.raw, **more.raw})


def usable(devices: Sequence[Device], settings: Settings) -> tuple[Device, ...]:
    """The devices with the memory that other studies will free, limited to what the user allows."""
    devices = with_leased(devices)
    if settings.device_memory_gb is None:
        return devices
    return tuple(limited(device, int(settings.device_memory_gb * GB)) for device in devices)


def to_trials(selections: Sequence[Selection], settings: Settings) -> list[Trial]:
    """A trial for each configuration and seed, numbered over the whole study.

    The trials of the first seed come first, so that more seeds only add trials.

    Raises:
        InputError: a study cannot have so many trials.
    """
    if (number := settings.seeds * sum(len(selection.configurations) for selection in selections)) > MOST_TRIALS:
        rule = f"makes {number:,} trials; {MOST_TRIALS:,} are the most"
        raise ParameterError("seeds", settings.seeds, rule, "give fewer configurations or seeds")
    listed = [
        (selection.workload, configuration, _config(selection.workload, configuration, settings), seed)
        for seed in range(settings.seed, settings.seed + settings.seeds)
        for selection in selections
        for configuration in selection.configurations
    ]
    width = max(3, len(str(max(len(listed), settings.most_suggestions))))  # a search adds to them
    return [
        Trial(f"t{number:0{width}d}", workload.name, configuration.name, config, seed)
        for number, (workload, configuration, config, seed) in enumerate(listed, 1)
    ]


def estimate_requests(
    tasks: Tasks, trials: Sequence[Trial], devices: Sequence[Device], settings: Settings
) -> Estimates:
    """What each trial needs on the device on which it needs the most.

    Raises:
        InputError: a footprint cannot be estimated, the calibration is damaged, or a trial can run on no CPU.
    """
    check_amp(tasks, trials, devices)
    trials = [_with_ranks(tasks, trial, devices, settings) for trial in trials]
    for trial in trials:
        check_ranks(tasks[trial.workload].workload, trial, settings)
    return with_host_needs(_estimated(tasks, trials, devices, settings), tasks, devices, settings)


def _with_ranks(tasks: Tasks, trial: Trial, devices: Sequence[Device], settings: Settings) -> Trial:
    """The trial with the fewest of 1, 2, 4 and 8 ranks with which it fits by its estimate, if they are ``AUTO``."""
    if trial.config.get(RANKS) != AUTO:
        return trial
    limits, nodes = limits_of(devices, settings), trial.config.get(NODES, 1)
    found = replace(trial, config={**trial.config, RANKS: 1})
    for ranks in (1, 2, 4, 8) if nodes in (1, 2, 4, 8) else ():
        one = replace(trial, config={**trial.config, RANKS: ranks})
        with suppress(InputError):  # its batch cannot be divided by so many
            request = estimate_requests(tasks, [one], devices, settings).requests[0]
            found = (
                one if limits.of(one.shape)[0] else found
            )  # if none fits, the error is about the most that have a place
            if limits.fits(within(request, limits, tasks, settings)):
                break
    return found


def with_host_needs(found: Estimates, tasks: Tasks, devices: Sequence[Device], settings: Settings) -> Estimates:
    """Adds each GPU trial's host-RAM estimate."""
    gpus = {device.name for device in devices if device.kind == "cuda"}
    if not gpus:
        return found
    service, requests = estimation_service(settings), list[Request]()
    known = {name: [sample for gpu in gpus for sample in service.samples(name, gpu, IN_RAM)] for name in tasks}
    raw: dict[str, MemoryEstimate] = {}
    for request in found.requests:
        trial_id, task, samples = request.trial.trial_id, tasks[request.trial.workload], known[request.trial.workload]
        in_loop = isinstance(task.workload, Workload)
        raw[trial_id] = with_host(found.raw[trial_id], task.own_bytes, keeps_weights=in_loop)
        host_bytes = corrected(raw[trial_id].host_bytes, samples)
        estimate = replace(request.estimate, host_bytes=host_bytes, host_measured=bool(samples))
        requests.append(replace(request, estimate=estimate, host_bytes=host_need_bytes(estimate)))
    return Estimates(tuple(requests), raw, found.known, known)


def _estimated(tasks: Tasks, trials: Sequence[Trial], devices: Sequence[Device], settings: Settings) -> Estimates:
    """What each trial needs of its device's memory."""
    requests: list[Request] = []
    raw: dict[str, MemoryEstimate] = {}
    if not settings.estimates_memory:
        for trial in trials:
            given = MemoryEstimate.given(given_gb(tasks[trial.workload].workload, trial, settings))
            requests.append(Request(trial, given, need_bytes(given)))
            raw[trial.trial_id] = given
        return Estimates(tuple(requests), raw, dict.fromkeys(tasks, ()))
    service, limits = estimation_service(settings), limits_of(devices, settings)
    first = 0  # the same for all, and only needed if a footprint is learned
    kinds = list({device.name: device for device in devices}.values())
    for name, task in tasks.items():
        mine = [trial for trial in trials if trial.workload == name]
        for trial, found in zip(mine, _largest(service, task, mine, kinds), strict=True):
            if found.raw.is_learned:
                most = limits.of(trial.shape)[0] or limits.device_bytes
                first = first or first_room(devices, settings, len(trials))
                room = with_room(found.raw, min(most, first))
                found = EstimatePair(room, room)
            requests.append(Request(trial, found.calibrated, need_bytes(found.calibrated)))
            raw[trial.trial_id] = found.raw
    known = {name: [sample for device in kinds for sample in service.samples(name, device.name)] for name in tasks}
    return Estimates(tuple(requests), raw, known)


def given_gb(workload: Trainable, trial: Trial, settings: Settings) -> float:
    """A trial's footprint in GB as the user gives it.

    Raises:
        InputError: the function ``memory_gb`` fails, or returns no such number.
    """
    if settings.given_gb is not None:
        return settings.given_gb
    given, name = settings.memory_gb, option("memory_gb")
    assert callable(given)
    try:
        found = given(workload.arguments_of(trial.config))
    except Exception as error:
        raise InputError(f"{trial.name}: {name} raised {type(error).__name__}: {one_line(error, 200)}") from error
    return check_gb(found, f"{trial.name}: {name} returned {one_line(repr(found), 80)}")


def first_room(devices: Sequence[Device], settings: Settings, trials: int) -> int:
    """The share in bytes of each first trial whose footprint is not known yet."""
    roomiest = max(devices, key=lambda device: budget_bytes(device, settings.buffer_bytes))
    most = min(filter(None, (roomiest.cores, settings.max_workers, max(trials, settings.num_samples or 0))))
    return first_share(limits_of(devices, settings).device_bytes, most)


def check_estimate(settings: Settings, workloads: Sequence[Trainable]) -> None:
    """Refuses ``estimate`` if all workloads are traced without it."""
    if settings.estimate is not None and all(isinstance(workload, Workload) for workload in workloads):
        names = ", ".join(workload.name for workload in workloads)
        raise InputError(f"{option('estimate')}: has no effect on workload {names}: its own step is traced")


def check_amp(tasks: Tasks, trials: Sequence[Trial], devices: Sequence[Device]) -> None:
    """Refuses mixed precision on the CPU with batches of many sizes.

    oneDNN compiles its bfloat16 kernels for every shape and keeps them. Such epochs took ten times as long, and the
    kernels' memory is in no estimate.
    """
    for trial in trials:
        varies = tasks[trial.workload].workload.batches_vary
        if varies and trial.config.get("amp") and any(device.kind == "cpu" for device in devices):
            raise InputError(
                f"{trial.name}: amp 1: not on the CPU, where it is slower and larger for the batches of "
                f"{trial.workload}: leave it out, or use {option('device', 'cuda')}"
            )


def estimation_service(settings: Settings) -> EstimationService:
    """The estimation service that the settings ask for."""
    return EstimationService(
        settings.memory_estimation,
        settings.calibration,
        settings.expandable_segments,
        tell=phases.estimating,
        build=settings.estimate,
        inference=INFERENCE in settings.compared_by,
        inference_batch=settings.inference_batch,
    )


def limits_of(devices: Sequence[Device], settings: Settings) -> TrialLimits:
    """The upper bounds of a trial's memory on these devices."""
    buffer_bytes = settings.buffer_bytes
    places = tuple((device, budget_bytes(device, buffer_bytes), MOST_RANKS) for device in devices)
    largest = max((budget for _, budget, _ in places), default=0)
    return TrialLimits(largest, largest_ram(devices, ram_budgets(devices, buffer_bytes)), places)


def plan_requests(
    tasks: Tasks, requests: Sequence[Request], devices: Sequence[Device], settings: Settings, trials: int = 0
) -> tuple[Plan, list[Request]]:
    """The plan, and the requests that it can serve.

    A trial that needs more than any device has gets a whole device if it can run without its margin and without what
    the allocator caches, or if it may be trained in smaller parts. ``trials`` is the number of trials if more will
    follow; they are taken to be like these.

    Raises:
        InputError: a trial fits on no device; the text names it and says what can be done.
    """
    limits = limits_of(devices, settings)
    served = [within(request, limits, tasks, settings) for request in requests]
    for request in served:
        check_place(request.trial, devices, settings)
    try:
        all_of_them = list(islice(cycle(served), max(trials, len(served))))
        plan = _plan_of(devices, all_of_them, settings)
        for request in served:
            if (ranks := request.trial.ranks) > 1 and request.need_bytes > (
                most := limits.of(request.trial.shape)[0]
            ):
                each, has = request.need_bytes / GB, most / GB
                raise InputError(
                    f"a trial of {ranks} ranks needs {each:.2f} GB for each, and {has:.2f} GB is the most"
                )
    except InputError as error:
        remedies = ["leave out the largest configurations"] * (len(served) > 1)
        largest = max(served, key=lambda request: (not limits.fits(request), request.need_bytes))
        in_ram = limits.fits(replace(largest, host_bytes=0))  # it is the RAM that does not suffice
        if in_ram:
            largest = max(served, key=lambda request: request.host_bytes)
        elif not settings.estimates_memory:
            remedies = [f"lower {option(settings.given_by)}"]
        if any(limits.fits(request) for request in served):
            remedies.append(f"run the others with {option('skip_too_large', True)}")
        name = title(largest.trial.workload, largest.trial.name, several=len(tasks) > 1)
        whose = f"{name}: " if in_ram or settings.estimates_memory or callable(settings.memory_gb) else ""
        larger = "a machine with more RAM" if in_ram else "a larger device"
        if settings.buffer_bytes and not in_ram:
            remedies.insert(0, f"lower {option('gpu_memory_buffer_gb')}")
        said = f"{', '.join(remedies)}, or use {larger}" if remedies else f"use {larger}"
        raise InputError(f"{whose}{error.text}: {said}") from error
    for request in served:
        trial, most = request.trial, max(plan.at_first)
        if trial.ranks > 1 and request.need_bytes > plan.limits().of(trial.shape)[0]:
            rule = f"takes {count_text(trial.shape.ranks_per_node, 'worker')} on a machine, and {most} is the most"
            fewer = option("max_workers") if settings.max_workers else "the number of cores"
            raise refusal(trial, settings, rule, f"give fewer, or raise {fewer}")
    return plan, served


def _plan_of(devices: Sequence[Device], requests: Sequence[Request], settings: Settings) -> Plan:
    ranks = [request for request in requests for _ in range(request.trial.ranks)]
    return make_plan(
        devices,
        [_planned_bytes(request, settings) for request in ranks],
        packing=settings.packing_used,
        buffer_bytes=settings.buffer_bytes,
        max_workers=settings.most_workers,
        threads=settings.threads,
        host_needs=[request.host_bytes for request in ranks],
        adaptive=settings.adaptive_workers,
        with_ranks=len(ranks) > len(requests),
    )


def plan_more(state: State, devices: Sequence[Device], settings: Settings, more: int) -> Plan | None:
    """A plan for devices that join a study, of which no trial's memory was estimated there.

    None if no trial that is left can use them. A search may suggest so many ``more``, which are taken to be like
    those before.
    """
    plan, left = state.plan, state.left
    assert plan is not None, "the study has been opened"
    alike = left or [run.request for run in state.running.values()]
    devices = usable([device for device in devices if device.kind == plan.devices[0].kind], settings)
    limits = replace(limits_of(devices, settings), places=())
    least = plan.footprint_bytes if plan.packing == "uniform" else 0  # what each is given, but for a retry
    fitting = [one for one in alike if limits.fits(replace(one, need_bytes=max(one.need_bytes, least)))]
    fitting = [replace(one, need_bytes=least or one.need_bytes, history=History()) for one in fitting]
    requests = list(islice(cycle(fitting), max(len(fitting) if left else 0, more) if fitting else 0))
    there = sum(slots for device, slots in zip(plan.devices, plan.slots, strict=True) if device not in state.lost)
    workers = None if settings.most_workers is None else max(0, settings.most_workers - there)
    if not requests or workers == 0:
        return None
    try:
        return _plan_of(devices, requests, settings.changed(max_workers=workers, threads=plan.threads))
    except InputError:
        return None


def _planned_bytes(request: Request, settings: Settings) -> int:
    """What a trial adds to a plan: with uniform packing, the others get no more because it ran out of memory."""
    if settings.packing_used == "uniform" and request.history.out_of_memory:
        return min(request.need_bytes, need_bytes(request.estimate))
    return request.need_bytes


def _config(workload: Trainable, configuration: Configuration, settings: Settings) -> Config:
    epochs, values = settings.epochs, configuration.values
    for key, given in ((RANKS, settings.gpus_per_trial), (NODES, settings.nodes_per_trial)):
        if given != 1 and key not in values:
            values = {**values, key: given}
    if epochs is None:
        return values
    if workload.schema is None:
        rule = f"{workload.name} itself decides how long it trains"
        raise ParameterError("epochs", epochs, rule, "leave it out")
    most = numeric_hyperparameter(workload, "epochs").high
    if epochs > most:
        raise ParameterError("epochs", epochs, f"must be at most {most:g}")
    return {**values, "epochs": epochs}


def _largest(
    service: EstimationService, task: TrainingTask, trials: Sequence[Trial], devices: Sequence[Device]
) -> list[EstimatePair]:
    """Each trial's estimate on the device on which it needs the most."""
    configurations = [Configuration(trial.name, trial.config) for trial in trials]
    found = [service.estimate_all(task.workload, configurations, task.data, device) for device in devices]
    return [max(pairs, key=lambda estimated: need_bytes(estimated.calibrated)) for pairs in zip(*found, strict=True)]


def within(request: Request, limits: TrialLimits, tasks: Tasks, settings: Settings) -> Request:
    """The request limited to a whole device and a host's RAM, if the trial can run with that.

    A guess of the RAM may be far too high, so only a measured need can be too large.
    """
    most, ram = limits.of(request.trial.shape)
    if not request.estimate.host_measured or request.estimate.host_bytes <= ram:
        request = replace(request, host_bytes=min(request.host_bytes, ram))
    phases: tuple[Phase, ...] = ("training", "evaluation")  # which of them needs more is not known
    may_shrink = settings.on_oom == "accumulate" and any(smaller(tasks, request.trial, phase) for phase in phases)
    if most and (request.estimate.least_bytes <= most or may_shrink):
        return replace(request, need_bytes=min(request.need_bytes, most))
    return request
