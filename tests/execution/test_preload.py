"""The process that has imported what trials need, and its forks."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

import tuner
from tests.support.processes import end_soon
from tests.support.ray_trials import until
from tuner.decisions.plan import make_plan
from tuner.execution.child_executor import ChildExecutor
from tuner.execution.preload import Launch
from tuner.execution.ray_executor import RayExecutor
from tuner.machine.devices import ram_device
from tuner.objective import Objective
from tuner.trial import GB, EpochReport, MemoryEstimate, Outcome, Placement, Trial
from tuner.workloads.program import Function
from tuner.workloads.task import TrainingTask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")

DEVICE = ram_device()


def ancestors(config: dict[str, Any]) -> None:
    """Reports the processes of which a trial's is a fork: its own server, and the one that has imported."""
    server = psutil.Process().parent()
    assert server is not None and server.parent() is not None
    found = {"torch": float("torch" in sys.modules), "secrets": float("RAY_RAYLET_PID" in os.environ)}
    tuner.report(loss=0, server=server.pid, preloaded=server.ppid(), **found)
    Path(config.get("opens", "/dev/null")).touch()
    while config.get("until") and not Path(config["until"]).exists():
        pass


def preloaded() -> list[int]:
    """This process's children, and the forks of those."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    if not all(child.cmdline() for child in alive):  # one has only just begun
        return preloaded()
    found = [child for child in alive if "tuner.execution.preload_main" in child.cmdline()]
    return [process.pid for child in found for process in (child, *child.children()[:1])]


def opened(executor: Any, folder: Path, workers: int = 1, imports: tuple[str, ...] = ("torch",)) -> Any:
    plan = make_plan([DEVICE], workers * [GB], packing="uniform", buffer_bytes=0, max_workers=workers, threads=1)
    workload = Function(ancestors)
    workload.imports = imports  # with torch's compiler these are two stages
    executor.open({workload.name: TrainingTask(workload, None, objective=Objective("loss"))}, plan, folder)
    return executor


def submit(executor: Any, number: int, **config: Any) -> None:
    trial = Trial(f"t{number}", "ancestors", f"t{number}", config, seed=0)
    executor.submit(Placement(trial, MemoryEstimate.given(1.0), DEVICE, 0.5, GB // 2, 1))


def outcomes(executor: Any, count: int = 1) -> list[Outcome]:
    found: list[Outcome] = []
    while len(found) < count:
        found += [event for event, _ in executor.poll(1) if isinstance(event, Outcome)]
    assert {outcome.status for outcome in found} == {"completed"}, found
    return found


@pytest.mark.ray
def test_all_workers_of_a_local_ray_are_forks_of_one_process_and_nothing_of_it_stays(tmp_path: Path) -> None:
    gates = tmp_path / "1", tmp_path / "2"
    with closing(opened(RayExecutor(), tmp_path, workers=2)) as executor:
        submit(executor, 1, opens=str(gates[0]), until=str(gates[1]))
        submit(executor, 2, opens=str(gates[1]), until=str(gates[0]))
        first, second = (outcome.metrics for outcome in outcomes(executor, 2))
    assert first["server"] != second["server"], "two workers"
    assert first["preloaded"] == second["preloaded"] and first["torch"] == 1
    assert first["secrets"] == 0, "a trial has the study's environment, not that of Ray's worker"
    assert end_soon(int(first["preloaded"]), int(first["server"]), int(second["server"]))


def test_a_trial_survives_the_process_that_its_own_was_forked_from(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with closing(opened(ChildExecutor(), tmp_path)) as executor:
        submit(executor, 1, until=str(gate))
        while not (found := until(executor, EpochReport).metrics):
            pass
        for pid in preloaded():  # both stages
            os.kill(pid, signal.SIGKILL)
        gate.touch()
        assert outcomes(executor)[0].metrics["server"] == found["server"]
        submit(executor, 2)
        assert outcomes(executor)[0].metrics["server"] == found["server"], "it goes on without the one that imported"
    assert end_soon(int(found["server"]))


def test_where_the_process_ends_before_it_could_fork_a_trial_has_a_new_one_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    with closing(opened(ChildExecutor(), checkpoints)) as executor:
        submit(executor, 1)
        executor.poll(0)  # starts it
        for pid in preloaded():
            os.kill(pid, signal.SIGKILL)
        assert outcomes(executor)[0].metrics["preloaded"] == os.getpid(), "no fork of another process"
        assert "each process imports by itself" in (tmp_path / "logs" / "worker.log").read_text()


def test_a_module_with_a_thread_costs_only_the_second_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import signal, threading\nthreading.Thread(target=signal.pause, daemon=True).start()\n"
    (tmp_path / "threaded.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with closing(opened(ChildExecutor(), tmp_path, imports=("threaded", "torch"))) as executor:
        submit(executor, 1)
        (outcome,) = outcomes(executor)
        assert outcome.metrics["server"] in preloaded(), "the trial's process is itself a fork of the first stage"
    assert "imported everything again" in outcome.error


def test_processes_of_another_study_or_environment_are_not_shared() -> None:
    launch = Launch()
    addresses = {
        given.preload(DEVICE, threads)._address
        for given, threads in [(launch, 1), (launch, 2), (Launch(), 1), (Launch(launch.study, {"A": "b"}), 1)]
    }
    assert len(addresses) == 4
    assert launch.preload(DEVICE, 1)._address in addresses


def test_a_process_to_which_nobody_is_connected_any_more_ends_and_leaves_no_zombie() -> None:
    launch, other = Launch(), Launch()
    link, kept = launch.preload(DEVICE, 1).link(), other.preload(DEVICE, 1).link()
    assert link is not None and kept is not None
    first, second = preloaded()
    link.close()
    assert end_soon(first)
    launch.end()
    assert preloaded() == [second]
    other.end()
    kept.close()
    assert not [child.pid for child in psutil.Process().children() if child.pid in (first, second)]
