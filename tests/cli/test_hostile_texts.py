"""Names and errors of others are printed cleaned and shortened; empty paths are no paths."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.cli.main import _write_csv, main
from tuner.errors import InputError, option

ESCAPE = "\x1b]0;title\x07"


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    monkeypatch.setattr(sys, "argv", ["tune", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


def test_escapes_in_a_file_reach_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('configurations: [{name: "\\e]0;title\\a", hidden_dim: 32}]')
    assert said(monkeypatch, capsys, "plan", "--config", str(file))[1].count("?]0;title?") > 0
    file.write_text(f'configurations: [{{name: "\\e]0;title\\a", hidden_dim: {"k" * 9000}}}]')
    code, text = said(monkeypatch, capsys, "plan", "--config", str(file))
    assert code == 2 and "\x1b" not in text and "?]0;title?: hidden_dim" in text and len(text) < 500


def test_escapes_and_long_texts_of_trials_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any]) -> None:
        raise ValueError(ESCAPE + "x" * 5000)

    tuner.run(
        train,
        space={"kind": {"choice": [ESCAPE]}},
        metric="score",
        direction="max",
        output=tmp_path / "out",
        in_process=True,
        report=False,
    )
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed and "?]0;title?" in printed and "x" * 400 not in printed
    assert "x" * 5000 in (tmp_path / "out" / "results.csv").read_text()


def test_names_that_look_like_markup_or_like_our_own_marks_are_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{ESCAPE}[/x]{option('max_workers')[0]}max_workers\ue001{{\ue002"

    def train(config: dict[str, Any]) -> None:
        tuner.report(**{"score": 1.0, name: 1.0})

    options = {"metric": "score", "direction": "max", "output": tmp_path / "out", "in_process": True}
    result = tuner.run(train, space={"kind": {"choice": [name, "b"]}}, seeds=2, **options)
    texts = [capsys.readouterr().out, repr(result), repr(result.to_frame()), str(InputError(name))]
    texts.append(said(monkeypatch, capsys, "results", str(tmp_path / "out"))[1])
    assert all("\x1b" not in text and "[/x]" in text for text in texts)


def test_a_table_has_no_control_characters_and_for_a_terminal_nothing_that_hides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=terminal: shown)
        _write_csv([{"name": f"{ESCAPE}\u202e"}])
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert ("\u202e" in text) == (not terminal)


@pytest.mark.parametrize("name", ["--resume", "--output"])
def test_an_empty_path_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = said(monkeypatch, capsys, "run", name, "")
    assert (code, text) == (2, f"error: {name} '': must not be empty: give a path, or leave it out\n")
    assert not list(tmp_path.iterdir())


def test_a_command_that_needs_more_memory_than_there_is_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tuner.api.results.side_by_side", out_of_memory)
    text = "error: not enough memory for this: free some, or give less data or smaller files\n"
    assert said(monkeypatch, capsys, "results") == (1, text)


def test_a_removed_current_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    text = "error: the current folder has been removed: change to another\n"
    assert said(monkeypatch, capsys, "results") == (2, text)


def test_characters_that_a_terminal_lacks_become_question_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    said(monkeypatch, capsys, "--version")
    print("⌊1.5⌋", file=terminal)
    assert written.getvalue().endswith(b"?1.5?\n")
