"""Each form of recordings that people have is read as the same frames, or refused by a line that names the form."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
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
def test_chunks_and_empty_lines_make_no_difference(form: str, frames: Frames, tmp_path: Path) -> None:
    lines = lines_of(form, plain_rows(frames, LENGTHS))
    whole = read_frames(write(tmp_path, lines))
    parts = read_frames(write(tmp_path, ["", *lines], end="\n  \n"), chunk=300)
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
        DataError, match=rf"drive\.txt, line {place + 1}: .*; read as .*: fix or remove the line$"
    ) as caught:
        read_frames(write(tmp_path, lines))
    print(caught.value)


@pytest.mark.parametrize(
    "lines",
    [
        ["Timestamp,ID,Data,bus,Label", "1.0,123,00 11,0,Normal", "2.0,123,00,0,DoS"],
        ["D0|bus|D1|Label|DLC|ID|time", "00|0|11|Normal|2.0|291.0|1.5", "00|0||DoS|1|0x123|1.6"],
        ["(1.5) can0 123#0011 0", "(1.6) can0 123#00 1"],
    ],
)
def test_a_flag_is_found_beside_other_fields_and_behind_a_logs_bytes(lines: list[str], tmp_path: Path) -> None:
    frames = read_frames(write(tmp_path, lines))
    assert (frames.injected.tolist(), frames.identifier.tolist()) == ([False, True], [0x123, 0x123])
    assert frames.data[:, :2].tolist() == [[0, 0x11], [0, 0]]
    (tmp_path / "wide.txt").write_text("\r\n".join(lines), encoding="utf-16")
    assert np.array_equal(read_frames(tmp_path / "wide.txt").data, frames.data)


@pytest.mark.parametrize(
    "content", [gzip.compress(b"1.0,0329,1,00,R\n" * 9, mtime=0), "1.0,0329,1,00,R".encode("utf-16-le")]
)
def test_what_is_no_text_is_told_so(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "drive.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"drive\.csv is not text \(compressed, .*: unpack it, or save it as UTF-8"):
        read_frames(tmp_path / "drive.csv")


REFUSED = {
    "a table without an ID": (
        ["when,who,what", "1,2,3"],
        "line 1: read as a table with column names, when, who, what, but no column is recognised as its ID: rename",
    ),
    "a table without bytes": (
        ["Time,ID,DLC", "1,2,3"],
        "line 1: .*no column is recognised as its bytes: rename",
    ),
    "a column twice": (
        ["Data,ID,ID", "00,1,2"],
        "line 1: .*, but 2 columns are called 'ID': rename",
    ),
    "a short row with bytes apart": (
        ["ID,D0,bus,D1", "1,00,a"],
        "line 2: its fields are not those of its form .*; read as a table with column names",
    ),
    "text of python-can, in base64": (
        ["timestamp,arbitration_id,dlc,data", "1.5,0xdada,6,WzQyLCA5XQ=="],
        "line 2: bytes 'WzQyLCA5XQ==' are not of two hexadecimal digits each, .*; read as a table with col",
    ),
    "a class that is none": (
        ["Timestamp,Arbitration_ID,DLC,Data,Class", "1.0,130,1,06,Normal", "1.0,130,1,06,Odd"],
        "line 3: flag 'Odd' is neither normal .*, in .*; read as a table with column names",
    ),
    "a candump log that is cut off": (
        ["(1.5) can0 044#11", "(1.6) can0"],
        "line 2: its fields are not those of its form .cut off.., in ",
    ),
    "a short row": (
        ["id,time,data", "12"],
        "line 2: its fields are not those of its form .*; read as a table with column names",
    ),
    "a text log that is cut off": (
        ["Timestamp: 1.5        ID: 0350    000    DLC: 8    05 28 84"],
        "line 1: 3 bytes, but a DLC of 8 .*; read as HCRL's text log, whose rows are Timestamp: seconds ID:",
    ),
    "another text": (
        ["These are drives."],
        "line 1: DLC 'drives.' is not a hexadecimal .*; read as HCRL's CSV, .*: convert it .*, or remove the file",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_names_the_line_the_reason_and_the_form(kind: str, tmp_path: Path) -> None:
    lines, reason = REFUSED[kind]
    with pytest.raises(DataError, match=rf"drive\.txt, {reason}") as caught:
        read_frames(write(tmp_path, lines))
    assert str(caught.value).endswith(("fix or remove the line", "rename or move the columns", "has the forms)"))


# ------------------------------------------------------------------------------------------------ parquet


def tables(frames: Frames) -> dict[str, Any]:
    """The same frames as tables of different types."""
    data = [bytes(row[:length]) for row, length in zip(frames.data.tolist(), LENGTHS, strict=True)]
    common = {"timestamp": frames.time, "can_id": frames.identifier, "label": frames.injected}
    texts = {"Time": frames.time, "ID": [f"{identifier:#x}" for identifier in frames.identifier], "DLC": LENGTHS}
    cells = {f"DATA{n}": [row[n] if n < len(row) else None for row in data] for n in range(8)}
    return {
        "bytes": pa.table({**common, "data": data}),
        "texts": pa.table(
            {
                **texts,
                "Data": [row.hex(" ") for row in data],
                "Flag": [*map("RT".__getitem__, frames.injected.tolist())],
            }
        ),
        "lists": pa.table({**common, "payload": [list(row) for row in data]}),
        "columns": pa.table({**texts, **cells, "Class": frames.injected.astype(int)}),
        "dictionary": pa.table({**common, "data": pa.array([row.hex() for row in data]).dictionary_encode()}),
    }


@pytest.mark.parametrize("kind", ["bytes", "texts", "lists", "columns", "dictionary"])
def test_parquet_is_read(kind: str, frames: Frames, tmp_path: Path) -> None:
    parquet.write_table(tables(frames)[kind], tmp_path / "drive.parquet")
    found = can_frames.read_parquet(tmp_path / "drive.parquet", rows=7)
    for name in ("time", "identifier", "data", "injected"):
        assert np.array_equal(getattr(found, name), getattr(frames, name)), name


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"time": [1.0], "data": ["00"]}, "no column is recognised as its ID: rename, fix or convert it"),
        ({"id": ["zz"], "data": ["00"]}, "in row 1 ID 'zz' is not a hexadecimal number up to 1fffffff"),
        ({"id": [1, 2], "data": ["00", "0"]}, "in row 2 bytes '0' are not of two hexadecimal digits each"),
        ({"id": [1], "dlc": [3], "data": ["0000"]}, "in row 1 2 bytes, but a DLC of 3"),
        ({"id": [1], "data": [b"123456789"]}, "in row 1 9 bytes, more than 8"),
        ({"id": [1], "data": ["00"], "flag": ["X"]}, "in row 1 flag 'X' is neither normal"),
        (
            {"id": [{"a": 1}], "data": ["00"]},
            "column 'id' is of type struct<a: int64>, not of numbers, texts, bytes or lists of whole numbers",
        ),
        (
            {"id": [1], "data": [["10", "20"]]},
            "column 'data' is of type list<.*: string>, not of numbers, texts",
        ),
        ({"id": [1], "data": [[1, None, 3]]}, "a list of bytes in column 'data' has a missing byte"),
        ({"id": [1], **{f"d{n}": [n] for n in range(9)}}, "it has 9 columns of a byte, more than 8"),
    ],
)
def test_parquet_that_cannot_be_used_is_refused(columns: dict[str, Any], reason: str, tmp_path: Path) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "drive.parquet")
    with pytest.raises(DataError, match=rf"drive\.parquet: read as parquet, but {reason}"):
        can_frames.read_parquet(tmp_path / "drive.parquet")


def test_bytes_in_a_column_of_ids_or_flags_are_characters(tmp_path: Path) -> None:
    table = pa.table({"id": [b"0329", b"02b0"], "data": ["00", "01"], "flag": [b"R", b"T"]})
    parquet.write_table(table, tmp_path / "drive.parquet")
    frames = can_frames.read_parquet(tmp_path / "drive.parquet")
    assert (frames.identifier.tolist(), frames.injected.tolist()) == ([0x329, 0x2B0], [False, True])
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["00"]), pa.array(["11"])], names=["id", "data", "data"])
    parquet.write_table(table, tmp_path / "drive.parquet")
    with pytest.raises(DataError, match=r"drive\.parquet: read as parquet, but 2 columns are called 'data': re"):
        can_frames.read_parquet(tmp_path / "drive.parquet")


def test_what_is_no_parquet_is_told(tmp_path: Path) -> None:
    path = tmp_path / "drive.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"drive\.parquet: read as parquet, but .*: rename, fix or convert it$"):
        can_frames.read_parquet(path)
