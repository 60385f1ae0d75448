"""The loop of every study: take events, record them, apply them to the state, decide, act.

A study that runs, one that is resumed and one that is simulated differ in executor, clock and listener.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tuner.decisions.constraints import constrained
from tuner.decisions.events import (
    Allowed,
    Bounds,
    CapacityObserved,
    Contended,
    Corrected,
    DeviceLost,
    Dropped,
    Ended,
    Event,
    Held,
    Joined,
    Opened,
    Planned,
    PruneAsked,
    Released,
    Replanned,
    Reported,
    RetryReady,
    Started,
    Stopping,
    Wanted,
)
from tuner.decisions.packer import Packer
from tuner.decisions.policies import LOG, Engine
from tuner.decisions.retry import NodeFailures
from tuner.decisions.state import State
from tuner.errors import DevicesLost, ExecutionError, joined, with_text
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.executor import Executor, Happening, Weights
from tuner.execution.stall_detector import StallDetector
from tuner.machine.caps import near_cap
from tuner.machine.interrupts import Interrupt, TimeLimitReached
from tuner.trial import GB, Began, Device, EpochReport, Outcome, Placement, Question, Request
from tuner.values import Condition

POLL_SECONDS = 0.5
FREE_SECONDS = 3.0  # in which a free device of a cluster is held
STOP_SECONDS = 10.0  # for checkpoints at the end of the study; a second signal ends the wait


class EndedEarly(Exception):
    """A policy has ended the study, as the text says."""


class Listener:
    """Is told what happens in a study, to record and to show it. This one does neither."""

    def append(self, outcome: Outcome, weights: Weights) -> None:
        """An attempt has ended. It is recorded before the study goes on; ``weights`` fetches the best epoch's."""

    def hear(self, state: State, event: Event) -> None:
        """An event has happened; ``state`` is the study's after it."""

    def answer(self, question: Question) -> object:
        """The answer to a trial's question; what it raises is raised in the trial."""

    def noted(self, text: str) -> None:
        """A notice for the user: a trial waits for memory, or has long reported nothing."""

    def tick(self) -> None:
        """Time has passed: at most ``POLL_SECONDS``, or as long as an executor takes for its next event."""

    def stopping(self, trials: int, seconds: float, fault: str = "") -> None:
        """The study ends. Running trials have this time to write checkpoints, or cannot because of ``fault``."""


@dataclass
class StudyLoop:
    """Runs a study's trials, as many at a time as fit, until each has ended for good.

    ``arbiter`` knows what others use of the devices; by default that is nothing. ``stalls`` says which trials
    have reported nothing for too long; by default none is ended for that.
    """

    engine: Engine  # the study, ``Opened``; one of its policies is ``packer``
    packer: Packer
    executor: Executor
    listener: Listener
    interrupt: Interrupt = field(default_factory=Interrupt)
    arbiter: DeviceArbiter = field(default_factory=DeviceArbiter)
    stalls: StallDetector = field(default_factory=StallDetector)
    clock: Callable[[], float] = time.monotonic
    changed: bool = False  # whether more may fit than at the last look at the devices
    look_again: float = 0.0  # when to ask the arbiter again
    constraints: Sequence[Condition] = ()
    known: Collection[str] = ()  # the figures, known before, that trials are compared by
    more: Callable[[], int] = lambda: 0  # how many trials a search may still suggest
    most_workers: int | None = None
    waits_since: float = 0.0  # for a device of a cluster; negative if that has been said
    of_nodes: NodeFailures = field(default_factory=NodeFailures)
    why: str = ""  # a policy has ended the study
    gone: set[str] = field(default_factory=set)  # the ids of trials whose workers a signal to the study has ended

    def run(self) -> None:
        """Runs the study to its end.

        Raises:
            ExecutionError: all devices are lost, or the folder can no longer be written.
            KeyboardInterrupt: the user ended the study. Running trials have had ``STOP_SECONDS`` for checkpoints.
            TimeLimitReached: the same at the time limit.
            EndedEarly: the same, as a policy has decided.
        """
        while True:
            try:
                self.interrupt.check()
            except (KeyboardInterrupt, TimeLimitReached):
                self.stop()
                raise
            self.decide()
            while not self.engine.state.stopping and self.place():
                self.decide()
            over = self.engine.state.is_over
            if over and not (self.why and self.more()):
                return
            if self.engine.state.stopping:
                self.stop()
                raise EndedEarly(self.why)
            self.executor.demand(self.engine.state, self.most_workers)
            self._say_what_is_waited_for()
            self.listen(self.interrupt.seconds_left(self._seconds_until_next()))
            self.listener.tick()

    def take(self, event: Event) -> None:
        """Applies an event, and carries out what it decides."""
        self.engine.take(event)
        self.listener.hear(self.engine.state, event)
        if isinstance(event, Started):
            self.executor.submit(event.placement)
        elif isinstance(event, PruneAsked):
            self.executor.prune(event.trial_id)
        elif isinstance(event, Replanned):
            self.executor.replan(event.plan)
        elif isinstance(event, Wanted):
            if self.executor.claim(event.device):
                self.take(Held(event.device))
        elif isinstance(event, Released):
            self.executor.release(event.device)
        elif isinstance(event, Stopping) and event.why:
            self.why = event.why
            self.listener.noted(f"the study ends: {event.why}")
        if isinstance(event, (Opened, Replanned, Held, Ended, Allowed, Planned, RetryReady)):
            self.changed = True

    def decide(self) -> None:
        """Asks the policies until they have nothing more to decide."""
        while decision := self.engine.decide(self.clock()):
            self.take(decision)

    def place(self) -> bool:
        """Starts the trials that fit beside other programs; returns whether there may be more to decide."""
        now = self.clock()
        if not self.changed and (now < self.look_again or self.packer.held_back() is None):
            return False
        with self.arbiter.placing(self._placements()) as bounds:
            self.take(CapacityObserved(bounds))
            seen = self.engine.state.number
            self.decide()
            held = self.packer.held_back()
            if self.engine.state.number == seen and held and (request := self.arbiter.remains(held)):
                if request.trial.ranks > 1:  # all of which must have a place
                    waiting = self.engine.state.waiting[request.trial.trial_id]
                    cut = replace(waiting, need_bytes=request.need_bytes)
                    self.take(Corrected({request.trial.trial_id: cut}))
                    self.decide()
                else:
                    self.take(Started(request, self.packer.placement(request, held[1])))
            placed = self.engine.state.number > seen
            self.arbiter.reserve(self._placements())
            wait = self.arbiter.wait(held, placed=placed)
        self.take(CapacityObserved(None))
        if self.changed and self.engine.state.waiting:
            self._log_waiting(held, bounds)
        self.changed, self.look_again = False, now + POLL_SECONDS if held else 0.0
        if wait.text:
            self.listener.noted(wait.text)
        if wait.given_up and held:
            self.take(Dropped(held[0], Outcome(held[0].trial, "failed", error=wait.given_up)))
        return placed or bool(wait.given_up)

    def listen(self, timeout_seconds: float) -> None:
        """Takes what has happened; waits for the first event for at most this time.

        Raises:
            ExecutionError: all devices are lost.
        """
        for happening, weights in self.executor.poll(timeout_seconds):
            self._take_in(happening, weights)
            while self.engine.state.undecided and (decision := self.engine.decide(self.clock())):
                self.take(decision)  # what follows an attempt; all else is decided when everything has been heard
        stalled, notices = self.stalls.look()
        if self.engine.state.stopping:  # no trial is tried again
            return
        for trial_id, error in stalled.items():
            self.stalls.ends(trial_id)
            self.executor.end(trial_id, error)
        for notice in notices:
            self.listener.noted(notice)

    def stop(self) -> None:
        """Asks training trials to end, and waits for their checkpoints until the deadline or another signal."""
        if not (training := self._training()):
            return
        if not self.engine.state.stopping:
            self.take(Stopping())
        signals, deadline = self.interrupt.signals, self.clock() + STOP_SECONDS
        try:
            self.executor.stop()
        except ExecutionError as error:  # the study still ends properly
            self.listener.stopping(training, 0.0, error.text)
            return
        self.listener.stopping(training, STOP_SECONDS)
        while self._training() and self.interrupt.signals == signals and self.clock() < deadline:
            self.listen(POLL_SECONDS)

    def _take_in(self, happening: Happening, weights: Weights) -> None:
        running = self.engine.state.running
        if isinstance(happening, Began):
            self.stalls.begins(running[happening.trial_id].placement.trial)
        elif isinstance(happening, EpochReport):
            self.stalls.hears(happening.trial_id, happening.epoch)
            if happening.again and happening.epoch <= self.engine.state.reported.get(happening.trial_id, 0):
                return
            if happening.metrics:
                self.of_nodes.served.add(running[happening.trial_id].placement.device.node_id)
            self.take(Reported(happening, self.clock()))
        elif isinstance(happening, Question):
            answer = self._answer(happening)
            if happening.waits:
                self.executor.answer(happening.trial_id, answer)
            self.stalls.hears(happening.trial_id)
        elif isinstance(happening, (Held, Contended)):
            self.take(happening)
        elif isinstance(happening, Joined) and not self.engine.state.stopping:
            self.take(happening)
            self.listener.noted(str(happening))
        elif isinstance(happening, DeviceLost):
            self._lose(happening)
        elif isinstance(happening, Outcome):
            self.stalls.ends(happening.trial.trial_id)
            if self.interrupt.requested and happening.status == "failed":  # Ctrl-C ends the workers, too
                self.gone.add(happening.trial.trial_id)
                return
            judged, lost = self.of_nodes.judge(self._unless_starved(happening), self.engine.state)
            outcome = constrained(judged, self.constraints, self.known)
            assert outcome.placement is not None
            self.listener.append(outcome, weights)
            size = outcome.placement.estimate.predicted_bytes or 0
            self.take(
                Ended(outcome.trial, outcome.result, outcome.metrics, self.clock(), size, outcome, outcome.epochs)
            )
            for one in lost:
                self._lose(one)
                self.executor.release(one.device)

    def _say_what_is_waited_for(self) -> None:
        """Says once, before the first trial, that others use all devices of a cluster."""
        state, now = self.engine.state, self.clock()
        if state.wanted and not (state.running or state.reported or state.undecided or state.ended):
            self.waits_since = self.waits_since or now
            if 0 < self.waits_since <= now - FREE_SECONDS:
                self.waits_since = -1.0
                names = ", ".join(sorted(device.label for device in state.wanted))
                self.listener.noted(f"others use {names}: the study starts with the first that becomes free")

    def _lose(self, happening: DeviceLost) -> None:
        self.take(happening)
        self.listener.noted(str(happening))
        state = self.engine.state
        if not state.limits.device_bytes and not state.stopping:
            raise DevicesLost(f"every device is lost, the last was {happening.device.label}: {happening.reason}")

    def _answer(self, question: Question) -> object:
        try:
            return self.listener.answer(question)
        except Exception as error:
            return with_text(error)

    def _unless_starved(self, outcome: Outcome) -> Outcome:
        """The outcome, naming who held the memory if the trial ran out of it within its share.

        A worker reports that itself. If it was killed or could not begin, others must hold what the plan counted on,
        unless it had taken all of its own share.
        """
        place = outcome.placement
        assert place is not None
        unclear = outcome.lost == "worker" or (outcome.phase == "start" and not outcome.lost)
        if outcome.status != "out_of_memory" or not (outcome.lost == "memory" or unclear):
            return outcome
        in_ram = outcome.short_of == "RAM"
        had, peak = (place.host_bytes, outcome.host_peak_bytes) if in_ram else (place.limit_bytes, outcome.peak_bytes)
        own = unclear and had and near_cap(peak, had)
        who = "" if own else self.arbiter.short(place.device, outcome.short_of)
        if not who and unclear:
            return outcome
        error = joined(outcome.error, who, "the attempt does not count")
        return replace(outcome, lost="memory", error=error)

    def _log_waiting(self, held: tuple[Request, Device] | None, bounds: Bounds) -> None:
        """Says why trials wait: for the study's own trials, or for ``held`` on its device for other programs."""
        waiting = self.engine.state.waiting
        if held is None:
            room = self.packer.room_bytes / GB
            free = f"{room:.2f} GB are free on the emptiest device" if room else "no device has a free slot"
            LOG.debug("%d waiting for others of the study: %s", len(waiting), free)
            return
        request, device = held
        rooms = {"memory": bounds.rooms.get(device), "RAM": bounds.ram_bytes}
        room_texts = {name: "all" if room is None else f"{room / GB:.2f} GB" for name, room in rooms.items()}
        LOG.debug(
            "%s waits for other programs: it needs %.2f GB of %s and %.2f GB of RAM; they leave %s, and cores for %s",
            *(request.trial.trial_id, request.need_bytes / GB, device.label, request.host_bytes / GB),
            *(room_texts, "all" if bounds.most is None else bounds.most),
        )

    def _placements(self) -> list[Placement]:
        return [place for run in self.engine.state.running.values() for place in run.placement.all]

    def _training(self) -> int:
        """How many trials have reported and still run."""
        running = self.engine.state.running.items()
        return sum(run.epoch is not None and trial_id not in self.gone for trial_id, run in running)

    def _seconds_until_next(self) -> float:
        """The seconds until the next retry, at most ``POLL_SECONDS``."""
        first = self.engine.state.first_delayed
        return max(0.0, min(POLL_SECONDS, first.due - self.clock())) if first else POLL_SECONDS
