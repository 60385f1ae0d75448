"""Footprints that are learned from a study's first trials, on the CPU: 60 configurations of an MLP, a CNN or an LSTM.

    mlp, cnn, lstm  the study with learned footprints, and the same with the peaks that it measured given
    record FILE     the bytes above an idle worker of all three models' configurations, one after another in warm
                    workers, as tests/estimation/measured_footprints.csv has them

Of a study it prints the errors of the footprints that were learned after 8 trials, beside those of a constant, which
trials ran out of memory, and the wall time beside that of the study with true footprints. Exits with 1 if a bar is
missed: a median error of at most 10 % on bytes that span ten times, and 1.15 times the wall time.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import tuner
from tuner.estimation.learned_footprints import LearnedFootprints
from tuner.machine.caps import worker_environment
from tuner.machine.devices import ram_device
from tuner.machine.peak import PeakMeter
from tuner.records.epochs import read_epochs
from tuner.records.files import EPOCHS
from tuner.records.journal import read_attempts
from tuner.trial import GB

NUMBER = 60
FIRST = 8
PER_WORKER = 6  # trials that ``record`` runs in one process
WITHIN, SLOWER = 0.10, 1.15
SPACES: Mapping[str, Mapping[str, tuple[str, int, int]]] = {
    "mlp": {"hidden": ("log", 384, 2304), "layers": ("int", 1, 3), "batch_size": ("log", 512, 4096)},
    "cnn": {"channels": ("log", 24, 96), "layers": ("int", 1, 3), "batch_size": ("log", 32, 256)},
    "lstm": {
        "hidden": ("log", 48, 320),
        "layers": ("int", 1, 2),
        "batch_size": ("log", 32, 192),
        "length": ("log", 32, 224),
    },
}
Config = dict[str, Any]


class Lstm(nn.Module):
    """An LSTM with a classifier of its last output."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, config["hidden"], config["layers"], batch_first=True)
        self.head = nn.Linear(config["hidden"], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def mlp(config: Config) -> tuple[nn.Module, tuple[int, ...]]:
    widths = [784, *[config["hidden"]] * config["layers"]]
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(widths[-1], 10)), (784,)


def cnn(config: Config) -> tuple[nn.Module, tuple[int, ...]]:
    channels = [1, *[config["channels"]] * config["layers"]]
    pairs = pairwise(channels)
    parts = [part for a, b in pairs for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels[-1], 10)), (1, 28, 28)


def lstm(config: Config) -> tuple[nn.Module, tuple[int, ...]]:
    return Lstm(config), (config["length"], 32)


MODELS: Mapping[str, Callable[[Config], tuple[nn.Module, tuple[int, ...]]]] = {"mlp": mlp, "cnn": cnn, "lstm": lstm}


def train(config: Config, report: Callable[..., object] = tuner.report, steps: int = 2) -> None:
    """Two epochs on random batches."""
    model, shape = MODELS[config["model"]](config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in (1, 2):
        for _ in range(steps):
            optimizer.zero_grad()
            batch = torch.randn(config["batch_size"], *shape)
            loss = nn.functional.cross_entropy(model(batch), torch.randint(10, (len(batch),)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        report(val_loss=loss.item(), epoch=epoch)


def configurations(model: str) -> list[Config]:
    """The same 60 each time."""
    draw, found = random.Random(7), []
    for _ in range(NUMBER):
        config: Config = {"lr": math.exp(draw.uniform(-9, -3))}
        for key, (kind, low, high) in SPACES[model].items():
            logarithm = math.exp(draw.uniform(math.log(low), math.log(high)))
            config[key] = round(logarithm) if kind == "log" else draw.randint(low, high)
        found.append({"model": model, **config})
    return found


def study(model: str, folder: Path, **options: Any) -> tuple[list[dict[str, Any]], float]:
    """Runs a study of the model's configurations; returns each trial's last line of the journal, and the seconds."""
    listed = configurations(model)
    tuner.run(
        train,
        config=[{"name": f"c{number}", **config} for number, config in enumerate(listed)],
        metric="val_loss",
        direction="minimize",
        device="cpu",
        output=folder,
        report=False,
        **options,
    )
    lines = [row.to_line() for row in read_attempts(folder / "attempts.jsonl")[0]]
    seconds = max(line["ended_at"] for line in lines) - min(line["started_at"] for line in lines)
    return list({line["trial_id"]: line for line in lines}.values()), seconds


def compare(model: str) -> bool:
    """Prints the figures of one model; returns whether its bars are met."""
    with tempfile.TemporaryDirectory() as folder:
        learned, seconds = study(model, Path(folder) / "learned")
        idle = min(
            line.memory_bytes / GB
            for line in read_epochs(Path(folder) / "learned" / EPOCHS)
            if line.epoch == 0 and line.memory_bytes is not None
        )
        peaks = {row["name"]: row["peak_memory_gb"] for row in learned}
        needs = {config_key(config): 1.1 * peaks[f"c{n}"] + 0.05 for n, config in enumerate(configurations(model))}
        _, true_seconds = study(model, Path(folder) / "true", memory_gb=lambda config: needs[config_key(config)])
    by_start = sorted(learned, key=lambda row: float(row["started_at"]))
    samples = [
        ({key: row[f"config/{key}"] for key in SPACES[model]}, row["peak_memory_gb"] - idle) for row in by_start
    ]
    first, others = samples[:FIRST], samples[FIRST:]
    fitted = LearnedFootprints([(config, size * GB) for config, size in first])
    errors = [abs(fitted.predict(config).size_bytes / GB / size - 1) for config, size in others]
    constant = median(size for _, size in first)
    constants = [abs(constant / size - 1) for _, size in others]
    spans = max(size for _, size in samples) / min(size for _, size in samples)
    ran_out = sum(int(row["attempts"]) > 1 for row in learned)
    failed = sum(row["status"] != "completed" for row in learned)
    print(
        f"{model}: bytes above an idle worker span {spans:.1f} times; after {FIRST} trials the median error is "
        f"{median(errors):.1%} (a constant: {median(constants):.1%}); {ran_out} trials were retried, {failed} not "
        f"completed; {seconds:.1f} s, with true footprints {true_seconds:.1f} s ({seconds / true_seconds:.2f} times)",
        flush=True,
    )
    return spans >= 10 and median(errors) <= WITHIN and seconds <= SLOWER * true_seconds and not failed


def config_key(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config[key] for key in SPACES[config["model"]])


def record(path: Path) -> None:
    """Measures all configurations, ``PER_WORKER`` in each process."""
    names = ["model", *dict.fromkeys(key for space in SPACES.values() for key in space), "lr", "bytes"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for model in SPACES:
            for first in range(0, NUMBER, PER_WORKER):
                module = "scripts.benchmarks.learned_footprints"
                command = [sys.executable, "-m", module, "measure", model, str(first)]
                environment = {**os.environ, **worker_environment(ram_device()), "OMP_NUM_THREADS": "1"}
                printed = subprocess.run(
                    command, env=environment, check=True, stdout=subprocess.PIPE, text=True
                ).stdout
                writer.writerows(map(json.loads, printed.splitlines()))


def measure(model: str, first: int) -> None:
    """Measures some configurations in this process, as a worker does; prints a line for each."""
    from tuner.training.rehearsal import warm_up

    def rehearse() -> None:
        warm_up("cpu", 1)
        train({"model": "mlp", "lr": 0.1, "hidden": 8, "layers": 1, "batch_size": 8}, report=dict, steps=1)

    meter = PeakMeter(ram_device(), rehearse)
    for config in configurations(model)[first : first + PER_WORKER]:
        meter.start()
        train(config, report=dict, steps=1)
        peak = meter.peak_bytes()
        assert peak is not None
        meter.left_bytes()
        print(json.dumps({**config, "lr": float(f"{config['lr']:.3g}"), "bytes": peak - meter.context_bytes}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(SPACES))
    what = parser.parse_args().what
    started = time.monotonic()
    if what[0] == "measure":
        measure(what[1], int(what[2]))
        return 0
    if what[0] == "record":
        record(Path(what[1]))
        print(f"{what[1]}: {NUMBER} footprints each of {', '.join(SPACES)} in {time.monotonic() - started:.0f} s")
        return 0
    met = [compare(model) for model in what]  # all of them, whatever the first one's figures are
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
