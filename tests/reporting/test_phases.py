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


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_it_and_only_where_a_command_has_begun(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen() if terminal else io.StringIO()
    monkeypatch.setattr(phases, "_spinner", None)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    phases.show("loading data")
    assert screen.getvalue() == ""
    phases.begin("importing")
    phases.estimating(3, 8)
    phases.hide()
    assert ("estimating memory, 3 of 8" in screen.getvalue()) == bool(screen.getvalue()) == terminal
