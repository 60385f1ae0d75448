"""Every command is a Python function of the same name and parameters, and both are documented."""

from __future__ import annotations

import inspect
from pathlib import Path

import click
import pytest

import tuner
from tuner.cli import cli

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
CLI_ONLY = {"debug", "as_json", "as_csv"}
PYTHON_ONLY = {"step"}


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_a_command_has_a_python_twin(name: str) -> None:
    command = cli.commands[name]
    options = {key: value for key, value in command.make_context(name, []).params.items() if key not in CLI_ONLY}
    parameters = inspect.signature(getattr(tuner, name)).parameters
    assert options == {key: value.default for key, value in parameters.items() if key not in PYTHON_ONLY}


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_option_is_in_the_docs(name: str) -> None:
    text = "\n".join(path.read_text() for path in TEXTS)
    for option in cli.commands[name].params:
        assert isinstance(option, click.Option)
        names = [*option.opts, *option.secondary_opts]
        assert any(name in text for name in names), f"none of {names} is documented"


def test_every_public_name_is_in_the_docs() -> None:
    text = "\n".join(path.read_text() for path in TEXTS)
    assert [name for name in tuner.__all__ if name not in text] == []
