"""The largest batch for a workload or a footprint on one device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tuner
from tests.support.commands import said
from tests.support.toy import Batched
from tuner.api.optimize import to_record
from tuner.cli.print_plan import optimization_text
from tuner.errors import InputError
from tuner.estimation.measure import Measurement
from tuner.estimation.service import EstimationService
from tuner.machine import devices as devices_of
from tuner.search.configurations import complete
from tuner.sizing import workload_sizing
from tuner.sizing.choices import DoesNotFit, Goal, explanations
from tuner.sizing.workload_sizing import Predictor, size_configuration
from tuner.trial import GB, Device, MemoryEstimate
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.task import TrainingTask

ENCODER = "configs/footprints/contrastive_encoder.toml"
TINY = {"hidden_channels": 16, "num_interactions": 1}
GPU = Device("", "cuda", 0, "a GPU", 8 * GB, 8 * GB, cores=1)


def took(peak_bytes: int) -> Measurement:
    return Measurement(peak_bytes, MemoryEstimate("measured"))


def optimize(**options):
    return tuner.optimize(**{"gpu_memory": 24, "footprint": ENCODER, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory": None}, "auto and gpu_memory were not given: give one of them"),
        ({"auto": True}, "auto and gpu_memory were both given: give one of them"),
        ({"gpu_memory": 0}, "gpu_memory=0: must be more than 0"),
        ({"gpu_memory": -1}, "gpu_memory=-1: must be more than 0"),
        ({"gpu_memory": float("nan")}, "gpu_memory=nan: must be a finite number"),
        ({"gpu_memory": "24"}, "gpu_memory='24': must be a number"),
        ({"gpu_memory": 1e300}, r"gpu_memory=1e\+300: must be at most 1000000"),
        ({"safety_margin": 0}, "safety_margin=0: must be more than 0"),
        ({"safety_margin": 1.1}, "safety_margin=1.1: must be at most 1"),
        ({"devices": 0}, "devices=0: must be at least 1"),
        ({"target_effective_batch": 0}, "target_effective_batch=0: must be at least 1"),
        ({"min_batch_size": 9, "max_batch_size": 8}, "min_batch_size=9 is more than max_batch_size=8"),
        ({"memory_estimation": "guessed", "footprint": None}, "memory_estimation='guessed': choose one of"),
        ({"workload": "graphsage"}, "workload and footprint were both given: a footprint has no model to train"),
        ({"profile": True}, "profile and footprint were both given: a footprint has no model to train"),
        ({"apply": True}, "apply: which files. Name them with config_path"),
        ({"dry_run": True}, "dry_run: which files. Name them with config_path"),
        ({"config_path": ["a.yaml"]}, "config_path='a.yaml': add apply to write it, or dry_run to see"),
        ({"key": ["a=b"]}, "key='a=b': has no effect without config_path"),
        ({"key": ["a"], "config_path": ["x"], "apply": True}, "key='a': expected NAME=DOTTED.PATH"),
        ({"config_path": ["nowhere.yaml"], "apply": True}, "config_path='nowhere.yaml': there is no such file"),
        ({"footprint": "nowhere"}, "footprint nowhere: there is no such file"),
        ({"min_batch_size": 200}, "min_batch_size=200 is above 128, the footprint's max_batch_size: lower it"),
        ({"overrides": ["accumulation=2"]}, "overrides='accumulation=2': accumulation is chosen; see target"),
        (
            {"footprint": None, "overrides": ["accumulation=3"]},
            "overrides='accumulation=3': accumulation is chosen; see target_effective_batch",
        ),
        (
            {"footprint": None, "overrides": ["batch_size=10"]},
            "overrides='batch_size=10': batch_size is the batch, which is chosen; see max_batch_size",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(options, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        optimize(**options)
    assert "\n" not in str(raised.value)


def test_without_a_gpu_nothing_can_be_profiled_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_of, "present_or_imagined", lambda choice: GPU)
    with pytest.raises(InputError, match="profile: this machine has no GPU to run a step on"):
        tuner.optimize(gpu_memory=8, profile=True)


def test_what_is_chosen_is_applied_with_backups_or_only_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "data_loader:\n  batch_size: 8  # per GPU\ntraining:\n  trainer: {accumulate_grad_batches: 1}\n"
    )
    (tmp_path / "01_stage.yaml").write_text("n_positives: 4\nn_negatives: 4\n")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    shown = optimize(config_path=[str(tmp_path)], dry_run=True, apply=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    text = optimization_text(shown, dry_run=True)
    assert "-  batch_size: 8  # per GPU\n+  batch_size: 46  # per GPU\n" in text
    done = optimize(config_path=[str(tmp_path)], apply=True)
    assert "  batch_size: 46  # per GPU\n" in (tmp_path / "config.yaml").read_text()
    assert "{accumulate_grad_batches: 5}" in (tmp_path / "config.yaml").read_text()
    assert (tmp_path / "01_stage.yaml").read_text() == "n_positives: 32\nn_negatives: 24\n"
    assert {path.name: path.read_text() for path in done.backups} == {f"{k}.backup": v for k, v in before.items()}
    assert "data_loader.batch_size 8 → 46" in optimization_text(done, dry_run=False)


def test_nothing_is_written_if_one_of_the_files_cannot_be(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.yaml", tmp_path / "b.yaml"
    good.write_text("data_loader: {batch_size: 8}\ntraining: {trainer: {accumulate_grad_batches: 1}}\n")
    bad.write_text("lr: 1\n")
    with pytest.raises(InputError, match=r"b\.yaml: holds none of data_loader\.batch_size, training"):
        optimize(config_path=[str(good), str(bad)], apply=True)
    assert "batch_size: 8" in good.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "b.yaml"]


def test_the_smallest_of_several_configurations_goes_into_the_files(tmp_path: Path, folder: Path) -> None:
    own, listed = tmp_path / "own.yaml", tmp_path / "listed.yaml"
    own.write_text("defaults: {batch_size: 8, accumulation: 1}\n")
    listed.write_text("configurations: [{name: a, hidden_dim: 4}, {name: b, hidden_dim: 2048}]")
    options = {"gpu_memory": 1.96, "data": str(folder), "config": str(listed), "memory_estimation": "static"}
    found = tuner.optimize(**options, config_path=[str(own)], apply=True, target_effective_batch=700)
    whole, part = (row.batch_size for row in found.chosen)
    assert part < whole == 760
    times = 700 // part
    assert own.read_text() == f"defaults: {{batch_size: {times * part}, accumulation: {times}}}\n"
    assert "b: its batch, the smallest of all, goes into the files" in found.explanations
    assert to_record(found)["changes"][0]["after"] == str(times * part)


def test_an_optimizer_step_has_no_more_samples_than_there_are(folder: Path) -> None:
    found = tuner.optimize(gpu_memory=8, data=str(folder), limit=1, target_effective_batch=10**6, max_batch_size=100)
    (row,) = found.chosen
    assert (row.batch_size, row.accumulation) == (100, 7)
    assert any(
        "760 are wanted and not 1000000, as the training set has no more" in line for line in found.explanations
    )


def on_the_cpu(task: TrainingTask) -> Predictor:
    return Predictor(task, replace(GPU, kind="cpu"), EstimationService(calibration=False))


def test_batches_that_accumulate_fit_beside_the_gradients_of_those_before() -> None:
    predictor, config = on_the_cpu(TrainingTask(Batched(), None)), complete({}, Batched().schema)
    alone = predictor.estimate(config, 300).total_bytes
    row = size_configuration(predictor, "a", config, Goal(alone, effective_batch=1_000))
    assert (row.batch_size < 300, row.accumulation) == (True, 1_000 // row.batch_size)
    sized = {"batch_size": row.batch_size * row.accumulation, "accumulation": row.accumulation}
    guess = EstimationService("traced").raw(Batched(), {**config, **sized}, None, predictor.device)
    assert guess.total_bytes == row.need_bytes <= alone < (row.beyond_bytes or 0)


def test_where_a_batch_fits_but_no_gradients_beside_it_none_are_accumulated() -> None:
    predictor, config = on_the_cpu(TrainingTask(Batched(), None)), complete({}, Batched().schema)
    goal = Goal(predictor.estimate(config, 300).total_bytes, effective_batch=1_000, min_batch_size=300)
    row = size_configuration(predictor, "a", config, goal)
    assert (row.batch_size, row.accumulation) == (300, 1)
    assert explanations(row, goal, config)[-1] == (
        "a: no accumulation, which would make more of the 1000 wanted: beside the gradients of another batch not "
        "even one of 300 fits"
    )


def test_a_profile_runs_the_batches_of_a_step(ratings, monkeypatch) -> None:
    predictor = on_the_cpu(TrainingTask(GraphSAGE(), ratings))
    config, goal, ran = complete({}, GraphSAGE().schema), Goal(4 * GB, effective_batch=100, max_batch_size=30), []
    chosen = size_configuration(predictor, "a", config, goal)
    monkeypatch.setattr(workload_sizing, "measure", lambda _, whole, *__: ran.append(whole) or took(0))
    workload_sizing.profiled(predictor, config, goal, chosen)
    assert [(whole["batch_size"], whole["accumulation"]) for whole in ran] == [(90, 3)]


def test_a_smallest_batch_above_the_training_set_is_refused(ratings) -> None:
    predictor = on_the_cpu(TrainingTask(GraphSAGE(), ratings))
    config = complete({}, GraphSAGE().schema)
    with pytest.raises(InputError, match="min_batch_size=761 is above 760, the training set: lower it"):
        size_configuration(predictor, "a", config, Goal(GB, min_batch_size=761))


def test_a_batch_of_one_that_does_not_fit_says_by_how_much_and_what_would(ratings) -> None:
    predictor = Predictor(TrainingTask(GraphSAGE(), ratings), GPU, EstimationService(calibration=False))
    config = complete({"hidden_dim": 4096}, GraphSAGE().schema)
    half = predictor.estimate({**config, "hidden_dim": 2048}, 1).total_bytes
    with pytest.raises(
        DoesNotFit, match=r"wide: a batch of 1 takes .* GB more than the .* it fits a device of"
    ) as raised:
        size_configuration(predictor, "wide", config, Goal(half, safety_margin=0.5))
    device_gb = float(str(raised.value).split("it fits a device of ")[1].split(" GB")[0])
    assert device_gb == pytest.approx(raised.value.need_bytes / 0.5 / GB, abs=0.006)


def device(total_gb: float, free_gb: float, index: int = 0) -> Device:
    return Device("", "cuda", index, "a GPU", int(total_gb * GB), int(free_gb * GB), cores=1, uuid=f"GPU-{index}")


@pytest.mark.parametrize(
    ("devices", "limit_gb", "notes"),
    [
        ([device(24, 24)], 12, []),
        ([device(24, 6)], 6, ["cuda:0: others hold some of it: of 24.00 GB only 6.00 GB are free"]),
        ([device(24, 24), device(16, 16, 1)], 8, ["sized for cuda:1, which has the least"]),
    ],
)
def test_auto_sizes_for_the_device_that_has_the_least(monkeypatch, devices, limit_gb, notes) -> None:
    monkeypatch.setattr(devices_of, "detect_devices", lambda choice: tuple(devices))
    found = devices_of.detected_target("auto", 0.5)
    assert found.limit_bytes == limit_gb * GB
    assert len(found.notes) == len(notes)
    assert all(note in text for note, text in zip(notes, found.notes, strict=True))


def test_a_profile_that_takes_too_much_makes_the_batch_smaller(ratings, monkeypatch) -> None:
    predictor = Predictor(TrainingTask(GraphSAGE(), ratings), GPU, EstimationService("static", calibration=False))
    config = complete({"hidden_dim": 512}, GraphSAGE().schema)
    predicted = {batch: predictor.estimate(config, batch) for batch in (1, 300)}
    goal = Goal(predicted[300].total_bytes)
    first = size_configuration(predictor, "a", config, goal)
    asked: list[int] = []

    def half_as_much_again(workload, whole, data, where, expandable) -> Measurement:
        asked.append(whole["batch_size"])
        guess = predictor.estimate(config, whole["batch_size"])
        excess = max(0, guess.reserved_bytes - predicted[1].reserved_bytes) // 2
        return took(guess.total_bytes + excess)

    monkeypatch.setattr(workload_sizing, "measure", half_as_much_again)
    chosen, notes = workload_sizing.profiled(predictor, config, goal, first)
    assert asked[0] == first.batch_size > chosen.batch_size
    assert chosen.batch_size in asked[1:] and all(batch < first.batch_size for batch in asked[1:])
    assert chosen.measured_bytes is not None and chosen.measured_bytes <= goal.limit_bytes
    assert "is the limit: chosen anew" in notes[0] and "chosen anew" not in notes[1]


def test_a_profile_that_takes_less_makes_the_batch_larger(ratings, monkeypatch) -> None:
    predictor = Predictor(TrainingTask(GraphSAGE(), ratings), GPU, EstimationService("static", calibration=False))
    config = complete({"hidden_dim": 512}, GraphSAGE().schema)
    goal = Goal(predictor.estimate(config, 100).total_bytes)
    first = size_configuration(predictor, "a", config, goal)

    def a_tenth_less(workload, whole, data, where, expandable) -> Measurement:
        guess = predictor.estimate(config, whole["batch_size"])
        return took(guess.total_bytes - guess.reserved_bytes // 10)

    monkeypatch.setattr(workload_sizing, "measure", a_tenth_less)
    chosen, _ = workload_sizing.profiled(predictor, config, goal, first)
    assert chosen.batch_size > first.batch_size
    assert chosen.measured_bytes is not None and chosen.measured_bytes <= goal.limit_bytes


def test_a_profile_that_never_fits_is_an_error(ratings, monkeypatch) -> None:
    predictor = Predictor(TrainingTask(GraphSAGE(), ratings), GPU, EstimationService("static", calibration=False))
    config = complete({}, GraphSAGE().schema)
    goal = Goal(GB, max_batch_size=4)
    chosen = size_configuration(predictor, "a", config, goal)
    monkeypatch.setattr(workload_sizing, "_corrected", lambda guess, took: lambda other: other.total_bytes)
    monkeypatch.setattr(workload_sizing, "measure", lambda *given: took(2 * GB))
    with pytest.raises(InputError, match=r"after 3 rounds of profile=True: .*: lower safety_margin"):
        workload_sizing.profiled(predictor, config, goal, chosen)


def test_real_steps_on_the_cpu_take_about_what_is_predicted() -> None:
    cpu = replace(GPU, kind="cpu", name="a CPU")
    predictor = Predictor(TrainingTask(Batched(), None), cpu, EstimationService(calibration=False))
    config = complete({}, Batched().schema)
    goal = Goal(4 * GB, max_batch_size=1000)
    chosen, notes = workload_sizing.profiled(
        predictor, config, goal, size_configuration(predictor, "a", config, goal)
    )
    assert len(notes) == 1
    assert chosen.measured_bytes == pytest.approx(chosen.need_bytes, rel=0.3)


def test_the_command_prints_the_guides_row_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimize", "--footprint", ENCODER, "--gpu-memory", "40"]
    assert "- 01: batch 82, as 83 would take 34.315 GB, more than 34.000 GB" in said(capsys, *words)
    first = json.loads(said(capsys, *words, "--json"))["chosen"][0]
    assert (first["batch_size"], first["accumulation"], first["predicted_gb"]) == (82, 3, 33.9338)


def test_explanations_name_parameters_as_their_reader_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"footprint": ENCODER, "gpu_memory": 80, "target_effective_batch": 100}
    assert "01: no accumulation, as a step of 128 is above the 100 wanted: max_batch_size=100 keeps to it" in (
        tuner.optimize(**options).explanations
    )
    words = ["optimize", "--footprint", ENCODER, "--gpu-memory", "80"]
    printed = said(capsys, *words, "--target-effective-batch", "100", "--max-batch-size", "120", "--json")
    told = "01: batch 120, bounded by --max-batch-size; 68.000 GB could be taken"
    assert told in json.loads(printed)["explanations"]
