"""The loop with an executor that only pretends: what is tried again, when, and with how much."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.loops import Asked, Notes, run_trials
from tuner.decisions.events import (
    Bounds,
    Concluded,
    Corrected,
    Decision,
    DeviceLost,
    Ended,
    Event,
    Planned,
    PruneAsked,
    Reported,
)
from tuner.decisions.plan import Plan, make_plan
from tuner.decisions.retry import RetryPolicy
from tuner.decisions.state import State
from tuner.decisions.throughput import ConcurrencyTuner
from tuner.errors import ExecutionError
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.execution.executor import Weights
from tuner.execution.loop import STOP_SECONDS
from tuner.machine.devices import DeviceChoice
from tuner.machine.holders import Memory
from tuner.machine.interrupts import Interrupt
from tuner.trial import GB, RANKS, Device, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial
from tuner.workloads.base import Workload

Script = Callable[[Placement], Outcome | DeviceLost]


class Pretender:
    """Ends every trial as the script says, one a poll, and keeps what was running beside it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.running: list[Placement] = []
        self.beside: list[list[str]] = []

    def devices(self, choice: DeviceChoice) -> tuple[Device, ...]:
        return ()

    def prepare(self, devices: Sequence[Device]) -> None: ...

    def demand(self, state: State, most: int | None = None) -> None: ...

    def claim(self, device: Device) -> bool:
        return True

    def open(self, workload: Workload, data: Any, plan: Plan, checkpoints: Path | None) -> None: ...

    def submit(self, placement: Placement) -> None:
        self.running.append(placement)

    def prune(self, trial_id: str) -> None: ...

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        self.beside.append([f"{placement.trial.name}/{placement.trial.attempt}" for placement in self.running])
        if not self.running:
            time.sleep(timeout_seconds)
            return []
        placement = self.running.pop(0)
        event = self.script(placement)
        if isinstance(event, Outcome):
            return [(event, bytes)]
        lost = Outcome(placement.trial, "failed", placement, lost="node")
        return [(lost, bytes), (event, bytes)]

    def stop(self) -> None:
        raise AssertionError("nothing trains")

    def close(self) -> None: ...


class Training(Pretender):
    """Its trials train on, and hear nothing; as often as it is polled, the user presses Ctrl-C, so many times."""

    def __init__(self, interrupt: Interrupt, presses: int) -> None:
        super().__init__(lambda placement: Outcome(placement.trial, "failed", placement))
        self.press, self.presses = interrupt.remember, presses
        self.stops = 0

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        self.beside.append([])
        if len(self.beside) <= self.presses:
            self.press()
        return [(EpochReport(placement.trial.trial_id, len(self.beside), 99), bytes) for placement in self.running]

    def stop(self) -> None:
        self.stops += 1


def run(
    executor: Pretender,
    sizes: dict[str, float],
    devices: Sequence[Device],
    interrupt: Interrupt | None = None,
    arbiter: DeviceArbiter | None = None,
    clock: Callable[[], float] = time.monotonic,
    **policy: Any,
) -> Notes:
    requests = [
        Request(Trial(name, "toy", name, {}, 0), MemoryEstimate("given", context_bytes=int(gb * GB)), int(gb * GB))
        for name, gb in sizes.items()
    ]
    plan = make_plan(devices, [request.need_bytes for request in requests], packing="per-trial", buffer_bytes=2 * GB)
    retry = RetryPolicy(**policy)
    return run_trials(requests, plan, executor, retry=retry, interrupt=interrupt, arbiter=arbiter, clock=clock)


def needs(gb: dict[str, float]) -> Script:
    """A trial runs out of memory until it has what it really needs."""

    def end(placement: Placement) -> Outcome:
        enough = placement.limit_bytes >= gb[placement.trial.name] * GB
        return Outcome(placement.trial, "completed" if enough else "out_of_memory", placement)

    return end


def test_a_trial_that_ran_out_has_more_until_it_is_enough(gpu_16gb: Device) -> None:
    notes = run(Pretender(needs({"a": 8})), {"a": 4}, [gpu_16gb])
    assert notes.ended == [("a", 1, "out_of_memory", 4), ("a", 2, "out_of_memory", 6), ("a", 3, "completed", 9)]


class Hog(DeviceArbiter):
    """A program that takes a device's memory when the first trial has begun, and leaves when that has failed."""

    def short(self, device: Device, short_of: str = "") -> str:
        return "held are 9.00 GB by hog (process 7)"


def test_a_worker_that_is_killed_as_others_took_the_memory_is_tried_again_with_the_same(gpu_16gb: Device) -> None:
    def end(placement: Placement) -> Outcome:
        if placement.trial.attempt == 1:
            return Outcome(placement.trial, "out_of_memory", placement, error="killed", lost="worker")
        return Outcome(placement.trial, "completed", placement)

    notes = run(Pretender(end), {"a": 4}, [gpu_16gb], arbiter=Hog(), backoff_seconds=0.1)
    assert notes.ended == [("a", 1, "out_of_memory", 4), ("a", 2, "completed", 4)]
    assert notes.errors[0] == "killed; held are 9.00 GB by hog (process 7); the attempt does not count"


@pytest.mark.parametrize(
    ("took", "of"),
    [
        ({"lost": "worker", "peak_bytes": 4 * GB}, "at its cap"),
        ({"phase": "start", "peak_bytes": 5 * GB}, "its context is larger than its share"),
        ({"lost": "worker", "short_of": "RAM", "host_peak_bytes": 3 * GB}, "more than was reserved for it"),
    ],
)
def test_a_trial_that_took_all_of_its_share_blames_nobody(gpu_16gb: Device, took: dict[str, Any], of: str) -> None:
    def end(placement: Placement) -> Outcome:
        return Outcome(placement.trial, "out_of_memory", replace(placement, host_bytes=2 * GB), error=of, **took)

    notes = run(Pretender(end), {"a": 4}, [gpu_16gb], arbiter=Hog(), on_oom="fail")
    assert notes.errors == [of], "it counts"


class Full(DeviceArbiter):
    """Others have left 6 GB of each device, and it may be told apart what they hold."""

    @contextmanager
    def placing(self, running: Collection[Placement]) -> Iterator[Bounds]:
        self.reserve(running)
        yield Bounds(dict.fromkeys(self._devices, 6 * GB))

    def _room(self, device: Device) -> int:
        return 6 * GB


def test_ranks_start_with_what_others_leave_of_their_first_shares(gpu_16gb: Device) -> None:
    devices = [replace(gpu_16gb, index=index, uuid=f"u{index}") for index in range(2)]
    estimate = MemoryEstimate("learned", activation_bytes=4 * GB, margin=0.1)
    requests = [Request(Trial("a", "toy", "a", {RANKS: 2}, 0), estimate, 8 * GB)]
    plan = make_plan(devices, [8 * GB] * 2, packing="per-trial", buffer_bytes=2 * GB, with_ranks=True)
    arbiter = Full("own", plan, read=lambda device, groups: Memory(16 * GB, 6 * GB, (0,) * len(groups)))
    notes = run_trials(requests, plan, Pretender(needs({"a": 5})), arbiter=arbiter)
    assert notes.ended == [("a", 1, "completed", 6)]


def test_a_trial_for_which_no_device_is_enough_ends_out_of_memory(gpu_16gb: Device) -> None:
    notes = run(Pretender(needs({"a": 99})), {"a": 10}, [gpu_16gb])
    assert notes.ended == [("a", 1, "out_of_memory", 10), ("a", 2, "out_of_memory", 14)]


def test_a_retry_waits_while_others_run_but_not_when_nothing_else_does(gpu_16gb: Device) -> None:
    executor = Pretender(needs({"a": 6, "b": 1, "c": 1}))
    began = time.monotonic()
    notes = run(executor, {"a": 5, "b": 5, "c": 5}, [gpu_16gb], backoff_seconds=1000, backoff_max_seconds=1000)
    assert executor.beside[1:] == [["b/1", "c/1"], ["c/1"], ["a/2"]]
    assert notes.ended[-1] == ("a", 2, "completed", 7.5)
    assert time.monotonic() - began < 100


def test_trials_of_a_node_that_dies_go_back_to_the_queue(gpu_16gb: Device) -> None:
    other = replace(gpu_16gb, index=1, node_id="other")
    lost: list[str] = []

    def script(placement: Placement) -> Outcome | DeviceLost:
        if placement.device == other and not lost:
            lost.append(placement.trial.name)
            return DeviceLost(other, "its node died")
        return Outcome(placement.trial, "completed", placement)

    notes = run(Pretender(script), {"a": 10, "b": 10, "c": 10}, [gpu_16gb, other])
    assert sorted(name for name, _, status, _ in notes.ended if status == "completed") == ["a", "b", "c"]
    assert (lost[0], 1, "failed", 10) in notes.ended


class Watched(Pretender):
    """Every trial reports eight epochs, which take equally long however many run, and then ends."""

    def __init__(self) -> None:
        super().__init__(lambda placement: Outcome(placement.trial, "completed", placement))
        self.epochs: dict[str, int] = {}

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        self.beside.append([placement.trial.name for placement in self.running])
        trials, self.running = self.running, []
        events: list[EpochReport | Outcome | DeviceLost] = []
        for placement in trials:
            epoch = self.epochs[placement.trial.name] = self.epochs.get(placement.trial.name, -1) + 1
            events.append(EpochReport(placement.trial.trial_id, epoch, 8, seconds=1e-9, core_share=0.4))
            if epoch == 8:
                events.append(self.script(placement))
            else:
                self.running.append(placement)
        return [(event, bytes) for event in events]


def test_trials_are_added_on_a_gpu_while_cores_are_left_and_one_more_is_a_gain(gpu_16gb: Device) -> None:
    gpu, executor = replace(gpu_16gb, cores=2), Watched()
    names = "abcdefghijklmnop"
    requests = [Request(Trial(n, "toy", n, {}, 0), MemoryEstimate("given"), GB) for n in names]
    plan = make_plan([gpu], [GB] * len(names), packing="per-trial", buffer_bytes=2 * GB, adaptive=True)
    ticks = count()  # workers start as soon as an epoch ends
    notes = run_trials(requests, plan, executor, policies=[ConcurrencyTuner()], clock=lambda: float(next(ticks)))
    assert list(dict.fromkeys(map(len, executor.beside)))[:4] == [2, 3, 4, 5], "2 cores / 0.4 of one"
    assert max(map(len, executor.beside)) == 5
    assert sorted(name for name, *_ in notes.ended) == list(names)


def test_a_study_without_a_device_left_breaks_off(gpu_16gb: Device) -> None:
    executor = Pretender(lambda _: DeviceLost(gpu_16gb, "its node died"))
    with pytest.raises(ExecutionError, match="every device is lost, the last was cuda:0: its node died"):
        run(executor, {"a": 10}, [gpu_16gb])


def test_an_ending_study_waits_for_trials_that_train_until_it_is_interrupted_again(gpu_16gb: Device) -> None:
    interrupt = Interrupt()
    executor = Training(interrupt, presses=2)
    with pytest.raises(KeyboardInterrupt):
        run(executor, {"a": 4, "b": 4}, [gpu_16gb], interrupt)
    assert (executor.stops, len(executor.beside)) == (1, 2)


def test_an_ending_study_waits_for_trials_that_train_no_longer_than_it_says(gpu_16gb: Device) -> None:
    interrupt, seconds = Interrupt(), count()
    executor = Training(interrupt, presses=1)
    with pytest.raises(KeyboardInterrupt):
        run(executor, {"a": 4}, [gpu_16gb], interrupt, clock=lambda: float(next(seconds)))
    assert executor.stops == 1
    assert 1 < len(executor.beside) <= STOP_SECONDS, "a poll takes a second at least"


def test_an_ending_study_does_not_wait_for_trials_that_do_not_train(gpu_16gb: Device) -> None:
    interrupt = Interrupt()

    def script(placement: Placement) -> Outcome:
        interrupt.remember()
        return Outcome(placement.trial, "completed", placement)

    executor = Pretender(script)
    with pytest.raises(KeyboardInterrupt):
        run(executor, {"a": 4, "b": 4}, [gpu_16gb], interrupt)
    assert [placement.trial.name for placement in executor.running] == ["b"]


class Lowering(Asked):
    """Learns by some events that the trials that wait need 1 GB."""

    def __init__(self, *heard: type) -> None:
        self.heard = heard
        self.changed = False

    def hear(self, state: State, event: Event) -> None:
        self.changed = isinstance(event, self.heard) or (self.changed and not isinstance(event, Corrected))

    def decide(self, state: State, now: float) -> Decision | None:
        lower = {name: replace(request, need_bytes=GB) for name, request in state.waiting.items()}
        return Corrected(lower) if self.changed and lower else None


def test_what_ended_corrects_what_waits(gpu_16gb: Device) -> None:
    executor = Pretender(needs({}.fromkeys("abc", 1.0)))
    sizes = {"a": 9.0, "b": 8.0, "c": 7.0}
    requests = [Request(Trial(n, "toy", n, {}, 0), MemoryEstimate("given"), int(gb * GB)) for n, gb in sizes.items()]
    plan = make_plan(
        [gpu_16gb], [request.need_bytes for request in requests], packing="per-trial", buffer_bytes=2 * GB
    )
    run_trials(requests, plan, executor, policies=[Lowering(Ended)])
    assert executor.beside == [["a/1"], ["b/1", "c/1"], ["c/1"]]


class Reporting(Pretender):
    """Its oldest trial reports an epoch before it ends."""

    def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
        report = EpochReport(self.running[0].trial.trial_id, 1, 3, {"loss": 1.0}, memory_bytes=GB)
        return [(report, bytes), *super().poll(timeout_seconds)]


def test_what_a_running_trial_reports_corrects_what_waits(gpu_16gb: Device) -> None:
    executor = Reporting(needs({}.fromkeys("abc", 1.0)))
    requests = [Request(Trial(n, "toy", n, {}, 0), MemoryEstimate("learned"), 9 * GB) for n in "abc"]
    plan = make_plan([gpu_16gb], [GB] * 3, packing="per-trial", buffer_bytes=2 * GB)
    notes = run_trials(requests, plan, executor, policies=[Lowering(Reported)])
    assert executor.beside == [["a/1"], ["b/1", "c/1"], ["c/1"]]
    assert [event.report.trial_id for event in notes.events if isinstance(event, Reported)] == ["a", "b", "c"]


def test_where_there_is_room_and_nobody_waits_another_is_suggested(gpu_16gb: Device) -> None:
    executor = Pretender(needs({}.fromkeys("abcd", 1.0)))
    sizes = {"a": 5.0, "b": 5.0, "c": 9.0, "d": 5.0}
    first, *more = [
        Request(Trial(name, "toy", name, {}, 0), MemoryEstimate("given"), int(gb * GB)) for name, gb in sizes.items()
    ]

    class Suggesting(Asked):
        def decide(self, state: State, now: float) -> Decision | None:
            if state.bounds or state.waiting or not more or len(state.running) == 2:
                return None
            request = more.pop(0)
            return Planned((request,), {request.trial.trial_id: request.estimate})

    plan = make_plan([gpu_16gb], [5 * GB] * 4, packing="per-trial", buffer_bytes=2 * GB)
    notes = run_trials([first], plan, executor, policies=[Suggesting()])
    assert executor.beside == [["a/1", "b/1"], ["b/1", "c/1"], ["c/1", "d/1"], ["d/1"]], "c waited until a had ended"
    assert [event.ended.trial.name for event in notes.events if isinstance(event, Concluded)] == ["a", "b", "c", "d"]


def test_a_trial_that_is_not_worth_its_epochs_is_asked_to_end(gpu_16gb: Device) -> None:
    pruned: list[str] = []

    class Disliking(Asked):
        def decide(self, state: State, now: float) -> Decision | None:
            run = state.running.get("b")
            return PruneAsked("b") if run and run.epoch and not run.prune_asked else None

    class Slow(Pretender):
        """Its oldest trial reports, and ends when it is polled again."""

        reported = False

        def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
            self.reported = not self.reported
            if self.reported:
                return [(EpochReport(self.running[0].trial.trial_id, 1, 3, {"loss": 1.0}), bytes)]
            return super().poll(timeout_seconds)

        def prune(self, trial_id: str) -> None:
            pruned.append(trial_id)

    requests = [Request(Trial(n, "toy", n, {}, 0), MemoryEstimate("given"), GB) for n in "ab"]
    plan = make_plan([gpu_16gb], [GB, GB], packing="per-trial", buffer_bytes=2 * GB)
    run_trials(requests, plan, Slow(needs({"a": 1, "b": 1})), policies=[Disliking()])
    assert pruned == ["b"]


def test_a_study_whose_workers_the_signal_has_ended_waits_for_none(gpu_16gb: Device) -> None:
    interrupt = Interrupt()

    class Killed(Training):
        """The signal has ended the trials' processes, too."""

        def poll(self, timeout_seconds: float) -> list[tuple[EpochReport | Outcome | DeviceLost, Weights]]:
            if not self.stops:
                return super().poll(timeout_seconds)
            ended, self.running = self.running, []
            return [(Outcome(placement.trial, "failed", placement), bytes) for placement in ended]

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(Killed(interrupt, presses=1), {"a": 4, "b": 4}, [gpu_16gb], interrupt)
    assert time.monotonic() - began < 5
