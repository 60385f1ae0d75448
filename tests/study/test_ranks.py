"""Trials of several ranks from end to end: functions, scripts, and what happens when a rank falls."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import torch
from torch import Tensor, nn

import tuner
from tests.support.commands import said
from tests.support.toy import Batched, Toy
from tuner.errors import InputError
from tuner.hyperparameters import Hyperparameter
from tuner.records.study_record import read_study
from tuner.study.past_trial import how_to_repeat
from tuner.trial import Config
from tuner.workloads.base import Batch, Split

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
def test_a_model_that_is_trained_by_two_ranks_has_the_metrics_of_one(tmp_path: Path, shared_ray: None) -> None:
    space = {"lr": 0.1, "gpus_per_trial": {"grid_search": [1, 2]}}
    result = tuner.run(least_squares, space=space, output=tmp_path / "out", **OPTIONS)
    one, two = sorted(result.trials, key=lambda row: row.metrics["size"])
    assert (one.metrics["size"], two.metrics["size"]) == (1, 2)
    assert two.metrics["loss"] == pytest.approx(one.metrics["loss"], rel=1e-5)
    assert two.config == {"lr": 0.1, "gpus_per_trial": 2}


@pytest.mark.ray
def test_a_trial_is_retried_whichever_way_a_rank_falls(tmp_path: Path, shared_ray: None) -> None:
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
def test_a_script_for_torchrun_runs_unchanged(tmp_path: Path, shared_ray: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LR", "float(__import__('sys').argv[1])"))
    result = tuner.run(
        f"script {script} {{lr}}", space={"lr": 0.5}, gpus_per_trial=2, output=tmp_path / "out", **OPTIONS
    )
    (row,) = result.trials
    assert row.metrics["loss"] == 1.5
    assert how_to_repeat(read_study(tmp_path / "out"), row, tmp_path / "out").startswith(
        "torchrun --nproc-per-node 2 "
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_process": True}, "gpus_per_trial=2: not with in_process=True"),
        (
            {"gpus_per_trial": 1, "config": [{"gpus_per_trial": "many"}]},
            "gpus_per_trial many: must be a whole",
        ),
        (
            {"max_workers": 1},
            "gpus_per_trial=2: takes 2 workers on a machine, and 1 is the most: give fewer",
        ),
        (
            {"nodes_per_trial": 2},
            "nodes_per_trial=2: there is no more than 1 machine: join a larger",
        ),
        ({"nodes_per_trial": 3}, "nodes_per_trial=3: must divide the number of ranks, which is 2"),
        ({"workload": "script torchrun train.py {lr}"}, "torchrun starts ranks itself: leave out torchrun"),
        ({"model_memory_gb": 1000}, "a trial needs 1000.00 GB"),
    ],
)
def test_ranks_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    given = {**OPTIONS, "gpus_per_trial": 2, "config": [{"lr": 1}], "output": tmp_path / "out", **options}
    with pytest.raises(InputError, match=said):
        tuner.run(**{"workload": least_squares, **given})
    assert not (tmp_path / "out").exists()


def test_ranks_of_a_search_that_fit_nowhere_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = {"lr": 1.0, "gpus_per_trial": {"grid_search": [1, 64]}}
    tuner.run(least_squares, space=space, dry_run=True, **{**OPTIONS, "model_memory_gb": 1.0})
    assert "gpus_per_trial=64: not run: each of 64 ranks needs 1.00 GB" in capsys.readouterr().out


class Lines(Toy):
    """Learns y = 2x from batches of which the last is smaller; rank 1 may be killed once, in its second epoch."""

    name: ClassVar[str] = "lines"
    memory_scales_with: ClassVar[str | None] = "batch_size"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        **Toy.hyperparameters,
        "batch_size": Hyperparameter(8, 1, 64, ""),
        "lr": Hyperparameter(0.01, 0, 10, ""),
    }

    def __init__(self, folder: str = "") -> None:
        self.folder = folder

    def build_model(self, config: Config, data: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def batches(self, config: Config, data: Any) -> Iterator[Batch]:
        x = torch.randn(30, 1)
        yield from ((part, 2 * part) for part in x.split(config["batch_size"]))

    def evaluate(self, model: nn.Module, data: Any, split: Split) -> dict[str, float]:
        x = torch.randn(4, 1)  # as a data loader does, it moves the state of the random numbers
        return {"loss": float((model(x) - 2 * x).square().mean())}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        once = Path(self.folder) / f"{os.environ.get('WORLD_SIZE')}.{os.environ.get('RANK')}"
        if self.folder and os.environ.get("RANK") == "1" and len(list(once.parent.glob("steps.*"))) > 4:
            if not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.folder:
            (once.parent / f"steps.{time.monotonic_ns()}").touch()
        return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.ray
def test_a_workload_of_two_ranks_has_the_metrics_of_one_even_if_a_rank_is_killed(
    tmp_path: Path, shared_ray: None
) -> None:
    (tmp_path / "once").mkdir()
    space = {"gpus_per_trial": {"grid_search": [1, 2]}}
    given = {"space": space, "output": tmp_path / "out", "report": False, "device": "cpu", "checkpoint_seconds": 0}
    result = tuner.run(Lines(str(tmp_path / "once")), **given)
    one, two = sorted(result.trials, key=lambda row: row.config["gpus_per_trial"])
    assert (one.attempts, two.attempts) == (1, 2)
    assert [one.status, two.status] == ["completed"] * 2
    assert {name: pytest.approx(value, rel=1e-5) for name, value in one.metrics.items()} == two.metrics


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"batch_size": 9},
            "gpus_per_trial 2: a batch is divided into 2 parts, and batch_size of .* is 9: choose another",
        ),
        ({"batch_size": 6, "accumulation": 2}, "is divided into 4 parts, and batch_size of .* is 6"),
        ({"batch_size": "auto"}, "is divided into 2 parts, and batch_size of .* is auto: give a number"),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    config = [{"gpus_per_trial": 2, **options}]
    with pytest.raises(InputError, match=said):
        tuner.run(Lines(), config=config, output=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_plan_counts_trials_and_gives_the_memory_of_a_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # whichever Ray other tests share
    words = "--workload graphsage --data synthetic --device cpu --gpus-per-trial 2 --set batch_size=8000"
    printed = said(capsys, "plan", *words.split())
    assert re.search(r"footprint +[0-9.]+ GB a rank", printed)
    assert re.search(r"cpu: 2 trials, up to 1 at once, .* 2 x 0\.", printed)


def test_a_rank_of_a_workload_is_estimated_with_its_part_of_the_batch() -> None:
    config = [{"batch_size": 1000, "gpus_per_trial": ranks} for ranks in (1, 2)] + [{"batch_size": 500}]
    whole, part, half = (found.activation_bytes for _, found in tuner.estimate(workload=Batched(), config=config))
    assert part == half < 0.6 * whole
