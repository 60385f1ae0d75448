"""Trials of several ranks from end to end: functions, scripts, and what happens when a rank falls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import tuner
from tuner.errors import InputError

OPTIONS: dict[str, Any] = {"metric": "loss", "direction": "minimize", "model_memory_gb": 1.5, "report": False}
SCRIPT = """
import json, os
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, int(os.environ["LOCAL_RANK"]))
if dist.get_rank() == 0:
    print(json.dumps({"loss": sum(ranks) + LR}))
"""


def least_squares(config: dict[str, Any]) -> None:
    """Trains on a part of the batch in each rank, or on all of it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(1, keepdim=True)
    layer = torch.nn.Linear(8, 1)
    model = DistributedDataParallel(layer) if size > 1 else layer
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(3):
        mine = slice(rank * 64 // size, (rank + 1) * 64 // size)
        optimizer.zero_grad()
        ((model(inputs[mine]) - targets[mine]) ** 2).mean().backward()
        optimizer.step()
        tuner.report(loss=((layer(inputs) - targets) ** 2).mean().item(), size=size, checkpoint=layer.state_dict())


def falls(config: dict[str, Any]) -> None:
    """Rank 1 of the first attempt ends in the way that ``how`` says."""
    import torch
    import torch.distributed as dist

    once = Path(config["folder"]) / config["how"]
    (once.parent / f"rank.{os.getpid()}").touch()
    if dist.get_rank() == 1 and not once.exists():
        once.touch()
        if config["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif config["how"] == "hang":
            time.sleep(600)
        elif config["how"] == "out of memory":
            torch.ones(10**9)
    dist.all_reduce(torch.ones(1))
    tuner.report(loss=0.5)


@pytest.mark.ray
def test_a_model_that_is_trained_by_two_ranks_has_the_metrics_of_one(tmp_path: Path) -> None:
    space = {"lr": 0.1, "gpus_per_trial": {"grid_search": [1, 2]}}
    result = tuner.run(least_squares, space=space, output=tmp_path / "out", **OPTIONS)
    one, two = sorted(result.trials, key=lambda row: row.metrics["size"])
    assert (one.metrics["size"], two.metrics["size"]) == (1, 2)
    assert two.metrics["loss"] == pytest.approx(one.metrics["loss"], rel=1e-5)
    assert two.config == {"lr": 0.1, "gpus_per_trial": 2}


@pytest.mark.ray
def test_a_trial_is_retried_whichever_way_a_rank_falls(tmp_path: Path) -> None:
    space = {"how": {"grid_search": ["kill", "out of memory", "hang"]}, "folder": str(tmp_path)}
    result = tuner.run(falls, space=space, gpus_per_trial=2, trial_timeout="5s", output=tmp_path / "out", **OPTIONS)
    assert [(row.status, row.attempts) for row in result.trials] == [("completed", 2)] * 3
    journal = (tmp_path / "out" / "attempts.jsonl").read_text()
    assert "rank 1: the trial's process was killed by SIGKILL" in journal
    assert "rank 1: out of memory" in journal
    assert "no report for 5 s" in journal
    pids = [int(file.suffix[1:]) for file in tmp_path.glob("rank.*")]
    assert len(pids) == 12
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=10)[1]


@pytest.mark.ray
def test_a_script_for_torchrun_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LR", "float(__import__('sys').argv[1])"))
    result = tuner.run(
        f"script {script} {{lr}}", space={"lr": 0.5}, gpus_per_trial=2, output=tmp_path / "out", **OPTIONS
    )
    assert [row.metrics["loss"] for row in result.trials] == [1.5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_process": True}, "gpus_per_trial=2: not with in_process=True"),
        ({"gpus_per_trial": 1, "config": [{"gpus_per_trial": "many"}]}, "gpus_per_trial='many': must be a whole"),
        ({"max_workers": 1}, "max_workers=1: a trial of 2 ranks needs as many workers, on one machine"),
        ({"model_memory_gb": 1000}, "a trial needs 1000.00 GB"),
    ],
)
def test_ranks_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    given = {**OPTIONS, "gpus_per_trial": 2, "config": [{"lr": 1}], "output": tmp_path / "out", **options}
    with pytest.raises(InputError, match=said):
        tuner.run(least_squares, **given)
    assert not (tmp_path / "out").exists()


def test_ranks_of_a_search_that_fit_nowhere_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = {"lr": 1.0, "gpus_per_trial": {"grid_search": [1, 64]}}
    tuner.run(least_squares, space=space, dry_run=True, **{**OPTIONS, "model_memory_gb": 1.0})
    assert "gpus_per_trial=64: not run: each of 64 ranks needs 1.00 GB" in capsys.readouterr().out


def test_ranks_of_a_workload_are_refused(tmp_path: Path) -> None:
    words = ["--workload", "gt-ssl", "--mode", "quick", "--gpus-per-trial", "2", "--output", str(tmp_path / "out")]
    ended = subprocess.run([sys.executable, "-m", "tuner", *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "--gpus-per-trial 2: gt-ssl trains in one process" in ended.stderr
