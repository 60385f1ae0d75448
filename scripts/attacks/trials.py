"""Trials that misbehave, beside good ones, in real studies: those are completed, and each bad one has its line."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from scripts.attacks.answers import Answer, changes, run_apart, state
from scripts.attacks.crash_study import Difference, finished, left_behind
from scripts.attacks.misbehaving import ALONE, COMPLETES, EITHER, KINDS
from scripts.attacks.tally import Tally

SECONDS = 600.0
LINE = 1000  # the characters that one trial's error may have in the terminal
GOOD_EVERY = 5
WAYS = {"child": ("--max-workers", "1"), "ray": ("--max-workers", "2")}
FIXED = ["--memory-gb", "2", "--gpu-memory-buffer-gb", "0", "--metric", "score", "--direction", "max"]
FIXED += ["--backoff", "0.1", "--device", "cpu", "--threads", "1", "--max-attempts", "1", "--trial-timeout", "60"]
ONE_STUDY = "in one study"


def trials(kinds: Sequence[str], ways: Sequence[str], place: Path, tally: Tally) -> None:
    """Runs these kinds in one study for each way, and those that hit the whole study in one each."""
    for way in ways:
        together = [kind for kind in kinds if kind in KINDS]
        if together:
            _study(f"{way}-study", together, way, place, tally)
        for kind in kinds:
            if kind in ALONE:
                _study(f"{way}-{kind}", [kind], way, place, tally)


def _study(name: str, kinds: Sequence[str], way: str, place: Path, tally: Tally) -> None:
    folder = place / name
    for part in ("work", "tmp", "home", "victim"):
        (folder / part).mkdir(parents=True)
    (folder / "victim" / "kept.txt").write_text("kept\n")
    listed = [{"name": "good-0", "kind": "good"}]
    for number, kind in enumerate(kinds, 1):
        listed.append({"name": kind, "kind": kind})
        if number % GOOD_EVERY == 0 or number == len(kinds):
            listed.append({"name": f"good-{number}", "kind": "good"})
    (folder / "work/bad.yaml").write_text(yaml.safe_dump({"configurations": listed}))
    before = state(folder, ("work", "tmp", "home"))
    words = ["run", "--workload", "scripts.attacks.misbehaving:train", "--config", "bad.yaml", "--output", "study"]
    search = str(Path(__file__).parents[2])
    environment = {**os.environ, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": search}
    environment |= {"ATTACKED": str(folder / "work/study"), "XDG_CACHE_HOME": str(folder / "home/cache")}
    answer = run_apart(
        [sys.executable, "-m", "tuner", *words, *FIXED, *WAYS[way]], folder / "work", environment, SECONDS
    )
    (folder / "out").write_text(answer.out)
    (folder / "err").write_text(answer.err)
    rows = _rows(folder / "work/study")
    section = f"trials {way}"
    what = f"tune {' '.join([*words, *FIXED, *WAYS[way]])}"
    good = True
    for kind in kinds:
        good &= tally.take(section, "bad kinds", kind, _faults(kind, rows, answer), _told(kind, rows))
    lost = [
        trial["name"] for trial in listed if trial["kind"] == "good" and _status(rows, trial["name"]) != "completed"
    ]
    faults = [*answer.faults(), *changes(before, state(folder, ("work", "tmp", "home", "out", "err")))]
    if kinds != ["removes-study"]:
        faults += [f"not completed: {', '.join(lost)}"] if lost else []
        expected = int(any(_status(rows, trial["name"]) != "completed" for trial in listed))
        faults += [f"exit code {answer.code}, not {expected}"] if answer.code != expected else []
    if kinds != ["removes-study"] and len(finished(folder / "work/study")) < len(listed) - len(kinds):
        faults.append("the journal has lost finished trials")
    faults += _left(folder)
    good &= tally.take(section, "studies", ONE_STUDY, faults, what, answer)
    if good:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(study: Path) -> dict[str, dict[str, str]]:
    csv.field_size_limit(2**30)
    try:
        text = (study / "results.csv").read_text()
    except OSError:
        return {}
    return {row["name"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def _told(kind: str, rows: dict[str, dict[str, str]]) -> str:
    row = rows.get(kind, {})
    return f"{kind}: {row.get('status')}, {row.get('duration_s')} s, {row.get('error', '')[:300]}"


def _status(rows: dict[str, dict[str, str]], name: str) -> str:
    return rows.get(name, {}).get("status", "no row")


def _faults(kind: str, rows: dict[str, dict[str, str]], answer: Answer) -> list[str]:
    """What is wrong with a bad trial's row and its lines in the terminal."""
    if kind in ALONE:
        return []
    status, error = _status(rows, kind), rows.get(kind, {}).get("error", "")
    found = []
    if status == "no row" or (kind in COMPLETES and status != "completed"):
        found.append(f"its status is {status}: {error[:200]}")
    if status == "completed" and kind not in COMPLETES | EITHER:
        found.append("it has completed")
    if status != "completed" and not error.strip():
        found.append("it has no error")
    if "\n" in error.strip():
        found.append("its error has several lines")
    said = [line for line in answer.out.splitlines() if kind in line.split()]
    if any(len(line) > LINE for line in said):
        found.append("its line is too long")
    return found


def _left(folder: Path) -> list[str]:
    """Processes and temporary files that the study has left."""
    found = []
    try:
        left_behind(folder / "work")
    except Difference as error:
        found.append(f"left: {error}")
    kept = [path.name for path in (folder / "tmp").iterdir() if path.name != f"tuner-{os.getuid()}"]
    return found + ([f"left in TMPDIR: {', '.join(kept[:5])}"] if kept else [])
