from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from tuner.training.optimizers import SGD, Adam, AdamW

STEPS = """
import sys, torch
from tuner.training.optimizers import SGD, Adam, AdamW
for kind in (Adam, AdamW, SGD):
    model = torch.nn.Linear(3, 3)
    optimizer = kind(model.parameters(), lr=0.1, fused=True)
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(make: Callable[..., torch.optim.Optimizer]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = make(model.parameters(), lr=0.01, weight_decay=1e-3, fused=True)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *optimizer.state_dict()["state"][0].values()]


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (Adam, torch.optim.Adam),
        (AdamW, torch.optim.AdamW),
        (partial(SGD, momentum=0.9), partial(torch.optim.SGD, momentum=0.9)),
    ],
)
def test_they_are_torchs_to_the_bit(
    ours: Callable[..., torch.optim.Optimizer], torchs: Callable[..., torch.optim.Optimizer]
) -> None:
    for one, other in zip(trained(ours), trained(torchs), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad


def test_a_process_that_trains_with_them_does_not_load_the_compiler() -> None:
    told = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "False"
