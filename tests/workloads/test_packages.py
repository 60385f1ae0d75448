"""Which packages users' code needs on other machines."""

from __future__ import annotations

from pathlib import Path

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
