"""Studies of 200 trials on simulated devices: per-trial packing against ⌊budget / largest footprint⌋ at once.

The decisions are those of a real study (``tuner.decisions.packing``); only time is simulated. Prints, for each
distribution of footprints and each device, how many times faster per-trial packing ends (median and worst of the
seeds), and how
much longer it takes than a time that no schedule can beat (all memory · time, or the longest trial). Exits with 1 if
a bar is missed: 1.5 times at the median, never slower, within 10 % of the bound at the median.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from tuner.decisions.packing import Packing, Plan, make_plan
from tuner.execution.simulation import simulate
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial

TRIALS = 200
SMALLEST_GB, LARGEST_GB = 0.5, 13.0  # the largest still fits on the smallest device
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda draw: draw.uniform(0.5, 10),
    "log-normal": lambda draw: draw.lognormvariate(0.7, 0.8),  # median 2 GB
    "bimodal": lambda draw: draw.gauss(1.5, 0.2) if draw.random() < 0.75 else draw.gauss(8, 1),
}
DEVICES: dict[str, tuple[int, ...]] = {
    "16 GB": (16,),
    "24 GB": (24,),
    "80 GB": (80,),
    "16 + 24 + 80 GB": (16, 24, 80),
}


def study(distribution: str, seed: int) -> tuple[list[Request], Callable[[Request], float]]:
    """The trials and how long each takes: a fixed part, one that grows with the footprint, and chance."""
    draw = random.Random(seed)
    requests, seconds = [], {}
    for number in range(TRIALS):
        gb = min(max(DISTRIBUTIONS[distribution](draw), SMALLEST_GB), LARGEST_GB)
        trial = Trial(f"t{number:03d}", "simulated", str(number), {}, seed)
        requests.append(Request(trial, MemoryEstimate("given", context_bytes=int(gb * GB)), int(gb * GB)))
        seconds[trial.trial_id] = (10 + 30 * gb) * draw.lognormvariate(0, 0.3)
    return requests, lambda request: seconds[request.trial.trial_id]


def plan(requests: list[Request], sizes: tuple[int, ...], packing: Packing) -> Plan:
    devices = [Device("", "cuda", i, "a GPU", gb * GB, gb * GB, cores=0) for i, gb in enumerate(sizes)]
    return make_plan(devices, [request.need_bytes for request in requests], packing=packing, buffer_bytes=2 * GB)


def shortest_possible(requests: Sequence[Request], plan: Plan, seconds: Callable[[Request], float]) -> float:
    """A lower bound of any schedule's seconds: memory · time of all trials over all memory, or the longest trial."""
    area = sum(request.need_bytes * seconds(request) for request in requests)
    return max(area / sum(plan.budgets), max(seconds(request) for request in requests))


def compare(distribution: str, sizes: tuple[int, ...], seed: int) -> tuple[float, float]:
    """How many times faster per-trial packing is, and its time over the bound."""
    requests, seconds = study(distribution, seed)
    per_trial = plan(requests, sizes, "per-trial")
    took = simulate(requests, per_trial, seconds).seconds
    uniform = simulate(requests, plan(requests, sizes, "uniform"), seconds).seconds
    return uniform / took, took / shortest_possible(requests, per_trial, seconds)


def planning_seconds() -> float:
    """How long it takes to plan 10,000 trials on 1,000 GPUs."""
    draw = random.Random(0)
    sizes = [int(draw.uniform(1, 60) * GB) for _ in range(10_000)]
    requests = [
        Request(Trial(f"t{n:05d}", "simulated", str(n), {}, 0), MemoryEstimate("given", context_bytes=size), size)
        for n, size in enumerate(sizes)
    ]
    began = time.perf_counter()
    simulate(requests, plan(requests, (80,) * 1000, "per-trial"), lambda request: request.need_bytes / GB)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="studies of each kind (default 5)")
    seeds = parser.parse_args().seeds
    gains, bounds = [], []
    print(f"{'footprints':<11} {'devices':<16} {'times faster':>12} {'(worst)':>8} {'over the bound':>15}")
    for distribution in DISTRIBUTIONS:
        for name, sizes in DEVICES.items():
            found = [compare(distribution, sizes, seed) for seed in range(seeds)]
            gain, over = [pair[0] for pair in found], [pair[1] for pair in found]
            gains, bounds = gains + gain, bounds + over
            print(
                f"{distribution:<11} {name:<16} {statistics.median(gain):>12.2f} {min(gain):>8.2f} "
                f"{statistics.median(over) - 1:>15.1%}"
            )
    gain, worst, over = statistics.median(gains), min(gains), statistics.median(bounds)
    print(f"all: {gain:.2f} times as fast at the median, {worst:.2f} at worst; {over - 1:.1%} over the bound")
    print(f"planning 10,000 trials on 1,000 GPUs: {planning_seconds():.2f} s")
    return 0 if gain >= 1.5 and worst >= 1 and over <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
