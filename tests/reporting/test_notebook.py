"""A study in a notebook: the example in docs/, executed in a kernel of its own, and the progress bar alone."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import tuner
from tests.support.generated_study import OBJECTIVES
from tuner.reporting.console import WIDE, in_notebook, line_width, make_console, print_wrapped
from tuner.reporting.progress import NotebookProgress
from tuner.trial import GB, Device, EpochReport, MemoryEstimate, Outcome, Placement, Trial

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.ipynb"
CPU = Device("", "cpu", 0, "a CPU", GB, GB, cores=1)
PLOT = "application/vnd.plotly.v1+json"
Outputs = dict[str, list[Any]]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    """What each cell of the example shows, by its first line; and that of one more cell, which gives a bad path."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    bad = nbformat.v4.new_code_cell("tuner.load_best('nowhere')", metadata={"tags": ["raises-exception"]})
    notebook.cells.append(bad)
    place = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(variable, str(place))
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(place)}}).execute()
    yield {cell.source.split("\n")[0]: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(outputs: Outputs) -> str:
    return "".join(output.text for cell in outputs.values() for output in cell if output.output_type == "stream")


@pytest.mark.ray
def test_a_notebook_run_prints_no_banner_no_log_and_no_traceback(outputs: Outputs) -> None:
    everything = [output for cell in outputs.values() for output in cell]
    assert [output.text for output in everything if output.get("name") == "stderr"] == []
    text = printed(outputs)
    assert not re.search(r"traceback|\bray\b|raylet|dashboard|warning|\bINFO\b|\x1b", text, re.IGNORECASE)
    assert [output.ename for output in everything if output.output_type == "error"] == ["InputError"], (
        "the bad cell's own"
    )


@pytest.mark.ray
def test_a_failing_trial_shows_its_reason_in_one_line(outputs: Outputs) -> None:
    lines = [line for line in printed(outputs).splitlines() if "too-fast" in line]
    assert len(lines) == 1
    assert re.fullmatch(r"\[\d/4] too-fast diverged: training: Diverged: the training loss .*: lower lr .*", lines[0])


@pytest.mark.ray
def test_a_notebook_run_is_a_few_lines_and_a_bar(outputs: Outputs) -> None:
    cell = outputs["configurations = ["]
    bar = next(output.data for output in cell if output.output_type == "display_data")
    assert bar["text/plain"].startswith("4/4 trials ended · best val_rmse ")
    assert '<progress max="1" value="1.0000"' in bar["text/html"]
    before, _, after = printed(outputs).partition("too-fast")
    assert before.count("\n") <= 8 and before.splitlines()[1] == "trials     4", "the plan"
    assert after.count("\n") <= 6 and "best: " in after, "what came of it, without a second table"


@pytest.mark.ray
def test_the_result_is_a_table_with_a_best_a_plot_and_a_model(outputs: Outputs) -> None:
    html = outputs["frame"][0].data["text/html"]
    assert "<table" in html and "4 trials: 3 completed, 1 diverged" in html
    assert all(f">{name}</td>" in html for name in ("small", "wide", "deep", "too-fast"))
    (best,) = (line for line in outputs["frame.best"][0].data["text/plain"].splitlines() if line.startswith("name "))
    assert f" · best: {best.split()[1]}, " in html
    plot = outputs["frame.plot_curves()"][0].data[PLOT]
    assert {trace["name"] for trace in plot["data"]} == {"small", "wide", "deep"}
    assert outputs["import torch"][0].data["text/plain"].startswith("tensor([")


@pytest.mark.ray
def test_bad_input_in_a_notebook_is_one_line(outputs: Outputs) -> None:
    (error,) = outputs["tuner.load_best('nowhere')"]
    (line,) = error.traceback
    assert line.startswith("InputError: nowhere/best.pt does not exist") and "\n" not in line


def test_the_example_is_stored_with_what_it_shows_and_an_image_of_each_plot() -> None:
    """``scripts/benchmark notebook`` stores it; GitHub shows no plotly figures."""
    cells = [cell for cell in nbformat.read(EXAMPLE, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    plots = [output.data for cell in cells for output in cell.outputs if PLOT in output.get("data", {})]
    assert len(plots) == 2
    assert all(base64.b64decode(data["image/png"]).startswith(b"\x89PNG") for data in plots)
    assert EXAMPLE.stat().st_size < 1e6


def test_tables_in_a_notebook_are_not_cut_though_it_asks_for_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does
    assert make_console().is_terminal
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert (make_console().is_terminal, make_console().width) == (False, WIDE)


def test_the_variable_columns_is_the_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (make_console().width, line_width(make_console())) == (WIDE, None)
    monkeypatch.setenv("COLUMNS", "80")
    assert (make_console().width, line_width(make_console())) == (80, 80)


def test_a_script_is_no_notebook_nor_is_ipython_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


class Screen:
    """What IPython's ``display`` returns: keeps what is shown."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        self.shown.append(bundle)


def test_the_bar_counts_epochs_and_only_trials_that_do_not_complete_have_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: screen)
    trials = [Trial(f"t{number}", "toy", f"<{number}>", {"epochs": 4}, 0) for number in (1, 2)]
    with NotebookProgress(make_console(), 2, [], OBJECTIVES, GB, refresh_seconds=0) as progress:
        for trial in trials:
            progress.started(Placement(trial, MemoryEstimate("given"), CPU, 0.5, GB, 1))
        progress.reported(EpochReport("t1", 2, 4, {}))
        progress.tick()
        assert 'value="0.2500"' in screen.shown[-1]["text/html"]
        progress.finished(Outcome(trials[0], "completed", metrics={"val_loss": 0.5}), None)
        assert capsys.readouterr().out == ""
        progress.finished(Outcome(trials[1], "failed", error="ValueError: no such thing", phase="training"), None)
    assert capsys.readouterr().out == "[2/2] <2> failed: training: ValueError: no such thing (0 epochs, 0.0 s)\n"
    assert screen.shown[-1]["text/plain"] == "2/2 trials ended · best val_loss 0.5000 (<1>) · 0 s in all"
    assert "(&lt;1&gt;)" in screen.shown[-1]["text/html"]


def test_a_study_with_nothing_left_to_do_has_no_bar() -> None:
    with NotebookProgress(make_console(), 0, [], OBJECTIVES, GB) as progress:
        pass
    assert progress._display is None


def test_errors_are_drawn_in_one_line_by_ipython() -> None:
    assert tuner.InputError("a is 3; give 4")._render_traceback_() == ["InputError: a is 3; give 4"]


def test_lines_of_a_plan_break_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "\n".join(" ".join(f"{word}{'x' * (word % 9)}" for word in range(60)) for _ in range(2))
    print_wrapped(make_console(), text)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80 and printed.split() == text.split()
