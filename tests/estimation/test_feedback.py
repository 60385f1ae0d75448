from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.decisions.events import Planned
from tuner.decisions.plan import need_bytes
from tuner.decisions.state import State
from tuner.estimation import calibration
from tuner.estimation.calibration import Sample
from tuner.estimation.feedback import StudyFeedback
from tuner.trial import MB, RANKS, AttemptResult, History, MemoryEstimate, Request, Trial


def guess(activation_mb: int, method: str = "traced") -> MemoryEstimate:
    return MemoryEstimate(method, activation_bytes=activation_mb * MB, context_bytes=400 * MB, margin=0.1)


def make(method: str = "traced", known: tuple[Sample, ...] = ()) -> tuple[StudyFeedback, dict[str, Request]]:
    raw = {f"t{mb}": guess(mb, method) for mb in (100, 200, 300, 400)}
    requests = {
        key: Request(Trial(key, "toy", key, {}, 0), estimate, need_bytes(estimate)) for key, estimate in raw.items()
    }
    return StudyFeedback(raw, {"toy": known}), requests


def ended(mb: float) -> AttemptResult:
    return AttemptResult("completed", limit_bytes=999 * MB, peak_bytes=int(mb * MB))


@pytest.mark.parametrize("context", [250, 600])
def test_peaks_correct_estimates_down_as_well_as_up(context: int) -> None:
    feedback, requests = make()
    assert feedback.learn(requests["t400"].trial, ended(context + 400))
    corrected = feedback.correct(requests["t200"])
    assert corrected.estimate.total_bytes == (context + 200) * MB
    assert corrected.need_bytes == need_bytes(corrected.estimate)
    assert corrected.estimate.method == "traced, calibrated"


def test_what_earlier_studies_needed_counts_beside_this_one() -> None:
    known = tuple(Sample(0, mb * MB, (300 + 2 * mb) * MB) for mb in (100, 200, 300, 400, 500))
    feedback, requests = make(known=known)
    feedback.learn(requests["t100"].trial, ended(500))
    assert feedback.correct(requests["t400"]).estimate.total_bytes == pytest.approx(1100 * MB, rel=0.01)


def test_what_an_earlier_process_of_the_study_has_recorded_counts_once() -> None:
    others = tuple(Sample(0, mb * MB, (300 + 2 * mb) * MB) for mb in (100, 200, 300))
    of_it = calibration.to_sample(guess(400), 900 * MB)
    (alone, requests), (resumed, _) = make(known=others), make(known=(*others, of_it))
    for feedback in (alone, resumed):
        feedback.learn(requests["t400"].trial, ended(900))
    assert resumed.correct(requests["t200"]) == alone.correct(requests["t200"])


def test_a_trial_that_ran_out_raises_the_others_until_its_peak_is_known() -> None:
    feedback, requests = make()
    before = requests["t300"].need_bytes
    assert feedback.learn(requests["t400"].trial, AttemptResult("out_of_memory", limit_bytes=1600 * MB))
    assert feedback.correct(requests["t300"]).need_bytes > 1400 * MB
    feedback.learn(requests["t400"].trial, ended(700))
    assert feedback.correct(requests["t300"]).need_bytes < before


def test_what_a_trial_asked_for_as_it_ran_out_counts_where_it_is_more_than_its_share() -> None:
    feedback, requests = make()
    ran_out = AttemptResult("out_of_memory", limit_bytes=450 * MB, peak_bytes=1000 * MB)
    assert feedback.learn(requests["t400"].trial, ran_out)
    assert feedback.correct(requests["t400"]).need_bytes >= 1000 * MB
    assert feedback.correct(requests["t300"]).need_bytes >= 900 * MB


@pytest.mark.parametrize("result", [AttemptResult("out_of_memory", limit_bytes=650 * MB), ended(680)])
def test_a_fit_that_takes_it_for_an_outlier_gives_trials_as_large_no_less_than_one_that_ran_out(
    result: AttemptResult,
) -> None:
    feedback, requests = make(known=tuple(Sample(0, mb * MB, (200 + mb) * MB) for mb in range(100, 500, 10)))
    feedback.learn(requests["t300"].trial, AttemptResult("out_of_memory", limit_bytes=650 * MB))
    feedback.learn(requests["t300"].trial, result)
    assert feedback.correct(requests["t400"]).need_bytes > 680 * MB
    assert feedback.correct(requests["t200"]).need_bytes < 500 * MB


def test_estimates_that_are_not_traced_are_only_raised_and_only_of_trials_as_large() -> None:
    feedback, requests = make("static")
    assert not feedback.learn(requests["t400"].trial, ended(10))
    assert feedback.learn(requests["t200"].trial, AttemptResult("out_of_memory", limit_bytes=2000 * MB))
    assert feedback.correct(requests["t300"]).need_bytes == 2200 * MB
    assert feedback.correct(requests["t100"]) == requests["t100"]


def test_a_retry_keeps_its_share_and_what_the_user_gave_is_not_touched() -> None:
    feedback, requests = make()
    feedback.learn(requests["t400"].trial, ended(600))
    retry = replace(requests["t300"], need_bytes=5, history=History(out_of_memory=1))
    assert feedback.correct(retry) == retry
    feedback, requests = make("given")
    assert not feedback.learn(requests["t400"].trial, ended(600))
    assert feedback.correct(requests["t300"]) == requests["t300"]


def test_what_one_workloads_trials_took_says_nothing_of_anothers() -> None:
    _, requests = make()
    raw = {key: request.estimate for key, request in requests.items()}
    feedback = StudyFeedback(raw, {"toy": (), "other": ()})
    other = replace(requests["t200"], trial=replace(requests["t200"].trial, workload="other"))
    assert feedback.learn(requests["t400"].trial, ended(1000))
    assert feedback.learn(requests["t100"].trial, AttemptResult("out_of_memory", limit_bytes=5000 * MB))
    assert feedback.correct(requests["t200"]).need_bytes > 5000 * MB
    assert feedback.correct(other) == other
    assert feedback.learn(replace(other.trial, trial_id="t400"), ended(500))
    assert feedback.correct(other).estimate.total_bytes == 300 * MB


def test_that_others_held_the_memory_tells_nothing_of_a_trial() -> None:
    _, requests = make()
    feedback = StudyFeedback({key: request.estimate for key, request in requests.items()}, {"toy": ()})
    starved = AttemptResult("out_of_memory", "memory", limit_bytes=5000 * MB)
    assert not feedback.learn(requests["t400"].trial, starved)
    assert feedback.correct(requests["t400"]) == requests["t400"]


def test_a_suggestions_estimate_is_corrected_as_those_that_were_known_from_the_start() -> None:
    _, requests = make()
    feedback = StudyFeedback({"t400": guess(400)}, {"toy": ()})
    feedback.learn(requests["t400"].trial, ended(1000))
    feedback.hear(State(), Planned((requests["t200"],), {"t200": guess(200)}))
    assert feedback.correct(requests["t200"]).estimate.total_bytes == 800 * MB


def test_many_trials_are_not_fitted_anew_each_time() -> None:
    raw = {f"t{n}": guess(n) for n in range(1, 201)}
    feedback = StudyFeedback(raw, {"toy": ()})
    news = [feedback.learn(Trial(key, "toy", key, {}, 0), ended(500 + n)) for n, key in enumerate(raw)]
    assert all(news[:10])
    assert sum(news) < 60


def test_peaks_of_one_gpu_do_not_replace_the_context_of_ranks() -> None:
    asked: list[str] = []

    def earlier(kind: str) -> list[Sample]:
        return [Sample(0, 100 * MB, 900 * MB)] if not asked.append(kind) else []  # type: ignore[func-returns-value]

    feedback = StudyFeedback({"a": guess(100), "b": guess(100)}, {"toy": ()}, of_ranks=earlier)
    alone, ranks = (Trial(name, "toy", name, {RANKS: number}, 0) for name, number in (("a", 1), ("b", 2)))
    feedback.learn(alone, ended(350))
    request = Request(ranks, guess(100), 510 * MB)
    assert feedback.correct(request) == request
    feedback.learn(ranks, ended(900))
    assert feedback.correct(request).estimate.context_bytes == 800 * MB
    assert asked == ["toy | 2 ranks"]
