"""The spinner that names the phase of a command."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from tuner.reporting import phases


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Closed(Screen):
    """A terminal whose window was closed, and how often somebody tried to write there."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(5, "Input/output error")


def as_streams(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, term: str = "xterm") -> None:
    """A process with this standard error and a pipe for its output, in which no command has begun."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(phases, "_shown", None)
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


def test_without_a_terminal_a_line_says_what_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    console = SimpleNamespace(print=said.append)
    with phases.lasting("quick", console):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr(phases, "LONG_SECONDS", 0.0)
    with phases.lasting("joining", console):  # type: ignore[arg-type]
        time.sleep(0.2)
    assert said == ["joining"]


def test_what_is_printed_removes_it_and_goes_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    as_streams(monkeypatch, screen)
    phases.begin("importing")
    drawn = len(screen.getvalue())
    print("into a pipe")
    assert sys.stdout.getvalue() == "into a pipe\n"  # type: ignore[attr-defined]
    assert len(screen.getvalue()) > drawn, "the pipe may end in the same terminal"
    assert "into a pipe" not in screen.getvalue()
    print("an error", file=sys.stderr)
    assert screen.getvalue().endswith("an error\n")
    phases.show("loading data")
    assert "loading data" in screen.getvalue().partition("an error")[2]
    phases.hide()


def test_nothing_is_drawn_where_a_study_shows_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    as_streams(monkeypatch, screen)
    phases.begin("importing")
    with phases.silent():
        before = screen.getvalue()
        phases.estimating(1, 1)
        assert screen.getvalue() == before
    phases.show("writing the report")
    assert "writing the report" in screen.getvalue()
    phases.hide()


def test_a_terminal_that_is_closed_does_not_end_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Closed()
    as_streams(monkeypatch, terminal)
    phases.begin("importing")
    phases.show("writing the report")
    phases.hide()
    assert terminal.tries > 0, "nothing was shown"
