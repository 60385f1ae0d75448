"""Every command is a Python function of the same name and parameters, and both are documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

import tuner
from tuner.api.run import run_defaults
from tuner.cli.main import cli
from tuner.study.again import arguments

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
CLI_ONLY = {"debug", "as_json", "as_csv"}
PYTHON_ONLY = {"step", "space"}


def python_name(command: str) -> str:
    return command.replace("-", "_")


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_a_command_has_a_python_twin(name: str) -> None:
    command = cli.commands[name]
    arguments = [param for param in command.params if isinstance(param, click.Argument) and param.required]
    context = command.make_context(name, ["x"] * len(arguments))
    # What must be given is "x" on the command line, and has no default in Python.
    empty = {str(param.name): inspect.Parameter.empty for param in arguments}
    options = {key: value for key, value in {**context.params, **empty}.items() if key not in CLI_ONLY}
    parameters = inspect.signature(getattr(tuner, python_name(name))).parameters
    assert options == {key: value.default for key, value in parameters.items() if key not in PYTHON_ONLY}


def code_in_the_docs() -> str:
    """What stands in code blocks and between backticks: a word in a sentence documents nothing."""
    text = "\n".join(path.read_text() for path in TEXTS)
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_option_is_in_the_docs(name: str) -> None:
    text = code_in_the_docs()
    for option in cli.commands[name].params:
        if isinstance(option, click.Argument):
            assert f"{name} {option.metavar}" in text, f"{option.metavar} is not documented"
            continue
        names = [*option.opts, *option.secondary_opts]
        assert any(re.search(rf"{name}(?![\w-])", text) for name in names), f"none of {names} is documented"


def test_every_public_name_is_in_the_docs() -> None:
    text = code_in_the_docs()
    assert [name for name in tuner.__all__ if not re.search(rf"(?<![\w-]){name}\b", text)] == []


@pytest.mark.parametrize(
    "data", [{"workload": ("graphsage",), "data": "a b"}, {"workload": ("a", "b"), "data": {"graphsage": "x=y"}}]
)
def test_the_arguments_of_a_run_are_read_back_as_the_same_run(data: dict[str, object]) -> None:
    changed: dict[str, object] = {
        **data,
        "mode": "full",
        "only": "x y",
        "limit": 3,
        "auto_memory": True,
        "gpu_memory_buffer_gb": 0.5,
        "max_workers": 2,
        "threads": 1,
        "epochs": 4,
        "seed": 7,
        "seeds": 3,
        "split_seed": 0,
        "time_limit": "30m",
        "output": "o",
        "device": "cpu",
        "memory_estimation": "traced",
        "calibration": False,
        "expandable_segments": True,
        "dry_run": True,
    }
    parameters = inspect.signature(tuner.run).parameters
    options = {name: changed.get(name, parameter.default) for name, parameter in parameters.items()}
    context = cli.commands["run"].make_context("run", arguments(options, run_defaults()))
    in_a_terminal = {name: value for name, value in options.items() if name not in PYTHON_ONLY}
    assert {name: value for name, value in context.params.items() if name != "debug"} == in_a_terminal
    assert arguments(run_defaults(), run_defaults()) == []
