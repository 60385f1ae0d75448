from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.toy import Toy
from tuner.study import show_plan
from tuner.trial import GB, MB, Device
from tuner.workloads.lookup import Finder
from tuner.workloads.task import TrainingTask


def said(workload: Any, device: Device) -> list[str]:
    study = SimpleNamespace(tasks={"one": TrainingTask(workload, None)}, devices=[device])
    return show_plan._little_shared(cast(Any, study))


def test_little_shared_memory_is_told_where_own_code_may_have_data_loaders(
    gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show_plan, "free_shared_bytes", lambda: 64 * MB)
    (line,) = said(Toy(), gpu_16gb)
    assert line.startswith(
        "/dev/shm   0.06 GB free, where the workers of data loaders keep their batches: start the "
    )
    assert said(Finder()("graphsage"), gpu_16gb) == [], "it has none"
    assert said(Toy(), Device("", "cpu", 0, "a CPU", GB, GB, 2)) == []
    monkeypatch.setattr(show_plan, "free_shared_bytes", lambda: 2 * GB)
    assert said(Toy(), gpu_16gb) == []
