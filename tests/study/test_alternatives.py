from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.support.toy import Toy
from tuner.errors import InputError
from tuner.estimation.service import EstimationService
from tuner.machine.devices import ram_device
from tuner.spec.settings import Settings
from tuner.study.alternatives import alternatives
from tuner.trial import Config, MemoryEstimate, Request, Trial
from tuner.workloads.task import TrainingTask


class Forked(Toy):
    """Can be trained in three ways."""

    name: ClassVar[str] = "forked"

    def alternatives(self, config: Config, data: Any) -> Mapping[str, Config]:
        return {"full graph": {**config, "way": 0}, "sampled": {**config, "way": 1}, "refused": {**config, "way": 2}}


def request(seconds: float | None, workload: str = "forked") -> Request:
    trial = Trial("t1", workload, "wide", {"epochs": 3, "way": 0}, 0)
    return Request(trial, MemoryEstimate("measured", epoch_seconds=seconds), 1)


def test_ways_to_train_are_told_with_their_times_and_what_is_unknown_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(service: EstimationService, workload: Any, config: Config, *_: Any) -> float:
        if config["way"] == 2:
            raise InputError("no")
        return 3.2

    monkeypatch.setattr(EstimationService, "timed", timed)
    tasks = {"forked": TrainingTask(Forked(), None), "toy": TrainingTask(Toy(), None)}
    settings, device = Settings(auto_memory=True), ram_device()
    said = alternatives(tasks, [request(1.0), request(12.3), request(9.0, "toy")], device, settings)
    assert said == ["full graph, about 12 s an epoch; sampled, about 3.2 s"]
    assert alternatives(tasks, [request(None)], device, settings) == [], "nothing is timed for it alone"
