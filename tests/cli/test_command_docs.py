"""The pages in docs/commands are what the commands' help says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

import tuner
from scripts import command_docs
from tuner.cli.help import DEFAULT_COMMAND
from tuner.cli.main import cli
from tuner.workloads.lookup import SPEC

ROOT = Path(__file__).parents[2]
EXAMPLES = [(name, line) for name, page in command_docs.PAGES.items() for line, _ in page.examples]


def parse(line: str) -> str:
    """The command that a line calls, if it takes these arguments; nothing is run."""
    program, *arguments = shlex.split(line, comments=True)
    assert program in ("tune", "tuner")
    name = arguments.pop(0) if arguments and arguments[0] in cli.commands else DEFAULT_COMMAND
    if name == DEFAULT_COMMAND and arguments and SPEC.fullmatch(arguments[0]):
        arguments.insert(0, "--workload")
    cli.commands[name].make_context(name, arguments)
    return name


def test_the_pages_are_what_the_help_says() -> None:
    assert command_docs.out_of_date() == [], "run scripts/generate and commit what it writes"


def test_every_command_has_an_example() -> None:
    without = [name for name in cli.commands if name not in command_docs.PAGES]
    assert without == [], "give it an entry in PAGES of scripts/command_docs.py"


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_is_a_call_of_its_command(name: str, line: str) -> None:
    assert parse(line) == name


def test_an_example_with_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(click.NoSuchOption, match="--max-worker"):
        parse("tuner plan --max-worker 2")


def test_what_is_recommended_to_those_from_elsewhere_exists() -> None:
    """The last column of the tables: options of a command, and public names."""
    text = "".join((ROOT / "docs" / page).read_text() for page in ("other_guides.md", "ray_tune.md"))
    ours = " ".join(line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| "))
    ours = re.sub(r"`scripts/[^`]*`", "", ours)  # scripts have options of their own
    known = {name for command in cli.commands.values() for option in command.params for name in option_names(option)}
    assert len(ours) > 1000
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", ours)) - known == set()
    assert set(re.findall(r"`tuner\.(\w+)", ours)) - set(tuner.__all__) == set()


def option_names(option: click.Parameter) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def test_pages_that_are_out_of_date_or_of_no_command_are_written_anew(tmp_path: Path) -> None:
    (tmp_path / "run.md").write_text("old")
    (tmp_path / "gone.md").write_text("of no command")
    assert {"run.md", "gone.md", "plan.md"} <= set(command_docs.out_of_date(tmp_path))
    command_docs.write(tmp_path)
    assert command_docs.out_of_date(tmp_path) == []
    assert not (tmp_path / "gone.md").exists()
