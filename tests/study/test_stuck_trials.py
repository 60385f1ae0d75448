"""A study with a stuck trial of each kind among good ones, on a Ray of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.processes import end_soon
from tests.support.stuck import Stuck, hangs_in_a_c_function
from tuner.execution.ray_executor import RayExecutor
from tuner.machine.devices import ram_device
from tuner.objective import Objective
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import Configuration
from tuner.workloads.program import Function
from tuner.workloads.task import Selection

TIMEOUT = 3.0
KINDS = Stuck.hangs[1:]


def study(folder: Path) -> StudyResult:
    """Four stuck trials and seven good ones."""
    stuck = [{"name": kind, "hang": number} for number, kind in enumerate(KINDS, 1)]
    good = [{"name": f"good {number}"} for number in range(7)]
    waits = Function(hangs_in_a_c_function)
    program = Configuration("program", {"folder": str(folder)})
    selections = [
        Selection(Stuck(), lambda: None, configurations([*stuck, *good], Stuck.hyperparameters)),
        Selection(waits, lambda: None, [program], objective=Objective("loss")),
    ]
    return run_study(
        StudySpec(
            selections,
            Settings(
                output=str(folder / "study"),
                device="cpu",
                model_memory_gb=0.7,
                gpu_memory_buffer_gb=0,
                threads=1,
                report=False,
                trial_timeout=TIMEOUT,
            ),
            label="test",
            command="a test",
        ),
        RayExecutor(),
    )


@pytest.mark.long
@pytest.mark.ray
def test_stuck_trials_are_ended_and_hold_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(ram_device(), cores=5, idle_cores=None)  # they sleep
    monkeypatch.setattr("tuner.execution.executor.detect_with_idle_cores", lambda choice: (machine,))
    before = set(psutil.Process().children(recursive=True))
    result = study(tmp_path)
    assert result.exit_code == 1
    rows = {row["name"]: row for row in result.rows}
    assert {name for name, row in rows.items() if row["status"] == "completed"} == {f"good {n}" for n in range(7)}
    assert {name for name, row in rows.items() if row["status"] == "stalled"} == {*KINDS, "program"}
    assert all(rows[name]["attempts"] == 2 for name in KINDS)
    assert rows["evaluate"]["error"] == "training: no report for 3 s in its first epoch"
    assert rows["program"]["error"] == "training: no report for 3 s after epoch 1"
    programs = [process for process in tmp_path.iterdir() if process.name.isdigit()]
    assert len(programs) == 2
    assert end_soon(*(int(process.name) for process in programs))
    assert set(psutil.Process().children(recursive=True)) <= before
