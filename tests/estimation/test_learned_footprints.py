"""What the regression makes of real peaks: 60 configurations each of an MLP, a CNN and an LSTM, trained on the CPU.

``scripts/benchmark learned_footprints record`` measured them in warm workers. Bytes are those above an idle worker.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from statistics import median

import pytest

from tuner.estimation.learned_footprints import LearnedFootprints, spread
from tuner.trial import MB, Config

Samples = list[tuple[dict[str, float], int]]  # configurations and bytes
AFTER = 8


def shuffled(model: str, seed: int) -> Samples:
    with (Path(__file__).parent / "measured_footprints.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.pop("model") == model]
    sizes = [int(row.pop("bytes")) for row in rows]
    configs = [{key: float(value) for key, value in row.items() if value} for row in rows]
    samples = list(zip(configs, sizes, strict=True))
    random.Random(seed).shuffle(samples)
    return samples


def split(samples: Samples) -> tuple[Samples, Samples]:
    first = spread([config for config, _ in samples], AFTER)
    others = [sample for index, sample in enumerate(samples) if index not in first]
    return [samples[index] for index in first], others


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm"])
def test_eight_trials_tell_the_others_footprints_within_a_tenth(model: str) -> None:
    errors, constants = [], []
    for seed in range(9):
        first, others = split(shuffled(model, seed))
        learned = LearnedFootprints(first)
        errors.append(median(abs(learned.predict(config).size_bytes / size - 1) for config, size in others))
        constants.append(median(abs(median(size for _, size in first) / size - 1) for _, size in others))
    sizes = [size for _, size in shuffled(model, 0)]
    assert max(sizes) > 10 * min(sizes)
    assert median(errors) <= 0.1 < 0.3 < median(constants)


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm"])
def test_most_footprints_are_within_the_margin(model: str) -> None:
    within = []
    for seed in range(9):
        first, others = split(shuffled(model, seed))
        learned = LearnedFootprints(first)
        for config, size in others:
            guess = learned.predict(config)
            within.append(size <= guess.size_bytes + guess.margin_bytes)
    assert sum(within) > 0.8 * len(within)


def test_without_a_configuration_it_is_what_nine_in_ten_took() -> None:
    learned = LearnedFootprints([({}, size * MB) for size in range(1, 100)])
    assert learned.predict({}).size_bytes == 90 * MB
    assert learned.predict({}).margin_bytes == 0


def test_one_sample_leaves_room_for_twice_as_much() -> None:
    learned = LearnedFootprints([({"hidden": 64}, 10 * MB)])
    assert learned.predict({"hidden": 64}).margin_bytes == 0
    assert learned.predict({"hidden": 32}).margin_bytes == 10 * MB


def test_a_size_that_a_configuration_lacks_takes_nothing() -> None:
    small: Config = {"layers": 1}
    samples = [({"layers": 2, "second": width}, width * MB + 20 * MB) for width in (100, 200, 400, 800)]
    learned = LearnedFootprints([*samples, (small, 20 * MB), (small, 21 * MB)])
    assert learned.predict(small).size_bytes == pytest.approx(20 * MB, rel=0.2)
    assert learned.predict({"layers": 2, "second": 600}).size_bytes == pytest.approx(620 * MB, rel=0.1)


def test_texts_and_lists_are_told_apart() -> None:
    both = [({"kind": kind, "shape": [n, n]}, size * MB) for kind, size in (("a", 50), ("b", 400)) for n in (1, 2)]
    learned = LearnedFootprints(both * 2)
    assert learned.predict({"kind": "a", "shape": [2, 2]}).size_bytes == pytest.approx(50 * MB, rel=0.2)
    assert learned.predict({"kind": "b", "shape": [1, 1]}).size_bytes == pytest.approx(400 * MB, rel=0.2)


def test_configurations_that_are_alike_come_last() -> None:
    sizes = (64, 65, 66, 1024, 8, 256)
    assert spread([{"hidden": size, "lr": size / 7} for size in sizes], 4) == [0, 3, 4, 5]
