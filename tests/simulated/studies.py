"""Runs the simulated study of a seed, with its crashes: in every process it is built of what the journal says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from tests.simulated.rules import Rules
from tests.simulated.world import OBJECTIVE, Crash, Journal, Machines, Others, Stalls, World
from tuner.decisions.capacity import TrialLimits
from tuner.decisions.claims import Claims
from tuner.decisions.events import Contended, DeviceLost, Joined, Opened, Planned
from tuner.decisions.packer import Packer
from tuner.decisions.policies import Engine, Policy, replay
from tuner.decisions.retry import Retrying
from tuner.decisions.state import State
from tuner.estimation.feedback import StudyFeedback
from tuner.execution.loop import StudyLoop
from tuner.spec.settings import Settings
from tuner.study.planning import Replanning
from tuner.study.pruning import Pruning
from tuner.study.resume import events_of
from tuner.trial import Request

MOST_EVENTS = 20_000


class Process:
    """A process of a study: it knows what the journal says, and nothing else."""

    def __init__(self, world: World, journal: Journal, rules: Rules, now: float) -> None:
        machines = Machines(lambda _: 0.0, now=now, world=world)
        self.machines, self.rules, self.world = machines, rules, world
        journal.now = machines.clock
        self.feedback = StudyFeedback({}, {"toy": ()})
        retrying, packer = Retrying(world.policy, world.smaller, world.seed), Packer()
        pruning: list[Policy] = []
        if world.seed % 10 == 3:
            scheduler = Random(world.seed).choice(["asha", "median"])
            pruning = [Pruning({"toy": OBJECTIVE}, Settings(scheduler=scheduler))]
        limits = TrialLimits(max(world.plan.budgets), world.plan.limits().ram_bytes)
        settings = Settings(
            packing=world.plan.packing, gpu_memory_buffer_gb=1.0, max_workers=world.plan.max_workers, threads=1
        )
        again, claims = Replanning(settings, lambda: 0), Claims(packer)
        self.engine = Engine(State(limits), [retrying, self.feedback, *pruning, again, claims, packer])
        raw = {request.trial.trial_id: request.estimate for request in world.requests}
        self.engine.take(Planned(world.requests, raw))
        trials = {request.trial.trial_id: request.trial for request in world.requests}
        replay(self.engine, retrying, events_of(journal.rows, journal.lines, trials))
        stalls = Stalls(machines.clock)
        others = Others(world, machines.clock)
        self.loop = StudyLoop(
            self.engine, packer, machines, journal, arbiter=others, stalls=stalls, clock=machines.clock
        )

    def left(self) -> dict[str, Request]:
        """The requests of the trials that are left, by their ids, as they would start now."""
        return {request.trial.trial_id: self.feedback.correct(request) for request in self.engine.state.left}

    def run(self) -> None:
        """Runs the study to its end, or to a crash."""
        for at, device in self.world.deaths:
            self.machines.add(max(at, self.machines.now), DeviceLost(device, "its node died"))
        if self.world.seed % 4 == 2:
            draw = Random(self.world.seed)
            device = replace(self.world.plan.devices[0], node_id="late", index=9)
            self.machines.add(self.machines.now + draw.uniform(0, 60), Joined((device,)))
            shared = {one: 0 for one in (*self.world.plan.devices, device) if one.node_id}
            for begin, devices in ((0, shared), (60, {})):  # others wait for them, until they have one
                self.machines.add(self.machines.now + begin + draw.uniform(0, 60), Contended(devices))
        self.rules.before = self.engine.state
        self.loop.take(Opened(self.world.plan, tuple(self.feedback.begin(self.engine.state.left))))
        self.loop.run()


def run_study(seed: int) -> Rules:
    """Runs the study of a seed, which may crash and be resumed up to three times."""
    world, draw = World.of(seed), Random(-seed - 1)
    rules = Rules(world)

    def check(state: State, event: object) -> None:
        rules.now = process.machines.now
        rules.check(state, event)  # type: ignore[arg-type]
        assert state.number < MOST_EVENTS, "the study does not end"

    journal = Journal(check)
    process = Process(world, journal, rules, 0.0)
    for _ in range(draw.choice([0, 0, 1, 3])):
        at = process.engine.state.number + draw.randrange(1, 120)
        journal.end, journal.kill = _end(process, at, draw.random() < 0.7), _kill(process, at, draw.random() < 0.3)
        with suppress(Crash, KeyboardInterrupt):
            process.run()
            break
        process = resumed(process, journal)
    else:
        journal.end, journal.kill = (lambda _: None), (lambda: None)
        process.run()
    ended = process.engine.state.ended
    assert len(ended) == len(world.requests), "a trial has no end"
    return rules


def _end(process: Process, at: int, crash: bool) -> Callable[[State], None]:
    """What ends a process at an event of this number: a kill, or somebody who interrupts it."""

    def end(state: State) -> None:
        if state.number >= at and crash:
            raise Crash
        if state.number == at:
            process.loop.interrupt.remember()

    return end


def _kill(process: Process, at: int, between: bool) -> Callable[[], None]:
    """What kills a process when a row is on disk, and nothing has followed from it."""

    def kill() -> None:
        if between and process.engine.state.number >= at - 20:
            raise Crash

    return kill


def resumed(crashed: Process, journal: Journal) -> Process:
    """The next process of a study that has crashed: it has decided what the crashed one had, or would have."""
    state, before = crashed.engine.state, crashed.left()
    process = Process(crashed.world, journal, crashed.rules, crashed.machines.now)
    after = process.left()
    process.rules.recall(journal.rows)
    recorded = {(row.trial_id, row.attempts) for row in journal.rows}
    unseen = {key for key, run in state.running.items() if (key, run.placement.trial.attempt) in recorded}
    for trial_id, ended in process.engine.state.ended.items():
        if trial_id in unseen:  # the process was killed between its row and what follows
            continue
        known = state.ended.get(trial_id) or state.undecided[trial_id]
        assert known.result.status == ended.result.status, "a trial has another end"
    # It takes its devices anew, also those that were lost or had no slot, and may give more than before.
    if state.lost or process.rules.devices_are_back or 0 in crashed.world.plan.slots:
        process.rules.devices_are_back = True
        return process
    # One whose need was corrected may be given up with less than the share that it would begin with.
    again = after.keys() & set(state.ended)
    assert crashed.world.method != "given" or not again, "a trial that had ended runs again"
    for trial_id in set(state.running) - unseen:
        assert after[trial_id].trial == state.running[trial_id].request.trial, "a running attempt is not tried again"
    for trial_id, request in before.items():
        assert after[trial_id].trial == request.trial, "another attempt follows after a crash"
        assert after[trial_id].history == request.history, "attempts are counted differently after a crash"
        # The next process may be of another size, and what trials take above that is known.
        now, then = (replace(one.estimate, context_bytes=0) for one in (after[trial_id], request))
        same = now == then if crashed.world.method == "learned" else after[trial_id].estimate == request.estimate
        # An end that the killed process had not heard may have taught the next one; a retry keeps its estimate.
        assert same or unseen or request.history.out_of_memory, "a crash changes what is known of a trial's memory"
        if crashed.world.method != "learned" and not unseen:  # then others may be chosen to learn from
            assert after[trial_id].need_bytes == request.need_bytes, "a crash changes what a trial is given"
    return process
