"""Files of a study that are damaged: one line that names the file and the field, whoever reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tuner
from tests.records.test_written_before import copied
from tuner.errors import InputError

MISSING = "missing"
DEEP = "[" * 3000 + "]" * 3000
LONG = "9" * 401  # a number of so many digits

Read = Callable[[Path], object]
READERS: dict[str, Read] = {
    "results": tuner.results,
    "compare": tuner.compare,
    "report": tuner.write_report,
    "export": lambda folder: tuner.export(folder, optuna=f"sqlite:///{folder}/optuna.db"),
    "plan": lambda folder: tuner.plan(like=str(folder), limit=1, gpus=1, device_memory_gb=8),
    "train": lambda folder: tuner.train(folder, device="cpu"),
    "run": lambda folder: tuner.run(resume=folder, dry_run=True),
}

OF_STUDY = [
    ("workload", MISSING, "has no workload"),
    ("workload", "null", "workload is None; expected a valid string"),
    ("workload", "[]", r"workload is \[\]; List should have at least 1 item"),
    ("workload", '"a\\u0000b"', r"workload is 'a\\x00b'; String should match pattern"),
    ("seed", '"x"', "seed is 'x'; expected a valid integer"),
    ("seed", LONG, r"seed is 9+\.\.\.9+; expected less than 9"),
    ("seeds", "null", "seeds is None; expected a valid integer"),
    ("seeds", "0", "seeds is 0; expected greater than or equal to 1"),
    ("fingerprint", "3", "fingerprint is 3; expected a valid string"),
    ("configurations", "null", "configurations is None; expected an instance of Sequence"),
    ("configurations", "[{}]", r"configurations\.0 is {}; expected a configuration with a name"),
    ("auto_batch", '{"../t001": 8}', r"auto_batch\.\.\./t001 is '\.\./t001'; String should match pattern"),
    ("classes", "[]", r"classes is \[\]; expected a valid dictionary"),
    ("metrics", '{"graphsage": null}', r"metrics\.graphsage is None; expected a valid string"),
    ("settings", "null", "settings is None; expected a valid dictionary"),
    ("plan", "7", "plan is 7; expected a dictionary"),
    ("plan", '{"devices": [{}]}', r"has no plan\.devices\.0\.node_id"),
    ("started", "5", "started is 5; expected a valid string"),
    ("options", DEEP, "it is nested too deep"),
]
OF_JOURNAL = [
    ("trial_id", MISSING, "has no trial_id"),
    ("trial_id", '"../../t001"', r"trial_id is '\.\./\.\./t001'; String should match pattern"),
    ("trial_id", '"t\\u0000"', r"trial_id is 't\\x00'; String should match pattern"),
    ("workload", "null", "workload is None; expected a valid string"),
    ("workload", '"nonsense"', "workload is 'nonsense'; the study is of graphsage$"),
    ("name", "5", "name is 5; expected a valid string"),
    ("seed", MISSING, "has no seed"),
    ("seed", "-1", "seed is -1; expected greater than or equal to 0"),
    ("status", '"done"', "status is 'done'; expected 'completed', "),
    ("attempts", "1.5", r"attempts is 1\.5; expected a valid integer"),
    ("epochs", LONG, r"epochs is 9+\.\.\.9+; expected less than 9"),
    ("duration_s", "null", "duration_s is None; expected a valid number"),
    ("peak_memory_gb", '"much"', "peak_memory_gb is 'much'; expected a number"),
    ("val_rmse", "NaN", "val_rmse is nan; expected a number"),
    ("val_rmse", LONG, r"val_rmse is 9+\.\.\.9+; expected a number"),
    ("config/lr", DEEP, "is nested too deep"),
    ("started_at", "1e300", r"started_at is 1e\+300; expected less than or equal to 250000000000"),
]


def crossed(faults: list[tuple[str, str, str]], readers: list[str]) -> list[tuple[str, str, str, str]]:
    """Every fault by one reader, and every reader with one fault: they read by the same function."""
    return [("results", *fault) for fault in faults] + [(reader, *faults[0]) for reader in readers[1:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return copied(tmp_path)


def changed(text: str, field: str, value: str) -> str:
    """The JSON object with another value in a field, or without the field."""
    values = json.loads(text)
    del values[field]
    return json.dumps(values) if value == MISSING else f"{json.dumps(values)[:-1]}, {json.dumps(field)}: {value}}}"


def refused(reader: str, folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        READERS[reader](folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("reader", "field", "value", "message"), crossed(OF_STUDY, list(READERS)))
def test_what_is_wrong_in_study_json_is_one_line(
    folder: Path, reader: str, field: str, value: str, message: str
) -> None:
    file = folder / "study.json"
    file.write_text(changed(file.read_text(), field, value))
    refused(reader, folder, rf"study\.json is damaged \({message}")


@pytest.mark.parametrize(
    ("reader", "field", "value", "message"), crossed(OF_JOURNAL, [reader for reader in READERS if reader != "run"])
)
def test_what_is_wrong_in_the_journal_is_one_line(
    folder: Path, reader: str, field: str, value: str, message: str
) -> None:
    file = folder / "attempts.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([first, changed(others[0], field, value), *others[1:]]) + "\n")
    refused(reader, folder, rf"attempts\.jsonl, line 2: {message}")


@pytest.mark.parametrize("reader", READERS)
def test_an_unknown_workload_in_study_json_is_one_line(folder: Path, reader: str) -> None:
    file = folder / "study.json"
    file.write_text(changed(file.read_text(), "workload", '"nonsense"'))
    refused(reader, folder, "'?nonsense'?")


def test_a_study_whose_journal_is_damaged_is_not_resumed(folder: Path) -> None:
    file = folder / "attempts.jsonl"
    before = file.read_text().replace('"seed": 0', '"seed": null')
    file.write_text(before)
    refused("run", folder, r"attempts\.jsonl, line 1: seed is None; expected a valid integer$")
    assert file.read_text() == before


def test_a_journal_with_a_trial_of_another_study_removes_nothing(folder: Path) -> None:
    checkpoint = folder / "checkpoints" / "victim.pt"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.touch()
    file = folder / "attempts.jsonl"
    file.write_text(file.read_text().replace('"trial_id": "t001"', '"trial_id": "victim"'))
    with pytest.raises(InputError, match=r"attempts\.jsonl: trial_id is 'victim'; the study has no such trial"):
        tuner.run(resume=folder)
    assert checkpoint.exists()
