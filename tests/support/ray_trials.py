"""What the tests of the Ray executor run and wait for; workers import it as ``tests.support.ray_trials``."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor, nn

import tuner
from tests.support.packing import start_all
from tests.support.toy import Toy
from tuner.decisions.events import Held
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan
from tuner.execution.executor import Executor
from tuner.execution.stop_requests import StopRequests
from tuner.trial import GB, Config, Device, EpochReport, MemoryEstimate, Outcome, Placement, Request, Trial
from tuner.workloads.base import Batch

# Events that came together with one that ``until`` returned: they are the next ones.
_UNREAD: WeakKeyDictionary[Executor, list[Any]] = WeakKeyDictionary()


class Slow(Toy):
    """A toy whose epochs take a tenth of a second."""

    name: ClassVar[str] = "slow"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        time.sleep(0.025)
        return super().loss(model, batch)


def spread(config: Config) -> None:
    """Reports on how many machines the ranks of its trial are."""
    groups: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(groups, os.environ["GROUP_RANK"])
    for _ in range(int(config["epochs"])):
        time.sleep(0.1)
        tuner.report(loss=1.0, machines=len(set(groups)), ranks=len(groups))


class Unpackable(Toy):
    """A toy that cannot be had in another process."""

    name: ClassVar[str] = "unpackable"

    def __reduce__(self) -> Any:
        return _unpack, ()


def _unpack() -> Any:
    raise ModuleNotFoundError("No module named 'left_at_home'")


def placements(
    plan: Plan, trials: int, attempt: int = 1, epochs: int = 5, workload: str = "toy", **more: int
) -> list[Placement]:
    """Places for so many trials, as far as there are."""
    packer = Packer(plan)
    estimate = MemoryEstimate("given", context_bytes=GB // 2)
    config = {"lr": 0.1, "weight_decay": 0.0, "epochs": epochs, "fault": 0, **more}
    named = [Trial(f"t{number}-{attempt}", workload, str(number), config, 0, attempt) for number in range(trials)]
    packer.enqueue(Request(trial, estimate, GB // 2) for trial in named)
    return start_all(packer)


def stop_and_go_on(executor: Executor, plan: Plan, checkpoints: Path) -> None:
    """What both executors do with a trial that is stopped, and runs again."""
    (placed,) = placements(plan, 1, epochs=10_000)
    first, again = (replace(placed, trial=replace(placed.trial, trial_id="stopped", attempt=n)) for n in (1, 2))
    kept = checkpoints / "stopped.pt"
    executor.submit(first)
    while until(executor, EpochReport).epoch == 0:
        assert not kept.exists()
    executor.stop()
    try:
        stopped = until(executor, Outcome)
        assert (stopped.status, stopped.error, stopped.phase) == ("interrupted", "", "")
        executor.submit(again)
        assert until(executor, EpochReport).epoch == stopped.epochs > 0
        assert until(executor, Outcome).epochs == stopped.epochs, "it is still to stop"
    finally:
        StopRequests(checkpoints).reset()
        kept.unlink(missing_ok=True)


def until(executor: Executor, kind: type) -> Any:
    """The next event of a kind, before the trial has ended and within a minute."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        events = _UNREAD.pop(executor, None) or [event for event, _ in executor.poll(1)]
        for number, event in enumerate(events, start=1):
            if isinstance(event, kind):
                _UNREAD[executor] = events[number:]
                return event
            assert not isinstance(event, Outcome), event
    raise AssertionError(f"no {kind.__name__} came")


def hold(executor: Executor, device: Device) -> None:
    """Asks for a device, and waits until it is held."""
    executor.claim(device)
    assert until(executor, Held).device == device
