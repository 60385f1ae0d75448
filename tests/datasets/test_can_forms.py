"""Each form of recordings that people have is read as the same frames, or refused by a line that names the form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.can_files import FORMS, UNFLAGGED, lines_of, plain_rows
from tuner.datasets import can_frames
from tuner.datasets.can_frames import Frames, read_frames
from tuner.errors import DataError

LENGTHS = [8, 2, 0, 5, 1, 8, 0, 3] * 5


@pytest.fixture
def frames() -> Frames:
    random, count = np.random.default_rng(0), len(LENGTHS)
    data = random.integers(0, 256, (count, 8)).astype(np.uint8)
    data[np.arange(8) >= np.array(LENGTHS)[:, None]] = 0
    identifier = random.integers(0, 0x800, count).astype(np.int32)
    return Frames(1e9 + np.arange(count) / 8, identifier, data, random.random(count) < 0.3)


def write(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "drive.txt"
    path.write_bytes(end.join([*lines, ""]).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form: str, end: str, frames: Frames, tmp_path: Path) -> None:
    found = read_frames(write(tmp_path, lines_of(form, plain_rows(frames, LENGTHS)), end))
    assert np.array_equal(found.identifier, frames.identifier)
    assert np.array_equal(found.data, frames.data)
    assert np.array_equal(found.injected, np.zeros(40, dtype=bool) if form in UNFLAGGED else frames.injected)
    assert np.array_equal(found.time, np.arange(1, 41) if form == "candump" else frames.time)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_and_empty_lines_make_no_difference(
    form: str, frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(form, plain_rows(frames, LENGTHS))
    whole = read_frames(write(tmp_path, lines))
    monkeypatch.setattr(can_frames, "CHUNK", 300)
    parts = read_frames(write(tmp_path, ["", *lines], end="\n  \n"))
    assert all(
        np.array_equal(getattr(whole, name), getattr(parts, name)) for name in ("identifier", "data", "injected")
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_cut_off_is_named_with_its_line_and_its_form(form: str, frames: Frames, tmp_path: Path) -> None:
    rows = plain_rows(frames, [8] * 40)
    lines = lines_of(form, rows)
    place = len(lines) - 1
    lines[place] = lines[place][: lines[place].upper().index(rows[-1][2][3].upper(), 25) + 1]
    with pytest.raises(
        DataError, match=rf"drive\.txt, line {place + 1}: .*; read as .*: mend or remove the line$"
    ) as caught:
        read_frames(write(tmp_path, lines))
    print(caught.value)
