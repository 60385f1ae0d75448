from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attempts import attempt
from tuner.errors import InputError
from tuner.machine import safe_files
from tuner.machine.safe_files import replace_file
from tuner.records.attempts import Attempt
from tuner.records.journal import Journal, read_attempts

# Holds the journal's lock, with a child of its own, until it is killed.
HOLDER = """
import subprocess, sys
from pathlib import Path
from tuner.records.journal import Journal
held = Journal(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


def line(number: int) -> Attempt:
    return attempt(trial_id=f"t{number}")


def text(*numbers: int) -> str:
    return "".join(json.dumps(line(number).to_line(exact=True)) + "\n" for number in numbers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempts.jsonl"


@pytest.fixture
def attempts(path: Path) -> Iterator[Journal]:
    opened = Journal(path)
    yield opened
    opened.close()


def reopened(path: Path) -> tuple[list[Attempt], list[str]]:
    opened = Journal(path)
    notes = opened.repair()
    opened.close()
    return opened.rows, notes


def fail_after(monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """The disk is full after so many bytes of the next write."""

    def full(file: object, content: bytes) -> None:
        os.write(file.fileno(), content[:written])  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safe_files, "write_through", full)


def test_a_line_is_there_for_any_reader_the_moment_it_is_appended(attempts: Journal, path: Path) -> None:
    attempts.append(line(1))
    attempts.append(line(2))
    assert read_attempts(path) == ([line(1), line(2)], [])
    assert attempts.rows == [line(1), line(2)]


def test_lines_of_an_earlier_run_are_kept_and_added_to(path: Path) -> None:
    path.write_text(text(1))
    opened = Journal(path)
    opened.append(line(2))
    opened.close()
    assert opened.rows == [line(1), line(2)]
    assert path.read_text() == text(1, 2)


def test_a_journal_that_is_not_there_has_no_lines_and_is_not_made(path: Path) -> None:
    assert read_attempts(path) == ([], [])
    assert not path.exists()


def test_a_journal_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_attempts(tmp_path)


@pytest.mark.parametrize("cut", range(1, len(text(2))))
def test_a_kill_anywhere_in_a_line_costs_that_line_alone(path: Path, cut: int) -> None:
    half = text(2)[:-cut]
    path.write_text(text(1) + half)
    rows, notes = reopened(path)
    assert rows == [line(1)]
    assert path.read_text() == f"{text(1)}{half} was cut off\n"
    assert notes == [f"{path}: line 2 is incomplete; left out"]
    assert reopened(path) == (rows, notes) == read_attempts(path)


@pytest.mark.parametrize("damage", [b"{}", b"[1]", b"\0\0\0\0", b"\xff\xfe", b'{"trial_id": "t2"', b"nonsense"])
def test_a_line_that_is_no_attempt_is_left_out_wherever_it_is(path: Path, damage: bytes) -> None:
    path.write_bytes(text(1).encode() + damage + b"\n" + text(3).encode() + damage + b"\n")
    rows, notes = reopened(path)
    assert rows == [line(1), line(3)]
    assert notes == [f"{path}: 2 lines (2, 4) are incomplete; left out"]
    assert read_attempts(path) == (rows, notes)


def test_lines_go_on_after_what_was_cut_off(path: Path) -> None:
    path.write_text(text(1) + "nonsense\n" + text(2) + text(3)[:9])
    opened = Journal(path)
    opened.repair()
    opened.append(line(4))
    opened.close()
    assert read_attempts(path)[0] == [line(1), line(2), line(4)]


def test_a_reader_leaves_out_what_is_not_whole_and_changes_nothing(path: Path) -> None:
    path.write_text(text(1) + text(2)[:-5])
    assert read_attempts(path) == ([line(1)], [f"{path}: line 2 is incomplete; left out"])
    assert path.read_text() == text(1) + text(2)[:-5]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("written", [0, 1, 20, len(text(2))])
def test_a_full_disk_leaves_no_half_line(
    attempts: Journal, path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    attempts.append(line(1))
    with monkeypatch.context() as patch:
        fail_after(patch, written)
        with pytest.raises(OSError, match="No space left"):
            attempts.append(line(2))
    assert path.read_text() == text(1)
    attempts.append(line(3))
    assert path.read_text() == text(1, 3)
    assert attempts.rows == [line(1), line(3)]


def test_a_line_that_cannot_be_ended_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text(1) + "half")
    opened = Journal(path)
    fail_after(monkeypatch, 0)
    with pytest.raises(OSError, match="No space left"):
        opened.repair()
    opened.close()
    assert path.read_text() == text(1) + "half"


def test_a_file_that_cannot_be_replaced_keeps_its_content(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(path, b"old")
    fail_after(monkeypatch, 1)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_journal_has_one_writer(attempts: Journal, path: Path) -> None:
    attempts.append(line(1))
    with pytest.raises(BlockingIOError):
        Journal(path)
    attempts.close()
    assert attempts.closed
    assert reopened(path) == ([line(1)], [])


def test_the_kernel_frees_the_lock_of_a_killed_process_whose_children_live(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(BlockingIOError):
                Journal(path)
            holder.kill()
            holder.wait()
            assert reopened(path) == ([], [])
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)  # it is still there


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"val_loss": float("nan")}, "val_loss is nan; expected a number$"),  # tuner writes null for it
        ({"status": "finished"}, "status is 'finished'; expected 'completed', 'paused', 'pruned', 'out_of_memory', "),
    ],
)
def test_what_tuner_never_writes_is_refused(path: Path, changed: dict[str, object], message: str) -> None:
    path.write_text(json.dumps({**line(1).to_line(exact=True), **changed}) + "\n")
    with pytest.raises(InputError, match=f"^{path}, line 1: {message}"):
        read_attempts(path)


def test_lines_of_which_none_is_whole_are_told_and_refused_where_one_is_needed(path: Path) -> None:
    path.write_text("no\n" * 10)
    assert read_attempts(path) == ([], [f"{path}: 10 lines (1, 2, 3, 4, 5, 6, 7, 8, …) are incomplete; left out"])
    with pytest.raises(InputError, match=r"10 lines \(.*\) are incomplete, and there is no other; restore it from a"):
        read_attempts(path, some=True)


def test_a_journal_that_was_removed_meanwhile_is_written_again(attempts: Journal, path: Path) -> None:
    attempts.append(line(1))
    path.unlink()
    attempts.append(line(2))
    attempts.close()
    attempts.close()
    assert path.read_text() == text(1, 2)
