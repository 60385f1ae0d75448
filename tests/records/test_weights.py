"""The weights in a study's folder, which somebody else may have made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tuner.errors import InputError
from tuner.records.weights import load_best


@pytest.mark.parametrize(("name", "linked"), [("../notes", False), ("notes", True)])
def test_files_of_weights_are_written_into_their_own_folder_alone(tmp_path: Path, name: str, linked: bool) -> None:
    study, victim = tmp_path / "study", tmp_path / "victim"
    study.mkdir()
    victim.mkdir()
    if linked:
        (study / "best").symlink_to(victim)
    files = {name: torch.zeros(1, dtype=torch.uint8)}
    torch.save({"workload": "mine", "program": True, "files": files}, study / "best.pt")
    with pytest.raises(InputError, match=f"it names the file '{name}', which is outside of its folder"):
        load_best(study)
    assert not list(victim.iterdir()) and not (study / "notes").exists()


@pytest.mark.parametrize("content", [[], {"workload": "mine", "program": True, "files": [1]}, {"workload": []}])
def test_weights_of_another_form_are_told(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "best.pt")
    with pytest.raises(InputError, match=r"best\.pt cannot be loaded"):
        load_best(tmp_path)
