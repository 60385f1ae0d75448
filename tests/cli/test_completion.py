"""Completion: what is offered, and the script in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from tuner.cli.main import cli


def offered(*words: str) -> list[str]:
    """What is offered for the last of these words, behind ``tuner``."""
    *before, incomplete = words
    found = BashComplete(cli, {}, "tuner", "_TUNER_COMPLETE").get_completions(list(before), incomplete)
    return [item.value for item in found if item.type == "plain"]


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two studies and another folder under results/."""
    monkeypatch.chdir(tmp_path)
    for name in ("20261120-a", "20261121-b"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "study.json").touch()
    (tmp_path / "results" / "other").mkdir()


def test_the_first_word_can_be_a_command_or_an_option_of_run() -> None:
    assert {"run", "results", "report"} <= set(offered("r"))
    assert set(offered("")) == set(cli.commands)
    assert offered("--mod") == ["--mode", "--model-memory-gb"]
    assert offered("--mode", "arch") == ["architecture"]  # of tune, which is tune run


def test_modes_are_those_of_the_workload_that_was_named() -> None:
    assert "pretrain" not in offered("run", "--mode", "")
    assert offered("run", "--workload", "gt-ssl", "--mode", "p") == ["pretrain"]
    assert offered("estimate", "--workload", "g") == ["graphsage", "gt-ssl"]
    assert offered("plan", "--packing", "") == ["per-trial", "uniform"]


def test_folders_of_studies_are_offered_newest_first(studies: None) -> None:
    both = ["results/20261121-b", "results/20261120-a"]
    for words in (("run", "--resume", ""), ("train", "--from", "res"), ("plan", "--like", ""), ("report", "")):
        assert offered(*words) == both
    assert offered("--resume", "results/20261120") == ["results/20261120-a"]


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_completes_with_the_script(studies: None, tmp_path: Path) -> None:
    program = tmp_path / "tuner"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tuner "$@"\n')
    program.chmod(0o755)
    ask = (
        'eval "$(_TUNER_COMPLETE=bash_source tuner)"; COMP_WORDS=(tuner --resume results/20261121); COMP_CWORD=2; '
        '_tuner_completion tuner 2>/dev/null; echo "${COMPREPLY[@]}"; complete -p tuner'
    )
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, env={**os.environ, **path}, timeout=60)
    assert run.stdout.splitlines() == [
        "results/20261121-b",
        "complete -o nosort -F _tuner_completion tuner",
    ]
