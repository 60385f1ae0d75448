from __future__ import annotations

import csv
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ExecutionError, InputError
from tuner.machine import safe_files
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.journal import read_attempts
from tuner.records.study_folder import StudyFolder, check_empty, check_unused
from tuner.records.study_record import StudyRecord, Suggestion, read_study
from tuner.trial import GB, Configuration, Device, MemoryEstimate, Outcome, Placement, Status, Trial

ESTIMATE = MemoryEstimate("given", context_bytes=3 * GB // 2)
OBJECTIVES = {"toy": Objective("val_loss")}
FIRST = "001,toy,t1,5,completed,1,0.5,0.6,3,1.235,cuda:0,0.111111,1.5,0.5,,,8"


def outcome(device: Device, number: int, status: Status = "completed", attempt: int = 1, **metrics: float) -> Outcome:
    trial = Trial(f"{number:03d}", "toy", f"t{number}", {"width": 8}, 5, attempt)
    placement = Placement(trial, ESTIMATE, device, 1 / 9, 2 * GB, threads=1)
    error = "" if status == "completed" else "Boom: it broke"
    return Outcome(trial, status, placement, metrics, 3, 1.23456, GB // 2, error, "Traceback…" if error else "")


def of_wide(ended: Outcome) -> Outcome:
    return replace(ended, trial=replace(ended.trial, workload="toy-wide"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def resumed(study: StudyFolder) -> StudyFolder:
    """The folder as the next run finds it; what its last process had open was closed by its end."""
    study.journal.close()
    return StudyFolder.resume(study.path, OBJECTIVES)


class Killed(BaseException):
    """Stands for a SIGKILL: nothing that a program does on an error may be done on it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """The process ends as it is about to call this function of ``safe_files``."""

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(safe_files, function, killed)


def never() -> bytes:
    raise AssertionError("the weights of a trial that is not the best are not fetched")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[StudyFolder]:
    folder = StudyFolder(tmp_path / "study", OBJECTIVES)
    folder.describe(StudyRecord(workload="toy"))
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
        "estimated_memory_gb,peak_memory_gb,peak_ram_gb,error,config/width"
    )
    assert list(first.values()) == (FIRST.split(","))
    assert (second["trial_id"], second["val_loss"], second["error"]) == ("002", "", "Boom: it broke")


def test_a_hyperparameter_that_others_have_is_there_with_its_default(study: StudyFolder, gpu_16gb: Device) -> None:
    first, second = outcome(gpu_16gb, 1, val_loss=0.5), outcome(gpu_16gb, 2, val_loss=0.6)
    study.defaults = {"toy": {"momentum": 0.0, "width": 8}}
    study.record(first, ESTIMATE, lambda: b"")
    sgd = replace(second.trial, config={**second.trial.config, "momentum": 0.9})
    study.record(replace(second, trial=sgd), ESTIMATE, lambda: b"")
    assert [row.config["momentum"] for row in study.rows()] == [0.0, 0.9]
    assert "momentum" not in study.attempts()[0].config, "the journal has what was asked for"


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


def test_text_that_is_no_unicode_costs_no_result(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(replace(outcome(gpu_16gb, 1, "failed"), error="file \udcff"), ESTIMATE, never)
    with closing(resumed(study)) as again:
        assert [row.trial_id for row in again.rows()] == ["001"]
    assert "file ?" in (study.path / "results.csv").read_text()


def test_a_folder_with_a_study_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(InputError, match=rf"give a new one, or resume its study with resume='{tmp_path}'$"):
        check_empty(tmp_path)


def test_a_folder_with_files_or_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="the folder is not empty"):
        StudyFolder(tmp_path, OBJECTIVES)
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        StudyFolder(tmp_path / "file" / "study", OBJECTIVES)


def test_a_disk_that_fails_is_one_clear_error(
    study: StudyFolder, gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(safe_files, "write_through", full)
        with pytest.raises(ExecutionError, match="can no longer be written: No space left"):
            study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"")
    assert names(study.path) == {"attempts.jsonl", "study.json"}
    assert study.attempts() == study.rows() == []


def test_weights_that_cannot_be_had_cost_no_result(study: StudyFolder, gpu_16gb: Device) -> None:
    def lost() -> bytes:
        raise RuntimeError("the worker\nis gone")

    study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lost)
    assert study.rows()[0].error == "weights not kept: the worker is gone"
    study.record(outcome(gpu_16gb, 2, val_loss=0.6), ESTIMATE, lambda: b"second")
    again = resumed(study)
    again.record(outcome(gpu_16gb, 3, val_loss=0.55), ESTIMATE, lambda: b"third")
    again.close()
    assert (study.path / "best.pt").read_bytes() == b"third"


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
        StudyFolder(tmp_path, OBJECTIVES, new=True)


def test_every_attempt_is_a_line_and_the_latest_is_the_row(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 2, "out_of_memory"), ESTIMATE, never)
    study.record(outcome(gpu_16gb, 1, val_loss=0.7), ESTIMATE, lambda: b"")
    study.record(outcome(gpu_16gb, 2, attempt=2, val_loss=0.5), ESTIMATE, lambda: b"")
    told = [(row.trial_id, row.attempts, row.status) for row in study.attempts()]
    assert told == [("002", 1, "out_of_memory"), ("001", 1, "completed"), ("002", 2, "completed")]
    assert [(row.trial_id, row.attempts) for row in study.rows()] == [("001", 1), ("002", 2)]
    assert read_attempts(study.path / "attempts.jsonl") == (study.attempts(), [])


def test_a_line_says_what_a_retry_is_decided_by(gpu_16gb: Device) -> None:
    trial = Trial("001", "toy", "t1", {}, seed=5)
    placement = Placement(trial, ESTIMATE, gpu_16gb, 1 / 9, 2 * GB + 1, threads=1)
    row = Attempt.of(Outcome(trial, "failed", placement, error="Boom", phase="first step", lost="worker"), ESTIMATE)
    assert (row.error, row.lost) == ("first step: Boom", "worker")
    assert json.loads(json.dumps(row.to_line(exact=True)))["limit_bytes"] == 2 * GB + 1
    never_placed = Attempt.of(Outcome(trial, "interrupted", error="Ctrl-C"), ESTIMATE)
    assert (never_placed.error, never_placed.lost, never_placed.limit_gb) == ("Ctrl-C", "", None)


@pytest.mark.parametrize("status", ["completed", "pruned", "diverged", "failed", "out_of_memory", "interrupted"])
def test_a_checkpoint_lives_until_its_trial_has_ended_for_good(
    study: StudyFolder, gpu_16gb: Device, status: Status
) -> None:
    assert "checkpoints" not in names(study.path)
    (study.checkpoints / "001.pt").write_bytes(b"")
    study.record(outcome(gpu_16gb, 1, status), ESTIMATE, never)
    study.record(outcome(gpu_16gb, 2, status), ESTIMATE, never)
    gone = status in ("completed", "pruned", "diverged")
    assert names(study.checkpoints) == (set() if gone else {"001.pt"})


def test_a_study_that_is_gone_on_with_has_its_rows_its_table_and_its_best(
    study: StudyFolder, gpu_16gb: Device
) -> None:
    study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"first")
    study.record(outcome(gpu_16gb, 2, "interrupted"), ESTIMATE, never)
    (study.path / "results.csv").unlink()
    again = resumed(study)
    assert (again.attempts(), again.rows(), again.notes) == (study.attempts(), study.rows(), [])
    assert len((study.path / "results.csv").read_text().splitlines()) == 3
    again.record(outcome(gpu_16gb, 2, val_loss=0.6), ESTIMATE, never)
    again.record(outcome(gpu_16gb, 3, val_loss=0.4), ESTIMATE, lambda: b"third")
    again.close()
    assert (study.path / "best.pt").read_bytes() == b"third"
    assert [row.status for row in again.rows()] == ["completed"] * 3


@pytest.mark.parametrize(("function", "best"), [("write_through", b"first"), ("move", b"second")])
def test_the_best_weights_are_those_of_a_trial_with_a_line_after_a_kill(
    study: StudyFolder, gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch, function: str, best: bytes
) -> None:
    study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"first")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, function)
        study.record(outcome(gpu_16gb, 2, val_loss=0.4), ESTIMATE, lambda: b"second")
    assert "best.pt.002" in names(study.path)
    again = resumed(study)
    again.close()
    assert (study.path / "best.pt").read_bytes() == best
    assert names(study.path) == {"attempts.jsonl", "results.csv", "study.json", "best.pt"}


@pytest.mark.parametrize(("function", "best"), [("write_through", b"second"), ("move", b"third")])
def test_each_workloads_best_weights_are_those_of_a_trial_of_its_own_after_a_kill(
    tmp_path: Path, gpu_16gb: Device, monkeypatch: pytest.MonkeyPatch, function: str, best: bytes
) -> None:
    objectives = {"toy": Objective("val_loss"), "toy-wide": Objective("val_error")}
    study = StudyFolder(tmp_path / "study", objectives)
    study.describe(StudyRecord(workload=list(objectives)))
    study.record(outcome(gpu_16gb, 1, val_loss=0.5, val_error=0.1), ESTIMATE, lambda: b"first")
    study.record(of_wide(outcome(gpu_16gb, 2, val_error=0.7)), ESTIMATE, lambda: b"second")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, function)
        study.record(of_wide(outcome(gpu_16gb, 3, val_error=0.6)), ESTIMATE, lambda: b"third")
    assert "best-toy-wide.pt.003" in names(study.path)
    study.journal.close()
    with closing(StudyFolder.resume(study.path, objectives)) as again:
        again.record(of_wide(outcome(gpu_16gb, 4, val_error=0.65)), ESTIMATE, lambda: b"fourth")
    last = b"fourth" if best == b"second" else best
    assert [(study.path / f"best-{name}.pt").read_bytes() for name in objectives] == [b"first", last]
    assert names(study.path) == {"attempts.jsonl", "results.csv", "study.json", "best-toy.pt", "best-toy-wide.pt"}


def test_what_a_kill_leaves_half_done_is_finished_or_removed(study: StudyFolder, gpu_16gb: Device) -> None:
    study.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"first")
    for left in (
        "results.csv.partial",
        "best.pt.007",
        "checkpoints/001.pt",
        "checkpoints/002.pt.partial",
        "checkpoints/002.prune",
    ):
        (study.checkpoints.parent / left).write_bytes(b"half")
    (study.checkpoints / "trials-002.partial").mkdir()
    (study.checkpoints / "002.pt").write_bytes(b"whole")
    with (study.path / "attempts.jsonl").open("a") as file:
        file.write('{"trial_id": "002", "sta')
    again = resumed(study)
    again.close()
    assert [note.split(": ")[1] for note in again.notes] == ["line 2 is incomplete; left out"]
    assert [row.trial_id for row in again.rows()] == ["001"]
    assert names(study.checkpoints) == {"002.pt"}
    known = {"attempts.jsonl", "results.csv", "study.json", "best.pt", "checkpoints"}
    assert names(study.path) == known


def test_a_study_killed_before_its_first_line_is_gone_on_with(study: StudyFolder) -> None:
    study.journal.close()
    (study.path / "attempts.jsonl").unlink()
    again = resumed(study)
    assert again.rows() == []
    again.close()


def test_a_folder_where_a_study_had_hardly_begun_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").touch()
    (tmp_path / "study.json.partial").write_text("{")
    folder = StudyFolder(tmp_path, OBJECTIVES)
    folder.describe(StudyRecord(workload="toy"))
    folder.close()
    assert read_study(tmp_path) == StudyRecord(workload="toy")


def suggestion(number: int) -> Suggestion:
    return Suggestion(number=number, configuration=Configuration(f"suggestion-{number}", {"width": number}))


def test_what_is_suggested_is_appended_and_a_line_that_a_kill_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    with closing(StudyFolder(tmp_path, OBJECTIVES)) as folder:
        folder.describe(StudyRecord(workload="toy", configurations=[suggestion(1).configuration]))
        written = (tmp_path / "study.json").read_bytes()
        for number in (1, 2, 3):  # a study that was resumed has its first lines in study.json, too
            folder.suggested(suggestion(number))
    lines = tmp_path / "suggestions.jsonl"
    lines.write_bytes(lines.read_bytes()[:-9])
    with closing(StudyFolder.resume(tmp_path, OBJECTIVES)) as folder:
        folder.suggested(suggestion(3))
        folder.suggested(suggestion(4))
    assert (tmp_path / "study.json").read_bytes() == written
    assert [one.values["width"] for one in read_study(tmp_path).configurations] == [1, 2, 3, 4]


def test_a_row_of_the_table_is_written_a_few_times_however_many_there_are(
    study: StudyFolder, gpu_16gb: Device
) -> None:
    written, now = {0}, count(1)
    study.clock = lambda: next(now) / 25
    for number in range(200):
        study.record(outcome(gpu_16gb, number, val_loss=1.0), ESTIMATE, bytes)
        written.add((study.path / "results.csv").read_text().count("\n") - 1)
    study.close()
    assert (study.path / "results.csv").read_text().count("\n") - 1 == 200
    assert len(written) > 2 and sum(written) < 4 * 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no study.json; give the folder of a study"),
        ("{", r"study.json is damaged \(Expecting property name"),
        ("[]", r"study.json is damaged \(expected a dictionary\)"),
        ("{}", r"study.json is damaged \(has no workload\)"),
    ],
)
def test_a_folder_that_is_no_study_is_not_gone_on_with(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    before = names(tmp_path)
    with pytest.raises(InputError, match=f"^resume='{tmp_path}': {message}"):
        StudyFolder.resume(tmp_path, OBJECTIVES)
    assert names(tmp_path) == before


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, what in (("none", "there is no such folder"), ("file", "is not a folder")):
        with pytest.raises(InputError, match=f"^resume='{tmp_path / name}': {what}"):
            StudyFolder.resume(tmp_path / name, OBJECTIVES)
    assert names(tmp_path) == {"file"}


def test_a_folder_where_another_run_writes_is_refused(study: StudyFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"resume=.*: another run is writing there: wait for it or end it"):
        StudyFolder.resume(study.path, OBJECTIVES)
    begun = StudyFolder(tmp_path / "begun", OBJECTIVES)
    with pytest.raises(InputError, match=r"output=.*: another run is writing there: wait for it or end it"):
        StudyFolder(begun.path, OBJECTIVES)
    begun.close()


@pytest.mark.parametrize("name", ["checkpoints", "epochs.jsonl", "checkpoints/stop"])
def test_a_folder_with_a_link_is_not_gone_on_with(study: StudyFolder, tmp_path: Path, name: str) -> None:
    study.close()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "a.partial").touch()
    link = study.path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match=f"^resume=.*{name} is a symbolic link, .*: replace it by what it points to"):
        StudyFolder.resume(study.path, OBJECTIVES)
    with pytest.raises(InputError, match="is a symbolic link"):
        check_unused(study.path)
    assert names(tmp_path / "victim") == {"a.partial"}


def test_a_file_system_without_locks_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(InputError, match="its file system has no locks; give a folder on another file system"):
        StudyFolder(tmp_path, OBJECTIVES)


def test_a_folder_that_was_closed_is_left_to_the_next_run(study: StudyFolder, gpu_16gb: Device) -> None:
    study.close()
    again = StudyFolder.resume(study.path, OBJECTIVES)
    again.record(outcome(gpu_16gb, 1, val_loss=0.5), ESTIMATE, lambda: b"")
    again.close()
    study.close()
    assert len((study.path / "results.csv").read_text().splitlines()) == 2


def begin_together(folders: list[Path], barrier: Barrier, told: Connection) -> None:
    """Begins a study in each folder at the same moment as the other process that does."""
    for path in folders:
        barrier.wait(60)
        try:
            folder = StudyFolder(path, OBJECTIVES)
        except InputError as error:
            told.send(str(error))
            barrier.wait(60)
        else:
            told.send("won")
            barrier.wait(60)
            folder.close()


def test_of_two_runs_started_on_one_folder_exactly_one_goes_on(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    folders, barrier = [tmp_path / str(number) for number in range(50)], spawn.Barrier(2)
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    runs = [spawn.Process(target=begin_together, args=(folders, barrier, told)) for _, told in pipes]
    for run in runs:
        run.start()
    answers = [[heard.recv() for _ in folders] for heard, _ in pipes]
    for run in runs:
        run.join(60)
        assert run.exitcode == 0
    for first, second in zip(*answers, strict=True):
        assert (first == "won") != (second == "won")
        assert "another run is writing there" in first + second


def mount(*arguments: str) -> None:
    """Mounts a file system, or skips the test where that is not allowed."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    if sys.platform != "linux":
        pytest.skip("needs Linux: it mounts a tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, leave: int) -> None:
    """Leaves about so many bytes free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096 and filler.stat().st_size < 65536 - leave:
            pass


@pytest.mark.parametrize("leave", [8192, 12288, 16384, 32768])
def test_a_full_disk_is_one_clear_error_and_loses_nothing(small_disk: Path, gpu_16gb: Device, leave: int) -> None:
    folder = StudyFolder(small_disk / "study", OBJECTIVES)
    folder.describe(StudyRecord(workload="toy"))
    fill(small_disk, leave)
    ended: list[dict[str, Any]] = []
    with pytest.raises(ExecutionError, match="study can no longer be written: No space left on device"):
        for number in range(1, 1000):
            weights = b"w" * 3000
            folder.record(outcome(gpu_16gb, number, val_loss=1 / number), ESTIMATE, weights.__bytes__)
            ended = folder.attempts()
    with suppress(ExecutionError):  # what is left may be enough for the table
        folder.close()
    rows, notes = read_attempts(folder.path / "attempts.jsonl")
    assert (rows[: len(ended)], notes) == (ended, [])
    assert not list(folder.path.glob("*.partial"))
    (small_disk / "filler").unlink()
    again = StudyFolder.resume(folder.path, OBJECTIVES)
    again.close()
    assert again.attempts() == rows
    assert len((folder.path / "results.csv").read_text().splitlines()) == len(rows) + 1


def test_a_read_only_folder_is_refused(small_disk: Path) -> None:
    folder = StudyFolder(small_disk / "study", OBJECTIVES)
    folder.describe(StudyRecord(workload="toy"))
    folder.close()
    mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(InputError, match=r"resume=.*study': cannot be written: Read-only file system"):
        StudyFolder.resume(folder.path, OBJECTIVES)
    with pytest.raises(InputError, match=r"output=.*other': cannot be written: Read-only file system"):
        StudyFolder(small_disk / "other", OBJECTIVES)


@pytest.mark.parametrize(("keep", "left"), [("all", "1234"), ("best", "24"), ("none", "4")])
def test_the_folders_of_ended_trials_stay_as_asked(
    study: StudyFolder, gpu_16gb: Device, keep: Any, left: str
) -> None:
    study.keep = keep
    for number, status, loss in [
        (1, "completed", 2.0),
        (2, "completed", 1.0),
        (3, "pruned", 0.5),
        (4, "failed", 3.0),
    ]:
        (study.path / "trials" / f"00{number}").mkdir(parents=True)
        study.record(outcome(gpu_16gb, number, status, val_loss=loss), ESTIMATE, bytes)  # type: ignore[arg-type]
    assert names(study.path / "trials") == {f"00{number}" for number in left}
