"""Which packages users' code needs on other machines."""

from __future__ import annotations

import importlib
import pickle
import shutil
import sys
from pathlib import Path

import pytest

from tuner.workloads.packages import installed, sources
from tuner.workloads.pickling import SearchPath, sent_by_value


def test_installed_packages_are_found_in_a_script_and_beside_it_also_where_they_are_imported_late(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text("import os, beside, tuner\n\ndef f():\n    import numpy.linalg\n")
    (tmp_path / "beside.py").write_text("import script, not_there\nfrom click import echo\n")
    assert installed([tmp_path / "script.py", None]) == ["click", "numpy"]


def test_a_functions_packages_are_those_of_its_file() -> None:
    assert installed([installed]) == [], "of tuner's own modules only those that it imports itself count"
    assert installed([test_a_functions_packages_are_those_of_its_file]) == ["pytest"]


def test_what_code_imports_late_is_found_on_a_machine_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    (folder / "late").mkdir(parents=True)
    (folder / "late" / "__init__.py").write_text("from late import inner")
    (folder / "late" / "inner.py").write_text("import inner_needs\nVALUE = inner_needs.VALUE")
    (folder / "inner_needs.py").write_text("VALUE = 7")
    (folder / "unused.py").write_text("")
    (folder / "script.py").write_text("def f():\n    import late\n")
    found = sources([folder / "script.py"])
    assert sorted(found[str(folder)]) == ["inner_needs.py", "late/__init__.py", "late/inner.py", "script.py"]
    with sent_by_value([], found):
        sent = pickle.dumps(SearchPath())
    shutil.rmtree(folder)
    monkeypatch.setattr("sys.path", [*sys.path])
    pickle.loads(sent)  # noqa: S301  # our own
    assert importlib.import_module("late.inner").VALUE == 7
    scripts = [Path(one, "script.py").is_file() for one in sys.path if "tuner-code" in one]
    assert scripts == [True]
    for name in ("late", "late.inner", "inner_needs"):
        del sys.modules[name]
