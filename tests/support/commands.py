"""Commands that this process runs as another one would: to load torch for another one takes two seconds."""

from __future__ import annotations

import sys

import pytest

from tuner.cli.main import cli, main


def said(capture: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints that ends with this exit code and without an error."""
    assert (cli.main([*arguments], standalone_mode=False) or 0) == code
    printed = capture.readouterr()
    assert printed.err == ""
    return printed.out


def refused(capture: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The only line that a command prints that ends with exit code 2."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["tune", *arguments])
        main()
    printed = capture.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    return line
