from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.can_files import rows_of
from tuner.datasets.can import synthetic_can
from tuner.datasets.can_frames import read_frames
from tuner.errors import DataError

ROWS = ["10.5,02a0,8,40,00,6e,1d,cc,04,e3,ff,R", "10.6,02b0,2,FF,7f,T", "10.7,1fffffff,0,R", "10.8,0,1,0a,R"]


def write(folder: Path, text: str | bytes, name: str = "drive.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_of_any_width_are_read(tmp_path: Path) -> None:
    frames = read_frames(write(tmp_path, "\n".join(ROWS) + "\n"))
    assert frames.time.tolist() == [10.5, 10.6, 10.7, 10.8]
    assert frames.identifier.tolist() == [0x2A0, 0x2B0, 0x1FFFFFFF, 0]
    assert frames.data[0].tolist() == [0x40, 0, 0x6E, 0x1D, 0xCC, 4, 0xE3, 0xFF]
    assert frames.data[1:].tolist() == [[255, 127, *[0] * 6], [0] * 8, [10, *[0] * 7]]
    assert frames.injected.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("before", "between", "after"),
    [("\ufeff", "\r\n", "\r\n"), ("Timestamp,ID,DLC,Data,Flag\n", "\n", ""), ("\n\n", "\n\n", "\n\n")],
    ids=["from Windows", "with column names", "blank lines"],
)
def test_how_lines_are_set_does_not_matter(before: str, between: str, after: str, tmp_path: Path) -> None:
    frames = read_frames(write(tmp_path, before + between.join(ROWS) + after))
    assert frames.identifier.tolist() == [0x2A0, 0x2B0, 0x1FFFFFFF, 0]
    assert frames.injected.tolist() == [False, True, False, False]


def test_a_file_without_flags_is_of_traffic_without_attacks(tmp_path: Path) -> None:
    frames = read_frames(write(tmp_path, "\n".join(row[:-2] for row in ROWS)))
    assert (len(frames), frames.injected.any(), frames.data[1, 1]) == (4, False, 0x7F)


def test_frames_are_put_in_order_of_time(tmp_path: Path) -> None:
    assert read_frames(write(tmp_path, "\n".join(ROWS[::-1]))).time.tolist() == [10.5, 10.6, 10.7, 10.8]


@pytest.mark.parametrize("chunk", [1, 50, 1000])
def test_chunks_make_no_difference(chunk: int, tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join(rows_of(synthetic_can(200)["fuzzing_synthetic"])))
    whole = read_frames(path)
    parts = read_frames(path, chunk=chunk)
    assert all(np.array_equal(getattr(whole, name), getattr(parts, name)) for name in ("time", "data", "injected"))


BAD = {
    "cut off": ("10.6,02b0,5,ff,7f,R", "line 2: 2 bytes, but a DLC of 5 \\(cut off\\?\\), in '10.6,02b0,5"),
    "cut off within a byte": ("10.6,02b0,2,ff,7", "line 2: flag '7' is neither normal .* nor injected"),
    "cut off before the flag": ("10.6,02b0,2,ff,7f", "line 2: flag '7f' is neither"),
    "cut off after a comma": ("10.6,02b0,2,ff,7f,", "line 2: flag '7f' is neither"),
    "cut off early": ("10.6,02", "line 2: its fields are not those of its form"),
    "ID": ("10.6,02g0,1,ff,R", "line 2: ID '02g0' is not a hexadecimal number"),
    "no ID": ("10.6,,1,ff,R", "line 2: ID '' is not a hexadecimal number"),
    "large ID": ("10.6,20000000,1,ff,R", "line 2: ID '20000000' is not a hexadecimal number up to 1fffffff"),
    "large DLC": ("10.6,02b0,9,00,00,00,00,00,00,00,00,00,R", "line 2: 9 bytes, more than 8"),
    "no DLC": ("10.6,02b0,eight,00,R", "line 2: DLC 'eight' is not a hexadecimal number up to 8"),
    "byte": ("10.6,02b0,2,ff,7x,R", "line 2: bytes 'ff 7x' are not of two hexadecimal digits each"),
    "flag": ("10.6,02b0,2,ff,7f,X", "line 2: flag 'X' is neither normal"),
    "too many bytes": ("10.6,02b0,1,ff,7f,R", "line 2: 2 bytes, but a DLC of 1"),
    "time": ("noon,02b0,1,ff,R", "line 2: time 'noon' is not a number of seconds"),
    "no time": ("nan,02b0,1,ff,R", "line 2: time 'nan' is not a number of seconds"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_row_is_named_in_one_line(kind: str, tmp_path: Path) -> None:
    row, reason = BAD[kind]
    with pytest.raises(DataError, match=rf"drive\.csv, {reason}") as caught:
        read_frames(write(tmp_path, "\n".join([ROWS[0], row, *ROWS])))
    assert str(caught.value).endswith(
        "read as HCRL's CSV, whose rows are time,hex ID,DLC,bytes in hex,R or T: fix or remove the line"
    )
    assert "\n" not in str(caught.value)


def test_the_line_is_that_of_the_file(tmp_path: Path) -> None:
    text = "Timestamp,ID,DLC,DATA[0],Flag\n" + "\n\n".join(ROWS * 3) + "\n1,2,3\n"
    with pytest.raises(DataError, match="line 25: 0 bytes, but a DLC of 3"):
        read_frames(write(tmp_path, text), chunk=60)


def test_a_flag_in_a_file_without_flags_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: bytes 'FF 7f T' are not of two hexadecimal digits each"):
        read_frames(write(tmp_path, ROWS[0][:-2] + "\n" + ROWS[1]))


@pytest.mark.parametrize("text", ["", "\n\n", "Timestamp,ID,DLC,Data,Flag", "\ufeff"])
def test_a_file_without_rows_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"drive\.csv holds no frame; read as (HCRL's CSV|a table with column names), "
    ):
        read_frames(write(tmp_path, text))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"drive\.csv is not text \(compressed, or in UTF-16\?\): unpack it"):
        read_frames(write(tmp_path, b"PK\x03\x04" + bytes(range(128, 256)) * 4))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv cannot be read: No such file"):
        read_frames(tmp_path / "gone.csv")


# A row may have all of its bytes in one field.
GOOD = re.compile(
    r"[\d.]{1,32},(?:0X)?([0-9a-fA-F]{1,8}),0?([0-8])((?:,[0-9a-fA-F]{2})*|,(?:[0-9a-fA-F]{2})+),*,[RT],*"
)


def test_rows_are_refused_just_where_they_should_be(tmp_path: Path) -> None:
    """One character of a row is changed, taken out or put in; a pattern tells what is to come of it."""
    random, refused = np.random.default_rng(0), 0
    for _ in range(400):
        row, place, new = ROWS[random.integers(4)], 5 + int(random.integers(20)), random.choice(list(",09afgRTX"))
        row = row[:place] + (new, "")[int(random.integers(2))] + row[place + int(random.integers(2)) :]
        found = GOOD.fullmatch(row)
        good = found is not None and 2 * int(found[2]) == len(found[3].replace(",", "")) and int(found[1], 16) < 2**29
        path = write(tmp_path, f"{ROWS[0]}\n{row}\n")
        if good:
            assert len(read_frames(path)) == 2, row
        else:
            refused += 1
            with pytest.raises(DataError, match="line 2: "):
                read_frames(path)
    assert 100 < refused < 350
