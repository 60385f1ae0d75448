"""Mixed precision in a trace, for a GPU that need not exist."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from tuner.estimation.tracing.trace import Trace
from tuner.estimation.tracing.tracer import trace_step


def traced(enabled: bool) -> Trace:
    def make():
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))

        def loss() -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
                return model(torch.zeros(10_000, 64)).sum()

        return model, None, loss

    return trace_step(make, device_kind="cuda")


def test_autocast_halves_what_a_gpus_step_keeps() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full, half = (traced(enabled).peak_bytes() for enabled in (False, True))
    assert 0.4 < half / full < 0.7
