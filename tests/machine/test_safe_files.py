"""Files are written as a whole, and never through a link that somebody else has put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.machine import safe_files


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("kept")
    return file


def test_a_link_in_the_place_of_a_partial_file_is_not_written_through(tmp_path: Path, victim: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.partial").symlink_to(victim)
    with safe_files.replacing(tmp_path / "a") as file:
        file.write(b"new")
    safe_files.replace_file(tmp_path / "b", b"new")
    assert victim.read_text() == "kept"
    assert all((tmp_path / name).read_bytes() == b"new" and not (tmp_path / name).is_symlink() for name in "ab")


def test_nothing_is_appended_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        safe_files.append_file(tmp_path / "link", b"more")
    assert victim.read_text() == "kept"
