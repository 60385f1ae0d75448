"""Trials that say nothing: by a clock and an executor that only pretend."""

from __future__ import annotations

from tests.execution.test_loop import Pretender
from tests.support.loops import run_trials
from tuner.decisions.plan import make_plan
from tuner.errors import in_python, spelled
from tuner.execution.executor import ExecutorEvent
from tuner.execution.stall_detector import NOTICE_SECONDS, STEP_SECONDS, StallDetector
from tuner.trial import GB, Began, Device, EpochReport, MemoryEstimate, Outcome, Question, Request, Trial

TRIAL = Trial("t003", "toy", "gat", {}, 0)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(stalls: StallDetector, clock: Clock, seconds: float) -> tuple[dict[str, str], list[str]]:
    """What is found in this time, in which it is looked at every second."""
    seen: tuple[dict[str, str], list[str]] = ({}, [])
    for _ in range(int(seconds)):
        clock.now += 1
        stalled, notices = stalls.look()
        seen = seen[0] | stalled, [*seen[1], *(spelled(notice, in_python) for notice in notices)]
    return seen


def test_a_trial_that_says_nothing_for_the_timeout_is_found_with_what_it_had_reached() -> None:
    clock = Clock()
    stalls = StallDetector(10, clock)
    stalls.begins(TRIAL)
    assert after(stalls, clock, 10) == ({}, [])
    assert after(stalls, clock, 1)[0] == {"t003": "no report for 10 s since it began"}
    for epoch, where in ((0, "in its first epoch"), (4, "after epoch 4")):
        stalls.hears("t003", epoch)
        assert after(stalls, clock, 11)[0] == {"t003": f"no report for 10 s {where}"}
    stalls.ends("t003")
    assert after(stalls, clock, 11) == ({}, [])


def test_reports_and_answers_are_signs_of_life_and_nothing_counts_before_the_users_code() -> None:
    clock = Clock()
    stalls = StallDetector(10, clock)
    assert after(stalls, clock, 100) == ({}, [])
    stalls.begins(TRIAL)
    for epoch in (0, None, 1, None):
        assert after(stalls, clock, 9) == ({}, [])
        stalls.hears("t003", epoch)
    assert after(stalls, clock, 11)[0] == {"t003": "no report for 10 s after epoch 1"}


def test_time_in_which_the_study_did_not_look_counts_for_little() -> None:
    clock = Clock()
    stalls = StallDetector(10, clock)
    stalls.begins(TRIAL)
    clock.now += 3600  # it was suspended, or answered a question
    assert stalls.look() == ({}, [])
    assert after(stalls, clock, 10 - STEP_SECONDS) == ({}, [])
    assert after(stalls, clock, 1)[0]


def test_without_a_timeout_there_is_one_notice_for_each_silence() -> None:
    clock = Clock()
    stalls = StallDetector(None, clock)
    stalls.begins(TRIAL)
    notice = "t003 gat has reported nothing for 10 min; trial_timeout='30m' would end such trials"
    assert after(stalls, clock, NOTICE_SECONDS) == ({}, [])
    assert after(stalls, clock, 3 * NOTICE_SECONDS) == ({}, [notice])
    stalls.hears("t003", 1)
    assert after(stalls, clock, 3 * NOTICE_SECONDS) == ({}, [notice])


def test_with_a_shorter_timeout_there_is_no_notice_and_with_a_longer_one_it_says_when() -> None:
    clock = Clock()
    short, long = StallDetector(NOTICE_SECONDS, clock), StallDetector(2 * NOTICE_SECONDS, clock)
    for stalls in (short, long):
        stalls.begins(TRIAL)
    notice = "t003 gat has reported nothing for 10 min; it is ended after 20 min"
    assert after(short, clock, NOTICE_SECONDS + 1) == ({"t003": "no report for 10 min since it began"}, [])
    long.look()
    long.hears("t003", 1)
    assert after(long, clock, NOTICE_SECONDS + 1) == ({}, [notice])


class Hanging(Pretender):
    """Its trials begin, report an epoch, and then say nothing, a second for each poll; "good" ones end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda placement: Outcome(placement.trial, "completed", placement))
        self.clock = clock
        self.begun: set[tuple[str, int]] = set()
        self.given_up: list[Outcome] = []

    def poll(self, timeout_seconds: float) -> list[ExecutorEvent]:
        self.clock.now += 1
        events: list[ExecutorEvent] = [(outcome, bytes) for outcome in self.given_up]
        self.given_up = []
        for placement in list(self.running):
            trial = placement.trial
            if trial.name == "good":
                self.running.remove(placement)
                events.append((Outcome(trial, "completed", placement), bytes))
            elif (trial.trial_id, trial.attempt) not in self.begun:
                self.begun.add((trial.trial_id, trial.attempt))
                events += [(Began(trial.trial_id, 1, 0.0), bytes), (EpochReport(trial.trial_id, 1, 3), bytes)]
                events.append((Question(trial.trial_id, "lr"), bytes))
        return events

    def answer(self, trial_id: str, answer: object) -> None:
        self.clock.now += 3600

    def end(self, trial_id: str, error: str) -> None:
        (placement,) = (placement for placement in self.running if placement.trial.trial_id == trial_id)
        self.running.remove(placement)
        self.given_up.append(Outcome(placement.trial, "stalled", placement, error=error))


def test_a_silent_trial_is_ended_frees_its_place_and_is_tried_once_more(gpu_16gb: Device) -> None:
    clock = Clock()
    executor = Hanging(clock)
    trials = [Trial("1", "toy", "hangs", {}, 0), Trial("2", "toy", "good", {}, 0)]
    requests = [Request(trial, MemoryEstimate("given"), 10 * GB) for trial in trials]
    plan = make_plan([gpu_16gb], [10 * GB] * 2, packing="per-trial", buffer_bytes=2 * GB)
    notes = run_trials(requests, plan, executor, stalls=StallDetector(30, clock))
    ended = [row[:3] for row in notes.ended]
    assert ended == [("hangs", 1, "stalled"), ("good", 1, "completed"), ("hangs", 2, "stalled")]
