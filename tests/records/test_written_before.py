"""The folder of a study that commit 22ab2ae wrote and Ctrl-C ended: two trials completed, one to be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tuner
from tests.conftest import write_ratings
from tuner.records.epochs import read_epochs
from tuner.records.journal import read_attempts
from tuner.records.study_record import read_study
from tuner.study.past_trial import how_to_repeat

WRITTEN = Path(__file__).parent / "data" / "interrupted"


def copied(folder: Path) -> Path:
    """The study in a folder beside its data."""
    write_ratings(folder / "ml-small")
    return Path(shutil.copytree(WRITTEN, folder / "study"))


def test_every_record_is_read_and_would_be_written_as_it_was() -> None:
    attempts, notes = read_attempts(WRITTEN / "attempts.jsonl")
    written = map(json.loads, (WRITTEN / "attempts.jsonl").read_text().splitlines())
    later = {"rank_peaks_gb": "", "parent_checkpoint": "", "order": None, "code_version": None}
    assert [attempt.to_line() for attempt in attempts] == [{**line, **later} for line in written]
    assert notes == []
    before, now = json.loads((WRITTEN / "study.json").read_bytes()), json.loads(read_study(WRITTEN).to_json())
    del before["plan"]["first_shares_gb"]
    before["plan"] |= {
        "max_workers": None,
        "devices": [{**one, "context_bytes": 0, "shared_bytes": 0} for one in before["plan"]["devices"]],
    }
    listed = [{"name": one.pop("name"), "values": one} for one in before["configurations"]]
    assert now == {
        **before,
        "last_epoch": None,
        "calls": {},
        "further": {},
        "configurations": listed,
        "id": "",
        "code": [],
    }
    assert [(row.estimated_bytes, row.limit_bytes) for row in attempts] == [(3 * 2**29, 3 * 2**29)] * 3
    assert [line.memory_bytes for line in read_epochs(WRITTEN / "epochs.jsonl")][:1] == [round(0.1903 * 2**30)]
    assert len(read_epochs(WRITTEN / "epochs.jsonl")) == len((WRITTEN / "epochs.jsonl").read_text().splitlines())


def test_its_best_trial_is_repeated_by_the_command_of_then() -> None:
    study, (row, *_) = read_study(WRITTEN), read_attempts(WRITTEN / "attempts.jsonl")[0]
    assert how_to_repeat(study, row, WRITTEN).partition(" -m tuner ")[2] == (
        "--data ml-small --config three.yaml --only plain --device cpu --model-memory-gb 1.5 --threads 1 --no-report"
    )


def test_it_is_resumed_with_its_own_options_and_trains_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (copied(tmp_path) / "attempts.jsonl").read_text()
    result = tuner.run(resume="study", in_process=True)
    assert {row["name"]: (row["status"], row["attempts"]) for row in result.rows} == {
        "plain": ("completed", 1),
        "smooth": ("completed", 1),
        "broken-off": ("completed", 2),
    }
    assert Path("study/attempts.jsonl").read_text().startswith(before), "what was there is left as it is"
    assert list(tuner.results("study").status) == ["completed"] * 3


def test_labels_of_an_earlier_version_are_the_values_of_its_space(tmp_path: Path) -> None:
    choices = {"amp": [True, False], "drop": [None, 0.1], "sizes": [[64], [64, 32]], "text": ["None", "x"]}
    space = {"model": {key: {"choice": values} for key, values in choices.items()}}
    old = {"model.amp": "False", "model.drop": "None", "model.sizes": "[64]", "model.text": "None", "lr": 0.1}
    about = {"workload": "train", "options": {"space": space}, "configurations": [{"name": "a", **old}]}
    (tmp_path / "study.json").write_text(json.dumps(about))
    line = json.loads((WRITTEN / "attempts.jsonl").read_text().splitlines()[0])
    line = {key: value for key, value in line.items() if not key.startswith("config/")} | {"workload": "train"}
    line |= {f"config/{key}": value for key, value in old.items()}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(line) + "\n")
    study = read_study(tmp_path)
    now = {"model.amp": False, "model.drop": None, "model.sizes": [64], "model.text": "None", "lr": 0.1}
    assert dict(study.configurations[0].values) == now
    assert dict(read_attempts(tmp_path / "attempts.jsonl", study)[0][0].config) == now
