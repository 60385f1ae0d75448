"""Turns configurations into requests and a plan, for ``tuner run`` and ``tuner plan`` alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from tuner.decisions.capacity import limited
from tuner.decisions.plan import Plan, make_plan, need_bytes
from tuner.decisions.state import State
from tuner.errors import InputError, ParameterError, option
from tuner.estimation.overheads import measured_context
from tuner.machine.leases import with_leased
from tuner.reporting.texts import count_text
from tuner.spec.settings import Settings
from tuner.study.needs import Needs, limits_of
from tuner.study.ranks import check_place, refusal
from tuner.trial import GB, MOST_TRIALS, NODES, RANKS, Config, Configuration, Device, History, Request, Trial, title
from tuner.workloads.base import Trainable, Workload, numeric_hyperparameter
from tuner.workloads.task import Selection


def usable(devices: Sequence[Device], settings: Settings) -> tuple[Device, ...]:
    """The devices with their contexts, and the memory that other studies will free, within what the user allows."""
    devices = [replace(device, context_bytes=measured_context(device)) for device in with_leased(devices)]
    if settings.device_memory_gb is None:
        return tuple(devices)
    return tuple(limited(device, int(settings.device_memory_gb * GB)) for device in devices)


def to_trials(selections: Sequence[Selection], settings: Settings) -> list[Trial]:
    """A trial for each configuration and seed, numbered over the whole study.

    The trials of the first seed come first, so that more seeds only add trials.

    Raises:
        InputError: there are too many trials.
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


def check_estimate(settings: Settings, workloads: Sequence[Trainable]) -> None:
    """Refuses ``estimate`` if all workloads are traced without it."""
    if settings.estimate is not None and all(isinstance(workload, Workload) for workload in workloads):
        names = ", ".join(workload.name for workload in workloads)
        raise InputError(f"{option('estimate')}: has no effect on workload {names}: its own step is traced")


def plan_requests(needs: Needs, requests: Sequence[Request], trials: int = 0) -> tuple[Plan, list[Request]]:
    """The plan, and the requests that it can serve.

    A trial that needs more than any device has gets a whole device if it can run without its margin and without what
    the allocator caches, or if it may be trained in smaller parts. ``trials`` is the number of trials if more will
    follow; they are taken to be like these.

    Raises:
        InputError: a trial fits on no device; the text names it and says what can be done.
    """
    devices, settings = needs.devices, needs.settings
    served = [needs.within(request) for request in requests]
    for request in served:
        check_place(request.trial, devices, settings)
    try:
        all_of_them = list(islice(cycle(served), max(trials, len(served))))
        plan = _plan_of(devices, all_of_them, settings)
        for request in served:
            ranks, need_gb = request.trial.ranks, request.need_bytes / GB
            most = needs.limits.of(request.trial.shape)[0]
            if ranks > 1 and request.need_bytes > most:
                text = f"a trial of {ranks} ranks needs {need_gb:.2f} GB for each, and {most / GB:.2f} GB is the most"
                raise InputError(text)
    except InputError as error:
        raise _with_remedies(error, needs, served) from error
    for request in served:
        trial, most = request.trial, max(plan.at_first)
        if trial.ranks > 1 and request.need_bytes > plan.limits().of(trial.shape)[0]:
            rule = f"takes {count_text(trial.shape.ranks_per_node, 'worker')} on a machine, and {most} is the most"
            fewer = option("max_workers") if settings.max_workers else "the number of cores"
            raise refusal(trial, settings, rule, f"give fewer, or raise {fewer}")
    return plan, served


def _with_remedies(error: InputError, needs: Needs, requests: Sequence[Request]) -> InputError:
    """The error of trials that fit no device, with the name of the largest and what can be done."""
    settings, fits = needs.settings, needs.limits.fits
    remedies = ["leave out the largest configurations"] * (len(requests) > 1)
    largest = max(requests, key=lambda request: (not fits(request), request.need_bytes))
    in_ram = fits(replace(largest, host_bytes=0))  # it is the RAM that does not suffice
    if in_ram:
        largest = max(requests, key=lambda request: request.host_bytes)
    elif not settings.estimates_memory:
        remedies = [f"lower {option(settings.given_by)}"]
    if any(map(fits, requests)):
        remedies.append(f"run the others with {option('skip_too_large', True)}")
    if settings.buffer_bytes and not in_ram:
        remedies.insert(0, f"lower {option('gpu_memory_buffer_gb')}")
    name = title(largest.trial.workload, largest.trial.name, several=len(needs.tasks) > 1)
    whose = f"{name}: " if in_ram or settings.estimates_memory or callable(settings.memory_gb) else ""
    larger = "use a machine with more RAM" if in_ram else "use a larger device"
    remedy = f"{', '.join(remedies)}, or {larger}" if remedies else larger
    return InputError(f"{whose}{error.text}: {remedy}")


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
    """A plan for devices that join a study, on which no trial's memory was estimated.

    None if no remaining trial can use them. A search may suggest this many ``more``; they are taken to be like those
    before.
    """
    plan, remaining = state.plan, state.left
    assert plan is not None, "the study has been opened"
    alike = remaining or [run.request for run in state.running.values()]
    devices = usable([device for device in devices if device.kind == plan.devices[0].kind], settings)
    limits = replace(limits_of(devices, settings), places=())
    least = plan.footprint_bytes if plan.packing == "uniform" else 0  # what each is given, but for a retry
    fitting = [one for one in alike if limits.fits(replace(one, need_bytes=max(one.need_bytes, least)))]
    fitting = [replace(one, need_bytes=least or one.need_bytes, history=History()) for one in fitting]
    requests = list(islice(cycle(fitting), max(len(fitting) if remaining else 0, more) if fitting else 0))
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
    if workload.schema is None:  # its worker ends it, and its keys are its own
        return {**values, "epochs": epochs} if "epochs" in values else values
    most = numeric_hyperparameter(workload, "epochs").high
    if epochs > most:
        raise ParameterError("epochs", epochs, f"must be at most {most:g}")
    return {**values, "epochs": epochs}
