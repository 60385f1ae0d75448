"""Real steps under the smallest cap that the simulated allocator gives them, on the emulated card."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.emulated_cuda.cards import printed_on_cards

ROOT = Path(__file__).parents[3]
# Of memory_steps.csv, without the ones whose replay depends much on the order of addresses.
STEPS = (
    "sage-943x1682-h512-l5-b64",
    "sage-300x500-h256-l4-b8000",
    "mlp-adam-w1024-d3-b512",
    "gat-n5000-e50000-h32x4-l3",
    "transformer-encoder-v2000-w128-l3-t256-b16",
)
SCRIPT = """
import math
import sys
sys.path.insert(0, sys.argv[1])
import torch
from scripts.benchmarks.memory_models import read_steps, run
from tests.support.recorded_events import events_from_trace
from tuner.estimation.caching_allocator import least_capacity, replay

memory, card = torch.cuda.memory, torch.cuda.get_device_properties(0)
math.sqrt = lambda value: abs(value) ** 0.5  # no kernel computes anything, so a sum of squares may be negative


def runs(step, cap):
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (cap + 1) / card.total_memory))
    try:
        run(step, "cuda")
    except torch.OutOfMemoryError:
        return False
    return True


for step in [step for step in read_steps() if step.name in sys.argv[2:]]:
    runs(step, card.total_memory)  # what is taken once for a process
    memory._record_memory_history(context=None)
    runs(step, card.total_memory)
    events = events_from_trace(memory._snapshot()["device_traces"][0])
    memory._record_memory_history(enabled=None)
    peaks = replay(events)
    least = least_capacity(events, peaks)
    print((step.name, peaks.peak_reserved_bytes > least, runs(step, least), runs(step, least - 4 * 2**20)))
"""


@pytest.mark.emulated
def test_a_step_runs_under_its_least_capacity_and_not_below(tmp_path: Path) -> None:
    (tmp_path / "capped.py").write_text(SCRIPT)
    printed = printed_on_cards(tmp_path, "capped.py", str(ROOT), *STEPS)
    found = [ast.literal_eval(line) for line in printed.splitlines()]
    assert {name: (runs, below) for name, _, runs, below in found} == dict.fromkeys(STEPS, (True, False))
    assert sum(smaller for _, smaller, *_ in found) >= 3, "most need less than they reserve without a cap"
