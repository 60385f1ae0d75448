"""The folder of a study that commit 177c094 wrote and Ctrl-C ended: two trials completed, one to be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tuner
from tuner.execution.in_process import InProcessExecutor
from tuner.records.epochs import read_epochs
from tuner.records.journal import read_attempts
from tuner.records.study_record import read_study

WRITTEN = Path(__file__).parent / "data" / "interrupted"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WRITTEN, tmp_path / "study"))


def test_every_record_is_read_and_would_be_written_as_it_was() -> None:
    attempts, notes = read_attempts(WRITTEN / "attempts.jsonl")
    written = [each.to_line() for each in attempts]
    later = {"phase": "", "short_of": "", "peak_ram_gb": None, "limit_ram_gb": None}
    assert [{name: line.pop(name) for name in later} for line in written] == [later] * len(written)
    lines = "".join(json.dumps(line) + "\n" for line in written)
    assert (lines, notes) == ((WRITTEN / "attempts.jsonl").read_text(), [])
    before, now = json.loads((WRITTEN / "study.json").read_bytes()), json.loads(read_study(WRITTEN).to_json())
    unknown = {"idle_cores": None, "ram_bytes": 0, "free_ram_bytes": 0, "instance": None, "multiprocessors": 0}
    devices = [{**device, **unknown} for device in before["plan"]["devices"]]
    plan = {**before["plan"], "devices": devices, "ram_budgets": {}, "ram_footprint_bytes": 0, "tight": []}
    plan |= {"epoch_seconds": {}, "seconds": None, "first_shares_gb": []}
    new: dict[str, object] = {"scales": {}, "cautions": {}, "revision": ""}
    assert now == {**before, "plan": plan, "directions": {}, "programs": [], **new}
    assert len(read_epochs(WRITTEN / "epochs.jsonl")) == len((WRITTEN / "epochs.jsonl").read_text().splitlines())


def test_it_is_resumed_with_its_own_options_and_trains_what_was_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())
    before = (folder / "attempts.jsonl").read_text()
    result = tuner.run(resume=folder, gpu_memory_buffer_gb=0, model_memory_gb=0.5, report=False)
    assert {row["name"]: (row["status"], row["attempts"]) for row in result.rows} == {
        "plain": ("completed", 1),
        "smooth": ("completed", 1),
        "broken-off": ("completed", 2),
    }
    assert (folder / "attempts.jsonl").read_text().startswith(before), "what was there is left as it is"
    assert list(tuner.results(folder).status) == ["completed"] * 3
