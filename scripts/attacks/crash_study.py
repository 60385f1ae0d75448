"""Kills a study with SIGKILL at every write, goes on with it, and compares with a study that was left alone.

A kill comes before a write into the study's folder, within it (half of it is written) or after it, in a child of
this process and without Ray. ``scripts/benchmark attack kills`` kills at random moments.

After each kill the table and the journal can be read, no finished trial is lost or has run twice, and the results,
with the best weights, are those of the study that was left alone. Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

import tuner
from scripts.attacks.answers import warm
from tuner.datasets.ratings import RatingData
from tuner.datasets.synthetic import synthetic_ratings
from tuner.machine import safe_files
from tuner.records import study_folder
from tuner.workloads.graphsage.workload import GraphSAGE

Stage = Literal["before", "within", "after"]
STAGES: tuple[Stage, ...] = ("before", "within", "after")
LISTED = [
    {"name": "a", "hidden_dim": 4, "lr": 0.001},
    {"name": "b", "hidden_dim": 4},
    {"name": "c", "hidden_dim": 8, "num_layers": 3},
    {"name": "d", "hidden_dim": 8, "epochs": 3},
]
SAME = ("status", "epochs", "val_rmse", "test_rmse", "train_loss", "best_epoch")
COMMAND = [sys.executable, "-m", "tuner"]
RAY_AGENTS = ("ray::Dashboard", "ray::RuntimeEnv", "ray/dashboard/agent", "ray/_private/runtime_env/agent")


class FewRatings(GraphSAGE):
    """GraphSAGE on data that are there at once."""

    def load_data(self, source: str, seed: int) -> RatingData:
        return synthetic_ratings(40, 60, 1000)


class Difference(Exception):
    """What a killed study has lost, doubled or changed."""


def study(folder: Path) -> None:
    """Begins a study in this folder, or goes on with the one there is; its table is written after every trial."""
    study_folder.CSV_SECONDS, study_folder.CSV_ROWS = 0, sys.maxsize
    options: dict[str, Any] = {"workload": FewRatings, "in_process": True, "report": False}
    if (folder / "study.json").exists():
        tuner.run(resume=folder, **options)
        return
    listed = [{"epochs": 2, "batch_size": 500, **values} for values in LISTED]
    options |= {"config": listed, "device": "cpu", "gpu_memory_buffer_gb": 0, "threads": 1, "checkpoint_seconds": 0}
    # Estimates come with times of earlier studies, by which trials would start.
    tuner.run(output=folder, model_memory_gb=1.5, **options)


def in_child(work: Callable[[], None]) -> int:
    """Does something in a child of this process, silently; returns the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            try:
                work()
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise Difference("the study broke off")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_at(number: int, stage: Stage) -> None:
    """Has this process killed at its ``number``-th write into the study's folder, counted from 1."""
    write, move, seen = safe_files.write_through, safe_files.move, iter(range(1, sys.maxsize))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def writing(file: Any, content: bytes) -> None:
        here = next(seen) == number
        if here and stage == "before":
            die()
        if here and stage == "within":
            write(file, content[: len(content) // 2])
            die()
        write(file, content)
        if here:
            die()

    def moving(source: Path, target: Path) -> None:
        here = next(seen) == number
        if here and stage == "before":
            die()
        if here and stage == "within":  # renamed, but the folder is not synchronised
            source.replace(target)
            die()
        move(source, target)
        if here:
            die()

    safe_files.write_through, safe_files.move = writing, moving


def count_writes(folder: Path) -> int:
    """How often an undisturbed study writes."""
    counter = folder.with_suffix(".count")

    def counting() -> None:
        calls = []
        write, move = safe_files.write_through, safe_files.move
        safe_files.write_through = lambda file, content: (calls.append(1), write(file, content))[1]
        safe_files.move = lambda source, target: (calls.append(1), move(source, target))[1]
        study(folder)
        counter.write_text(str(len(calls)))

    in_child(counting)
    return int(counter.read_text())


def lines(folder: Path, name: str = "attempts") -> list[dict[str, Any]]:
    """A journal without the lines that a kill has cut off, which stay in it."""
    path, found = folder / f"{name}.jsonl", []
    for text in path.read_text().splitlines(keepends=True) if path.exists() else ():
        with suppress(ValueError):
            found += [json.loads(text)] * text.endswith("\n")
    return found


def table(folder: Path) -> dict[str, dict[str, str]]:
    """The CSV's rows by name; each must have all its columns."""
    path = folder / "results.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    if any(None in row or None in row.values() for row in rows):
        raise Difference("the table has a broken row")
    return {row["name"]: row for row in rows}


def finished(folder: Path) -> list[str]:
    """The trials that the journal says are completed, in its order."""
    return [line["trial_id"] for line in lines(folder) if line["status"] == "completed"]


def check(folder: Path, before: list[str], alone: dict[str, dict[str, str]]) -> None:
    """Compares a study that was killed and resumed with one that was left alone."""
    after = finished(folder)
    if after[: len(before)] != before:
        raise Difference(f"finished before the kill: {before}, afterwards: {after}")
    if len(set(after)) != len(after):
        raise Difference(f"a trial has finished twice: {after}")
    found = table(folder)
    for name, row in alone.items():
        if {key: found[name][key] for key in SAME if key in row} != {key: row[key] for key in SAME if key in row}:
            raise Difference(f"{name} is {found[name]} and not {row}")
    best = min(alone.values(), key=lambda row: float(row["val_rmse"]))["name"]
    kept = torch.load(folder / "best.pt", weights_only=True)["name"]
    left = [path.name for path in (*folder.glob("*.partial"), *(folder / "checkpoints").glob("*"))]
    if kept != best or left:
        raise Difference(f"best.pt is of {kept}, the best is {best}; left behind: {', '.join(left) or 'nothing'}")


def writes(every: int = 1) -> str:
    """Kills at every write, or at every so many-th."""
    with tempfile.TemporaryDirectory() as name:
        total = count_writes(Path(name) / "alone")
        alone, kills = table(Path(name) / "alone"), 0
        for number in range(1, total + 1, every):
            for stage in STAGES:
                folder = Path(name) / f"{number}-{stage}"
                if in_child(lambda: (kill_at(number, stage), study(folder))[1]) != signal.SIGKILL:  # noqa: B023
                    raise Difference(f"write {number}: the driver was not killed")
                table(folder)
                before = finished(folder)
                in_child(lambda: study(folder))  # noqa: B023
                try:
                    check(folder, before, alone)
                except Difference as error:
                    raise Difference(f"killed {stage} write {number}: {error}") from error
                kills += 1
    return f"{kills} kills at {total} writes"


def left_behind(folder: Path, seconds: float = 10.0) -> None:
    """Waits until no process of a killed study works in its folder any more.

    Agents of Ray's own can outlive the driver by a minute: they are named and ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        here = [process for process in psutil.process_iter() if works_in(process, folder)]
        agents = [process for process in here if any(sign in command_of(process) for sign in RAY_AGENTS)]
        if len(agents) == len(here):
            break
        time.sleep(0.2)
    else:
        raise Difference(f"processes are still there {seconds:.0f} s after their driver was killed: {here}")
    for process in agents:
        print(f"  {process.name()} has outlived the driver: ended", file=sys.stderr, flush=True)
        process.kill()


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth write (default 1)")
    options = parser.parse_args()
    warm()
    try:
        print(f"{writes(options.every)}: nothing lost, nothing doubled, results equal")
    except Difference as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
