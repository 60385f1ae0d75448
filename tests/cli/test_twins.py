"""Every command is a Python function of the same name and parameters, and both are documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tuner
from scripts import generate
from tests.support.commands import refused
from tuner.cli.main import cli
from tuner.cli.options import chosen
from tuner.spec.settings import Settings
from tuner.spec.spelling import arguments

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
CLI_ONLY = {"debug", "as_json", "as_csv", "all_rows", "path", "arguments"}
PYTHON_ONLY = {"step", "points", "estimate", "callbacks"}


def python_name(command: str) -> str:
    return generate.command_docs.FUNCTIONS.get(command, command.replace("-", "_"))


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_a_command_has_a_python_twin(name: str) -> None:
    command = cli.commands[name]
    options = {str(param.name) for param in command.params} - CLI_ONLY
    parameters = inspect.signature(getattr(tuner, python_name(name))).parameters
    assert options == set(parameters) - PYTHON_ONLY
    for param in command.params:
        if isinstance(param, click.Option) and not param.multiple and param.name in options:
            assert param.default == parameters[str(param.name)].default, param.name


def code_in_the_docs() -> str:
    """What stands in code blocks and between backticks: a word in a sentence documents nothing."""
    text = "\n".join(path.read_text() for path in TEXTS)
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


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
        "model_memory_gb": 2.0,
        "gpu_memory_buffer_gb": 0.5,
        "max_workers": 2,
        "split_seed": 0,
        "time_limit": "30m",
        "device": "cpu",
        "calibration": False,
        "dry_run": True,
        "overrides": ("lr=0.1", "epochs=2"),
    }
    settings = Settings.of(changed)
    again = chosen(cli.commands["run"].make_context("run", arguments(settings)), Settings)
    assert again.changes() == settings.changes() == changed
    assert arguments(Settings()) == []


def test_what_is_given_is_known_though_it_is_the_default() -> None:
    context = cli.commands["run"].make_context("run", ["--calibration", "--seed", "0"])
    assert chosen(context, Settings).given() == {"calibration": True, "seed": 0}
    assert Settings(calibration=True).given() == {"calibration": True}


def test_help_shows_the_options_of_a_study_in_groups() -> None:
    run = CliRunner().invoke(cli, ["run", "--help"]).output
    titles = ["Configurations and data:", "Search:", "Training:", "Execution:", "Memory:", "Packing:", "Results:"]
    places = [run.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert "--set KEY=VALUE" in run[: places[1]]


def test_the_short_help_has_ten_options_and_one_that_a_function_needs_among_them() -> None:
    common = [name for name in Settings.names() if Settings.terminal(name).common]
    assert len(common) == 10 and {"metric", "direction"} <= {*common}


def test_a_space_that_is_missing_is_called_a_space(capsys: pytest.CaptureFixture[str]) -> None:
    assert "error: cannot read the space none.yaml: No such file" in refused(capsys, "--space", "none.yaml")


def test_what_other_programs_call_an_option_is_understood_and_not_shown() -> None:
    words = ["--n-trials", "3", "--n-jobs=2", "--timeout", "9s", "--sampler", "random", "--pruner", "asha"]
    given = chosen(cli.commands["run"].make_context("run", words), Settings).given()
    known = {"num_samples": 3, "max_workers": 2, "time_limit": "9s", "search": "random", "scheduler": "asha"}
    assert given == known
    assert "--n-trials" not in CliRunner().invoke(cli, ["run", "--help"]).output


def test_samplers_and_pruners_have_one_name_in_records_and_their_options_are_spelled_alike() -> None:
    words = ["--search=optuna", "--search-option=group=true", "--search-option=seed=3", "--pruner=successive-halving"]
    given = chosen(cli.commands["run"].make_context("run", words), Settings)
    assert (given.search, given.scheduler, given.search_options) == ("tpe", "asha", ("group=true", "seed=3"))
    in_python = Settings(search="tpe", search_options={"group": "true", "seed": 3}, scheduler="asha")
    assert in_python.given() == given.given()
    assert " ".join(arguments(given)).startswith("--search tpe --search-option group=true --search-option seed=3 ")


def test_memory_is_estimated_unless_it_is_given_but_for_the_function_of_the_guide() -> None:
    given = {"model_memory_gb": 2.0}
    assert [Settings(**options).packing_used for options in ({}, given)] == ["per-trial", "uniform"]
    of_guide = inspect.signature(tuner.tune_hyperparameters_parallel).parameters
    assert (of_guide["auto_memory"].default, of_guide["model_memory_gb"].default) == (False, 1.5)


def test_generated_files_are_up_to_date() -> None:
    assert generate.stub_is_current(), generate.REMEDY
