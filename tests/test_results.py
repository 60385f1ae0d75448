from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.errors import ExecutionError, InputError
from tuner.results import StudyFolder
from tuner.trial import GB, Device, MemoryEstimate, Outcome, Placement, Status, Trial

ESTIMATE = MemoryEstimate("given", context_bytes=3 * GB // 2)
FIRST = "001,toy,t1,5,completed,1,0.5,0.6,3,1.235,cuda:0,0.111111,1.5,0.5,,8"


def outcome(device: Device, number: int, status: Status = "completed", **metrics: float) -> Outcome:
    trial = Trial(f"{number:03d}", "toy", f"t{number}", {"width": 8}, seed=5)
    placement = Placement(trial, ESTIMATE, device, 1 / 9, 2 * GB, threads=1)
    error = "" if status == "completed" else "Boom: it broke"
    return Outcome(trial, status, placement, metrics, 3, 1.23456, GB // 2, error, "Traceback…" if error else "")


def never() -> bytes:
    raise AssertionError("the weights of a trial that is not the best are not fetched")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[StudyFolder]:
    folder = StudyFolder(tmp_path / "study", "val_loss")
    yield folder
    folder.close()


def test_the_columns_are_the_contracts(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 2, "failed"), ESTIMATE, never)
    study.record(outcome(gpu_16gb, 1, val_loss=0.5, test_loss=0.6), ESTIMATE, lambda: b"")
    study.close()
    with (study.path / "results.csv").open() as file:
        first, second = csv.DictReader(file)
    assert ",".join(first) == (
        "trial_id,workload,name,seed,status,attempts,val_loss,test_loss,epochs,duration_s,device,gpu_fraction,"
        "estimated_memory_gb,peak_memory_gb,error,config/width"
    )
    assert list(first.values()) == (FIRST.split(","))
    assert (second["trial_id"], second["val_loss"], second["error"]) == ("002", "", "Boom: it broke")


def test_every_attempt_is_a_line_the_moment_it_ends(study: StudyFolder, gpu_16gb: Device) -> None:
    for number in (1, 2):
        study.record(outcome(gpu_16gb, number, val_loss=0.5), ESTIMATE, lambda: b"")
        lines = (study.path / "attempts.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["name"] == f"t{number}"
        assert len(lines) == number


def test_only_the_best_trials_weights_are_kept(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"first")
    study.record(outcome(gpu_16gb, 2, val_loss=0.7), ESTIMATE, never)
    study.record(outcome(gpu_16gb, 3, val_loss=0.4), ESTIMATE, lambda: b"third")
    assert (study.path / "best.pt").read_bytes() == b"third"


def test_the_full_text_of_an_error_is_kept(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 1, "failed"), ESTIMATE, never)
    assert (study.path / "tracebacks.log").read_text() == "== 001 t1\nTraceback…\n"


def test_a_folder_with_files_or_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="the folder is not empty"):
        StudyFolder(tmp_path, "val_loss")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        StudyFolder(tmp_path / "file" / "study", "val_loss")


def test_a_disk_that_fails_is_one_clear_error(
    study: StudyFolder, gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    replace: Callable[..., Path] = Path.replace
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ExecutionError, match="can no longer be written: No space left"):
        study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"")
    assert json.loads((study.path / "attempts.jsonl").read_text())["error"].startswith("weights not kept")
    monkeypatch.setattr(Path, "replace", replace)
    assert not (study.path / "best.pt").exists()


def test_figures_that_are_not_numbers_are_left_blank(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 1, val_loss=0.5, test_loss=float("nan")), ESTIMATE, lambda: b"")
    assert json.loads((study.path / "attempts.jsonl").read_text())["test_loss"] is None


def test_the_table_is_rewritten_now_and_then_and_at_the_end(study: StudyFolder, gpu_16gb: Device) -> None:
    for number in range(1, 301):
        study.record(outcome(gpu_16gb, number, val_loss=1.0), ESTIMATE, lambda: b"")
    study.close()
    assert len((study.path / "results.csv").read_text().splitlines()) == 301


def test_a_folder_that_must_be_new_is_not_shared(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        StudyFolder(tmp_path, "val_loss", new=True)
