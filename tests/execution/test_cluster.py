"""Clusters: how one is found and joined, what its nodes tell, and what happens when one of them dies."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import numpy as np
import psutil
import pytest
from rpds import HashTrieMap

from tests.support.ray_trials import Slow, hold, placements, spread, until
from tuner.decisions.events import DeviceLost, Held, Joined
from tuner.decisions.plan import Plan, make_plan
from tuner.decisions.state import State
from tuner.errors import DataError, InputError
from tuner.estimation.estimators import with_contexts
from tuner.execution import cluster as joining
from tuner.execution.cluster import RayConnection, find_address, join_cluster
from tuner.execution.mapped_arrays import loaded, put, unpack
from tuner.execution.nodes import (
    NodeWatch,
    cluster_devices,
    crash_signal,
    differences,
    limited_by_ray,
    on_one_machine,
    oom_kills,
    teller,
)
from tuner.execution.ray_executor import RayExecutor
from tuner.objective import Objective
from tuner.spec.settings import Settings
from tuner.trial import GB, MB, RANKS, Began, Device, EpochReport, MemoryEstimate, Outcome, Request, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A head and one more node, both on this machine, that notice within two seconds that one of them has died."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "memory": GB, "object_store_memory": 80 * MB}
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": quick})
    made.add_node(**node)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def joined(two_nodes: Any) -> Iterator[RayExecutor]:
    """An executor that has joined them: for each that does, Ray starts new processes on every node."""
    with closing(RayExecutor(address=two_nodes.address)) as executor:
        executor.find_on_node = with_contexts()
        executor.devices("cpu")
        yield executor


@pytest.fixture(scope="module")
def plan(joined: RayExecutor) -> Plan:
    """A trial on each node, for which the executor is open."""
    made = make_plan(joined.devices("cpu"), [GB // 2] * 2, packing="uniform", buffer_bytes=0, threads=1)
    ranks = Function(spread)
    ranks.imports = ()  # whichever other tests have imported
    tasks = {"toy": TrainingTask(Slow(), None), "spread": TrainingTask(ranks, None, objective=Objective("loss"))}
    joined.open(tasks, made, None)
    for device in made.devices:
        hold(joined, device)
    return made


@pytest.mark.long
@pytest.mark.ray
def test_every_node_tells_what_it_has_within_what_ray_may_give_away(joined: RayExecutor) -> None:
    devices = joined.devices("cpu")
    assert len({device.node_id for device in devices}) == len({device.label for device in devices}) == 2
    assert all(device.total_bytes == GB and device.cores == 1 for device in devices)
    with pytest.raises(InputError, match="device='cuda': none of the cluster's 2 nodes has a GPU"):
        joined.devices("cuda")


@pytest.mark.long
@pytest.mark.ray
def test_a_node_that_lacks_a_package_is_left_out_with_a_line_that_names_both(
    two_nodes: Any, joined: RayExecutor
) -> None:
    left_out = list[str]()
    with pytest.raises(InputError, match=r"node .* is left out: it has no nowhere: install .*; node .* is left out"):
        cluster_devices("cpu", ["numpy", "nowhere"], left_out)
    assert len(left_out) == 2
    assert cluster_devices("cpu", ["numpy"], []) == joined.devices("cpu")


def test_a_node_is_compared_by_what_trials_need() -> None:
    ours = teller(["numpy", "nowhere"])()
    assert ours.keys() == {"Python", "tuner", "torch", "numpy", "nowhere"}
    theirs = {**ours, "tuner": "", "torch": "1.0", "numpy": "", "Python": "3.0"}
    said = differences({**ours, "tuner": "abc"}, theirs)
    assert said == [
        f"Python 3.0, not {ours['Python']}",
        "no tuner",
        f"torch 1.0, not {ours['torch']}",
        "no numpy",
        "no nowhere",
    ]
    assert differences({"tuner": "a"}, {"tuner": "b"}) == ["another tuner"]


def test_a_node_without_tuner_can_tell_that_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = cloudpickle.dumps(teller([]))
    monkeypatch.setitem(sys.modules, "tuner", None)
    assert pickle.loads(sent)()["tuner"] == ""  # noqa: S301  # our own


@pytest.mark.long
@pytest.mark.ray
def test_mapped_arrays_go_to_other_machines_by_content_and_on_one_by_name(
    joined: RayExecutor, tmp_path: Path
) -> None:
    import ray

    np.save(tmp_path / "a.npy", np.arange(100_000))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert on_one_machine(ray.nodes(), {node["NodeID"] for node in ray.nodes()})
    files: list[BinaryIO] = []
    named, whole = (put({"array": array}, files, one_machine=one) for one in (True, False))
    with ray.get(named).open("rb") as packed:
        assert unpack(packed.fileno())["array"].filename == str(tmp_path / "a.npy")
        (tmp_path / "a.npy").unlink()
        content = loaded(ray.get(whole))["array"]
        with pytest.raises(DataError, match=r"a\.npy has been removed or replaced"):
            unpack(packed.fileno())
    files[0].close()
    assert (type(content), content.flags.owndata, content.sum()) == (np.ndarray, False, array.sum())


@pytest.mark.long
@pytest.mark.ray
def test_on_another_node_a_trial_is_ended_and_a_crash_is_told(
    two_nodes: Any, joined: RayExecutor, plan: Plan
) -> None:
    other = two_nodes.list_all_nodes()[-1].node_id
    (placed,) = (placement for placement in placements(plan, 2, epochs=30) if placement.device.node_id == other)
    joined.submit(placed)
    process = psutil.Process(until(joined, Began).pid)
    process.suspend()
    joined.end(placed.trial.trial_id, "no report")
    assert until(joined, Outcome).status == "stalled"
    process.wait(30)
    joined.submit(placed)
    pid = until(joined, Began).pid
    until(joined, EpochReport)
    os.kill(pid, signal.SIGSEGV)
    assert until(joined, Outcome).error == "the trial's process was killed by SIGSEGV"


@pytest.mark.long
@pytest.mark.ray
def test_a_device_that_another_holds_is_the_studys_when_it_is_free(joined: RayExecutor, plan: Plan) -> None:
    from ray.util import placement_group, remove_placement_group

    first, other = plan.devices
    joined.release(first)
    theirs = placement_group([{"CPU": 1}])
    assert theirs.wait(30)
    joined.claim(first)
    (placed,) = (placement for placement in placements(plan, 2, epochs=30) if placement.device == other)
    joined.submit(placed)
    assert until(joined, EpochReport), "the rest of the cluster is used"
    collect(joined, events := list[Any](), lambda: bool(ended(events)))
    assert not any(isinstance(event, Held) for event in events)
    remove_placement_group(theirs)
    assert until(joined, Held).device == first


@pytest.mark.long
@pytest.mark.ray
def test_the_autoscaler_sees_what_waits_and_no_longer_when_nothing_does(
    joined: RayExecutor, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util import placement_group_table

    def pending() -> list[Any]:
        return [one["bundles"] for one in placement_group_table().values() if one["state"] == "PENDING"]

    monkeypatch.setattr("tuner.execution.reservations.DEMAND_SECONDS", 0.0)
    estimate = MemoryEstimate("given", context_bytes=GB)
    pair = Request(Trial("t1", "toy", "t1", {RANKS: 2}, 0), estimate, GB)
    state, before = State(plan=plan, waiting=HashTrieMap({"t1": pair})), len(pending())
    numbers = []
    for asked, most in ((state, None), (state, 1), (State(plan=plan), None)):
        joined.demand(asked, most)
        numbers.append(len(pending()) - before)
    assert numbers == [2, 1, 0]


@pytest.mark.long
@pytest.mark.ray
def test_a_node_that_joins_runs_a_trial_and_ranks_with_the_others_until_it_dies(
    two_nodes: Any, joined: RayExecutor, plan: Plan
) -> None:
    events = list[Any]()
    node = two_nodes.add_node(num_cpus=1, memory=GB, object_store_memory=80 * MB)
    collect(joined, events, lambda: any(isinstance(event, Joined) for event in events))
    more = make_plan(events[-1].devices, [GB // 2], packing="uniform", buffer_bytes=0, threads=1)
    joined.replan(more)
    hold(joined, more.devices[0])
    (placed,) = placements(more, 1, epochs=1)
    joined.submit(placed)
    assert until(joined, EpochReport).trial_id == placed.trial.trial_id
    assert until(joined, Outcome).placement.device.node_id == node.node_id
    both = make_plan((*plan.devices, *more.devices), [GB // 2] * 3, packing="uniform", buffer_bytes=0, threads=1)
    together = placements(both, 1, epochs=200, workload="spread", gpus_per_trial=3, nodes_per_trial=3)
    joined.submit(together[0])
    assert until(joined, EpochReport).epoch == 0
    assert until(joined, EpochReport).metrics == {"loss": 1.0, "machines": 3, "ranks": 3}
    two_nodes.remove_node(node, allow_graceful=False)
    collect(joined, events, lambda: DeviceLost(more.devices[0], "its node died") in events and ended(events) != {})
    assert "its node died" in ended(events)[together[0].trial.trial_id].error


@pytest.mark.long
@pytest.mark.ray
def test_a_node_that_dies_takes_its_trials_and_its_devices_and_nothing_else(
    two_nodes: Any, joined: RayExecutor, plan: Plan
) -> None:
    events: list[Any] = []
    placed = placements(plan, 2, epochs=80)
    for placement in placed:
        joined.submit(placement)
    collect(joined, events, lambda: len({event.trial_id for event in events if isinstance(event, EpochReport)}) == 2)
    dying = two_nodes.list_all_nodes()[-1]
    lost = next(placement for placement in placed if placement.device.node_id == dying.node_id)
    two_nodes.remove_node(dying, allow_graceful=False)
    collect(joined, events, lambda: len(ended(events)) == 2)
    assert [event.device for event in events if isinstance(event, DeviceLost)] == [lost.device]
    outcomes = ended(events)
    assert (outcomes[lost.trial.trial_id].status, outcomes[lost.trial.trial_id].lost) == ("failed", "node")
    assert sorted(outcome.status for outcome in outcomes.values()) == ["completed", "failed"]


def collect(executor: RayExecutor, events: list[Any], enough: Callable[[], bool]) -> None:
    """Polls until there is enough, for at most a minute."""
    began = time.monotonic()
    while not enough():
        assert time.monotonic() - began < 60, events
        events += [event for event, _ in executor.poll(1)]


def ended(events: list[Any]) -> dict[str, Outcome]:
    return {event.trial.trial_id: event for event in events if isinstance(event, Outcome)}


@pytest.fixture
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as one that is connected to no Ray, whichever other tests share."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("python-core-worker-ab_77.log", "[E] logging.cc:474: *** SIGSEGV received at time=1 on cpu 0 ***"),
        ("worker-ab-01000000-77.err", "Fatal Python error: Segmentation fault\n\nThread 0x1"),
    ],
)
def test_a_crash_is_read_off_rays_logs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text("x" * 2**17 + text)
    (tmp_path / "python-core-worker-ab_78.log").write_text("*** SIGBUS received at time=1")
    assert [crash_signal(tmp_path, pid) for pid in (77, 78, 79)] == ["SIGSEGV", "SIGBUS", ""]


def test_an_address_at_which_nothing_listens_is_told_at_once(not_connected: None) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(InputError, match=f"address='{address}': nothing listens there"):
            join_cluster(address)


def test_an_address_at_which_something_else_listens_is_told_soon(
    not_connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert joining.ANSWER_SECONDS >= 60, "on a slow machine Python alone takes several seconds"
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(InputError, match=f"address='{address}': what listens there does not answer like a Ray"):
            join_cluster(address)
    assert time.monotonic() - began < 15


def test_joining_that_is_broken_off_leaves_no_connection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[bool] = []

    @contextmanager
    def joined(address: str) -> Iterator[bool]:
        connected.append(True)
        yield True
        connected.append(False)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(joining, "_joined", joined)
    monkeypatch.setattr(RayConnection, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        join_cluster("127.0.0.1:6379")
    assert connected == [True, False]


def test_auto_means_the_environment_and_then_the_last_ray_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match=r"address='auto': RAY_ADDRESS is not set, and there is no .*ray_current"):
        find_address("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert find_address("auto") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert find_address("auto") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6380")
    assert find_address("auto") == "10.0.0.2:6380"


def test_the_clusters_address_in_the_environment_counts_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6380")
    assert Settings().cluster == "10.0.0.2:6380"
    assert Settings(address="10.0.0.3:6379").cluster == "10.0.0.3:6379"
    assert Settings(address="local").cluster is None
    assert Settings(in_process=True).cluster is None
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.2:10001")
    with pytest.raises(InputError, match=r"RAY_ADDRESS=ray://10.0.0.2:10001: not of the form .*: unset it, or give"):
        find_address(Settings().cluster or "")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert Settings().cluster is None


@pytest.mark.long
@pytest.mark.ray
def test_a_ray_to_which_this_process_is_connected_is_used_whole(two_nodes: Any, joined: RayExecutor) -> None:
    assert RayExecutor().devices("cpu") == joined.devices("cpu")


@pytest.mark.parametrize("address", ["", "here", ":6379", "10.0.0.1:", "10.0.0.1:99999", "ray://10.0.0.1:10001"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="not of the form HOST:PORT"):
        find_address(address)


def test_a_node_has_no_more_than_ray_may_give_away() -> None:
    ram = {"ram_bytes": 64 * GB, "free_ram_bytes": 32 * GB}
    gpus = [Device("", "cuda", index, "a GPU", 16 * GB, 12 * GB, 8, f"GPU-{index}", **ram) for index in range(4)]
    node = {"NodeID": "abc", "Resources": {"CPU": 6.0, "GPU": 2.0, "memory": float(GB)}}
    assert [(device.uuid, device.cores, device.node_id) for device in limited_by_ray(gpus, node, {})] == [
        ("GPU-0", 3, "abc"),
        ("GPU-1", 3, "abc"),
    ]
    assert {device.ram_bytes for device in limited_by_ray(gpus, node, {})} == {GB}
    (cpu,) = limited_by_ray([Device("", "cpu", 0, "a machine", 64 * GB, 32 * GB, 8)], node, {})
    assert (cpu.total_bytes, cpu.free_bytes, cpu.cores) == (GB, GB, 6)


def test_what_is_free_of_a_node_is_taken_and_a_node_without_a_free_device_is_waited_for() -> None:
    node = {"NodeID": "abc", "Resources": {"CPU": 8.0, "GPU": 4.0, "memory": float(GB)}}
    gpus = [Device("", "cuda", index, "a GPU", 16 * GB, 12 * GB, 8, f"GPU-{index}") for index in range(4)]
    cores = [
        [device.cores for device in limited_by_ray(gpus, node, {"CPU": cpus, "GPU": free})]
        for cpus, free in ((8, 4), (7, 4), (4, 2), (0, 4), (8, 0))
    ]
    assert cores == [[2] * 4, [1] * 4, [2] * 4, [2] * 4, [2] * 4]
    ram = [Device("", "cpu", 0, "a machine", 64 * GB, 32 * GB, 8)]
    for free, had in (({"CPU": 3.0, "memory": float(GB // 2)}, (3, GB // 2)), ({"CPU": 3.0}, (8, GB))):
        (cpu,) = limited_by_ray(ram, {**node, "Resources": {"CPU": 8.0, "memory": float(GB)}}, free)
        assert (cpu.cores, cpu.total_bytes) == had


def test_whether_the_head_answers_is_asked_anew_before_each_call_that_would_hang() -> None:
    watch = object.__new__(NodeWatch)
    with socket.create_server(("127.0.0.1", 0)) as head:
        watch._head = f"127.0.0.1:{head.getsockname()[1]}"
        assert watch.head_answers
    assert not watch.head_answers


def test_the_kernels_counter_of_processes_killed_for_memory_is_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\n")
    assert oom_kills(tmp_path / "vmstat") == 3
    assert oom_kills(tmp_path / "no such file") == 0
