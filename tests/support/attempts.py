"""Attempts for tests: by the columns that matter, the others filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner.records.attempts import Attempt, parse_attempt

COLUMNS = {
    "trial_id": "t1",
    "workload": "toy",
    "name": "a",
    "seed": 0,
    "status": "completed",
    "attempts": 1,
    "epochs": 1,
    "duration_s": 1.0,
    "device": "cpu",
    "gpu_fraction": 0.5,
    "estimated_memory_gb": 0.5,
    "peak_memory_gb": None,
}


def attempt(study: str = "", **columns: Any) -> Attempt:
    return replace(parse_attempt({**COLUMNS, **columns}, "a test"), study=study)
