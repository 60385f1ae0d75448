from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.decisions.events import Corrected, Planned, Reported
from tuner.decisions.plan import make_plan, need_bytes
from tuner.decisions.state import State, apply
from tuner.errors import InputError
from tuner.estimation.estimators import (
    FIRST_SHARES,
    LEAST_ROOM_BYTES,
    LearnedEstimator,
    first_share,
    with_room,
)
from tuner.estimation.feedback import StudyFeedback
from tuner.estimation.learned_footprints import FIRST, FITTED, LearnedFootprints
from tuner.trial import (
    GB,
    LEARNED,
    MB,
    AttemptResult,
    Device,
    EpochReport,
    History,
    MemoryEstimate,
    Request,
    Status,
    Trial,
)

IDLE = 300 * MB
DEVICE = Device("", "cpu", 0, "a machine", 64 * GB, 64 * GB, cores=2)
PLAN = make_plan([DEVICE], [GB], packing="per-trial", buffer_bytes=0)
ROOM = with_room(MemoryEstimate(LEARNED, context_bytes=350 * MB), 8 * GB)


def waiting(number: int, **config: int) -> Request:
    trial = Trial(f"t{number}", "train", f"c{number}", {"lr": 0.1 / (number + 1), "epochs": 3, **config}, 0)
    return Request(trial, ROOM, need_bytes(ROOM))


def footprint(hidden: int) -> int:
    return hidden * MB // 2 + 20 * MB


def sized(count: int = 20) -> list[Request]:
    return [waiting(number, hidden=100 + 40 * number) for number in range(count)]


def begin(requests: list[Request]) -> tuple[StudyFeedback, list[Request]]:
    feedback = StudyFeedback({request.trial.trial_id: ROOM for request in requests}, {"train": ()})
    return feedback, feedback.begin(requests)


def report(request: Request, epoch: int, memory: int) -> EpochReport:
    return EpochReport(request.trial.trial_id, epoch, 3, {"loss": 1.0} if epoch else {}, memory_bytes=memory)


def train(feedback: StudyFeedback, request: Request) -> bool:
    feedback.report(request.trial, report(request, 0, IDLE))
    return feedback.report(request.trial, report(request, 1, IDLE + footprint(int(request.trial.config["hidden"]))))


def ended(status: Status, limit: int, peak: int | None = None) -> AttemptResult:
    return AttemptResult(status, limit_bytes=limit, peak_bytes=peak)


def test_the_first_trials_differ_and_have_room_while_the_others_are_estimated_by_them() -> None:
    feedback, requests = begin(sized())
    assert [request.trial.trial_id for request in requests[:2]] == ["t0", "t19"]
    assert all(request == requests[0] or request.need_bytes == 8 * GB for request in requests)
    for request in requests[:3]:
        assert train(feedback, request)
    assert feedback.correct(requests[FIRST - 1]).need_bytes == 8 * GB
    corrected = feedback.correct(requests[-1])
    expected = footprint(int(corrected.trial.config["hidden"]))
    assert corrected.estimate.context_bytes == IDLE
    assert corrected.estimate.reserved_bytes == pytest.approx(expected, rel=0.2)
    assert IDLE + expected < corrected.need_bytes < 2 * GB


def test_first_trials_keep_no_more_room_than_a_device_has_on_which_they_would_fit() -> None:
    feedback, requests = begin(sized())
    small = replace(DEVICE, node_id="small", total_bytes=2 * GB, free_bytes=2 * GB)
    for devices, need in (([DEVICE], 8 * GB), ([DEVICE, small], 2 * GB)):
        plan = make_plan(devices, [8 * GB], packing="per-trial", buffer_bytes=0)
        waits = requests[FIRST - 1]
        state = apply(State(), Planned((waits, requests[0]), {}))
        state = replace(state, plan=plan)
        feedback.hear(state, Reported(report(requests[0], 2, IDLE + footprint(100) + len(devices)), 0.0))
        corrected = feedback.decide(state, 0.0)
        assert isinstance(corrected, Corrected)
        assert corrected.requests[waits.trial.trial_id].need_bytes == need


def test_a_later_larger_peak_replaces_an_earlier_one() -> None:
    feedback, requests = begin(sized())
    for request in requests[:FIRST]:
        train(feedback, request)
    first = requests[0]
    assert not feedback.report(first.trial, report(first, 2, IDLE + 10 * MB))
    assert feedback.report(first.trial, report(first, 3, IDLE + 900 * MB))
    assert feedback.correct(first).need_bytes > IDLE + 900 * MB
    assert feedback.learn(first.trial, ended("completed", 8 * GB, IDLE + 2000 * MB))


def test_a_trial_that_ran_out_tells_that_it_needs_more_until_its_peak_is_known() -> None:
    feedback, requests = begin(sized())
    for request in requests[:FIRST]:
        train(feedback, request)
    large = waiting(20, hidden=900)
    feedback.hear(State(), Planned((large,), {large.trial.trial_id: ROOM}))
    assert feedback.learn(large.trial, ended("out_of_memory", 4 * GB))
    assert feedback.correct(large).need_bytes > 4 * GB
    assert feedback.learn(large.trial, ended("completed", 8 * GB, IDLE + footprint(900)))
    assert feedback.correct(large).need_bytes < GB


def test_only_a_lower_bound_is_known_if_the_first_trial_runs_out() -> None:
    feedback, requests = begin(sized(3))
    assert feedback.learn(requests[0].trial, ended("out_of_memory", 4 * GB))
    assert feedback.correct(requests[1]).need_bytes >= 4 * GB


def test_of_a_study_that_is_resumed_the_shares_are_at_least_the_new_process_and_what_was_learned_above_the_old() -> (
    None
):
    feedback = StudyFeedback(dict.fromkeys((f"t{n}" for n in range(5)), ROOM), {"train": ()})
    requests = sized(5)
    for request in requests[:3]:
        train(feedback, request)
    left = feedback.begin(requests[3:], own_bytes=GB)
    for request in left:
        expected = footprint(int(request.trial.config["hidden"]))
        assert GB + expected < request.need_bytes < GB + 2 * expected, (
            "no first share, and no process that is smaller"
        )
    feedback.report(left[0].trial, report(left[0], 0, 1200 * MB))
    assert feedback.correct(left[1]).estimate.context_bytes == 1200 * MB, "as it was measured"


def test_a_retry_keeps_its_share() -> None:
    feedback, requests = begin(sized())
    train(feedback, requests[0])
    retry = replace(requests[0], need_bytes=5 * GB, history=History(out_of_memory=1))
    assert feedback.correct(retry) == retry


def test_fits_become_rare_and_stay_small_however_many_trials_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    fit = LearnedFootprints.__init__
    monkeypatch.setattr(LearnedFootprints, "__init__", lambda self, of: sizes.append(len(of)) or fit(self, of))
    feedback, requests = begin(sized(1000))
    for request in requests:
        if train(feedback, request):
            feedback.correct(requests[-1])
    assert len(sizes) < 40
    assert 200 < max(sizes) <= FITTED + 2
    corrected = feedback.correct(requests[500])
    assert corrected.estimate.reserved_bytes == pytest.approx(footprint(corrected.trial.config["hidden"]), rel=0.1)


def test_of_many_waiting_trials_all_are_corrected_or_none() -> None:
    feedback, requests = begin(sized(1000))
    waiting_ones = requests[FIRST:]
    state = apply(State(plan=PLAN), Planned(tuple(waiting_ones), {}))
    for request in requests[:FIRST]:
        feedback.hear(state, Planned((request,), {request.trial.trial_id: ROOM}))
        train(feedback, request)
    first = feedback.decide(state, 0.0)
    assert isinstance(first, Corrected)
    assert len(first.requests) == len(waiting_ones)
    assert feedback.decide(apply(state, first), 0.0) == Corrected({})


def test_trials_without_a_configuration_get_what_nine_in_ten_took() -> None:
    feedback, requests = begin([waiting(number) for number in range(30)])
    for number, request in enumerate(requests[:19], start=1):
        feedback.report(request.trial, report(request, 0, IDLE))
        feedback.learn(request.trial, ended("completed", 8 * GB, IDLE + number * 10 * MB))
    corrected = feedback.correct(requests[-1])
    assert corrected.estimate.total_bytes == IDLE + 180 * MB


def test_a_traced_workload_is_not_learned_and_its_order_stays() -> None:
    raw = MemoryEstimate("traced", activation_bytes=MB)
    requests = [replace(request, estimate=raw, need_bytes=need_bytes(raw)) for request in sized(9)]
    feedback = StudyFeedback({request.trial.trial_id: raw for request in requests}, {"train": ()})
    assert feedback.begin(requests) == requests
    assert not train(feedback, requests[0])


def test_the_first_trials_share_a_device_by_its_workers_where_that_is_enough() -> None:
    assert first_share(22 * GB, 2, IDLE) == 11 * GB
    assert first_share(80 * GB, 64, IDLE) == first_share(80 * GB, 0, IDLE) == 80 * GB // FIRST_SHARES
    assert first_share(2 * GB, 16, 500 * MB) == 2 * GB // 2
    assert first_share(GB // 4, 16, 500 * MB) == GB // 4


@pytest.mark.parametrize("card_gb", [8, 24, 80])
@pytest.mark.parametrize("context", [500 * MB, 742 * MB, 1100 * MB])
def test_a_first_share_has_room_above_the_context_of_its_card(context: int, card_gb: int) -> None:
    share = first_share((card_gb - 2) * GB, 16, context)
    assert share >= context + LEAST_ROOM_BYTES
    assert share == (card_gb - 2) * GB // FIRST_SHARES or (card_gb - 2) * GB // share <= FIRST_SHARES


def test_a_workload_is_traced_instead() -> None:
    from tests.support.toy import Toy

    with pytest.raises(InputError, match="the step of workload toy can be traced"):
        LearnedEstimator().estimate(Toy(), {}, None, DEVICE, expandable_segments=False)
