"""The weights and the folders that stay are those of the trial that the ranking names, also after a kill."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.records.test_study_folder import ESTIMATE, Killed, kill_at, names, never
from tuner.machine import safe_files
from tuner.objective import Objective
from tuner.records import study_folder
from tuner.records.study_folder import StudyFolder
from tuner.records.study_record import StudyRecord
from tuner.records.weights import whose
from tuner.trial import Outcome, Status, Trial

ACC = {"toy": Objective("acc", "maximize")}


def made(trial: Trial) -> bytes:
    content = io.BytesIO()
    torch.save({"name": trial.name, "seed": trial.seed}, content)
    return content.getvalue()


class Study:
    """Two configurations, a and b, of several seeds."""

    def __init__(self, path: Path, seeds: int = 1) -> None:
        self.seeds, self.folder = seeds, StudyFolder(path, ACC)
        self.folder.seeds = seeds
        self.folder.describe(StudyRecord(workload="toy", seeds=seeds))

    def ends(self, trial: str, value: float | None, status: Status = "completed", weights: Any = None) -> None:
        made_up = Trial(trial, "toy", trial[0], {}, int(trial[1:]))
        metrics = {} if value is None else {"acc": value}
        (self.folder.path / "trials" / trial).mkdir(parents=True, exist_ok=True)
        self.folder.record(Outcome(made_up, status, metrics=metrics), ESTIMATE, weights or (lambda: made(made_up)))

    def resume(self) -> None:
        self.folder.journal.close()
        self.folder = StudyFolder.resume(self.folder.path, ACC, self.seeds)

    @property
    def kept(self) -> str:
        """Whose weights ``best.pt`` has."""
        name, seed = whose(self.folder.path / "best.pt") or ("", "")
        return f"{name}{seed}"

    @property
    def staged(self) -> set[str]:
        return {file.name.removeprefix("best.pt.") for file in self.folder.path.glob("best.pt.*")}


@pytest.mark.parametrize("order", ["a0 b0", "b0 a0"])
def test_of_equal_trials_the_lowest_number_is_kept_whichever_ends_first(tmp_path: Path, order: str) -> None:
    study = Study(tmp_path / "study")
    study.folder.keep = "best"
    for trial in order.split():
        study.ends(trial, 0.5)
    assert (study.kept, names(tmp_path / "study" / "trials"), study.staged) == ("a0", {"a0"}, set())
    study.folder.close()


@pytest.mark.parametrize("last", [0.1, 0.9])
@pytest.mark.parametrize("resumed", [False, True])
def test_with_seeds_the_best_seed_of_the_best_mean_is_kept_which_is_known_late(
    tmp_path: Path, last: float, resumed: bool
) -> None:
    study = Study(tmp_path / "study", seeds=2)
    study.folder.keep = "best"
    for trial, value in [("a0", 0.8), ("b0", 0.95), ("a1", 0.81)]:
        study.ends(trial, value)
    assert (study.kept, study.staged) == ("a1", {"b0"})
    if resumed:
        study.resume()
        study.folder.keep = "best"
        assert (study.kept, study.staged) == ("a1", {"b0"})
    study.ends("b1", last)
    best = "b0" if last == 0.9 else "a1"
    assert (study.kept, study.staged, names(study.folder.path / "trials")) == (best, set(), {best})
    study.folder.close()


@pytest.mark.parametrize("function", ["write_through", "move", "sync_folder"])
@pytest.mark.parametrize(("last", "best"), [(0.1, "a1"), (0.99, "b1")])
def test_a_kill_at_any_moment_leaves_the_weights_of_the_best_trial_that_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, last: float, best: str
) -> None:
    study = Study(tmp_path / "study", seeds=2)
    for trial, value in [("b0", 0.95), ("a0", 0.8), ("a1", 0.81)]:
        study.ends(trial, value)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, function)
        study.ends("b1", last)
        raise Killed  # where nothing is to be written by this function
    study.resume()
    lines = len(study.folder.attempts())
    assert study.kept == (best if lines == 4 else "a1")
    if lines < 4:
        study.ends("b1", last)
    assert (study.kept, study.staged) == (best, set())
    study.folder.close()


def test_a_file_system_without_links_keeps_both_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", no_link)
    study = Study(tmp_path / "study", seeds=2)
    for trial, value in [("b0", 0.95), ("a0", 0.8), ("a1", 0.81), ("b1", 0.9)]:
        study.ends(trial, value)
    assert (study.kept, study.staged) == ("b0", set())
    study.folder.close()


def test_a_trial_that_did_not_complete_is_kept_until_one_completes(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    study.ends("a0", 0.7, "pruned")
    study.ends("b0", 0.6, "pruned", never)
    study.ends("a1", None, "failed", never)
    assert study.kept == "a0"
    study.ends("b1", 0.9, "interrupted")
    assert study.kept == "b1"
    study.ends("a2", 0.1)
    assert (study.kept, study.staged) == ("a2", set())
    study.folder.close()


def test_the_seeds_of_a_study_that_was_interrupted_stay_and_those_of_one_that_has_ended_go(tmp_path: Path) -> None:
    study = Study(tmp_path / "study", seeds=2)
    for trial, value in [("a0", 0.8), ("b0", 0.95)]:
        study.ends(trial, value)
    study.ends("a1", None, "failed")
    study.ends("b1", None, "interrupted")
    study.folder.close()
    assert (study.kept, study.staged) == ("b0", {"a0"})
    study.resume()
    study.ends("b1", None, "failed")
    study.folder.close()
    assert (study.kept, study.staged) == ("b0", set())


def test_a_best_trial_without_a_checkpoint_leaves_no_weights_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(tmp_path / "study")
    study.ends("a0", 0.5)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, "move")
        study.ends("b0", 0.6, weights=bytes)
        raise Killed
    study.resume()
    assert not (study.folder.path / "best.pt").exists() and not study.staged
    study.ends("a1", 0.55, weights=never)
    study.ends("b1", 0.7)
    assert study.kept == "b1"
    study.folder.close()


def test_further_seeds_find_whose_weights_are_kept_by_what_they_hold(tmp_path: Path) -> None:
    with closing(StudyFolder(tmp_path / "study", ACC)) as folder:
        folder.describe(StudyRecord(workload="toy"))
    study = Study.__new__(Study)
    study.seeds, study.folder = 1, StudyFolder.resume(tmp_path / "study", ACC)
    study.ends("a0", 0.9)
    study.ends("b0", 0.5)
    study.seeds = 2
    study.resume()
    for trial, value in [("a1", 0.1), ("b1", 0.55)]:
        study.ends(trial, value)
    assert study.kept == "b1"
    assert safe_files.PARTIAL not in str(study.staged)
    study.folder.close()


def test_a_recorded_trial_is_ranked_once_among_those_that_can_be_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    rank = study_folder.ranked
    monkeypatch.setattr(study_folder, "ranked", lambda rows, by: sizes.append(len(rows)) or rank(rows, by))
    study = Study(tmp_path / "study", seeds=2)
    study.folder.keep = "best"
    for trial, value in {"a0": 0.5, "a1": 0.6, "b0": 0.3, "b1": 0.2, "c0": 0.1, "c1": 0.1}.items():
        study.ends(trial, value)
    assert (sizes, study.kept, names(tmp_path / "study" / "trials")) == ([1, 2, 3, 4, 3, 4], "a1", {"a1"})
    study.folder.close()
