"""Recordings that name their labels in their own words, or are in forms of other programs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.can_files import lines_of, plain_rows, rows_of
from tuner.datasets.can import kinds_of, load_can, synthetic_can
from tuner.datasets.can_forms import LabelColumn
from tuner.datasets.can_frames import Frames, read, read_frames
from tuner.errors import DataError, InputError

MADE = synthetic_can(400)["dos_synthetic"]


def table(folder: Path, column: str, values: tuple[str, str], name: str = "drive.csv") -> Path:
    """Frames with a column behind the bytes, whose values are of normal and of injected frames."""
    rows = [",".join([f"{row[0]:.6f}", f"{row[1]:x}", "".join(row[2]), values[row[3]]]) for row in plain_rows(MADE)]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join([f"timestamp,arbitration_id,data_field,{column}", *rows]))
    return folder / name


@pytest.mark.parametrize(
    ("column", "values", "normal"),
    [
        ("attack_label", ("0", "1"), None),
        ("category", ("BENIGN", "DoS"), None),
        ("Attack_Type", ("None", "3"), None),
        ("is_normal", ("1", "0"), None),
        ("is_normal", ("1", "0"), "1"),
        ("state", ("A", "B"), "a"),
        ("Label", ("Normal", "Gear"), None),
        ("Label", ("0", "3"), None),
        ("Label", ("1", "0"), "1"),
    ],
)
def test_a_label_that_is_named_says_what_is_an_attack(
    column: str, values: tuple[str, str], normal: str | None, tmp_path: Path
) -> None:
    frames = read_frames(table(tmp_path, column, values), LabelColumn(column, normal))
    assert np.array_equal(frames.injected, MADE.injected)


@pytest.mark.parametrize("column", ["attack_label", "malicious", "category", "intrusion", "is_normal"])
def test_a_column_behind_the_bytes_that_would_not_be_read_is_named(column: str, tmp_path: Path) -> None:
    path = table(tmp_path, column, ("0", "1"))
    with pytest.raises(DataError, match=rf"line 1: .* and {column} would not be read: give label='{column}' if"):
        load_can(str(path))
    assert load_can(str(path), label="none").notes[0].endswith(f"no flags, so normal; column '{column}' not read")


@pytest.mark.parametrize(
    ("words", "attacks"),
    [
        (("Normal", "DoS", "Spoofing-RPM"), ("none", "dos", "spoofing_rpm")),
        (("0", "1", "2"), ("none", "1", "2")),
        (("Normal", "Fuzzy", "Fuzzy"), ("none", "fuzzy")),
        (("Normal", "Attack", "Attack"), ("none", "drive")),
    ],
)
def test_a_recording_has_the_kinds_of_attack_of_its_label(
    words: tuple[str, ...], attacks: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [f"{k},7,00,{words[k // 4 % 3]}" for k in range(48)]
    (tmp_path / "drive.csv").write_text("\n".join(["time,id,data,Label", *rows]))
    data = load_can(str(tmp_path / "drive.csv"), window=4, label="Label")
    assert data.attacks == attacks
    assert data.attack.tolist() == [0, 1, len(attacks) - 1] * 4
    several = "16 {}, 16 {}".format(*attacks[1:]) if len(attacks) > 2 else attacks[1]
    assert data.notes == (f"drive: 48 frames, 32 of them attacks ({several})",)


def test_labels_that_say_nothing_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "state", ("A", "B"))
    with pytest.raises(DataError, match=r"no value of its column 'state' is known as normal: give normal='VALUE'"):
        load_can(str(path), label="state")
    with pytest.raises(InputError, match="normal='A' needs label='COLUMN'"):
        load_can(str(path), normal="A")
    path = table(tmp_path, "Label", ("0", "1"))
    with pytest.raises(DataError, match=r"label='label2': no file in .* has a column of this name"):
        load_can(str(path), label="label2")


def test_a_value_that_many_rows_have_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"flag 'Gear' is neither .*: give label='COLUMN', if all values but"):
        load_can(str(table(tmp_path, "Label", ("Normal", "Gear"))))


def test_a_folder_is_told_by_file_with_what_is_left_out(tmp_path: Path) -> None:
    table(tmp_path, "Label,bus", ("0,a", "1,a"), "DoS_dataset.csv")
    (tmp_path / "kia").mkdir()
    (tmp_path / "kia" / "normal.log").write_text("\n".join(lines_of("candump -l", plain_rows(MADE))))
    (tmp_path / "map.pdf").write_text("no recording")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.csv").write_text("hidden")
    data = load_can(str(tmp_path))
    assert data.recordings == ("DoS_dataset", "kia/normal")
    assert data.notes == (
        f"DoS_dataset: 400 frames, {MADE.injected.sum()} of them attacks (dos); column 'bus' not read",
        "kia/normal: 400 frames, no flags, so normal",
        "left out, as it is no recording: map.pdf",
    )


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (
            ["max_speedometer_attack_1", "max_engine_coolant_temp_attack", "fuzzing_attack_2"],
            ["max_speedometer", "max_engine_coolant_temp", "fuzzing"],
        ),
        (["DoS_dataset", "dos-1", "Fuzzy_dataset"], ["dos", "dos", "fuzzy"]),
        (["attack_free_sonata", "dos_sonata"], ["free", "dos"]),
        (["kia/dos", "soul/dos"], ["dos", "dos"]),
        (["attack_1", "2019"], ["attack", "2019"]),
        (["dos_kia"], ["dos_kia"]),
    ],
)
def test_kinds_are_whole_names_without_what_all_have(names: list[str], kinds: list[str]) -> None:
    assert kinds_of(names) == kinds


OTHER_ROWS = {
    "a remote frame": (["(1.5) can0 044#11", "(1.6) can0 044#R8"], "remote frames left out"),
    "an error frame": (["(1.5) can0 044#11", "(1.6) can0 20000004#0004000000000000"], "error frames left out"),
    "shown": (["  can0  044   [1]  11", "  can0  044   [8]  remote request"], "remote frames left out"),
    "an error, shown": (
        ["  can0  044   [1]  11", "  can0  20000004   [8]  00 04 00 00 00 00 00 00   ERRORFRAME"],
        "error frames left out",
    ),
    "with directions and dates": ([" (2024-05-01 10:00:00.5)  can0  RX - -  044   [1]  11"], "no flags, so normal"),
    "CAN FD": (["(1.5) can0 044##1" + "11" * 12], "frames of CAN FD of which 8 bytes are read"),
    "CAN FD, shown": (["  can0  044   [12]  " + "11 " * 12], "frames of CAN FD of which 8 bytes are read"),
}


@pytest.mark.parametrize("kind", OTHER_ROWS)
def test_what_is_no_data_frame_is_counted_and_left_out(kind: str, tmp_path: Path) -> None:
    lines, what = OTHER_ROWS[kind]
    (tmp_path / "drive.log").write_text("\n".join(lines))
    told: Counter[str] = Counter()
    frames = read(tmp_path / "drive.log", LabelColumn(), told)
    assert (frames.identifier.tolist(), frames.data[0, 0], told[what]) == ([0x44], 0x11, 1)


def test_columns_of_bytes_may_be_filled_up_and_times_have_a_decimal_comma(tmp_path: Path) -> None:
    (tmp_path / "gvret.csv").write_text(
        "Time Stamp,ID,Extended,Bus,LEN,D1,D2,D3\n2,0000043F,false,0,2,20,82,FF,\n1,0000043F,false,0,3,01,02,03,\n"
    )
    assert read_frames(tmp_path / "gvret.csv").data[:, :3].tolist() == [[1, 2, 3], [0x20, 0x82, 0]]
    (tmp_path / "comma.csv").write_text(
        "Time;ID;DLC;Data;Label\n0,5;0x43F;2;0x2082;normal\n0,25;0x43F;1;0x01;attack\n"
    )
    frames = read_frames(tmp_path / "comma.csv")
    assert (frames.time.tolist(), frames.injected.tolist()) == ([0.25, 0.5], [True, False])


@pytest.mark.parametrize(
    ("rows", "first", "said"),
    [
        (("40,12,7", "417,99,0"), [[12, 7], [99, 0]], "decimal numbers; column of IDs read as decimal numbers"),
        (("40,12.0,7", "41A,99.0,0"), [[12, 7], [99, 0]], "decimal numbers"),
        (("40,12,70", "41,9a,00"), [[0x12, 0x70], [0x9A, 0]], "hexadecimal numbers"),
        (("40,12,07", "41,99,0"), [[0x12, 7], [0x99, 0]], "hexadecimal numbers"),
        (("40,12,70", "41,99,10"), [[0x12, 0x70], [0x99, 0x10]], "hexadecimal numbers"),
    ],
)
def test_bytes_with_a_column_each_are_decimal_if_they_look_so(
    rows: tuple[str, ...], first: list[list[int]], said: str, tmp_path: Path
) -> None:
    (tmp_path / "drive.csv").write_text("\n".join(["id,data0,data1", *rows, *rows[1:] * 4]))
    data = load_can(str(tmp_path / "drive.csv"), window=2)
    assert data.notes == (f"drive: 6 frames, no flags, so normal; columns of bytes read as {said}",)
    assert read_frames(tmp_path / "drive.csv").data[:2, :2].tolist() == first


def test_what_one_value_says_of_its_column_holds_for_the_file(tmp_path: Path) -> None:
    (tmp_path / "drive.csv").write_text("\n".join(["id,data0,data1", "40,12,7", "40,255,7", "40,0a,7"]))
    with pytest.raises(DataError, match=r"line 4: byte '0a' is not a decimal number up to 255, in"):
        read_frames(tmp_path / "drive.csv", chunk=4)


FOREIGN = {
    "titles above": "***BUSMASTER Ver 3.2***\n***PROTOCOL CAN***\n13:48:40:0 Rx 1 0x3A s 1 FF\n",
    "a column of each bit": "id," + ",".join(f"data_{k}" for k in range(64)) + "\n1" + ",0" * 64,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_nobody_is_told_to_remove_lines_of_another_form(kind: str, tmp_path: Path) -> None:
    (tmp_path / "drive.log").write_text(FOREIGN[kind])
    with pytest.raises(DataError, match=r"line \d: .*: (convert it to another form|rename or move the col)"):
        load_can(str(tmp_path / "drive.log"))


def test_flags_that_only_attacks_have_are_no_damage(tmp_path: Path) -> None:
    (tmp_path / "drive.log").write_text("(1.5) can0 044#11\n" + "(1.6) can0 044#11 attack\n" * 2)
    with pytest.raises(DataError, match=r"flag 'attack' is not of the first row's kind .*: give each line a flag"):
        load_can(str(tmp_path / "drive.log"))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zip", ".xz"])
def test_compressed_recordings_are_read_as_pandas_reads_them(suffix: str, tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / f"dos.csv{suffix}"
    lines = pd.Series(rows_of(MADE)).str.split(",", expand=True)
    lines.to_csv(path, header=False, index=False, lineterminator="\r\n")
    data = load_can(str(tmp_path))
    assert (data.recordings, data.attacks) == (("dos",), ("none", "dos"))
    assert load_can(str(path)).name == "dos"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read"):
        load_can(str(path))


@pytest.mark.parametrize("suffix", ["asc", "blf", "trc", "csv", "db", "txt"])
def test_what_python_can_writes_is_read(suffix: str, tmp_path: Path) -> None:
    can = pytest.importorskip("can", reason="python-can is not installed: pip install packtuner[can]")
    with can.Logger(tmp_path / f"drive.{suffix}") as log:
        for row in plain_rows(MADE):
            data = bytes.fromhex("".join(row[2]))
            log(can.Message(timestamp=1e9 + row[0], arbitration_id=row[1], data=data, is_extended_id=False))
        log(can.Message(timestamp=2e9, arbitration_id=1, is_remote_frame=True, dlc=8, is_extended_id=False))
    told: Counter[str] = Counter()
    frames: Frames = read(tmp_path / f"drive.{suffix}", LabelColumn(), told)
    assert np.array_equal(frames.identifier, MADE.identifier)
    assert np.array_equal(frames.data, MADE.data)
    remote = {} if suffix == "trc" else {"remote frames left out": 1}  # python-can leaves them out itself
    assert +told == {"no flags, so normal": 1, **remote}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # python-can leaves the file open
def test_a_damaged_file_of_python_can_is_named(tmp_path: Path) -> None:
    pytest.importorskip("can", reason="python-can is not installed: pip install packtuner[can]")
    (tmp_path / "bad.blf").write_bytes(b"LOGG and no more")
    with pytest.raises(DataError, match=r"bad\.blf: python-can cannot read it as Vector BLF: "):
        load_can(str(tmp_path / "bad.blf"))


def test_without_python_can_its_forms_are_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "can", None)
    (tmp_path / "normal.asc").write_text("date Sat Nov 28\n")
    with pytest.raises(
        DataError, match=r"normal\.asc is Vector ASC: install packtuner\[can\], or convert it with `py"
    ):
        load_can(str(tmp_path))
