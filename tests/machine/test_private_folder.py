"""Private folders: where they are made, who can look into them, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.machine.private_folder import private_folder, usable_bases
from tuner.machine.processes import LOG_BYTES, REMOVED, output_in, remove_empty, shorten

KILLED = """
import os, sys
from pathlib import Path
from tuner.machine.private_folder import private_folder
with private_folder(Path(sys.argv[1])) as folder:
    (folder / "log").touch()
    os._exit(9)
"""


def test_a_place_with_a_long_path_or_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    short, long = tmp_path / "s", tmp_path / ("x" * 80)
    short.mkdir()
    long.mkdir()
    named = {"RAY_TMPDIR": str(long), "TMPDIR": str(tmp_path / "no"), "XDG_RUNTIME_DIR": str(short)}
    assert usable_bases(len(str(short)), named) == [Path("/tmp"), short]
    assert usable_bases(1000, named) == [long, Path("/tmp"), short]
    assert usable_bases(3, named) == []


def test_it_is_closed_to_others_and_gone_after_the_block(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), private_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "open").mkdir(mode=0o777)
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_lives_is_kept(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tuner-12345678").symlink_to(tmp_path / "kept")
    (tmp_path / "tuner-context-0.lock").touch()
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == 9
    assert len(list(tmp_path.glob("tuner-????????"))) == 2
    with private_folder(tmp_path) as first, private_folder(tmp_path) as second:
        names = {path.name for path in tmp_path.iterdir()}
    assert names == {"kept", "tuner-12345678", "tuner-context-0.lock", first.name, second.name}


def test_a_users_folder_of_such_a_name_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "tuner-baseline" / "best.pt"
    kept.parent.mkdir()
    kept.touch()
    with private_folder(tmp_path):
        assert kept.exists()


def test_a_log_that_grows_keeps_its_end(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("ab", buffering=0) as file:
        file.write(bytes(LOG_BYTES) + b"last\n")
        shorten(log)
        file.write(b"more\n")
    content = log.read_bytes()
    assert content.startswith(REMOVED) and content.endswith(b"\0last\nmore\n")
    assert len(content) == LOG_BYTES // 2 + len(REMOVED) + len(b"more\n")
    shorten(log)
    assert log.read_bytes() == content
    shorten(tmp_path / "none")


def test_output_is_appended_to_a_log_and_returns_to_where_it_went_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said, silent = tmp_path / "logs" / "t001.log", tmp_path / "logs" / "t002.log"
    for text in (b"one\n", b"two\n"):
        with output_in(said):
            os.write(1, text)
            subprocess.run(["sh", "-c", "echo other >&2"], check=True)
    with output_in(silent), output_in(None), output_in(tmp_path / "no" / "folder" / "t001.log"):
        pass
    os.write(2, b"after\n")
    assert said.read_text() == "one\nother\ntwo\nother\n"
    assert tuple(capfd.readouterr()) == ("", "after\n")
    remove_empty(said.parent)
    assert list(said.parent.iterdir()) == [said]
    said.write_text("")
    remove_empty(said.parent)
    assert not said.parent.exists()


def test_output_goes_through_no_link_to_another_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t001.log").symlink_to(tmp_path / "other")
    with output_in(tmp_path / "t001.log"):
        os.write(1, b"shown\n")
    assert capfd.readouterr().out == "shown\n" and not (tmp_path / "other").exists()
