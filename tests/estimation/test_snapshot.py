"""Traces as PyTorch's memory viewer draws them."""

from __future__ import annotations

import base64
import json
import pickletools
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.recorded_events import events_from_trace
from tuner.datasets.ratings import RatingData
from tuner.estimation.caching_allocator import replay
from tuner.estimation.tracing.trace import Trace, to_snapshot, write_snapshot
from tuner.estimation.tracing.tracer import Parts, trace_step, trace_workload
from tuner.search.configurations import complete
from tuner.workloads.graphsage.workload import GraphSAGE

DRAWING = Path(torch.__file__).parent / "cuda" / "_memory_viz.py"
# What the viewer's unpickler reads (MemoryViz.js in PyTorch's torch/utils/viz).
READ = {
    *("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MARK", "STOP"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE"),
    *("TUPLE1", "TUPLE2", "TUPLE3", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE"),
    *("NEWTRUE", "NEWFALSE", "BINUNICODE", "SHORT_BINUNICODE"),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1000, 1500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


def step() -> Parts:
    model = Block()
    x = torch.ones(2000, 1000)
    return model, torch.optim.Adam(model.parameters()), lambda: model(x).square().mean()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_step(step, device_kind="cuda", origins=True)


def test_a_snapshot_has_the_allocations_and_releases_of_the_trace(trace: Trace) -> None:
    (entries,) = to_snapshot(trace)["device_traces"]
    assert replay(events_from_trace(entries)) == replay(trace.events)
    allocated = [(entry["addr"], entry["size"]) for entry in entries if entry["action"] == "alloc"]
    assert all(address + size <= following for (address, size), (following, _) in pairwise(allocated))


def test_what_a_cuda_graph_tells_the_allocator_is_no_allocation(ratings: RatingData) -> None:
    config = complete({"cuda_graphs": 1, "fanout": "20,20"}, GraphSAGE().schema)
    (entries,) = to_snapshot(trace_workload(GraphSAGE(), config, ratings, device_kind="cuda"))["device_traces"]
    assert {entry["action"] for entry in entries} == {"alloc", "free_requested", "free_completed", "snapshot"}


def test_frames_say_what_an_allocation_is_and_where_it_comes_from(trace: Trace) -> None:
    entries = to_snapshot(trace)["device_traces"][0]
    said = {" ".join(frame["name"] for frame in entry["frames"]) for entry in entries}
    assert any(
        re.match(r"activations aten\.addmm\.default Linear\.forward Block\.forward step", line) for line in said
    )
    assert any(line.startswith("gradients aten.mm.default (backward)") for line in said)
    assert any(line.startswith("parameters") for line in said)
    assert not any("trace_step" in line or "__torch_dispatch__" in line for line in said)
    assert "unknown" in {entry.get("category") for entry in entries}, "without it the viewer stops"


def test_origins_change_nothing_of_what_is_traced(trace: Trace) -> None:
    plain = trace_step(step, device_kind="cuda")
    assert (plain.events, plain.categories, plain.origins) == (trace.events, trace.categories, {})
    assert set(trace.origins) == set(trace.categories)


def test_pytorch_draws_the_file(trace: Trace, tmp_path: Path) -> None:
    file, page = tmp_path / "memory.pickle", tmp_path / "page.html"
    write_snapshot(trace, file)
    assert {opcode.name for opcode, *_ in pickletools.genops(file.read_bytes())} <= READ
    subprocess.run([sys.executable, DRAWING, "trace_plot", file, "-o", page], check=True)
    drawn = re.search(r"local_files = (\[.*\])", page.read_text())
    assert drawn
    (shown,) = json.loads(drawn[1])
    names = {value for _, value, _ in pickletools.genops(base64.b64decode(shown["base64"])) if isinstance(value, str)}
    assert {"device_traces", "segments", "aten.addmm.default", "Block.forward", "optimizer"} <= names
