from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tuner.decisions.plan import host_need_bytes
from tuner.estimation.feedback import StudyFeedback, corrected
from tuner.estimation.overheads import WORKER_BYTES, with_host
from tuner.estimation.service import IN_RAM, EstimationService
from tuner.trial import GB, MB, AttemptResult, EpochReport, History, MemoryEstimate, Request, Trial
from tuner.workloads.pickling import own_bytes


@dataclass
class Data:
    table: object
    names: list[str]


def make(*host_gb: float) -> tuple[StudyFeedback, list[Request]]:
    """Feedback on trials that were expected to take this much RAM."""
    raw = {f"t{n}": MemoryEstimate("given", GB, host_bytes=int(gb * GB)) for n, gb in enumerate(host_gb)}
    requests = [
        Request(Trial(key, "toy", key, {}, 0), estimate, GB, host_bytes=host_need_bytes(estimate))
        for key, estimate in raw.items()
    ]
    return StudyFeedback(raw, {"toy": ()}), requests


def ended(peak_gb: float, status: str = "completed", **others: object) -> AttemptResult:
    return AttemptResult(status, limit_bytes=GB, host_peak_bytes=int(peak_gb * GB), **others)  # type: ignore[arg-type]


def test_arrays_and_tensors_are_shared_and_objects_of_python_are_each_processes_own(tmp_path: Path) -> None:
    plain = own_bytes(Data(None, ["a"]))
    np.save(tmp_path / "table.npy", np.zeros(10 * MB // 8))
    for table in (np.zeros(10 * MB), torch.zeros(10 * MB), np.load(tmp_path / "table.npy", mmap_mode="r")):
        assert own_bytes(Data(table, ["a"])) < plain + 1000
    assert own_bytes(Data(None, [f"{n:090d}" for n in range(10_000)])) > 5 * MB
    assert own_bytes(lambda: 0) < 1000, "it cannot be pickled"


def test_long_texts_and_bytes_take_their_length_and_once() -> None:
    for one in (bytes(MB), bytearray(MB), "x" * MB):
        assert MB < own_bytes([one, one, {"again": one}]) < MB + 2000
    assert 4 * MB < own_bytes([f"{n:01024d}" for n in range(4096)]) < 4.5 * MB


def test_an_estimate_counts_the_worker_the_data_and_copies_of_the_weights() -> None:
    traced = MemoryEstimate("traced", parameter_bytes=100 * MB, host_bytes=50 * MB)
    assert with_host(traced, 7).host_bytes == WORKER_BYTES + 7 + 250 * MB
    assert with_host(traced, 7, keeps_weights=False).host_bytes == WORKER_BYTES + 7 + 50 * MB, "a program's own loop"
    assert with_host(traced, 7).total_bytes == traced.total_bytes


def test_peaks_of_completed_trials_correct_others_down_as_well_as_up() -> None:
    for peak, expected in ((0.5, 0.5), (3.0, 3.0)):
        feedback, (first, second) = make(1, 1)
        assert feedback.learn(first.trial, ended(peak))
        assert feedback.correct(second).host_bytes == host_need_bytes(
            MemoryEstimate("", host_bytes=int(expected * GB))
        )
        assert feedback.correct(second).need_bytes == GB, "its device's share is as given"


def test_a_trial_that_was_expected_to_take_more_is_off_by_as_much() -> None:
    feedback, (first, large) = make(1, 4)
    feedback.learn(first.trial, ended(0.5))
    assert feedback.correct(large).estimate.host_bytes == 3.5 * GB


def test_running_trials_correct_up_alone_and_little_changes_nothing() -> None:
    feedback, (first, second) = make(1, 1)
    assert not feedback.report(first.trial, EpochReport("t0", 1, 3, host_peak_bytes=GB // 2))
    assert feedback.report(first.trial, EpochReport("t0", 1, 3, host_peak_bytes=2 * GB))
    assert not feedback.report(first.trial, EpochReport("t0", 1, 3, host_peak_bytes=2 * GB + MB))
    assert feedback.correct(second).estimate.host_bytes > 2 * GB


def test_the_final_peak_of_an_attempt_replaces_what_its_reports_taught() -> None:
    for status in ("pruned", "completed"):
        feedback, (first, second) = make(1, 1)
        assert feedback.report(first.trial, EpochReport("t0", 1, 3, host_peak_bytes=20 * GB))
        assert feedback.learn(first.trial, ended(3, status))
        assert feedback.correct(second).estimate.host_bytes == 3 * GB
        assert feedback.correct(second).estimate.host_measured and not second.estimate.host_measured


def test_a_trial_that_ran_out_of_ram_says_that_others_need_more_of_it_and_nothing_of_their_devices() -> None:
    feedback, (first, second) = make(1, 1)
    short = AttemptResult("out_of_memory", "worker", GB, short_of="RAM", host_bytes=2 * GB)
    assert feedback.learn(first.trial, short)
    assert feedback.correct(second).estimate.host_bytes == 2 * GB
    retry = replace(first, host_bytes=3 * GB, history=History(out_of_memory=1))
    assert feedback.correct(retry) == retry


def test_the_next_study_knows_what_this_ones_trials_took() -> None:
    service, raw = EstimationService(), MemoryEstimate("traced", host_bytes=GB)
    service.learn_in_ram("toy", "H100", [(raw, GB // 2), (raw, GB // 4)])
    assert corrected(GB, service.samples("toy", "H100", IN_RAM)) == GB // 2
    assert service.samples("toy", "H100") == [], "they are not those of its memory"
    assert corrected(GB, service.samples("toy", "A100", IN_RAM)) == GB
