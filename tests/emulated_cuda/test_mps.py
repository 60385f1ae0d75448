"""Studies on an emulated card with a program in the place of NVIDIA's for MPS. The card obeys clients' limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.emulated_cuda.mps_trials as trials
from tests.emulated_cuda.cards import on_cards
from tests.emulated_cuda.studies import Study, ended
from tests.support import fake_mps
from tests.support.processes import runs

pytestmark = pytest.mark.emulated


def run(study: Study, *kinds: str) -> str:
    """A study with one trial of each kind; what it said."""
    folder = study.folder.parent
    fake_mps.install(folder / "bin")
    own = {"STUDY": str(folder), "FAKE_MPS_LOG": str(folder / "log"), "XDG_CACHE_HOME": str(folder)}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = on_cards(folder / "cards", sizes=[6000], PATH=path, **own)
    command = [sys.executable, trials.__file__, str(study.folder), *kinds]
    pipe = subprocess.PIPE
    return ended(subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True))


def test_a_client_stays_within_its_share_and_suffers_once_from_a_neighbour(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    said = run(study, "reaches", "suffers", "breaks")
    assert "mps        on for cuda:0" in said
    reaches, suffers, breaks = (
        [line for line in study.attempts if line["config/kind"] == kind] for kind in ("reaches", "suffers", "breaks")
    )
    assert [(line["loss"], line["client"]) for line in reaches] == [(400, 1)], "no more than its share"
    assert [line["lost"] for line in suffers] == ["worker", ""]
    assert "this one is tried once more" in suffers[0]["error"]
    assert (suffers[1]["loss"], suffers[1]["client"]) == (2000, 0), "without MPS a trial gets more"
    assert [(line["status"], line["lost"]) for line in breaks] == [("failed", "worker"), ("failed", "")]
    assert trials.SHARED_ERROR in breaks[1]["error"] and "MPS" not in breaks[1]["error"]
    noted = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert not any(runs(line["daemon"]) for line in noted if "daemon" in line)
