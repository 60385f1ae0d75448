"""Which packages users' code needs on other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tuner
from tuner.workloads.packages import installed


def test_installed_packages_are_found_in_a_script_and_beside_it_also_where_they_are_imported_late(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text("import os, beside, tuner\n\ndef f():\n    import numpy.linalg\n")
    (tmp_path / "beside.py").write_text("import script, not_there\nfrom click import echo\n")
    assert installed([tmp_path / "script.py", None]) == ["click", "numpy"]


def test_a_functions_packages_are_those_of_its_file() -> None:
    assert installed([installed]) == [], "of tuner's own modules only those that it imports itself count"
    assert installed([late]) == ["numpy"]


def late() -> None:
    import numpy  # noqa: F401


def test_a_function_whose_modules_import_torch_late_has_it_imported_for_all_trials(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def work():\n    import torch\n")
    program = "from beside import work\nfrom tuner.workloads.program import Function\nimport sys\n"
    program += "def train(config):\n    work()\nprint(Function(train).imports, 'torch' in sys.modules)\n"
    (tmp_path / "mine.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(tuner.__file__).parents[1])}
    run = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout == "('torch',) False\n", run.stderr


def test_files_beside_a_script_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "deep.py").write_text("x = " + "+".join(["1"] * 9999))
    (tmp_path / "beside" / "other.py").write_text("import numpy\n")
    (tmp_path / "script.py").write_text("import beside\n")
    assert installed([tmp_path / "script.py"]) == ["numpy"]
