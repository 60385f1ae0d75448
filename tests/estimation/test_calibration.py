from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.decisions.plan import need_bytes
from tuner.errors import InputError
from tuner.estimation.calibration import (
    Calibration,
    Sample,
    fit,
    key,
    kind_of,
    load_samples,
    record,
    to_sample,
    with_headroom,
)
from tuner.trial import GB, MB, RANKS, MemoryEstimate

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
    assert found.headroom_bytes < MB


def test_an_outlier_hardly_moves_them() -> None:
    found = fit([*samples(20), Sample(100 * MB, 500 * MB, 40 * GB)])
    assert found.slope == pytest.approx(1.2, rel=0.02)


def to_estimate(sample: Sample) -> MemoryEstimate:
    return replace(TRACED, parameter_bytes=sample.exact_bytes, activation_bytes=sample.activation_bytes)


@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_the_need_covers_nearly_all_unseen_peaks(noise: float) -> None:
    everything = samples(300, noise=noise)
    source = random.Random(1)
    everything = [replace(sample, peak_bytes=sample.peak_bytes + source.randrange(50) * MB) for sample in everything]
    found = fit(everything[:100])
    needs = [need_bytes(found.correct(to_estimate(sample))) for sample in everything[100:]]
    covered = sum(sample.peak_bytes <= need for sample, need in zip(everything[100:], needs, strict=True))
    assert covered >= 184, "of 200: 95 % but for the luck of the draw"
    assert sum(needs) < 1.25 * sum(sample.peak_bytes for sample in everything[100:])


def test_a_context_that_varies_is_covered_for_small_trials_too() -> None:
    source = random.Random(0)
    everything = [
        Sample(0, activation, 400 * MB + source.randrange(-25, 25) * MB + activation)
        for activation in (source.randrange(5, 80) * MB for _ in range(300))
    ]
    found = fit(everything[:100])
    covered = [sample.peak_bytes <= need_bytes(found.correct(to_estimate(sample))) for sample in everything[100:]]
    assert sum(covered) >= 184


@pytest.mark.parametrize(("count", "times", "margin"), [(4, 1, 0.10), (20, 1, 0.02), (20, 3, 0.10)])
def test_the_margin_is_that_of_no_calibration_where_little_is_known(count: int, times: int, margin: float) -> None:
    known = samples(count)
    largest = max(known, key=lambda sample: sample.exact_bytes + sample.activation_bytes)
    wanted = replace(to_estimate(largest), activation_bytes=times * largest.activation_bytes)
    assert fit(known).correct(wanted).margin == margin


def test_samples_that_are_alike_only_tell_the_context() -> None:
    found = fit([Sample(0, 100 * MB, 450 * MB), Sample(0, 101 * MB, 440 * MB)])
    assert found.slope == 1.0
    assert found.context_bytes == pytest.approx(344.5 * MB, rel=0.01)


def test_only_activations_context_and_margin_are_corrected() -> None:
    heap = replace(TRACED, heap_bytes=GB)
    corrected = Calibration(2 * GB, 1.5, 30 * MB, largest_bytes=GB, samples=9).correct(heap)
    assert corrected.parts() | {"activations": 0, "context": 0} == TRACED.parts() | {"activations": 0, "context": 0}
    assert (corrected.activation_bytes, corrected.context_bytes) == (600 * MB, 2 * GB)
    assert corrected.method == "traced, calibrated"
    assert need_bytes(corrected) == 2 * GB + 30 * MB + -(-700 * MB * 102 // 100)


@pytest.mark.parametrize(("activation_mb", "headroom_mb"), [(10, 43), (400, 36)])
def test_the_headroom_of_a_cpu_trial_stays(activation_mb: int, headroom_mb: int) -> None:
    raw = with_headroom(MemoryEstimate("traced", activation_bytes=activation_mb * MB, heap_bytes=9 * MB, margin=0.1))
    corrected = Calibration(300 * MB, 2.0, 0, largest_bytes=GB, samples=9).correct(raw)
    assert corrected.headroom_bytes // MB == headroom_mb
    assert Calibration(300 * MB, 2.0, 70 * MB, largest_bytes=GB, samples=9).correct(raw).headroom_bytes == 70 * MB


def test_what_is_recorded_comes_back_under_its_own_key_only(tmp_path: Path) -> None:
    name = key("toy", "a GPU")
    assert load_samples(name, tmp_path) == []
    record(name, [to_sample(TRACED, 2 * GB)], tmp_path)
    record(name, samples(3), tmp_path)
    assert len(load_samples(name, tmp_path)) == 4
    assert load_samples(key("toy", "another GPU"), tmp_path) == []
    with_option = key("toy", "a GPU", "expandable_segments:True")
    assert with_option == f"{name} | expandable segments", "as it was stored before"
    assert len({name, with_option, key("toy", "a GPU", "max_split_size_mb:64")}) == 3


def test_the_latest_samples_are_kept_and_of_one_footprint_the_largest(tmp_path: Path) -> None:
    record("k", [Sample(0, number, GB) for number in range(150)], tmp_path)
    record("k", [Sample(0, 149, peak * GB) for peak in (2, 7, 3)] * 200, tmp_path)
    kept = json.loads((tmp_path / "calibration.json").read_text())["k"]
    assert len(kept) == 100
    assert kept[-1] == [0, 149, 7 * GB]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"k": [["a"]]}', '{"k": 3}', '{"k": {}}', '{"k": [[1, 2, Infinity]]}', '{"k": [[1, 2, -3]]}', DEEP],
)
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(InputError, match=r"calibration.json is damaged .*: delete it"):
        load_samples("k", tmp_path)


def test_calibration_says_which_guess_it_has_replaced_and_keeps_the_other_notes() -> None:
    guess = MemoryEstimate("traced", MB, context_bytes=GB, note="not measured: no GPU; NCCL is a guess")
    corrected = Calibration(2 * GB, 1.0, 0, GB, 6).correct(replace(guess, context_note="NCCL is a guess"))
    assert corrected.note == "not measured: no GPU; the context is as 6 trials took it, no longer a guess"
    assert (corrected.context_bytes, corrected.context_note) == (2 * GB, "")


def test_trials_of_several_ranks_have_samples_of_their_own() -> None:
    kinds = [kind_of("toy", config) for config in ({}, {RANKS: 1}, {RANKS: 2}, {RANKS: 4})]
    assert kinds == ["toy", "toy", "toy | 2 ranks", "toy | 4 ranks"]
