"""What runs a study's trials is chosen by its plan."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tuner.execution.child_executor import ChildExecutor
from tuner.spec.settings import Settings
from tuner.study.executors import for_plan, make_executor


def test_a_plan_can_be_looked_at_while_ray_is_still_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # as another thread's import leaves it at first
    one_worker: Any = SimpleNamespace(slots=(1,))
    executor = for_plan(make_executor(Settings()), one_worker, Settings())
    assert isinstance(executor, ChildExecutor)
    executor.close()
