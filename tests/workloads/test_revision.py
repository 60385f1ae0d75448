"""The revision of the code in a folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tuner.workloads.pickling import git_revision


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_a_changed_file_adds_a_plus_to_the_commit(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", tmp_path, *own, *words], capture_output=True, text=True, check=True
        ).stdout

    git("init")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")[:12]
    assert git_revision(tmp_path) == commit
    (tmp_path / "a.py").write_text("2")
    assert git_revision(tmp_path) == f"{commit}+"


def test_without_git_or_a_repository_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_revision(tmp_path) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_revision(Path(__file__).parent) == ""
