"""What is installed: the versions that are pinned, and what works where no optional package is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.support.generated_study import write_study
from tuner import errors
from tuner.errors import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = (*("accelerate", "lightning", "mlflow", "plotly", "pytorch_lightning", "transformers", "wandb"),)
# Read by every Python that starts with its folder on the path, and so also by processes that a study starts.
HIDES = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {OPTIONAL} else find(name, *rest)
"""
PROGRAM = """
import tuner

def train(config):
    for _ in range(2):
        tuner.report(val_loss=config["x"] ** 2)

if __name__ == "__main__":
    compared = {"metric": "val_loss", "direction": "minimize"}
    tuner.run(train, space={"x": {"choice": [1, 2]}}, **compared, output="out", max_workers=1)
"""

PLOT = """
from pathlib import Path
from tuner.records.recorded_study import RecordedStudy
from tuner.objective import Objective
from tuner.reporting.frame import study_frame

study_frame(RecordedStudy(Path("out"), "out", objectives={"toy": Objective("val_loss")})).plot_curves()
"""


def named(requirement: str) -> str:
    return re.split(r"[\[><=; ]", requirement)[0].lower().replace("_", "-")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder in which ``python`` finds no optional package."""
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    return tmp_path


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (folder, ROOT, os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_constraints_name_each_package_once_and_every_one_that_is_asked_for() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = Counter(map(named, lines))
    assert {name for name, times in pinned.items() if times > 1} == set()
    asked = {*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)}
    assert {*map(named, asked)} - {DISTRIBUTION, "wandb"} == {*pinned}


def test_the_extra_all_has_all_extras_that_users_choose() -> None:
    chosen = sorted(EXTRAS.keys() - {"all", "test", "dev"})
    assert EXTRAS["all"] == [f"{DISTRIBUTION}[{','.join(chosen)}]"]


def test_a_functions_study_needs_no_optional_package(plain: Path) -> None:
    (plain / "program.py").write_text(PROGRAM)
    run = python(plain, "program.py")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("completed") >= 2
    (said,) = (line for line in run.stdout.splitlines() if "plotly" in line)
    assert said.startswith("no report: the package plotly is not installed: ")
    assert not (plain / "out" / "report.html").exists()


@pytest.mark.parametrize("words", ["--help", "results out", "plan --mode quick --model-memory-gb 1"])
def test_commands_need_no_optional_package(plain: Path, words: str) -> None:
    write_study(plain / "out", 2)
    run = python(plain, "-m", "tuner", *words.split())
    assert run.stdout and not run.stderr


def test_what_needs_an_optional_package_says_how_to_install_it(plain: Path) -> None:
    write_study(plain / "out", 2)
    before = sorted(plain.rglob("*"))
    run = python(plain, "-m", "tuner", "report", "out")
    assert (run.stdout, run.returncode) == ("", 2)
    assert re.fullmatch(
        rf"error: .*plotly is not installed: .*pip install -e '{re.escape(str(ROOT))}\[.*\]'\n", run.stderr
    )
    assert sorted(plain.rglob("*")) == before


def test_a_notebooks_plot_says_how_to_install_plotly(plain: Path) -> None:
    write_study(plain / "out", 2)
    run = python(plain, "-c", PLOT)
    assert "InputError: the package plotly is not installed: " in run.stderr.splitlines()[-1]


def test_an_optional_module_of_ours_says_how_to_install_what_it_needs(plain: Path) -> None:
    for name in ("lightning", "transformers"):
        run = python(plain, "-c", f"import tuner.{name}")
        assert f"ImportError: the package {name} is not installed: " in run.stderr.splitlines()[-1]


def test_the_command_installs_the_checkouts_extra_and_elsewhere_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))
    assert install_command("plotly", extra="report") == f"pip install -e '{ROOT}[report]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "tuner" / "errors.py"))
    assert install_command("plotly", extra="report") == "pip install plotly"
    monkeypatch.setattr("shutil.which", lambda name: "/elsewhere/pip")
    assert install_command("mlflow", "wandb") == f"{sys.executable} -m pip install mlflow wandb"


def test_no_text_installs_the_other_project_of_our_name() -> None:
    found = (*(ROOT / "docs").rglob("*.md"), *(ROOT / "tuner").rglob("*.py"), *(ROOT / "scripts").rglob("*.py"))
    files = [ROOT / "README.md", *found]
    assert [str(path) for path in files if re.search(r"install [^\n]*\btuner\[", path.read_text())] == []
