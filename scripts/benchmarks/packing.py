"""Studies of 200 trials on simulated devices: per-trial packing against ⌊budget / largest footprint⌋ at once.

The decisions are those of a real study (``tuner.decisions.plan``); only time is simulated. Prints, for each
distribution of footprints and each device, how many times faster per-trial packing ends (median and worst of the
seeds), and how
much longer it takes than a time that no schedule can beat (all memory · time, or the longest trial). Exits with 1 if
a bar is missed: 1.5 times at the median, never slower, within 10 % of the bound at the median. A second table has
what a decision costs in large studies with accounts of RAM, and how long these take by known seconds. A third has
studies of 1,000 trials, a tenth of them of 2 to 8 ranks: their time over the bound (at most 1.15), and the time to
plan and simulate one over that of 1,000 trials of one rank (at most 1.5).
"""

from __future__ import annotations

import argparse
import heapq
import operator
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from tuner.decisions.packer import Packer
from tuner.decisions.plan import Packing, Plan, make_plan
from tuner.execution.simulation import simulate
from tuner.trial import GB, RANKS, Device, MemoryEstimate, Placement, Request, Trial

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
    area = sum(request.need_bytes * request.trial.ranks * seconds(request) for request in requests)
    return max(area / sum(plan.budgets), max(seconds(request) for request in requests))


def compare(distribution: str, sizes: tuple[int, ...], seed: int) -> tuple[float, float]:
    """How many times faster per-trial packing is, and its time over the bound."""
    requests, seconds = study(distribution, seed)
    per_trial = plan(requests, sizes, "per-trial")
    took = simulate(requests, per_trial, seconds).seconds
    uniform = simulate(requests, plan(requests, sizes, "uniform"), seconds).seconds
    return uniform / took, took / shortest_possible(requests, per_trial, seconds)


def shape(name: str, trials: int) -> list[Request]:
    """Trials of a shape: needs in GB of the device and of RAM, and seconds, which are known."""
    draw, requests = random.Random(0), []
    for number in range(trials):
        gb, ram, seconds = draw.uniform(1, 39), 1.0, draw.uniform(10, 600)
        if name == "heavy tail":
            gb, seconds = min(max(draw.lognormvariate(1.4, 0.8), 0.5), 70), draw.lognormvariate(4.6, 1.2)
        elif name == "bimodal":
            gb = draw.uniform(1, 6) if draw.random() < 0.75 else draw.uniform(30, 70)
        elif name == "RAM":
            gb, ram = draw.uniform(1, 16), draw.uniform(2, 40)
        elif name == "RAM or memory":
            gb, ram = (draw.uniform(20, 39), 3) if draw.random() < 0.5 else (draw.uniform(1, 6), draw.uniform(20, 46))
        elif name == "few long":
            gb, seconds = draw.uniform(1, 20), seconds * (5 if draw.random() < 0.01 else 0.1)
        trial = Trial(f"t{number:06d}", "simulated", str(number), {"epochs": 1}, 0)
        estimate = MemoryEstimate("given", context_bytes=int(gb * GB), epoch_seconds=seconds)
        requests.append(Request(trial, estimate, int(gb * GB), host_bytes=int(ram * GB)))
    return requests


def in_steps(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Size · time that no schedule can beat, by dual feasible functions: of two that need over a half, one runs."""
    found = sum(map(operator.mul, sizes, seconds))
    for parts in range(1, 6):
        found = max(found, sum(int((parts + 1) * x - 1e-9) / parts * t for x, t in zip(sizes, seconds, strict=True)))
    for small in range(1, 10):  # what is larger than 1 - small / 20 has no room beside it for what is not smaller
        least = small / 20
        whole = [1.0 if x > 1 - least else x if x >= least else 0.0 for x in sizes]
        found = max(found, sum(map(operator.mul, whole, seconds)))
    return found


def decide(name: str, trials: int, gpus: int) -> tuple[float, float]:
    """The microseconds of CPU of a decision, and the study's time over a bound, on hosts of up to 8 GPUs."""
    ram = 105 * min(gpus, 8) * GB
    devices = [
        Device(f"n{i // 8}", "cuda", i % 8, "a GPU", 80 * GB, 80 * GB, 16, ram_bytes=ram, free_ram_bytes=ram)
        for i in range(gpus)
    ]
    requests = shape(name, trials)
    needs, rams = [request.need_bytes for request in requests], [request.host_bytes for request in requests]
    found = make_plan(devices, needs, packing="per-trial", buffer_bytes=2 * GB, host_needs=rams)
    seconds = [request.seconds or 0.0 for request in requests]
    packer, running, now = Packer(found), list[tuple[float, str, Placement]](), 0.0
    began = time.process_time()
    packer.enqueue(requests)
    while True:
        while start := packer.next():
            packer.start(start[1])
            heapq.heappush(running, (now + (start[0].seconds or 0.0), start[0].trial.trial_id, start[1]))
        if not running:
            break
        now, _, ended = heapq.heappop(running)
        packer.release(ended)
    spent = time.process_time() - began
    bound = max(
        in_steps([need / found.budgets[0] for need in needs], seconds) / gpus,
        sum(map(operator.mul, rams, seconds)) / sum(found.ram_budgets.values()),
        sum(seconds) / sum(found.at_first),
        max(seconds),
    )
    return spent / trials * 1e6, now / bound


def scale(most: int) -> bool:
    """Prints decisions in studies of up to ``most`` trials; returns whether all are within 50 µs and 1.10."""
    print(f"\n{'trials':>7} {'GPUs':>4} {'shape':<14} {'µs each':>8} {'/ bound':>8}")
    kept = True
    for trials in filter(lambda trials: trials <= most, (1000, 10_000, 100_000)):
        for gpus in (1, 8, 64, 512):
            for name in ("uniform", "heavy tail", "bimodal", "RAM", "RAM or memory", "few long"):
                spent, over = decide(name, trials, gpus)
                kept = kept and spent <= 50 and over <= 1.1
                print(f"{trials:>7} {gpus:>4} {name:<14} {spent:>8.0f} {over:>8.3f}", flush=True)
    return kept


def some_of_ranks(gpus: int, seed: int, *, ranks: bool) -> tuple[float, float]:
    """A study's time over the bound, and the seconds to plan and simulate it."""
    draw, requests = random.Random(seed), []
    for number in range(1000):
        config = {RANKS: draw.choice([2, 4, 8]) if ranks and number % 10 == 0 else 1, "epochs": 1}
        gb = draw.uniform(20, 70) if config[RANKS] > 1 else draw.uniform(2, 40)
        estimate = MemoryEstimate("given", context_bytes=int(gb * GB), epoch_seconds=draw.uniform(60, 1800))
        trial = Trial(f"t{number:04d}", "simulated", str(number), config, 0)
        requests.append(Request(trial, estimate, int(gb * GB)))
    devices = [Device(f"n{i // 8}", "cuda", i % 8, "a GPU", 80 * GB, 80 * GB, 64) for i in range(gpus)]
    began = time.process_time()
    needs = [request.need_bytes for request in requests for _ in range(request.trial.ranks)]
    found = make_plan(devices, needs, packing="per-trial", buffer_bytes=0, with_ranks=ranks)
    took = simulate(requests, found, lambda request: request.seconds or 0.0).seconds
    spent = time.process_time() - began
    return took / shortest_possible(requests, found, lambda request: request.seconds or 0.0), spent


def of_ranks(seeds: int) -> bool:
    """Prints studies with ranks; returns whether all keep their bars."""
    print(f"\n{'GPUs':>4} {'/ bound':>8} {'(without)':>10} {'time to plan':>13}")
    kept = True
    for gpus in (8, 64, 512):
        runs = [[some_of_ranks(gpus, seed, ranks=ranks) for ranks in (True, False)] for seed in range(seeds)]
        over, without = (statistics.median(pair[i][0] for pair in runs) for i in (0, 1))
        ratio = statistics.median(ranks[1] / one[1] for ranks, one in runs)
        kept = kept and over <= 1.15 and ratio <= 1.5
        print(f"{gpus:>4} {over:>8.3f} {without:>10.3f} {ratio:>12.2f}x", flush=True)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="studies of each kind (default 5)")
    parser.add_argument("--most", type=int, default=10_000, metavar="N", help="trials at scale (default 10000)")
    given = parser.parse_args()
    seeds = given.seeds
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
    kept = scale(given.most) & of_ranks(seeds)
    return 0 if gain >= 1.5 and worst >= 1 and over <= 1.1 and kept else 1


if __name__ == "__main__":
    sys.exit(main())
