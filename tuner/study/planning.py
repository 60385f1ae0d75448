"""Turns configurations into requests and a plan, for ``tuner run`` and ``tuner plan`` alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import cycle, islice

from tuner.decisions.capacity import limited
from tuner.decisions.events import Corrected, Decision, DeviceLost, Event, Joined, Replanned
from tuner.decisions.plan import Plan, make_plan, need_bytes
from tuner.decisions.state import State
from tuner.errors import InputError, ParameterError, option
from tuner.estimation.overheads import SHARED_BYTES, measured_context
from tuner.machine.leases import with_leased
from tuner.reporting.texts import count_text
from tuner.spec.settings import Settings
from tuner.study.needs import Needs
from tuner.study.ranks import check_place, refusal
from tuner.trial import GB, MOST_TRIALS, NODES, RANKS, Config, Configuration, Device, Request, Trial, title
from tuner.workloads.base import Trainable, Workload, numeric_hyperparameter
from tuner.workloads.task import Selection


def usable(devices: Sequence[Device], settings: Settings) -> tuple[Device, ...]:
    """The devices with their contexts, and the memory that other studies will free, within what the user allows."""
    devices = [
        replace(device, context_bytes=measured_context(device), shared_bytes=SHARED_BYTES * (device.kind == "cpu"))
        for device in with_leased(devices)
    ]
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


def _plan_of(
    devices: Sequence[Device],
    requests: Sequence[Request],
    settings: Settings,
    before: Plan | None = None,
    lost: Collection[Device] = (),
) -> Plan:
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
        before=before,
        lost=lost,
    )


class Replanning:
    """Plans all devices again when more is known of what trials take, or devices have joined.

    So a device that was too small for a first guess is used, and more trials run at once where they fit.
    """

    def __init__(self, settings: Settings, more: Callable[[], int]) -> None:
        """A search may suggest as many ``more`` trials, which are taken to be like those before."""
        self._settings, self._more = settings, more
        self._due = False

    def hear(self, state: State, event: Event) -> None:
        """Needs have changed, or devices have come or gone."""
        self._due |= isinstance(event, (Corrected, Joined, DeviceLost))

    def decide(self, state: State, now: float) -> Decision | None:
        """Another plan, if it has more devices or more slots."""
        if not self._due or state.plan is None or state.stopping:
            return None
        plan = state.plan
        alike = [*state.waiting.values()] or [run.request for run in state.running.values()]
        joined = usable([device for device in state.joined if device.kind == plan.devices[0].kind], self._settings)
        if not alike:  # all are delayed or paused
            return None
        self._due = False
        if not (joined or self._may_grow(state, alike)):
            return None
        alike = [replace(one, need_bytes=min(one.need_bytes, state.limits.device_bytes)) for one in alike]
        number = len(state.left) + len(state.running) + self._more()
        requests, devices = list(islice(cycle(alike), number)), (*plan.devices, *joined)
        try:
            again = _plan_of(devices, requests, self._settings, plan, state.lost)
        except InputError:  # the largest fits nowhere any more
            return None
        most = self._settings.most_workers
        within = most is None or sum(again.slots) <= max(most, sum(plan.slots))
        return Replanned(again) if within and (joined or sum(again.slots) > sum(plan.slots)) else None

    def _may_grow(self, state: State, alike: Sequence[Request]) -> bool:
        """Whether some device has fewer slots than the smallest trials that would fit."""
        plan, least = state.plan, max(1, min(one.need_bytes for one in alike))
        assert plan is not None, "the study has been opened"
        each = zip(plan.devices, plan.budgets, plan.slots, strict=True)
        return any(device not in state.lost and budget // least > slots for device, budget, slots in each)


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
