"""What trials need of a study's devices, and what they can have there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from tuner.decisions.capacity import TrialLimits, largest_ram, ram_budgets
from tuner.decisions.constraints import INFERENCE, broken, known_figures
from tuner.decisions.events import Dropped
from tuner.decisions.plan import budget_bytes, host_need_bytes, need_bytes
from tuner.errors import InputError, one_line, option
from tuner.estimation.calibration import Sample
from tuner.estimation.estimate_cache import memory_key
from tuner.estimation.estimators import first_share, with_room
from tuner.estimation.feedback import corrected
from tuner.estimation.overheads import with_host
from tuner.estimation.service import IN_RAM, EstimatePair, EstimationService
from tuner.reporting import phases
from tuner.spec.memory_groups import check_gb
from tuner.spec.settings import Settings
from tuner.study.ranks import check_ranks
from tuner.trial import (
    AUTO,
    GB,
    MOST_RANKS,
    NODES,
    RANKS,
    Configuration,
    Device,
    MemoryEstimate,
    Outcome,
    Phase,
    Request,
    Status,
    Trial,
)
from tuner.workloads.base import Trainable, Workload
from tuner.workloads.task import Tasks, TrainingTask, smaller


@dataclass(frozen=True)
class Estimates:
    """The estimated needs of a study's trials."""

    requests: tuple[Request, ...] = ()  # one for each trial, in their order, with its estimate and its need
    # Each trial's estimate before calibration, by trial id.
    raw: Mapping[str, MemoryEstimate] = field(default_factory=dict)


@dataclass(frozen=True)
class Needs:
    """What trials need of these devices, and whether they can have it.

    Trials whose configurations differ only in values without effect on memory share one estimate.
    """

    tasks: Tasks
    devices: Sequence[Device]
    settings: Settings
    _pairs: dict[tuple[str, str], EstimatePair] = field(default_factory=dict, init=False)  # by workload, memory_key

    @cached_property
    def limits(self) -> TrialLimits:
        """The most that a trial may have on these devices."""
        return limits_of(self.devices, self.settings)

    @cached_property
    def service(self) -> EstimationService:
        """The estimation service that the options ask for."""
        settings = self.settings
        return EstimationService(
            settings.memory_estimation,
            settings.calibration,
            settings.expandable_segments,
            tell=phases.estimating,
            build=settings.estimate,
            inference=INFERENCE in settings.compared_by,
            inference_batch=settings.inference_batch,
        )

    @cached_property
    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Samples of each workload's earlier trials on these devices, by which its estimates are calibrated."""
        return {task: self.samples_of(task) for task in self.tasks}

    @cached_property
    def samples_in_ram(self) -> Mapping[str, Sequence[Sample]]:
        """The same of what trials on GPUs took of their host's RAM."""
        gpus = [device for device in self.devices if device.kind == "cuda"]
        return {task: self._samples(task, gpus, IN_RAM) for task in self.tasks}

    def samples_of(self, kind: str) -> list[Sample]:
        """Samples of earlier trials of a ``kind_of`` on these devices."""
        return self._samples(kind, self.devices if self.settings.estimates_memory else ())

    def _samples(self, kind: str, devices: Sequence[Device], of: str = "") -> list[Sample]:
        names = dict.fromkeys(device.name for device in devices)
        return [one for name in names for one in self.service.samples(kind, name, of)]

    @cached_property
    def _on_gpus(self) -> bool:
        return any(device.kind == "cuda" for device in self.devices)

    def of(self, trials: Sequence[Trial]) -> Estimates:
        """What each trial needs on the device on which it needs the most.

        Raises:
            InputError: a footprint cannot be estimated, the calibration is damaged, or a trial can run on no CPU.
        """
        check_amp(self.tasks, trials, self.devices)
        trials = [self._with_ranks(trial) for trial in trials]
        for trial in trials:
            check_ranks(self.tasks[trial.workload].workload, trial, self.settings)
        if self.settings.estimates_memory:
            self._estimate([trial for trial in trials if _key(trial) not in self._pairs], len(trials))
            pairs = [self._pairs[_key(trial)] for trial in trials]
        else:
            pairs = [self._given(trial) for trial in trials]
        requests = [self.request(trial, pair.calibrated) for trial, pair in zip(trials, pairs, strict=True)]
        raw = {trial.trial_id: pair.raw for trial, pair in zip(trials, pairs, strict=True)}
        return Estimates(tuple(requests), raw)

    def request(self, trial: Trial, estimate: MemoryEstimate) -> Request:
        """The request of a trial with this estimate."""
        host_bytes = host_need_bytes(estimate) if self._on_gpus else 0
        return Request(trial, estimate, need_bytes(estimate), host_bytes=host_bytes)

    def remember(self, estimates: Estimates) -> None:
        """Further trials that take the same memory have these estimates."""
        for request in reversed(estimates.requests):
            raw = estimates.raw[request.trial.trial_id]
            self._pairs[_key(request.trial)] = EstimatePair(raw, request.estimate)

    def _with_ranks(self, trial: Trial) -> Trial:
        """The trial with the fewest of 1, 2, 4 and 8 ranks with which it should fit, if they are ``AUTO``."""
        if trial.config.get(RANKS) != AUTO:
            return trial
        nodes = trial.config.get(NODES, 1)
        chosen = replace(trial, config={**trial.config, RANKS: 1})
        for ranks in (1, 2, 4, 8) if nodes in (1, 2, 4, 8) else ():
            one = replace(trial, config={**trial.config, RANKS: ranks})
            with suppress(InputError):  # its batch cannot be divided by this number
                (request,) = self.of([one]).requests
                if self.limits.of(one.shape)[0]:  # if none fits, the error is about the most that have a place
                    chosen = one
                if self.limits.fits(self.within(request)):
                    break
        return chosen

    def _estimate(self, trials: Sequence[Trial], together: int) -> None:
        """Estimates trials; with others that have an estimate, this many were asked for together."""
        kinds = list({device.name: device for device in self.devices}.values())
        for name, task in self.tasks.items():
            mine = [trial for trial in trials if trial.workload == name]
            for trial, pair in zip(mine, self._largest(task, mine, kinds), strict=True):
                if pair.raw.is_learned:
                    most = self.limits.of(trial.shape)[0] or self.limits.device_bytes
                    room = with_room(pair.raw, min(most, self._first_room(together, pair.raw)))
                    pair = EstimatePair(room, room)
                self._pairs[_key(trial)] = self.in_ram(name, pair)

    def _largest(self, task: TrainingTask, trials: Sequence[Trial], kinds: Sequence[Device]) -> list[EstimatePair]:
        """Each trial's estimate on the device on which it needs the most."""
        listed = [Configuration(trial.name, trial.config) for trial in trials]
        on_each = [self.service.estimate_all(task.workload, listed, task.data, device) for device in kinds if listed]
        return [max(pairs, key=lambda pair: need_bytes(pair.calibrated)) for pairs in zip(*on_each, strict=True)]

    def _first_room(self, trials: int, raw: MemoryEstimate) -> int:
        """The share in bytes of each first trial whose footprint is not known yet."""
        settings = self.settings
        roomiest = max(self.devices, key=lambda device: budget_bytes(device, settings.buffer_bytes))
        cores = 0 if self._on_gpus and settings.max_workers else roomiest.cores
        most = min(filter(None, (cores, settings.max_workers, max(trials, settings.num_samples or 0))))
        return first_share(self.limits.device_bytes, most, raw.context_bytes + raw.headroom_bytes)

    def _given(self, trial: Trial) -> EstimatePair:
        gb = given_gb(self.tasks[trial.workload].workload, trial, self.settings)
        largest = max(self.devices, key=lambda device: device.context_bytes)
        if (taken_gb := largest.context_bytes / GB) >= gb:
            before = f"a process takes {taken_gb:.2f} GB of {largest.label} before its first tensor"
            raise InputError(f"{trial.name}: {gb:.2f} GB is given, and {before}: give more than both together")
        given = MemoryEstimate.given(gb)
        return self.in_ram(trial.workload, EstimatePair(given, given))

    def in_ram(self, workload: str, pair: EstimatePair) -> EstimatePair:
        """The estimates with what a trial on a GPU takes of its host's RAM."""
        if not self._on_gpus:
            return pair
        task, samples = self.tasks[workload], self.samples_in_ram[workload]
        raw = with_host(pair.raw, task.own_bytes, keeps_weights=isinstance(task.workload, Workload))
        host_bytes = corrected(raw.host_bytes, samples)
        return EstimatePair(raw, replace(pair.calibrated, host_bytes=host_bytes, host_measured=bool(samples)))

    def within(self, request: Request) -> Request:
        """The request limited to a whole device and a host's RAM, if the trial can run with that.

        A guess of the RAM may be far too high, so only a measured need can be too large.
        """
        most, ram = self.limits.of(request.trial.shape)
        if not request.estimate.host_measured or request.estimate.host_bytes <= ram:
            request = replace(request, host_bytes=min(request.host_bytes, ram))
        if most and (request.estimate.least_bytes <= most or self._may_shrink(request.trial)):
            return replace(request, need_bytes=min(request.need_bytes, most))
        return request

    def _may_shrink(self, trial: Trial) -> bool:
        """Whether the trial may be trained in smaller parts; which phase needs the most is not known."""
        phases: tuple[Phase, ...] = ("training", "evaluation")
        return self.settings.on_oom == "accumulate" and any(smaller(self.tasks, trial, phase) for phase in phases)

    def fitting(self, requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        """The requests that some device can serve, and those that none can."""
        fit, infeasible = list[Request](), list[Request]()
        for request in requests:
            runs = self.limits.fits(self.within(request)) and not unwanted(request, self.settings)
            (fit if runs else infeasible).append(request)
        return fit, infeasible

    def dropped(self, request: Request) -> Dropped:
        """The event of a trial that fits no device, or breaks a constraint."""
        status: Status = "too_large" if self.settings.skip_too_large else "pruned"
        status = "infeasible" if unwanted(request, self.settings) else status
        return Dropped(request, Outcome(request.trial, status, error=self.infeasible_text(request)))

    def infeasible_text(self, request: Request) -> str:
        """Why a trial was not run."""
        if why := unwanted(request, self.settings):
            return f"not run: {why}"
        most, ram = self.limits.of(request.trial.shape)
        need_gb, most_gb, ranks = request.need_bytes / GB, most / GB, request.trial.ranks
        if request.need_bytes <= most:
            need_gb, most_gb = request.host_bytes / GB, ram / GB
            return f"not run: needs {need_gb:.2f} GB of RAM, and no machine has more than {most_gb:.2f} GB for it"
        if ranks > 1:
            return f"not run: each of {ranks} ranks needs {need_gb:.2f} GB, and has at most {most_gb:.2f} GB"
        return f"not run: needs {need_gb:.2f} GB, and no device has more than {most_gb:.2f} GB for it"


def _key(trial: Trial) -> tuple[str, str]:
    """Trials with the same key take the same memory."""
    return trial.workload, memory_key(trial.config)


def limits_of(devices: Sequence[Device], settings: Settings) -> TrialLimits:
    """The most that a trial may have on these devices."""
    buffer_bytes = settings.buffer_bytes
    places = tuple((device, budget_bytes(device, buffer_bytes), MOST_RANKS) for device in devices)
    largest = max((budget for _, budget, _ in places), default=0)
    return TrialLimits(largest, largest_ram(devices, ram_budgets(devices, buffer_bytes)), places)


def unwanted(request: Request, settings: Settings) -> str:
    """Which constraints a trial is known to break before it runs; empty for none."""
    return broken(settings.limited_by, known_figures(request.estimate)) if settings.constraints else ""


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
        gb = given(workload.arguments_of(trial.config))
    except Exception as error:
        raise InputError(f"{trial.name}: {name} raised {type(error).__name__}: {one_line(error, 200)}") from error
    return check_gb(gb, f"{trial.name}: {name} returned {one_line(repr(gb), 80)}")


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
