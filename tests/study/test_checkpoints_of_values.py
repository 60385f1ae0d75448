from __future__ import annotations

import os
import signal
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import tuner


class Kind(StrEnum):
    A = "a"


VALUES: list[Any] = [date(2024, 1, 2), Path("a/b"), (1, [2]), float("nan"), {1: "a"}, [True, None], len, Kind.A]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_trial_of_any_value_goes_on_from_its_checkpoint_and_its_model_is_loaded(value: Any, tmp_path: Path) -> None:
    begun: list[int] = []

    def train(config: dict[str, Any]) -> None:
        assert type(config["x"]) is type(value) and repr(config["x"]) == repr(value)
        begun.append((tuner.checkpoint() or {"done": 0})["done"])
        for epoch in range(begun[-1], 5):
            tuner.report(loss=5.0 - epoch, checkpoint={"done": epoch + 1})
            if epoch == 1 and len(begun) == 1:
                os.kill(os.getpid(), signal.SIGINT)

    call: dict[str, Any] = {"space": {"x": {"choice": [value]}}, "metric": "loss", "direction": "minimize"}
    call |= {"report": False, "in_process": True, "memory_gb": 1.0}
    with pytest.raises(KeyboardInterrupt):
        tuner.run(train, **call, output=tmp_path / "out")
    result = tuner.run(train, **call, resume=tmp_path / "out")
    assert [row.status for row in result.trials] == ["completed"] and 0 == begun[0] < begun[1] < 5
    assert result.best_model() == {"done": 5} and "loss" in repr(result)
