"""A study as everything else reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.attempts import attempt
from tests.support.generated_study import OBJECTIVES, write_study
from tuner.errors import InputError
from tuner.objective import Objective
from tuner.records.recorded_study import RecordedStudy, open_study


def of_rows(*rows: object, objective: Objective = OBJECTIVES["toy"]) -> RecordedStudy:
    return RecordedStudy(Path("nowhere"), "s", rows, objectives={"toy": objective})  # type: ignore[arg-type]


def test_trials_of_several_seeds_are_told_apart_and_all_counted(tmp_path: Path) -> None:
    write_study(tmp_path / "s", 10)
    study = open_study(tmp_path / "s")
    known = len(study.record.configurations)
    seeds = replace(study, record=replace(study.record, seed=3, seeds=2), attempts=study.rows[:1])
    row = study.rows[0]
    assert seeds.total == 2 * known
    assert seeds.trial_names[row.trial_id].endswith(f"{row.name} (seed {row.seed})")
    assert seeds.trial_names[f"t{known + 1:03d}"] == f"{study.record.configurations[0].name} (seed 4)"


def test_the_latest_attempt_of_each_trial_counts_and_the_best_can_be_asked_among_some() -> None:
    first, again = attempt(trial_id="1", status="failed"), attempt(trial_id="1", attempts=2, val_loss=0.5)
    study = of_rows(first, attempt(trial_id="2", val_loss=0.3), attempt(trial_id="3", val_loss=0.4), again)
    assert [row.trial_id for row in study.rows] == ["2", "3", "1"]
    found = [study.best("toy"), study.best("toy", ["1", "3"]), study.best("toy", ())]
    assert [row and row.trial_id for row in found] == ["2", "3", None]
    assert study.front("toy") == [study.best("toy")] and of_rows(first).front("toy") == []


def test_the_front_is_of_all_objectives() -> None:
    rows = [attempt(trial_id=str(place), loss=loss, size=3 - loss) for place, loss in enumerate((1, 2, 0))]
    worse = attempt(trial_id="3", loss=3, size=3)
    study = of_rows(*rows, worse, objective=Objective("loss", others=(Objective("size"),)))
    assert sorted(row.trial_id for row in study.front("toy")) == ["0", "1", "2"]


def test_a_folder_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    write_study(tmp_path / "s", 4)
    whole = open_study(tmp_path / "s")
    assert whole.epochs and not whole.notes and whole.machine == [] and whole.snapshots == []
    (tmp_path / "s" / "study.json").unlink()
    rest = open_study(tmp_path / "s")
    assert [row.trial_id for row in rest.rows] == [row.trial_id for row in whole.rows]
    assert rest.notes[0].endswith("holds no study.json: it is unknown how its trials were run")
    with pytest.raises(InputError, match="elsewhere: there is no such folder; give the folder of a study"):
        open_study(tmp_path / "elsewhere")
