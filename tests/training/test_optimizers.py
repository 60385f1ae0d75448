from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from tuner.training.optimizers import Adam

STEPS = """
import sys, torch
from tuner.training.optimizers import Adam
model = torch.nn.Linear(3, 3)
optimizer = Adam(model.parameters(), lr=0.1, fused=True)
optimizer.zero_grad()
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(make: type[torch.optim.Adam]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = make(model.parameters(), lr=0.01, weight_decay=1e-3, fused=True)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *optimizer.state_dict()["state"][0].values()]


def test_it_is_torchs_adam_to_the_bit() -> None:
    for ours, torchs in zip(trained(Adam), trained(torch.optim.Adam), strict=True):
        assert torch.equal(ours, torchs)
        assert ours.requires_grad == torchs.requires_grad


def test_a_process_that_trains_with_it_does_not_load_the_compiler() -> None:
    told = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "False"
