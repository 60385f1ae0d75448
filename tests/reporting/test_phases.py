"""The line that names the phase of a command."""

from __future__ import annotations

import io
import sys

import pytest

from tuner.reporting import phases
from tuner.reporting.phases import CLEAR, Spinner, Watched


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_whoever_prints_removes_the_line() -> None:
    screen = Screen()
    spinner = Spinner(screen)
    spinner.show("importing")
    Watched(screen, spinner).write("printed\n")
    *_, drawn, after = screen.getvalue().split(CLEAR)
    assert (drawn[2:], after) == ("importing", "printed\n")
    spinner.show("loading data")
    assert screen.getvalue().endswith("loading data")
    spinner.hide()
    assert screen.getvalue().endswith(CLEAR)


def as_streams(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, term: str = "xterm") -> None:
    """A process with this standard error and a pipe for its output, in which no command has begun."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(phases, "_spinner", None)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(sys, "stdout", io.StringIO())


@pytest.mark.parametrize(("screen", "term"), [(Screen(), "xterm"), (Screen(), "dumb"), (io.StringIO(), "xterm")])
def test_only_a_terminal_that_obeys_codes_gets_it_and_only_where_a_command_has_begun(
    screen: io.StringIO, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_streams(monkeypatch, screen, term)
    phases.show("loading data")
    assert screen.getvalue() == ""
    phases.begin("importing")
    phases.estimating(3, 8)
    phases.hide()
    expected = isinstance(screen, Screen) and term == "xterm"
    assert ("estimating memory, 3 of 8" in screen.getvalue()) == bool(screen.getvalue()) == expected


def test_what_is_printed_into_a_pipe_removes_it_as_the_pipe_may_end_in_the_same_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    as_streams(monkeypatch, screen)
    phases.begin("importing")
    print("printed")
    assert screen.getvalue().endswith(CLEAR)


def test_nothing_is_drawn_where_a_study_shows_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    as_streams(monkeypatch, screen)
    phases.begin("importing")
    with phases.silent():
        before = screen.getvalue()
        phases.estimating(1, 1)
        assert screen.getvalue() == before
    phases.show("writing the report")
    assert screen.getvalue().endswith("writing the report")
    phases.hide()


def test_it_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Screen()
    spinner = Spinner(screen)
    spinner.show("estimating memory, 3 of 8")
    spinner.hide()
    assert {len(line) for line in screen.getvalue().split(CLEAR)} == {0, 19}
