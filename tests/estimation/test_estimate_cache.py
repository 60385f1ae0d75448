from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

import tuner
from tests.support.toy import Toy
from tuner.estimation import estimate_cache
from tuner.estimation.estimate_cache import cached
from tuner.trial import MemoryEstimate
from tuner.workloads.graphsage.workload import GraphSAGE

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from tuner.__main__ import main; sys.exit(main())"
CONFIG = {"hidden_channels": 32, "lr": 0.1}


@pytest.fixture
def traced() -> list[int]:
    """An entry for each time that ``trace`` is called."""
    return []


@pytest.fixture
def trace(traced: list[int]) -> Callable[[], MemoryEstimate]:
    def trace() -> MemoryEstimate:
        traced.append(1)
        return MemoryEstimate("traced", parameter_bytes=len(traced))

    return trace


@pytest.mark.parametrize("workload", ["graphsage", "gt-ssl", "kd-gat"])
def test_a_built_in_workload_that_was_estimated_before_is_planned_without_torch(
    workload: str, tmp_path: Path
) -> None:
    tuner.estimate(workload=workload, mode="quick")
    words = ["--workload", workload, "--mode", "quick", "--dry-run", "--output", str(tmp_path / "out")]
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "") and "traced" in run.stdout


def test_an_estimate_is_traced_once_whatever_the_learning_rate(
    trace: Callable[[], MemoryEstimate], traced: list[int]
) -> None:
    estimates = [cached(trace, GraphSAGE(), {**CONFIG, "lr": lr}, "data", "cpu") for lr in (0.1, 0.2)]
    assert estimates == [MemoryEstimate("traced", parameter_bytes=1)] * 2 and len(traced) == 1


def test_another_size_data_set_device_or_version_is_traced_anew(
    trace: Callable[[], MemoryEstimate], traced: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    teacher = tmp_path / "best.pt"
    teacher.write_text("small")
    config = {**CONFIG, "teacher_path": str(teacher)}
    for values, data, device in (
        (config, "a", "cpu"),
        (CONFIG, "a", "cpu"),
        (config, "b", "cpu"),
        (config, "a", "H200"),
    ):
        cached(trace, GraphSAGE(), values, data, device)
    assert len(traced) == 4
    teacher.write_text("larger")
    cached(trace, GraphSAGE(), config, "a", "cpu")
    monkeypatch.setattr(estimate_cache.metadata, "version", lambda name: "9.9")
    cached(trace, GraphSAGE(), config, "a", "cpu")
    assert len(traced) == 6


def test_a_users_workload_is_traced_each_time(trace: Callable[[], MemoryEstimate], traced: list[int]) -> None:
    for _ in range(2):
        cached(trace, Toy(), CONFIG, "data")
    assert len(traced) == 2 and not Path(platformdirs.user_cache_dir("tuner")).exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"KEY": {"nothing": 1}}', '{"KEY": 3}'])
def test_a_damaged_cache_is_replaced(
    content: str, trace: Callable[[], MemoryEstimate], traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate_cache, "_digest", lambda _: "KEY")
    path = Path(platformdirs.user_cache_dir("tuner"), estimate_cache.FILE)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert [cached(trace, GraphSAGE(), CONFIG, "data").method for _ in range(2)] == ["traced"] * 2
    assert len(traced) == 1
