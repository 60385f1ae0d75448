"""What a cache of 50,000 CAN graphs takes of memory: mapped against read, and mapped by one process against by four.

A cache is generated in a temporary folder and written back to its disk. Then, each in a fresh process, a whole epoch
is gone through: all arrays of every graph are gathered into torch tensors, in batches of 256 in random order.
``read`` holds the arrays themselves; ``listed`` holds tensors of each graph, as a list of PyG's graphs does that
torch.load has read. After the epoch a process tells of /proc/self/smaps_rollup:

- Private_Dirty, which is the private memory that is compared: the kernel cannot take it back from the process but by
  swapping it out. What was read lies there.
- Private_Clean: pages of files that no other process maps. As long as one process alone maps the cache, its pages are
  counted here, but the kernel drops them whenever memory is short and reads them again: that is no memory of the
  process, so it is printed and not counted as private.
- Pss: each page of the process divided by the number of processes that map it; the sum over processes is what they
  take in all, clean pages included.

Python and torch take more than the cache by themselves, and four processes take that four times, whatever they
share. So each bar is printed for whole processes, where it can be missed, and for the cache: for what is left without
what as many processes take that have only imported.

Bars: mapped takes at least 50 % less private memory than read, and four take less than 1.3 times one's Pss. Exits
with 1 if the cache misses one. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tuner.datasets.cache import cached
from tuner.datasets.can import CanData, build
from tuner.datasets.spans import spans
from tuner.datasets.synthetic_can import synthetic_can

WINDOW, BATCH, SHARING = 100, 256, 4
FIELDS = ("Private_Dirty", "Private_Clean", "Shared_Clean", "Pss")
Kind = Literal["imports", "mapped", "read", "listed"]
Memory = dict[str, float]
"""Of one or more processes, in MiB, by field."""


def load(graphs: int) -> CanData:
    """The cache, which is generated if it is not there: three recordings of as many windows."""
    frames = -(-graphs // 3) * WINDOW
    return cached(CanData, str(graphs), lambda: build(synthetic_can(frames).items(), WINDOW, "generated"))


def write_back(folder: Path) -> None:
    """Has what was just written put on the disk: till then its pages count as dirty wherever they are mapped."""
    for path in folder.rglob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def epoch(data: CanData) -> None:
    """Gathers the arrays of all graphs, batch by batch."""
    order = np.random.default_rng(0).permutation(len(data))
    for begin in range(0, len(data), BATCH):
        graphs = order[begin : begin + BATCH]
        nodes, edges = spans(data.first, graphs), spans(data.first_edge, graphs)
        arrays = [data.ids[nodes], data.features[nodes], data.edge[:, edges], data.edge_count[edges]]
        arrays += [data.label[graphs], data.recording[graphs], data.attack[graphs]]
        for array in arrays:
            torch.from_numpy(array)


def as_list(data: CanData) -> list[dict[str, Tensor]]:
    """Tensors of each graph's own."""
    listed = []
    for graph in range(len(data)):
        nodes, edges = (slice(*first[graph : graph + 2]) for first in (data.first, data.first_edge))
        arrays = {"ids": data.ids[nodes], "features": data.features[nodes], "edge": data.edge[:, edges]}
        arrays |= {"edge_count": data.edge_count[edges], "label": data.label[graph : graph + 1]}
        listed.append({name: torch.tensor(np.array(array)) for name, array in arrays.items()})
    return listed


def epoch_of_list(graphs: list[dict[str, Tensor]]) -> None:
    """Joins the tensors of all graphs, batch by batch."""
    order = np.random.default_rng(0).permutation(len(graphs)).tolist()
    for begin in range(0, len(graphs), BATCH):
        batch = [graphs[graph] for graph in order[begin : begin + BATCH]]
        for name in batch[0]:
            torch.cat([each[name] for each in batch], dim=-1 if name == "edge" else 0)


def work(kind: Kind, graphs: int) -> None:
    """A process's part: says when it is ready, and what it takes once it is asked."""
    if kind != "imports":
        data = load(graphs)
    if kind == "read":
        arrays = {name: np.array(value) for name, value in vars(data).items() if isinstance(value, np.ndarray)}
        data = replace(data, **arrays)
    if kind == "listed":
        held = as_list(data)
        del data
        epoch_of_list(held)
    elif kind != "imports":
        epoch(data)
    print("ready", flush=True)
    input()
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    print(json.dumps({row[0][:-1]: int(row[1]) / 1024 for row in rows if row[0][:-1] in FIELDS}), flush=True)
    input()  # stays until all have been read: who goes changes the others' Pss


def run(kind: Kind, count: int, graphs: int) -> Memory:
    """What so many processes take together, after each has gone through an epoch."""
    command = [sys.executable, __file__, "--graphs", str(graphs), "--work", kind]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for _ in range(2):
            said = [_line(process) for process in made]
            for process in made:
                _tell(process)
        found = [json.loads(line) for line in said]
    finally:
        for process in made:
            process.communicate()
    return {name: sum(each[name] for each in found) for name in FIELDS}


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process that was measured has died; its message is above")
    return line


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def show(name: str, memory: Memory) -> None:
    print(f"{name:<34}" + "".join(f"{memory[field]:>15,.0f}" for field in FIELDS))


def compare(graphs: int) -> int:
    """Measures and prints; returns the exit status."""
    began = time.perf_counter()
    data = load(graphs)
    write_back(Path(os.environ["XDG_CACHE_HOME"]))
    arrays = [value for value in vars(data).values() if isinstance(value, np.ndarray)]
    size = sum(array.nbytes for array in arrays) / 2**20
    print(
        f"{len(data):,} graphs, {len(data.ids):,} nodes, {data.edge.shape[1]:,} edges: {size:,.0f} MiB in files, "
        f"made in {time.perf_counter() - began:.1f} s\n"
    )
    print(f"{'MiB':<34}" + "".join(f"{field:>15}" for field in FIELDS))
    imports, many_imports = run("imports", 1, graphs), run("imports", SHARING, graphs)
    listed, read = run("listed", 1, graphs), run("read", 1, graphs)
    one, many = run("mapped", 1, graphs), run("mapped", SHARING, graphs)
    show("one process that only imports", imports)
    show(f"{SHARING} processes that only import", many_imports)
    show("one process, listed", listed)
    show("one process, read", read)
    show("one process, mapped", one)
    show(f"{SHARING} processes, mapped", many)
    print("\nof whole processes, Python and torch included:")
    judge(read, listed, one, many)
    print("of the cache, without what as many processes take that only import:")
    met = judge(*(less(each, imports) for each in (read, listed, one)), less(many, many_imports))
    return 0 if met else 1


def less(memory: Memory, other: Memory) -> Memory:
    return {name: memory[name] - other[name] for name in memory}


def judge(read: Memory, listed: Memory, one: Memory, many: Memory) -> bool:
    """Prints how mapping compares; returns whether both bars are met."""
    saved, saved_of_list = (1 - one["Private_Dirty"] / other["Private_Dirty"] for other in (read, listed))
    shared = many["Pss"] / one["Pss"]
    print(f"  private memory, mapped against read: {saved:.0%} less: {verdict(saved >= 0.5)} (50 %)")
    print(f"  private memory, mapped against listed: {saved_of_list:.0%} less")
    print(f"  Pss of {SHARING} against one's: {shared:.2f} times: {verdict(shared < 1.3)} (below 1.3)")
    return saved >= 0.5 and shared < 1.3


def verdict(met: bool) -> str:
    return "bar met" if met else "BAR MISSED"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=50_000, metavar="N", help="in the cache (default 50,000)")
    parser.add_argument("--work", choices=("imports", "mapped", "read", "listed"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work, options.graphs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        return compare(options.graphs)


if __name__ == "__main__":
    sys.exit(main())
