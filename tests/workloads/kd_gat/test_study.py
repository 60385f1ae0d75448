"""Studies of KD-GAT as a user runs them: commands, their output, their exit code."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import tuner
from tests.support.can_files import rows_of, write_recordings
from tests.support.commands import refused, said
from tuner.datasets.can import synthetic_can
from tuner.estimation.service import EstimationService
from tuner.execution.in_process import InProcessExecutor
from tuner.trial import GB, MemoryEstimate
from tuner.workloads.kd_gat.networks import GAT

OWN = """
defaults: {epochs: 2, teacher_epochs: 1, batch_size: 16, optimize_batch_size: 0, hidden_channels: 4, heads: 2}
configurations:
  - {name: alone}
  - {name: taught, use_kd: 1}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_teacher_is_trained_first_and_the_study_can_be_carried_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.study.study.make_executor", lambda _: InProcessExecutor())
    monkeypatch.setattr(EstimationService, "raw", lambda *_: MemoryEstimate("traced", context_bytes=GB // 5))
    write_recordings(tmp_path / "drives", synthetic_can(2000))
    (tmp_path / "own.yaml").write_text(OWN)
    study = ["--workload", "kd-gat", "--config", "own.yaml", "--data", "drives", "--device", "cpu", "--output", "out"]
    printed = said(capsys, *study, "--max-workers", "1")
    assert printed.count("classifier-teacher is trained first, once, for taught") == 1
    teacher = tmp_path / "out-classifier-teacher" / "best.pt"
    rows = pd.read_csv(tmp_path / "out" / "results.csv", keep_default_na=False).set_index("name")
    assert rows.status.to_dict() == {"alone": "completed", "taught": "completed"}
    assert rows["config/teacher_path"].to_dict() == {"alone": "", "taught": str(teacher)}
    assert isinstance(tuner.load_best(tmp_path / "out"), GAT)
    before = (tmp_path / "out" / "results.csv").read_bytes()
    assert "is trained first" not in said(capsys, "--resume", "out")
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    trained = said(capsys, "train", "--from", "out", "--trial", "taught", "--exact", "--output", "trained")
    assert trained.endswith("the metrics equal those of the study, to the last digit\n")


BAD = {
    "1.0,0329,8,00,00": r"drives/dos.csv, line 301: ",
    "1.0,zz,1,00,R": r"drives/dos.csv, line 301: ",
    "1.0,0329,9,00,00,00,00,00,00,00,00,00,R": r"drives/dos.csv, line 301: ",
}


@pytest.mark.parametrize("row", BAD)
def test_a_bad_row_is_one_line_and_nothing_is_written(
    row: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drives").mkdir()
    rows = rows_of(synthetic_can(300)["dos_synthetic"])
    (tmp_path / "drives" / "dos.csv").write_text("\n".join([*rows, row, ""]))
    study = ["--workload", "kd-gat", "--data", "drives", "--device", "cpu", "--output", "out"]
    assert BAD[row] in refused(capfd, *study)
    assert [path.name for path in tmp_path.iterdir()] == ["drives"]


def test_traffic_without_attacks_is_refused_with_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_recordings(tmp_path / "drives", {"quiet": synthetic_can(500)["attack_free_synthetic"]})
    line = refused(capfd, "--workload", "kd-gat", "--mode", "quick", "--data", "drives", "--output", "out")
    assert "no graph with injected frames (flag T) for train: stage classifier needs labels" in line
    assert not (tmp_path / "out").exists()
