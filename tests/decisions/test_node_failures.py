"""What is a node's failure, and what is a trial's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.decisions.plan import make_plan
from tuner.decisions.retry import NODE_MOST, NodeFailures
from tuner.decisions.state import State
from tuner.trial import GB, Device, MemoryEstimate, Outcome, Placement, Trial

NO_FILE = "FileNotFoundError: /data/run_7 is not there"


@pytest.fixture
def state(gpu_16gb: Device) -> State:
    nodes = [replace(gpu_16gb, node_id=node, host=node) for node in "abb"]
    nodes[2] = replace(nodes[2], index=1)
    return State(plan=make_plan(nodes, [GB] * 3, packing="uniform", buffer_bytes=0))


def failed(state: State, device: int, error: str = NO_FILE, name: str = "t") -> Outcome:
    assert state.plan
    place = Placement(
        Trial(name, "toy", name, {}, 0), MemoryEstimate.given(1), state.plan.devices[device], 0.1, GB, 1
    )
    return Outcome(place.trial, "failed", place, error=error)


def test_trials_that_fail_alike_on_a_node_are_its_failure_once_others_report_elsewhere(state: State) -> None:
    of_nodes = NodeFailures()
    assert of_nodes.judge(failed(state, 1), state)[0].lost == "", "all may fail alike"
    of_nodes.served.add("a")
    first, lost = of_nodes.judge(failed(state, 1), state)
    assert (first.lost, lost) == ("node", []) and "its node may be to blame" in first.error
    assert of_nodes.judge(failed(state, 1), state)[1] == [], "the same trial again says no more"
    second, lost = of_nodes.judge(failed(state, 2, NO_FILE.replace("7", "8"), "other"), state)
    assert second.lost == "node"
    assert [(one.device.host, one.device.index) for one in lost] == [("b", 0), ("b", 1)]
    assert of_nodes.judge(failed(state, 0), state)[0].lost == "", "others have reported there"


def test_an_error_that_a_node_in_use_has_had_is_the_trials_own(state: State) -> None:
    of_nodes = NodeFailures({"a"})
    of_nodes.judge(failed(state, 0, name="first"), state)
    assert [of_nodes.judge(failed(state, 1, name=name), state)[0].lost for name in "xyz"] == [""] * 3


def test_a_node_is_not_to_blame_for_ever_for_trials_that_fail_differently(state: State) -> None:
    of_nodes = NodeFailures({"a"})
    outcomes = [of_nodes.judge(failed(state, 1, "x" * number), state)[0] for number in range(NODE_MOST + 1)]
    assert [outcome.lost for outcome in outcomes] == ["node"] * NODE_MOST + [""]
