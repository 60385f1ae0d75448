"""A workload of PyG that runs out of memory under its cap, and is trained again with more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.datasets.synthetic import synthetic_ratings
from tuner.execution.child_executor import ChildExecutor
from tuner.search.configurations import configurations
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.study import run_study
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.task import Selection


@pytest.mark.long
def test_a_graphsage_that_runs_out_of_memory_under_its_cap_is_trained_again_with_more(tmp_path: Path) -> None:
    """Beside the 0.41 GB of a process with PyG, its step takes 0.27 GB."""
    data = synthetic_ratings(2000, 1000, 10_000)
    listed = configurations(
        [{"name": "wide", "hidden_dim": 1024, "batch_size": 10_000, "epochs": 1}], GraphSAGE().schema
    )
    memory = {"model_memory_gb": 0.52, "retry_growth": 2.0, "gpu_memory_buffer_gb": 0, "backoff": 0}
    options = Settings(output=str(tmp_path), device="cpu", threads=1, report=False, **memory)
    selected = StudySpec([Selection(GraphSAGE(), lambda: data, listed)], options, label="test", command="a test")
    result = run_study(selected, ChildExecutor())
    first, second = (json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines())
    assert (first["status"], first["phase"]) == ("out_of_memory", "first step")
    assert first["limit_bytes"] < first["peak_bytes"], "with what the failed allocation asked for"
    assert first["limit_bytes"] < second["peak_bytes"] <= second["limit_bytes"]
    assert [row["status"] for row in result.rows] == ["completed"]
