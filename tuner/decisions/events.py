"""What happens in a study. A study's state is what its events add up to: ``state.apply`` is the sum.

Some events come from outside: what executors report, and the capacity that other programs do not use. The others are
decisions of a policy (``policies.py``). On disk are ``Reported``, ``Ended`` and what is ``Planned``, in one order.
Times are seconds of the study's clock, which never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.decisions.plan import Plan
from tuner.trial import (
    GB,
    AttemptResult,
    ConfigValue,
    Device,
    EpochReport,
    MemoryEstimate,
    Outcome,
    Placement,
    Request,
    Trial,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """There are trials to run: those that are known from the start, or what a search suggested.

    Without any, a search has suggested only what cannot be used.
    """

    requests: tuple[Request, ...]
    raw: Mapping[str, MemoryEstimate]  # each trial's estimate before calibration, by trial id
    suggested: bool = False  # whether the search has just suggested them, so that it knows them
    refused: tuple[Mapping[str, ConfigValue], ...] = ()  # what it suggested before and cannot be used

    def __str__(self) -> str:
        if len(self.requests) != 1:
            return f"{len(self.requests)} trials are planned"
        (first,) = self.requests
        return f"{first.trial.trial_id} is planned with {first.need_bytes / GB:.2f} GB"


@dataclass(frozen=True, slots=True)
class Opened:
    """A plan divides the devices, and trials may start. ``requests`` wait, the first ones to learn from."""

    plan: Plan
    requests: tuple[Request, ...]

    def __str__(self) -> str:
        return f"{len(self.requests)} waiting, {self.plan.workers} at once, bound by {self.plan.bound}"


@dataclass(frozen=True, slots=True)
class Joined:
    """Further devices have joined a cluster. The next plan has them. Without any, a node is left out."""

    devices: tuple[Device, ...]
    why: str = ""  # it is left out

    def __str__(self) -> str:
        """The text for the user."""
        return self.why or f"{', '.join(device.label for device in self.devices)} joined"


@dataclass(frozen=True, slots=True)
class Replanned:
    """More is known of what trials take, or further devices have joined: a plan divides all devices anew."""

    plan: Plan

    def __str__(self) -> str:
        slots = dict(zip((device.label for device in self.plan.devices), self.plan.slots, strict=True))
        return f"{self.plan.workers} at once, bound by {self.plan.bound}; slots are {slots}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The study asks a cluster, which others use, too, for one of its devices."""

    device: Device

    def __str__(self) -> str:
        return f"{self.device.label} is asked for"


@dataclass(frozen=True, slots=True)
class Held:
    """A device of a cluster is the study's until it is ``Released``."""

    device: Device

    def __str__(self) -> str:
        return f"{self.device.label} is held"


@dataclass(frozen=True, slots=True)
class Released:
    """The study gives a cluster's device back once nothing runs there, or wants it no more."""

    device: Device

    def __str__(self) -> str:
        return f"{self.device.label} is given back"


@dataclass(frozen=True, slots=True)
class Contended:
    """For which of the devices that the study holds others wait, and of those the fewest that one of them holds."""

    devices: Mapping[Device, int]

    def __str__(self) -> str:
        return f"others wait for {', '.join(device.label for device in self.devices) or 'nothing'}"


@dataclass(frozen=True)
class DeviceLost:
    """A device is lost with its node, so that nothing more can be placed on it."""

    device: Device
    reason: str

    def __str__(self) -> str:
        """The text for the user."""
        return f"{self.device.label} is lost: {self.reason}"


@dataclass(frozen=True)
class Bounds:
    """The capacity that other programs and other studies do not use, so that trials may be placed there now."""

    rooms: Mapping[Device, int]  # the bytes of each device; a device that is missing has no bound
    most: int | None = None  # the number of trials; None for no bound
    ram_bytes: int | None = None  # of this machine's RAM beside its GPUs; None for no bound


@dataclass(frozen=True, slots=True)
class CapacityObserved:
    """The capacity that other programs do not use. While it is None, nothing may start."""

    bounds: Bounds | None

    def __str__(self) -> str:
        if self.bounds is None:
            return "no trial starts before the devices are looked at again"
        rooms = {device.label: f"{room / GB:.2f} GB" for device, room in self.bounds.rooms.items()}
        return f"other processes leave {rooms or 'all'}; at most {self.bounds.most} trials"


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt of a waiting trial starts in this place."""

    request: Request
    placement: Placement

    def __str__(self) -> str:
        trial, place = self.placement.trial, self.placement
        return (
            f"{trial.trial_id} starts attempt {trial.attempt} on {place.label} with "
            f"{place.limit_bytes / GB:.2f} GB ({place.fraction:.3f} of its budget); estimated were {place.estimate}"
        )


@dataclass(frozen=True, slots=True)
class Reported:
    """A running trial has begun to train, or finished an epoch."""

    report: EpochReport
    at: float

    def __str__(self) -> str:
        metrics = {name: f"{value:.6g}" for name, value in self.report.metrics.items()}
        return f"{self.report.trial_id} reports epoch {self.report.epoch}: {metrics}"


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt has ended: completed, pruned, out of memory, failed, stalled or lost, as its ``result`` says."""

    trial: Trial
    result: AttemptResult
    metrics: Mapping[str, float | None]
    at: float = 0.0
    estimated_bytes: int = 0  # its estimated total; a peak with a smaller share says nothing about other trials
    outcome: Outcome | None = None  # all that is known of it; None if it was read from the journal
    epochs: int = 0  # how many were done

    def __str__(self) -> str:
        peak = "" if self.result.peak_bytes is None else f", peak {self.result.peak_bytes / GB:.2f} GB"
        error = f": {self.outcome.error}" if self.outcome and self.outcome.error else ""
        return f"{self.trial.trial_id} ended attempt {self.trial.attempt}: {self.result.status}{peak}{error}"


@dataclass(frozen=True, slots=True)
class Retried:
    """Another attempt follows at ``due``; earlier if nothing else runs, unless it ``always`` waits."""

    ended: Ended
    request: Request
    due: float
    delay_seconds: float = 0.0
    always: bool = False
    raw: MemoryEstimate | None = None  # its estimate before calibration, if its values have changed

    def __str__(self) -> str:
        had, now = self.ended.result.limit_bytes / GB, self.request.need_bytes / GB
        return (
            f"{self.ended.trial.trial_id} is tried again in {self.delay_seconds:.1f} s with {now:.2f} GB after "
            f"{had:.2f} GB: {self.ended.result.status}, {self.request.history}"
        )


@dataclass(frozen=True, slots=True)
class RetryReady:
    """The delay of a retry is over, and it waits for a place."""

    request: Request

    def __str__(self) -> str:
        return f"{self.request.trial.trial_id} has waited long enough"


@dataclass(frozen=True, slots=True)
class Concluded:
    """A trial has ended for good with its last attempt."""

    ended: Ended

    def __str__(self) -> str:
        return f"{self.ended.trial.trial_id} is not tried again: {self.ended.result.status}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trial will never run: it fits no device, or others have held its memory for too long."""

    request: Request
    outcome: Outcome

    def __str__(self) -> str:
        return f"{self.request.trial.trial_id} is dropped: {self.outcome.error}"


@dataclass(frozen=True, slots=True)
class Corrected:
    """Waiting trials have other estimates than before."""

    requests: Mapping[str, Request]  # by trial id

    def __str__(self) -> str:
        needs = {name: f"{request.need_bytes / GB:.2f} GB" for name, request in list(self.requests.items())[:8]}
        return f"needs of {len(self.requests)} waiting trials are corrected: {needs}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A device may run this number of trials at once."""

    device: Device
    workers: int
    said: str = ""  # why, in words for the user; empty if nothing was compared yet

    def __str__(self) -> str:
        return f"{self.device.label} runs {self.workers} trials at once: {self.said or 'a first try'}"


@dataclass(frozen=True, slots=True)
class PruneAsked:
    """A running trial is asked to end early, as a pruner says."""

    trial_id: str

    def __str__(self) -> str:
        return f"{self.trial_id} is asked to end early"


@dataclass(frozen=True, slots=True)
class Stopping:
    """The study is asked to end: nothing more starts."""

    why: str = ""

    def __str__(self) -> str:
        return f"the study is asked to stop{': ' * bool(self.why)}{self.why}"


Decision = (
    Opened
    | Started
    | Retried
    | RetryReady
    | Concluded
    | Dropped
    | Corrected
    | Allowed
    | PruneAsked
    | Planned
    | Replanned
    | Wanted
    | Released
    | Stopping
)
Event = Decision | CapacityObserved | Reported | Ended | Joined | Held | Contended | DeviceLost
