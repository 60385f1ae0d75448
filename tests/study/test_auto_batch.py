"""``batch_size: auto``: what it comes to, and what knows of it afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.toy import Batched, Toy
from tuner.api.plan import to_record
from tuner.cli.print_plan import forecast_text
from tuner.decisions.plan import need_bytes
from tuner.errors import InputError
from tuner.execution.in_process import InProcessExecutor
from tuner.hyperparameters import is_auto
from tuner.search.configurations import complete, configurations
from tuner.spec.settings import Settings
from tuner.spec.spelling import program
from tuner.spec.study_spec import StudySpec
from tuner.study.auto_batch import SizedTrials, packed_uniformly, share_of, size_batches
from tuner.study.needs import Needs
from tuner.study.planning import to_trials
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import AUTO, GB, RANKS, Device
from tuner.workloads.base import BUILT_IN, Workload
from tuner.workloads.lookup import find_workload
from tuner.workloads.micro_batches import halved
from tuner.workloads.task import Selection, load_tasks

RAM = Device("", "cpu", 0, "a machine", GB, GB, cores=2)
ESTIMATED = {"auto_memory": True, "gpu_memory_buffer_gb": 0, "calibration": False}
OWN = "defaults: {epochs: 1}\nconfigurations: [{name: a, batch_size: auto}, {name: b, batch_size: 64, lr: 0}]"


@pytest.fixture(autouse=True)
def _toys_are_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "toy", "tests.support.toy:Toy")
    monkeypatch.setitem(BUILT_IN, "batched", "tests.support.toy:Batched")


def choice(*listed: dict[str, Any], workload: Workload | None = None) -> Selection:
    workload = workload or Batched()
    return Selection(workload, lambda: None, configurations(listed, workload.schema))


def sized(*choices: Selection, devices: tuple[Device, ...] = (RAM,), **options: Any) -> SizedTrials:
    settings = packed_uniformly(Settings(**{**ESTIMATED, **options}))
    return size_batches(Needs(load_tasks(choices), devices, settings), to_trials(choices, settings))


def device(size_gb: float, cores: int = 0) -> Device:
    return Device("", "cuda", 0, f"a GPU of {size_gb}", int(size_gb * GB), int(size_gb * GB), cores=cores)


def test_the_key_that_memory_grows_with_may_be_auto_and_no_other() -> None:
    for name in ("graphsage", "gt-ssl"):
        schema = find_workload(name).schema
        assert [key for key, spec in schema.items() if getattr(spec, "auto", False)] == ["batch_size", RANKS]
        assert complete({"batch_size": AUTO}, schema)["batch_size"] == AUTO
        with pytest.raises(InputError, match="lr = 'auto' is not a number"):
            configurations([{"lr": AUTO}], schema)
    with pytest.raises(InputError, match="unknown key 'batch_size'"):
        configurations([{"batch_size": AUTO}], Toy().schema)


@pytest.mark.parametrize(
    ("devices", "largest_gb", "options", "share_gb", "bound"),
    [
        ([device(8)], 0, {}, 2, "number of trials"),
        ([device(8)], 0, {"max_workers": 2}, 4, "max_workers"),
        ([device(8)], 2.5, {}, 8 / 3, "memory"),
        ([device(8, cores=1)], 2.5, {}, 8, "CPU cores"),
        ([device(8), device(9)], 0, {}, 4, "number of trials"),
        ([device(8), device(9)], 0, {"max_workers": 2}, 8, "max_workers"),
        ([device(2), device(9)], 2.5, {}, 3, "memory"),
        ([device(2)], 2.5, {}, 2, "memory"),
        ([device(8)], 0, {"auto_memory": False, "model_memory_gb": 1.5}, 1.5, "number of trials"),
    ],
)
def test_the_share_is_the_smallest_devices_budget_over_its_workers(
    devices: list[Device], largest_gb: float, options: dict[str, Any], share_gb: float, bound: str
) -> None:
    settings = Settings(**{**ESTIMATED, **options})
    share = share_of(Needs({}, devices, settings), int(largest_gb * GB), 4)
    assert share.size_bytes == pytest.approx(share_gb * GB, abs=4)
    assert share.bound == bound


def test_the_largest_batch_fills_the_share_and_every_worker_has_one() -> None:
    found = sized(choice({"name": "a", "batch_size": AUTO}, {"name": "b"}))
    (batch,) = found.batches
    assert batch.micro.need_bytes <= GB // 2 < (batch.micro.beyond_bytes or 0)
    auto, fixed = found.estimates.requests
    assert (auto.need_bytes, auto.trial.config["batch_size"]) == (batch.micro.need_bytes, batch.batch_size)
    assert fixed.trial.config["batch_size"] == 8
    assert fixed.need_bytes < auto.need_bytes
    assert set(found.estimates.raw) == {"t001", "t002"}
    assert str(found).splitlines() == [
        "the share is 0.50 GB = 1.00 GB of cpu / 2 workers, bounded by number of trials",
        f"a: batch_size {batch.batch_size:,} takes 0.50 GB, bounded by memory",
    ]


def test_a_share_that_is_given_decides_without_estimates_for_the_plan() -> None:
    found = sized(choice({"batch_size": AUTO, "name": "a"}), auto_memory=False, model_memory_gb=0.5)
    (request,) = found.estimates.requests
    assert (request.need_bytes, request.estimate.method) == (GB // 2, "given")
    assert 100 < found.by_trial()["t001"] < 10_000
    assert str(found).startswith("the share is 0.50 GB, as given\na: batch_size ")


def test_micro_batches_are_sized_with_the_gradients_beside_them() -> None:
    whole, parts = sized(
        choice({"name": "a", "batch_size": AUTO}, {"name": "b", "batch_size": AUTO, "accumulation": 3})
    ).batches
    assert parts.batch_size == 3 * parts.micro.batch_size
    assert parts.micro.batch_size <= whole.batch_size
    assert parts.micro.need_bytes <= GB // 2 < (parts.micro.beyond_bytes or 0)
    assert f"batch_size {parts.batch_size:,} in 3 micro-batches takes" in str(parts)


def test_more_micro_batches_than_samples_are_refused() -> None:
    with pytest.raises(
        InputError,
        match="a: batch_size auto: accumulation 100001 is above 100000, the largest batch_size that batched allows",
    ):
        sized(choice({"name": "a", "batch_size": AUTO, "accumulation": 100_001}))


def test_batches_are_searched_once_for_trials_of_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    from tuner.study import auto_batch

    real = auto_batch.Predictor.largest
    monkeypatch.setattr(auto_batch.Predictor, "largest", lambda *a, **k: searched.append(a[1]) or real(*a, **k))
    found = sized(choice(*({"batch_size": AUTO, "lr": lr, "name": str(lr)} for lr in (0.1, 0.2, 0.3))))
    assert len(searched) == 1
    assert [batch.trial.config["lr"] for batch in found.batches] == [0.1, 0.2, 0.3]
    assert len(set(found.by_trial().values())) == 1


def test_a_batch_of_all_that_is_allowed_names_that_bound() -> None:
    found = sized(choice({"name": "a", "batch_size": AUTO}), devices=(device(40),))
    assert found.by_trial() == {"t001": 100_000}
    assert "bounded by the largest batch_size that batched allows" in str(found)


def test_each_workload_has_its_own_beside_those_that_have_no_batch() -> None:
    found = sized(choice({"name": "a"}, workload=Toy()), choice({"name": "a", "batch_size": AUTO}))
    assert [request.trial.workload for request in found.estimates.requests] == ["toy", "batched"]
    assert list(found.by_trial()) == ["t002"]
    assert "\nbatched/a: batch_size " in str(found)


def test_nothing_is_said_where_no_batch_was_to_be_found() -> None:
    found = sized(choice({"name": "a"}))
    assert (str(found), found.by_trial(), len(found.estimates.requests)) == ("", {}, 1)


def test_a_trial_that_may_accumulate_gets_a_batch_that_can_be_halved() -> None:
    found = sized(choice({"name": "a", "batch_size": AUTO}), on_oom="accumulate")
    config: Any = found.estimates.requests[0].trial.config
    assert config["batch_size"] % 8 == 0
    for _ in range(3):
        config = halved(Batched(), config)
    assert config["accumulation"] == 8


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"device_memory": 0.3}, r"0\.0\d GB more than the share of 0\.15 GB: give max_workers=1$"),
        ({"device_memory": 0.15}, "lower gpu_memory_buffer_gb, use a larger device, or leave this"),
        ({"auto_memory": False, "model_memory_gb": 0.1}, r"share of 0\.10 GB: give model_memory_gb=0\.\d+ or more"),
    ],
)
def test_a_batch_of_one_that_does_not_fit_says_by_how_much_and_what_would(
    options: dict[str, Any], remedy: str
) -> None:
    size = int(options.pop("device_memory", 1) * GB)
    machine = Device("", "cpu", 0, "a machine", size, size, cores=2)
    both = choice({"name": "a", "batch_size": AUTO}, {"name": "b", "batch_size": AUTO})
    with pytest.raises(InputError, match=f"^a: batch_size auto: a batch of 1 needs 0.* {remedy}"):
        sized(both, devices=(machine,), **options)


def test_what_has_room_for_no_batch_is_estimated_with_one_sample_where_it_may_be_left_out() -> None:
    machine = Device("", "cpu", 0, "a machine", int(0.15 * GB), int(0.15 * GB), cores=2)
    found = sized(choice({"name": "a", "batch_size": AUTO}), devices=(machine,), skip_too_large=True)
    assert list(found.by_trial().values()) == [1]
    assert found.estimates.requests[0].need_bytes > machine.total_bytes


def test_the_number_of_workers_that_is_advised_makes_room() -> None:
    machine = Device("", "cpu", 0, "a machine", int(0.3 * GB), int(0.3 * GB), cores=2)
    both = choice({"name": "a", "batch_size": AUTO}, {"name": "b", "batch_size": AUTO})
    assert min(sized(both, devices=(machine,), max_workers=1).by_trial().values()) > 1


def own_file(folder: Path) -> str:
    path = folder / "own.yaml"
    path.write_text(OWN)
    return str(path)


def test_a_plan_finds_it_and_what_has_no_shares_refuses_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"workload": "batched", "config": own_file(tmp_path), "device": "cpu"}
    found = tuner.plan(**options, auto_memory=True, device_memory_gb=1, gpu_memory_buffer_gb=0, calibration=False)
    assert (found.plan.packing, list(to_record(found)["auto_batch"])) == ("uniform", ["t001"])
    assert f"batch      {found.sized.share.text}\n           a: batch_size " in forecast_text(found)
    assert all(need_bytes(request.estimate) <= GB // 2 for request in found.requests)
    for command in (tuner.estimate, tuner.calibrate):
        with pytest.raises(InputError, match=r"a: batch_size auto: .*use `tuner plan`, or give a number"):
            command(**options)
    with pytest.raises(InputError, match="packing='per-trial': a batch of auto fills the share of a uniform plan"):
        tuner.plan(**options, auto_memory=True, packing="per-trial")


def study(folder: Path, *listed: dict[str, Any], **settings: Any) -> StudyResult:
    common = {"output": str(folder), "device": "cpu", "gpu_memory_buffer_gb": 0, "model_memory_gb": 0.5, "threads": 1}
    return run_study(
        StudySpec([choice(*listed)], Settings(**{**common, **settings}), label="test", command="a test"),
        InProcessExecutor(),
    )


def test_a_study_that_is_gone_on_with_knows_its_batches_and_searches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = {"name": "a", "batch_size": AUTO, "epochs": 1}
    first = study(tmp_path / "out", auto)
    written = json.loads((tmp_path / "out" / "study.json").read_text())
    batch = written["auto_batch"]["t001"]
    assert written["configurations"][0]["values"]["batch_size"] == first.rows[0]["config/batch_size"] == batch
    assert f"{batch}" in (tmp_path / "out" / "results.csv").read_text()
    monkeypatch.setattr("tuner.study.auto_batch.Predictor", None)
    resumed = {"output": None, "resume": str(tmp_path / "out")}
    assert study(tmp_path, auto, **resumed).rows == study(tmp_path, {**auto, "batch_size": batch}, **resumed).rows
    (tmp_path / "out" / "attempts.jsonl").write_text("")  # as if it had been broken off before its trial ended
    (anew,) = study(tmp_path, auto, **resumed).rows
    assert (anew["config/batch_size"], anew["val_loss"]) == (batch, first.rows[0]["val_loss"])
    with pytest.raises(InputError, match="its configurations are different"):
        study(tmp_path, {**auto, "batch_size": batch + 1}, **resumed)
    with pytest.raises(InputError, match="packing='per-trial': a batch of auto"):
        study(tmp_path, auto, packing="per-trial", **resumed)


def test_a_batch_that_was_a_number_is_not_recognised_as_auto(tmp_path: Path) -> None:
    study(tmp_path / "out", {"name": "a", "epochs": 1})
    with pytest.raises(InputError, match="its configurations are different"):
        study(tmp_path, {"name": "a", "batch_size": AUTO}, output=None, resume=str(tmp_path / "out"), epochs=1)


@pytest.mark.ray
def test_a_trial_stays_within_the_share_that_its_batch_was_found_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], shared_ray: None
) -> None:
    out, path = str(tmp_path / "out"), own_file(tmp_path)
    options: dict[str, Any] = {"workload": "batched", "config": path, "device": "cpu", "gpu_memory_buffer_gb": 0}
    result = tuner.run(**options, auto_memory=True, device_memory_gb=1.2, max_workers=2, threads=1, output=out)
    rows = {row["name"]: row for row in result.rows}
    assert {row["status"] for row in result.rows} == {"completed"}
    assert {row["attempts"] for row in result.rows} == {1}
    assert 0.45 < rows["a"]["peak_memory_gb"] <= rows["a"]["limit_gb"] <= 0.6
    printed = capfd.readouterr().out
    assert f"a: batch_size {rows['a']['config/batch_size']:,} takes 0.60 GB, bounded by memory" in printed
    assert rows["b"]["limit_gb"] == rows["a"]["limit_gb"], "packing is uniform"
    assert printed.partition("Again: ")[2].startswith(f"{program()} train --from {out} --trial t00")
    Path(path).unlink()
    tuner.run(resume=out, dry_run=True)
    assert "no trials are left to run" in capfd.readouterr().out
    assert not any(
        is_auto(configuration)
        for configuration in json.loads((tmp_path / "out" / "study.json").read_text())["configurations"]
    )
