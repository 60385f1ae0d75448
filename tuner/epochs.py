"""What trials said after their epochs: a line each in ``epochs.jsonl``, for curves, and no part of the results.

Lines are kept back for up to a second and not waited for until the disk has them. A file that is damaged or not there
costs curves, and nothing else.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

EPOCHS = "epochs.jsonl"
FLUSH_SECONDS = 1.0
Line = dict[str, Any]


class EpochLog:
    """Adds to ``epochs.jsonl``; nothing that goes wrong with it is raised."""

    def __init__(self, path: Path) -> None:
        """Begins with nothing to write; the file is made with its first line.

        Args:
            path: the file; what is there already is kept.
        """
        self._path = path
        self._lines: list[str] = []
        self._flushed = time.monotonic()
        self._mended = False

    def add(self, trial_id: str, attempt: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Keeps what a trial said.

        Args:
            trial_id: which.
            attempt: of the trial, from 1.
            epoch: counts from 1; 0 as training begins.
            metrics: by name; those that are not finite are written as null.
        """
        finite = {name: round(float(value), 6) if math.isfinite(value) else None for name, value in metrics.items()}
        line = {"trial_id": trial_id, "attempt": attempt, "epoch": epoch, "at": round(time.time(), 3)}
        self._lines.append(json.dumps({**line, "metrics": finite}))
        if time.monotonic() >= self._flushed + FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the lines that are kept back; if that fails they are lost."""
        self._flushed = time.monotonic()
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        with suppress(OSError), self._path.open("a+b") as file:
            if not self._mended and _ends_within_a_line(file):
                text = "\n" + text
            self._mended = True
            file.write(text.encode())


def _ends_within_a_line(file: Any) -> bool:
    """Whether a kill has left half a line, which must not take the next one with it."""
    if file.seek(0, 2) == 0:
        return False
    file.seek(-1, 2)
    return bool(file.read(1) != b"\n")


def read_epochs(path: Path) -> list[Line]:
    """The lines of a study's ``epochs.jsonl`` in order, without those that are not whole; none if it cannot be read.

    Returns:
        ``trial_id``, ``attempt``, ``epoch``, ``at`` (unix seconds) and ``metrics`` of each.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return [line for line in map(_parse, content.splitlines()) if line]


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
        whole = isinstance(line["trial_id"], str) and isinstance(line["metrics"], dict)
        whole = whole and all(isinstance(line[key], (int, float)) for key in ("attempt", "epoch", "at"))
    except (ValueError, KeyError, TypeError):
        return None
    return line if whole else None
