"""What is asked of files as a study is specified."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.toy import Toy

SPACE = "space:\n  lr: {loguniform: [1e-3, 0.1]}\ndefaults: {epochs: 2}\n"
LIST = "configurations:\n  - {lr: 0.1}\n  - {lr: 0.2}\n"
COMMON: dict[str, Any] = {"device": "cpu", "in_process": True, "model_memory_gb": 0.1, "gpu_memory_buffer_gb": 0}


def train(config: dict[str, Any]) -> float:
    """A function, whose values may be objects."""
    return float(config["lr"])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is read, by name."""
    counted, read_text = Counter[str](), Path.read_text

    def read(self: Path, *args: Any, **options: Any) -> str:
        counted[self.name] += 1
        return read_text(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", read)
    return counted


@pytest.mark.parametrize("workload", [Toy(), train])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (SPACE, {"space": "own.yaml", "num_samples": 2}),
        (SPACE, {"config": "own.yaml", "num_samples": 2}),
        (SPACE, {"config": "own.yaml", "num_samples": 2, "search": "tpe"}),
        (LIST, {"config": "own.yaml"}),
    ],
)
def test_a_dry_run_reads_a_file_once(
    text: str, options: dict[str, Any], workload: Any, reads: Counter[str], tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    options = {name: str(tmp_path / value) if value == "own.yaml" else value for name, value in options.items()}
    goal = {} if isinstance(workload, Toy) else {"metric": "loss", "direction": "minimize"}
    tuner.run(workload, **options, **goal, **COMMON, dry_run=True)
    assert reads["own.yaml"] == 1


def test_a_plan_reads_a_file_once(reads: Counter[str], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SPACE)
    tuner.plan(Toy(), space=str(tmp_path / "own.yaml"), num_samples=2, model_memory_gb=0.1)
    assert reads["own.yaml"] == 1
