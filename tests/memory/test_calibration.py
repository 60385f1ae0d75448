from __future__ import annotations

import random
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.memory.calibration import Calibration, Sample, apply, fit, key, load, record, to_sample
from tuner.placement import need_bytes
from tuner.trial import GB, MB, MemoryEstimate

TRACED = MemoryEstimate("traced", parameter_bytes=100 * MB, activation_bytes=400 * MB, context_bytes=GB, margin=0.1)


def samples(count: int, *, context: int = 300 * MB, slope: float = 1.2, noise: float = 0.0) -> list[Sample]:
    source = random.Random(0)
    found = []
    for _ in range(count):
        exact, activation = source.randrange(10, 500) * MB, source.randrange(10, 2000) * MB
        peak = context + exact + slope * activation
        found.append(Sample(exact, activation, int(peak * (1 + source.uniform(-noise, noise)))))
    return found


def test_context_and_slope_are_recovered() -> None:
    found = fit(samples(20))
    assert found.context_bytes == pytest.approx(300 * MB, rel=1e-3)
    assert found.slope == pytest.approx(1.2, rel=1e-3)
    assert found.margin == 0.02, "never less than 2 %"


def test_an_outlier_hardly_moves_them() -> None:
    found = fit([*samples(20), Sample(100 * MB, 500 * MB, 40 * GB)])
    assert found.slope == pytest.approx(1.2, rel=0.02)


def test_the_margin_covers_nearly_all_errors_of_unseen_samples() -> None:
    everything = samples(200, noise=0.08)
    found = fit(everything[:100])
    guesses = [found.context_bytes + each.exact_bytes + found.slope * each.activation_bytes for each in everything]
    covered = [
        each.peak_bytes <= guess * (1 + found.margin)
        for each, guess in zip(everything[100:], guesses[100:], strict=True)
    ]
    assert sum(covered) >= 90
    assert 0.02 < found.margin < 0.12


def test_few_samples_keep_the_margin_of_none() -> None:
    assert fit(samples(4)).margin == 0.10


def test_samples_that_are_alike_only_tell_the_context() -> None:
    found = fit([Sample(0, 100 * MB, 450 * MB), Sample(0, 101 * MB, 440 * MB)])
    assert found.slope == 1.0
    assert found.context_bytes == pytest.approx(344.5 * MB, rel=0.01)


def test_only_activations_context_and_margin_are_corrected() -> None:
    corrected = apply(TRACED, Calibration(2 * GB, 1.5, 0.03, samples=9))
    assert corrected.parts() | {"activations": 0, "context": 0} == TRACED.parts() | {"activations": 0, "context": 0}
    assert (corrected.activation_bytes, corrected.context_bytes) == (600 * MB, 2 * GB)
    assert corrected.method == "traced, calibrated"
    assert need_bytes(corrected) == 2 * GB + -(-700 * MB * 103 // 100)


def test_what_is_recorded_comes_back_under_its_own_key_only(tmp_path: Path) -> None:
    name = key("toy", "a GPU")
    assert load(name, tmp_path) is None
    record(name, [to_sample(TRACED, 2 * GB)], tmp_path)
    record(name, samples(3), tmp_path)
    found = load(name, tmp_path)
    assert found is not None
    assert found.samples == 4
    assert load(key("toy", "another GPU"), tmp_path) is None


def test_only_the_latest_samples_are_kept(tmp_path: Path) -> None:
    record("k", [Sample(0, 0, 9 * GB)] * 50, tmp_path)
    record("k", samples(100), tmp_path)
    assert load("k", tmp_path) == fit(samples(100))


@pytest.mark.parametrize("text", ["{", "[]", '{"k": [["a"]]}', '{"k": 3}'])
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(InputError, match=r"calibration.json is damaged .*: delete it"):
        load("k", tmp_path)
