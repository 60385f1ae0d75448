"""Studies of KD-GAT as a user runs them: a process, its output, its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import tuner
from tests.can_files import rows_of, write_recordings
from tuner.datasets.synthetic_can import synthetic_can
from tuner.workloads.can_models import GAT

OWN = """
defaults: {epochs: 2, teacher_epochs: 1, batch_size: 16, optimize_batch_size: 0, hidden_channels: 4, heads: 2}
configurations:
  - {name: alone}
  - {name: taught, use_kd: 1}
"""


def tune(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.mark.ray
def test_a_teacher_is_trained_first_and_the_study_can_be_carried_on_with(tmp_path: Path) -> None:
    write_recordings(tmp_path / "drives", synthetic_can(2000))
    (tmp_path / "own.yaml").write_text(OWN)
    study = ["--workload", "kd-gat", "--config", "own.yaml", "--data", "drives", "--device", "cpu", "--output", "out"]
    run = tune(*study, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("classifier-teacher is trained first, once, for taught") == 1
    teacher = tmp_path / "out-classifier-teacher" / "best.pt"
    rows = pd.read_csv(tmp_path / "out" / "results.csv", keep_default_na=False).set_index("name")
    assert rows.status.to_dict() == {"alone": "completed", "taught": "completed"}
    assert rows["config/teacher_path"].to_dict() == {"alone": "", "taught": str(teacher)}
    assert isinstance(tuner.load_best(tmp_path / "out"), GAT)
    before = (tmp_path / "out" / "results.csv").read_bytes()
    resumed = tune("--resume", "out", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "is trained first" not in resumed.stdout
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    trained = tune("train", "--from", "out", "--trial", "taught", "--exact", "--output", "trained", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.endswith("the study's figures came out again, to the last digit\n")


BAD = {
    "1.0,0329,8,00,00": r"drives/dos.csv, line 301: ",
    "1.0,zz,1,00,R": r"drives/dos.csv, line 301: ",
    "1.0,0329,9,00,00,00,00,00,00,00,00,00,R": r"drives/dos.csv, line 301: ",
}


@pytest.mark.parametrize("row", BAD)
def test_a_bad_row_is_one_line_and_nothing_is_written(row: str, tmp_path: Path) -> None:
    (tmp_path / "drives").mkdir()
    rows = rows_of(synthetic_can(300)["dos_synthetic"])
    (tmp_path / "drives" / "dos.csv").write_text("\n".join([*rows, row, ""]))
    run = tune("--workload", "kd-gat", "--data", "drives", "--device", "cpu", "--output", "out", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: ")
    assert BAD[row] in run.stderr
    assert run.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["drives"]


def test_traffic_without_attacks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_recordings(tmp_path / "drives", {"quiet": synthetic_can(500)["attack_free_synthetic"]})
    run = tune("--workload", "kd-gat", "--mode", "quick", "--data", "drives", "--output", "out", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert "no graph with injected frames (flag T) for train: stage classifier needs labels" in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
