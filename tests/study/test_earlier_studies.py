"""Studies that an earlier version began are resumed: it drew by itself, and called a sampler ``optuna``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tuner

DATA = Path(__file__).parent / "data" / "earlier"


@pytest.fixture(autouse=True)
def _trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DATA)


@pytest.mark.parametrize(("search", "number"), [("random", 9), ("random", 12), ("optuna", 9), ("optuna", 12)])
def test_a_study_of_an_earlier_version_goes_on(search: str, number: int, tmp_path: Path) -> None:
    shutil.copytree(DATA / search, tmp_path / "out")
    before = json.loads((tmp_path / "out" / "study.json").read_text())["configurations"]
    more = {} if number == 9 else {"num_samples": number}
    result = tuner.run(resume=tmp_path / "out", report=False, **more)  # type: ignore[arg-type]
    configs = [dict(row.config) for row in sorted(result.trials, key=lambda row: row.trial_id)]
    assert len(configs) == number == len({str(config) for config in configs})
    assert configs[: len(before)] == [{key: entry[key] for key in entry if key != "name"} for entry in before]
    assert {row.status for row in result.trials} == {"completed", "pruned"}
    assert {row.error for row in result.trials if row.status == "pruned"} >= {"asha ended it after 1 epoch"}


def test_with_another_space_it_is_another_study(tmp_path: Path) -> None:
    shutil.copytree(DATA / "optuna", tmp_path / "out")
    with pytest.raises(
        tuner.InputError, match=r"^space=.*2\]\}\}: \S+ has space=.*: leave it out, or start a new study"
    ):
        tuner.run(resume=tmp_path / "out", space={"x": {"uniform": [0, 2]}}, num_samples=9)
