"""What trials said after their epochs: a line each in ``epochs.jsonl``, for curves, and no part of the results.

Lines are kept back for up to a second and not waited for until the disk has them. A file that is damaged or not there
costs curves, and nothing else.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.trial import GB

EPOCHS = "epochs.jsonl"
MEMORY = "memory_gb"  # in a line, where it is known
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

    def add(
        self,
        trial_id: str,
        attempt: int,
        epoch: int,
        metrics: Mapping[str, float],
        memory_bytes: int | None = None,
    ) -> None:
        """Keeps what a trial said.

        Args:
            trial_id: which.
            attempt: of the trial, from 1.
            epoch: counts from 1; 0 as training begins.
            metrics: by name; those that are not finite are written as null.
            memory_bytes: the most that its process has taken from its device so far.
        """
        finite = {name: round(float(value), 6) if math.isfinite(value) else None for name, value in metrics.items()}
        line: Line = {"trial_id": trial_id, "attempt": attempt, "epoch": epoch, "at": round(time.time(), 3)}
        memory = {} if memory_bytes is None else {MEMORY: round(memory_bytes / GB, 4)}
        self._lines.append(json.dumps({**line, "metrics": finite, **memory}))
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
        ``trial_id``, ``attempt``, ``epoch``, ``at`` (unix seconds) and ``metrics`` of each, and ``memory_gb``, the
        peak so far, where it was known.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return [line for line in map(_parse, content.splitlines()) if line]


def histories(lines: Iterable[Line]) -> dict[str, dict[int, Line]]:
    """By trial and epoch what was said last, without epochs that a later attempt has begun before.

    An attempt goes on where a checkpoint was kept, or begins anew, and what came after that no longer counts.
    """
    found: dict[str, dict[int, Line]] = {}
    attempts: dict[str, int] = {}
    for line in lines:
        trial_id, epoch = line["trial_id"], int(line["epoch"])
        own = found.setdefault(trial_id, {})
        if attempts.get(trial_id) != line["attempt"]:
            attempts[trial_id] = line["attempt"]
            found[trial_id] = own = {each: kept for each, kept in own.items() if each <= epoch}
        if line["metrics"]:
            own[epoch] = line
    return found


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
        whole = isinstance(line["trial_id"], str) and isinstance(line["metrics"], dict)
        whole = whole and all(isinstance(line[key], (int, float)) for key in ("attempt", "epoch", "at"))
        whole = whole and isinstance(line.get(MEMORY, 0), (int, float))
    except (ValueError, KeyError, TypeError):
        return None
    return line if whole else None
