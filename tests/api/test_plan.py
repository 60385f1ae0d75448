from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.attempts import attempt
from tuner.api.plan import Forecast, speed, to_record
from tuner.cli.print_plan import forecast_text
from tuner.errors import InputError
from tuner.records.attempts import Attempt
from tuner.reporting.texts import duration, rough
from tuner.trial import GB, MemoryEstimate, Request, Trial


def forecast(**options: Any) -> Forecast:
    given = {"mode": "architecture", "gpus": 2, "device_memory_gb": 8, "model_memory_gb": 1.4}
    return tuner.plan(**{**given, **options})


def test_a_plan_places_every_trial_on_devices_that_need_not_be_there() -> None:
    record = to_record(forecast())
    assert (record["workers_at_least"], record["bound"], len(record["trials"])) == (8, "number of trials", 8)
    assert [device["most_at_once"] for device in record["devices"]] == [4, 4]
    assert {trial["start"] for trial in record["trials"]} == {0}


def test_estimated_trials_are_packed_by_their_own_needs() -> None:
    found = forecast(model_memory_gb=None, gpus=1, device_memory_gb=3.3, calibration=False)
    assert found.plan.packing == "per-trial"
    assert found.uniform > 1.5 * found.schedule.seconds
    assert "times as fast as uniform packing" in forecast_text(found)


def trains(config: dict[str, float]) -> None:
    raise AssertionError("a plan trains nothing")


def test_a_plan_of_a_function_needs_no_metric() -> None:
    found = tuner.plan(trains, config=[{"lr": 0.1}, {"lr": 0.2}], model_memory_gb=1)
    assert len(found.schedule.placements) == 2


def row(seconds: float, **config: Any) -> Attempt:
    values = {f"config/{key}": value for key, value in {"lr": 0.1, **config}.items()}
    return attempt(duration_s=seconds, epochs=config["epochs"], estimated_memory_gb=2.0, **values)


def test_time_is_what_trials_took_or_grows_with_epochs_and_memory() -> None:
    seconds = speed([row(20, width=4, epochs=2), row(40, width=8, epochs=2)])

    def asked(gb: int, **config: Any) -> Request:
        estimate = MemoryEstimate("given", context_bytes=gb * GB)
        return Request(Trial("t", "toy", "t", {"lr": 0.5, **config}, 0), estimate, gb * GB)

    assert seconds(asked(2, width=4, epochs=6)) == 60, "10 s an epoch, whatever the learning rate"
    assert seconds(asked(4, width=16, epochs=1)) == 30, "the median of 5 and 10 s for an epoch and a GB, times 4 GB"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "gpus=0: must be at least 1"),
        ({"device_memory_gb": None}, "gpus=2: say how much memory each has, with device_memory_gb"),
        ({"like": "nowhere"}, "like='nowhere': there is no such folder"),
        ({"model_memory_gb": 7.0}, "a trial needs 7.00 GB, but cuda:0 has 6.00 GB"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        forecast(**options)


def test_a_study_without_finished_trials_tells_no_time(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"workload": "graphsage"}')
    with pytest.raises(InputError, match="none of its trials is completed yet"):
        forecast(like=str(tmp_path))


def test_the_time_of_a_trial_is_that_of_all_its_attempts(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"workload": "graphsage"}')
    line = {"trial_id": "t001", "workload": "graphsage", "name": "a", "seed": 0, "peak_memory_gb": 1.5}
    line |= {"estimated_memory_gb": 1.4, "config/epochs": 6}
    attempts = [
        {**line, "status": "interrupted", "attempts": 1, "epochs": 4, "duration_s": 10.0},
        {**line, "status": "completed", "attempts": 2, "epochs": 6, "duration_s": 5.0},
    ]
    (tmp_path / "attempts.jsonl").write_text("".join(json.dumps(attempt) + "\n" for attempt in attempts))
    assert forecast(like=str(tmp_path), limit=1, epochs=6).one_by_one == pytest.approx(15.0)


def test_known_times_are_told_and_the_gain_needs_no_guess(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"workload": "graphsage"}')
    line = {"trial_id": "t001", "workload": "graphsage", "name": "a", "seed": 0, "status": "completed"}
    line |= {"attempts": 1, "epochs": 2, "duration_s": 6.0, "estimated_memory_gb": 1.4, "config/epochs": 2}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(line) + "\n")
    found = forecast(like=str(tmp_path), epochs=12, limit=3, max_workers=2)
    *_, time, _, _, packing = forecast_text(found).splitlines()
    said = "about 3 s an epoch, 12 epochs: 36 s for the longest of 3 trials, 72 s in all with 2 workers"
    assert time == f"time       {said}"
    assert packing == "packing    1.5 times as fast as one after another (1.8 min)"
    assert [trial["epoch_seconds"] for trial in to_record(found)["trials"]] == pytest.approx([3.0] * 3)
    assert to_record(found)["seconds"] == pytest.approx(72)


def test_durations_are_told_in_two_units() -> None:
    assert [duration(seconds) for seconds in (42.4, 185, 7800)] == ["42 s", "3 min 5 s", "2 h 10 min"]


def test_rough_times_have_two_digits_at_most() -> None:
    times = (0, 0.0432, 3.04, 36.2, 89, 125, 5000, 9000, 400_000)
    assert [rough(seconds) for seconds in times] == (
        ["0.01 s", "0.043 s", "3 s", "36 s", "89 s", "2.1 min", "83 min", "2.5 h", "4.6 days"]
    )
