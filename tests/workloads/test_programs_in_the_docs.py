"""The programs in docs/your_own_model.md run, and are as short as its table says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(tuner.__file__).parents[1]
DOCS = (ROOT / "docs" / "your_own_model.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCS, re.DOTALL))
PROGRAMS["optuna_alone.py"] = (
    PROGRAMS["objective.py"]
    .replace("import tuner.optuna\n", "")
    .replace("tuner.optuna.optimize(study, ", "study.optimize(")
)
SPACE = re.findall(r"```yaml\n(lr: .*?)```", DOCS, re.DOTALL)[0]
ROWS = {
    "optuna_alone.py": "Optuna alone",
    "ray_tune.py": "Ray Tune alone",
    "mlp.py": "tuner, a function",
    "objective.py": "tuner, Optuna's objective",
}


def lines_of(program: str) -> int:
    """The lines of a program beside its model."""
    return sum(bool(line) and line != "from model import accuracies" for line in PROGRAMS[program].splitlines())


def run(folder: Path, *words: str) -> str:
    """The last line that one of the programs prints, with few trials in its own process."""
    for name, text in PROGRAMS.items():
        few = text.replace('"num_samples": 20', '"num_samples": 2, "in_process": True')
        few = few.replace("(study, objective, n_trials=20)", "(study, objective, n_trials=2, in_process=True)")
        (folder / name).write_text(few.replace("n_trials=20", "n_trials=2"))
    (folder / "space.yaml").write_text(SPACE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder, check=True
    )
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(("program", "row"), ROWS.items())
def test_the_table_has_the_lines_of_the_programs(program: str, row: str) -> None:
    assert f"| {row} | {lines_of(program)} |" in DOCS


def test_tuner_takes_no_more_lines_than_optuna_and_two() -> None:
    assert max(map(lines_of, ("mlp.py", "objective.py"))) <= lines_of("optuna_alone.py") + 2


@pytest.mark.parametrize("program", ["mlp.py", "objective.py", "optuna_alone.py"])
def test_a_program_tunes_the_model(tmp_path: Path, program: str) -> None:
    assert re.fullmatch(r"\{'lr': [\d.e-]+, 'hidden': \d+\} 0\.\d+", run(tmp_path, program))


def test_the_script_is_tuned(tmp_path: Path) -> None:
    command = re.findall(r"^\$ tune (script .*)$", DOCS, re.MULTILINE)[0].replace(
        "--num-samples 6", "--num-samples 1"
    )
    assert "Again: python train.py --lr 0." in run(tmp_path, "-m", "tuner", *command.split())
