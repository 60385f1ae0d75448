"""Which devices of a cluster a study asks for, and which it gives to others."""

from collections.abc import Iterator

import pytest

from tuner.decisions.claims import IDLE_SECONDS, SHARE_SECONDS, Claims
from tuner.decisions.events import Bounds, CapacityObserved, Contended, Ended, Held, Opened, Released, Started, Wanted
from tuner.decisions.packer import Packer
from tuner.decisions.plan import make_plan
from tuner.decisions.policies import Engine
from tuner.decisions.state import State
from tuner.trial import GB, RANKS, Device, MemoryEstimate, Outcome, Request, Trial

NODES = tuple(Device(f"n{n}", "cpu", 0, "a node", GB, GB, 1) for n in range(3))


def requests(number: int) -> Iterator[Request]:
    for n in range(number):
        yield Request(Trial(f"t{n}", "toy", f"c{n}", {}, 0), MemoryEstimate("given", context_bytes=GB), GB)


@pytest.fixture
def study() -> Engine:
    """A study of ten trials that holds three nodes, with a trial on each."""
    packer = Packer()
    engine = Engine(State(), [Claims(packer), packer])
    plan = make_plan(NODES, [GB] * 10, packing="per-trial", buffer_bytes=0, threads=1)
    engine.take(Opened(plan, tuple(requests(10))))
    while isinstance(decision := engine.decide(0.0), Wanted):
        engine.take(decision)
        engine.take(Held(decision.device))
    begin(engine)
    assert len(engine.state.running) == 3
    return engine


def begin(engine: Engine) -> None:
    engine.take(CapacityObserved(Bounds({})))
    while isinstance(started := engine.decide(0.0), Started):
        engine.take(started)
    engine.take(CapacityObserved(None))


def end_on(engine: Engine, device: Device) -> None:
    place = next(run.placement for run in engine.state.running.values() if run.placement.device == device)
    done = Outcome(place.trial, "completed", place)
    engine.take(Ended(place.trial, done.result, {}, 0.0, 0, done))


def test_others_that_wait_and_hold_less_get_a_device_when_its_trials_have_ended(study: Engine) -> None:
    study.take(Contended(dict.fromkeys(NODES, 0)))
    assert study.decide(0.0) == Released(NODES[2])
    study.take(Released(NODES[2]))
    assert study.decide(0.0) is None
    end_on(study, NODES[2])
    begin(study)
    assert len(study.state.running) == 2, "it is kept free"
    study.take(Contended(dict.fromkeys(NODES[:2], 1)))  # they have it
    assert study.decide(2 * SHARE_SECONDS) == Wanted(NODES[2])


def test_a_device_is_given_only_to_those_that_hold_two_less(study: Engine) -> None:
    study.take(Contended(dict.fromkeys(NODES, 2)))
    assert study.decide(0.0) is None
    study.take(Contended({NODES[0]: 1}))
    assert study.decide(0.0) == Released(NODES[0])


def test_the_next_device_is_given_when_the_first_must_have_been_taken(study: Engine) -> None:
    study.take(Contended(dict.fromkeys(NODES, 0)))
    study.take(study.decide(0.0))  # type: ignore[arg-type]
    end_on(study, NODES[2])
    assert study.decide(SHARE_SECONDS - 1) is None
    assert study.decide(SHARE_SECONDS) == Released(NODES[1]), "others still have none"
    assert IDLE_SECONDS >= SHARE_SECONDS


def test_a_trial_of_several_ranks_has_its_devices_asked_for() -> None:
    packer = Packer()
    engine = Engine(State(), [Claims(packer), packer])
    plan = make_plan(NODES, [GB] * 2, packing="per-trial", buffer_bytes=0, threads=1, with_ranks=True)
    trial = Trial("t0", "toy", "c0", {RANKS: 2}, 0)
    engine.take(Opened(plan, (Request(trial, MemoryEstimate("given", context_bytes=GB), GB),)))
    assert isinstance(engine.decide(0.0), Wanted)
