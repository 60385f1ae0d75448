"""GraphSAGE with sampled neighbourhoods on 100,000 to 25 million ratings: time, memory, and the estimate of it.

Ratings are generated with the users and items of ML-100K, ML-1M, ML-10M and ML-25M, written as ratings.csv, and read
again as a user's file is: in parts, into the cache. Then a study trains a 64x2 model with fanout 10,10 twice, in two
workers side by side, of one thread each. Each trains two epochs of at most 500 steps. Printed for each size:

- ``cpu_seconds_per_epoch``: the CPU time of the second epoch's steps, for all steps of a whole epoch, and the same
  per million ratings.
- ``private``: what the worker that began second has to itself when its first epoch ends, beside the other one's
  (``psutil``'s USS), beyond what it had idle, before it built its first model. ``of it state`` is the model's share:
  weights, gradients and Adam's two moments, which grow with users and items, and not with ratings. The bar is on the
  rest.
- ``peak`` and ``estimate``: the study's own columns, the larger peak of the two trials.

Bars: CPU time per million ratings within 1.5 times of each other up to a million ratings, within 2 times up to
25 million; at most 150 MB of private memory beyond the state; the estimate within 5 % of the peak. Exits with 1 if
one is missed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tuner.datasets.movielens import load_folder
from tuner.datasets.synthetic import synthetic_ratings
from tuner.trial import GB, Config
from tuner.workloads.base import Batch
from tuner.workloads.graphsage.workload import GraphSAGE

if TYPE_CHECKING:
    from tuner.datasets.ratings import RatingData
    from tuner.workloads.graphsage.model import GraphSAGEModel

SIZES = (100_000, 1_000_000, 10_000_000, 25_000_000)
USERS, ITEMS = (943, 6_040, 69_878, 162_541), (1_682, 3_706, 10_677, 59_047)
STEPS = 500
BATCH = 2048
CONFIG = {"hidden_dim": 64, "num_layers": 2, "fanout": "10,10", "epochs": 2, "batch_size": BATCH}
NOTES = "TUNER_BENCHMARK_SCALE"
MB = 2**20
WITHIN_A_MILLION, WITHIN_ALL, PRIVATE_MB, ESTIMATE = 1.5, 2.0, 150, 0.05


def write_ratings(folder: Path, count: int) -> None:
    """A folder like ML-25M's."""
    import pandas as pd

    users, items = (int(np.interp(np.log(count), np.log(SIZES), each)) for each in (USERS, ITEMS))
    data = synthetic_ratings(users, items, count)
    parts = (data.train, data.validation, data.test)
    user, item, rating = (
        np.concatenate([getattr(each, name) for each in parts]) for name in ("user", "item", "rating")
    )
    table = pd.DataFrame({"userId": user + 1, "movieId": item + 1, "rating": rating, "timestamp": 1})
    table.sort_values(["userId", "movieId"]).to_csv(folder / "ratings.csv", index=False)
    genres = ["|".join(f"g{number}" for number in np.flatnonzero(flags)) for flags in data.item_features]
    movies = pd.DataFrame({"movieId": np.arange(1, items + 1), "title": "x", "genres": genres})
    movies.to_csv(folder / "movies.csv", index=False)


class Scale(GraphSAGE):
    """GraphSAGE whose epochs have at most ``STEPS`` steps, and whose workers note their time and memory."""

    name = "scale"
    idle: ClassVar[dict[int, int]] = {}  # the private bytes of each process before its first model

    def build_model(self, config: Config, data: RatingData) -> GraphSAGEModel:
        if os.getpid() not in Scale.idle:
            Scale.idle[os.getpid()] = private_bytes()
        return super().build_model(config, data)

    def batches(self, config: Config, data: RatingData) -> Iterator[Batch]:
        began, steps = time.process_time(), 0
        for batch in islice(super().batches(config, data), STEPS):
            steps += 1
            yield batch
        file = Path(os.environ[NOTES], f"{os.getpid()}.json")
        earlier = json.loads(file.read_text()) if file.exists() else {}
        private = earlier.get("private", private_bytes() - Scale.idle[os.getpid()])
        file.write_text(json.dumps({"seconds": (time.process_time() - began) / steps, "private": private}))


def private_bytes() -> int:
    """What this process has to itself."""
    import psutil

    return int(psutil.Process().memory_full_info().uss)


def measure(folder: Path, notes: Path) -> dict[str, float]:
    """What a study of two trials takes: seconds for a step, and MB."""
    import tuner

    os.environ[NOTES] = str(notes)
    result = tuner.run(
        workload=Scale,
        data=str(folder),
        config=[{"name": "64x2", **CONFIG}],
        seeds=2,
        device="cpu",
        auto_memory=True,
        max_workers=2,
        threads=1,
        output=str(notes / "study"),
        report=False,
    )
    noted = [json.loads(path.read_text()) for path in sorted(notes.glob("*.json"), key=lambda path: int(path.stem))]
    peaks = [row["peak_memory_gb"] for row in result.rows]
    return {
        "seconds": noted[-1]["seconds"],
        "private": noted[-1]["private"] / MB,
        "peak": max(peaks) * GB / MB,
        "estimate": result.rows[0]["estimated_memory_gb"] * GB / MB,
    }


def compare(sizes: Sequence[int]) -> int:
    """Measures and prints each size; returns the exit status."""
    rates, missed, lines = {}, [], []
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as notes:
            began = time.perf_counter()
            write_ratings(Path(folder), count)
            written = time.perf_counter()
            data = load_folder(Path(folder), seed=0)  # into the cache, as a study's own process does
            read = time.perf_counter()
            found = measure(Path(folder), Path(notes))
        steps = -(-len(data.train) // BATCH)
        state = 4 * 4 * (64 + 1) * (data.num_users + data.num_items) / MB  # the layers' own are a hundredth of it
        seconds = found["seconds"] * steps
        rates[count] = seconds / count * 1e6
        lines.append(
            f"{count:>11}{seconds:>23.1f}{rates[count]:>13.2f}{found['private']:>10.0f}{state:>13.0f}"
            f"{found['peak']:>9.0f}{found['estimate']:>10.0f}"
        )
        print(f"{count:,} ratings: generated in {written - began:.0f} s, read in {read - written:.0f} s", flush=True)
        if (beyond := found["private"] - state) > PRIVATE_MB:
            missed.append(f"{count:,} ratings: {beyond:.0f} MB of private memory beyond the state")
        if abs(off := found["estimate"] / found["peak"] - 1) > ESTIMATE:
            missed.append(f"{count:,} ratings: the estimate is {off:+.1%} off")
    print(
        f"{'ratings':>11}{'cpu_seconds_per_epoch':>23}{'per million':>13}{'private':>10}{'of it state':>13}", end=""
    )
    print(f"{'peak':>9}{'estimate':>10}  (MB)", *lines, sep="\n")
    for most, bar in ((1_000_000, WITHIN_A_MILLION), (max(sizes), WITHIN_ALL)):
        among = [rate for count, rate in rates.items() if count <= most]
        if len(among) > 1:
            ratio = max(among) / min(among)
            print(f"CPU time per million ratings, up to {most:,} ratings: within {ratio:.2f} times (bar {bar})")
            if ratio > bar:
                missed.append(f"CPU time per million ratings up to {most:,}: {ratio:.2f} times")
    print("\n".join(f"BAR MISSED: {each}" for each in missed) or "every bar is met")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=int, action="append", metavar="N", help="a size; may be repeated")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        return compare(options.ratings or SIZES)


if __name__ == "__main__":
    sys.exit(main())
