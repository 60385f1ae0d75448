"""CAN recordings as text and files, for tests."""

from __future__ import annotations

from pathlib import Path

from tuner.datasets.can_frames import Frames


def rows_of(frames: Frames, *, flags: bool = True) -> list[str]:
    """HCRL-style rows, each frame with all of its eight bytes."""
    columns = (each.tolist() for each in (frames.time, frames.identifier, frames.data, frames.injected))
    return [
        f"{time:.6f},{identifier:04x},8,{','.join(f'{byte:02x}' for byte in data)}" + f",{'RT'[injected]}" * flags
        for time, identifier, data, injected in zip(*columns, strict=True)
    ]


def write_recordings(folder: Path, recordings: dict[str, Frames]) -> Path:
    """A folder with a file for each recording."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frames in recordings.items():
        (folder / f"{name}.csv").write_text("\n".join(rows_of(frames)) + "\n")
    return folder
