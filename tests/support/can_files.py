"""CAN recordings as text and files, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tuner.datasets.can_frames import Frames

Row = tuple[float, int, list[str], bool]  # time, ID, bytes in hex, injected


def rows_of(frames: Frames, *, flags: bool = True) -> list[str]:
    """HCRL-style rows, each frame with all of its eight bytes."""
    return [_hcrl(row) if flags else _hcrl(row)[:-2] for row in plain_rows(frames)]


def plain_rows(frames: Frames, lengths: list[int] | None = None) -> list[Row]:
    columns = (column.tolist() for column in (frames.time, frames.identifier, frames.data, frames.injected))
    return [
        (time, identifier, [f"{byte:02x}" for byte in data[: lengths[number] if lengths else 8]], injected)
        for number, (time, identifier, data, injected) in enumerate(zip(*columns, strict=True))
    ]


def _hcrl(row: Row) -> str:
    time, identifier, data, injected = row
    return ",".join([f"{time:.6f}", f"{identifier:04x}", str(len(data)), *data, "RT"[injected]])


def _padded_before(row: Row) -> str:
    fields = _hcrl(row).split(",")
    return ",".join([*fields[:-1], *[""] * (8 - len(row[2])), fields[-1]])


def _named(row: Row) -> str:
    """With the flag first, 0x before the ID, capitals, and empty columns for missing bytes."""
    time, identifier, data, injected = row
    filled = [byte.upper() for byte in data] + [""] * (8 - len(data))
    return ";".join([str(int(injected)), f"0x{identifier:X}", f"{time:.6f}", str(len(data)), *filled, "can0"])


# The lines of each form: the first one, and how a frame is written. Of those in UNFLAGGED no frame is injected.
FORMS: Mapping[str, tuple[str, Callable[[Row], str]]] = {
    "Car-Hacking": ("", _hcrl),
    "Car-Hacking with names": ("Timestamp,ID,DLC," + ",".join(f"DATA[{n}]" for n in range(8)) + ",Flag", _hcrl),
    "padded before the flag": ("", _padded_before),
    "padded at the end": ("", lambda row: _hcrl(row) + "," * (8 - len(row[2]))),
    "padded, with names": (
        "Timestamp,CAN ID,DLC," + ",".join(f"Data{n}" for n in range(8)) + ",Label",
        lambda row: _padded_before(row).replace("R", "0").replace("T", "1"),
    ),
    "Attack & Defense 2020": (
        "Timestamp,Arbitration_ID,DLC,Data,Class,SubClass",
        lambda row: (
            f"{row[0]:.6f},{row[1]:x},{len(row[2])},{' '.join(row[2]).upper()},"
            + ("Attack,Flooding" if row[3] else "Normal,Normal")
        ),
    ),
    "normal_run_data.txt": (
        "",
        lambda row: (
            f"Timestamp: {row[0]:.6f}        ID: {row[1]:04x}    000    DLC: {len(row[2])}    {' '.join(row[2])}"
        ),
    ),
    "candump -l": ("", lambda row: f"({row[0]:.6f}) vcan0 {row[1]:03X}#{''.join(row[2]).upper()}"),
    "candump -L -x": ("", lambda row: f"({row[0]:.6f}) can0 {row[1]:03X}#{''.join(row[2]).upper()} R"),
    "candump -t a": ("", lambda row: f" ({row[0]:.6f})  can0  {row[1]:03X}   [{len(row[2])}]  {' '.join(row[2])}"),
    "candump": ("", lambda row: f"  can0  {row[1]:03X}   [{len(row[2])}]  {' '.join(row[2])}"),
    "packed, without DLC": (
        "timestamp,arbitration_id,data_field,attack",
        lambda row: f"{row[0]:.6f},{row[1]:X},{''.join(row[2])},{int(row[3])}",
    ),
    "any order, semicolons": ("label;id;time;length;" + ";".join(f"d{n}" for n in range(8)) + ";bus", _named),
    "tabs and quotes": (
        '"Time Stamp"\t"ID"\t"Payload"\t"class"',
        lambda row: f'"{row[0]:.6f}"\t"{row[1]:x}"\t"{" ".join(row[2])}"\t"{("Benign", "DoS")[row[3]]}"',
    ),
    "blanks after commas": (
        "Timestamp, ID, DLC, Data, Flag",
        lambda row: f"{row[0]:.6f}, {row[1]:x}, {len(row[2])}, {' '.join(row[2])}, {row[3]}",
    ),
}
UNFLAGGED = {"normal_run_data.txt", *(name for name in FORMS if name.startswith("candump"))}


def lines_of(form: str, rows: list[Row]) -> list[str]:
    """Frames as lines of a form."""
    names, write = FORMS[form]
    return [*([names] if names else []), *map(write, rows)]


def write_recordings(folder: Path, recordings: dict[str, Frames]) -> Path:
    """A folder with a file for each recording."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frames in recordings.items():
        (folder / f"{name}.csv").write_text("\n".join(rows_of(frames)) + "\n")
    return folder
