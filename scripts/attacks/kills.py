"""SIGKILL at random moments, of a study's driver alone or of its whole group; the study is resumed each time."""

from __future__ import annotations

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import optuna
import yaml

from scripts.attacks import killed
from scripts.attacks.answers import run_apart
from scripts.attacks.crash_study import COMMAND, LISTED, Difference, check, left_behind, lines, table
from scripts.attacks.tally import Tally

SECONDS = 240.0
TRIALS, FIRST_GB, DEVICE_GB = 5, 0.3, 0.9
FIXED = {"device": "cpu", "threads": 1, "device_memory_gb": DEVICE_GB, "gpu_memory_buffer_gb": 0, "backoff": 0.1}
SPACE = {"space": {"x": {"uniform": [0, 1]}, "mb": {"choice": [*killed.MB]}}}
BUILT_IN = {"space": {"lr": {"loguniform": [0.001, 0.1]}, "hidden_dim": {"choice": [4, 8]}}}
LIST = {"configurations": [*LISTED, {"name": "e", "hidden_dim": 6}]}
SHOWN = ["trial_id", "seed", "status", "attempts", "score", "value", "val_rmse", "epochs", "duration_s", "error"]
PLACE = {"env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, "start_new_session": True}
NOWHERE = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Study:
    """A study that is killed: of each four tries one is of each kind."""

    def __init__(self, number: int, folder: Path) -> None:
        self.kind, turn = ("function", "script", "optuna", "workload")[number % 4], number // 4
        self.folder, self.workers = folder, 2 if turn % 12 == 5 else 1
        self.pruner = ("fifo", "asha", "median")[turn % 3]
        self.search = ("tpe", "random")[turn % 2]
        self.given = {"optuna": True, "workload": turn % 8 == 1}.get(self.kind, turn % 4 != 2)  # too little memory
        self.listed = self.kind == "workload" and turn % 4 == 2  # so that it comes to what it would if left alone

    @property
    def words(self) -> list[str]:
        """The command that begins it or goes on with it."""
        options = {**FIXED, "max_workers": self.workers, **({"memory_gb": FIRST_GB} if self.given else {})}
        if self.kind == "optuna":
            options |= {"scheduler": self.pruner, "trials": TRIALS, "report": False}
            return [sys.executable, "-c", f"from scripts.attacks import killed; killed.optimize(**{options})"]
        if (self.folder / "study/study.json").exists():
            return [*COMMAND, "run", "--resume", "study"]
        space = LIST if self.listed else BUILT_IN if self.kind == "workload" else SPACE
        (self.folder / "space.yaml").write_text(yaml.safe_dump(space))
        options |= {"config": "space.yaml", "output": "study", "checkpoint_seconds": 0}
        if not self.listed:
            options |= {"search": self.search, "num_samples": TRIALS, "scheduler": self.pruner}
        options |= {"epochs": 2} if self.kind == "workload" else {"metric": "score", "direction": "min"}
        words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        what = {"script": ["script", killed.__file__], "function": ["run", "--workload", f"{killed.__name__}:train"]}
        end = ["--", "{x}", "{mb}"] if self.kind == "script" else []
        return [*COMMAND, *what.get(self.kind, ["run"]), *words, "--no-report", *end]


def kills(numbers: Sequence[int], seed: int, place: Path, tally: Tally) -> None:
    """Makes these tries: each kills a study, and up to two of three times what goes on with it, too."""
    alone = Study(11, place / "alone")
    if any(Study(number, place).listed for number in numbers):
        alone.folder.mkdir()
        run_apart(alone.words, alone.folder, PLACE["env"], SECONDS)
    for number in numbers:
        study, draw = Study(number, place / f"kill-{number}"), random.Random(f"{seed}/kill/{number}")
        study.folder.mkdir()
        what, answer = [study.search, study.pruner], None
        try:
            rows, times = list[dict](), draw.choice((1, 1, 2, 3))
            for kill in range(times + 1):
                if kill < times:
                    what.append(_kill(study, draw))
                    left_behind(study.folder, 60.0)
                    table(study.folder / "study")
                else:
                    answer = run_apart(study.words, study.folder, PLACE["env"], SECONDS)
                before, rows = rows, lines(study.folder / "study")
                if rows[: len(before)] != before:
                    raise Difference(f"rows before a kill: {before}, afterwards: {rows}")
            faults = answer.faults() or [f"exit code {answer.code}"] * bool(answer.code)
            if not faults:
                _check(study, rows)
            if not faults and study.listed:
                done = [row["trial_id"] for row in before if row["status"] == "completed"]
                check(study.folder / "study", done, table(alone.folder / "study"))
        except (Difference, OSError, ValueError, KeyError) as error:
            faults = [str(error)]
        way = "Ray" if study.workers > 1 else "child"
        if tally.take("kills", f"{study.kind}, {way}", number, faults, ", ".join(what), answer):
            shutil.rmtree(study.folder, ignore_errors=True)


def _kill(study: Study, draw: random.Random) -> str:
    """Begins a study or goes on with it, and kills it at its start or up to a second after so many rows more."""
    begun, rows = study.folder / "study/study.json", len(lines(study.folder / "study"))
    of_group, more, delay = draw.random() < 0.5, draw.randrange(-1, TRIALS + 2), draw.uniform(0, 1)
    process = subprocess.Popen(study.words, cwd=study.folder, **PLACE, **NOWHERE)
    while more >= 0 and process.poll() is None:
        if begun.exists() and len(lines(study.folder / "study")) >= rows + more:
            break
        time.sleep(0.05)
    time.sleep(delay if more >= 0 else 5 * delay)
    if process.poll() is None:
        (os.killpg if of_group else os.kill)(process.pid, signal.SIGKILL)
    if (code := process.wait()) not in (0, -signal.SIGKILL):
        raise Difference(f"exit code {code} before the kill")
    return f"{'group' if of_group else 'driver'} killed {delay:.2f} s after {more} rows" if code else "not killed"


def _check(study: Study, rows: list[dict]) -> None:
    """Every trial has ended once, and came to what it should; the journal, the table and Optuna tell the same."""
    trials: dict[str, list[dict]] = {f"t{number:03d}": [] for number in range(1, TRIALS + 1)}
    for row in rows:
        trials[row["trial_id"]].append(row)
    for own in trials.values():
        right = [row["attempts"] for row in own] == [*range(1, len(own) + 1)]
        right &= [row["status"] in ("completed", "pruned") for row in own] == [*[False] * (len(own) - 1), True]
        for row, after in pairwise(own):  # out of memory, a trial gets more, up to the whole device
            growth = 1.0 if row["lost"] else 1.5 if study.given or study.kind == "workload" else 2.0
            wanted = min(max(row["limit_bytes"], row["peak_bytes"] or 0) * growth, DEVICE_GB * 2**30)
            right &= row["status"] == "out_of_memory" and abs(after["limit_bytes"] - wanted) <= 1
        if not right:
            raise Difference(f"a trial has these attempts: {own}")
    ends = [own[-1] for own in trials.values()]
    with (study.folder / "study/results.csv").open(newline="") as file:
        cells = [[row.get(key, "") for key in SHOWN] for row in csv.DictReader(file, strict=True)]
    if cells != [[str(row.get(key, "")) for key in SHOWN] for row in ends]:
        raise Difference(f"the table has {cells}, the journal {ends}")
    off = [row.get("score", row.get("value", 0)) - row.get("config/x", 0) / row["epochs"] for row in ends]
    if max(map(abs, off)) > 1e-5:
        raise Difference(f"a figure is wrong: {ends}")
    if study.kind == "optuna":
        stored = optuna.load_study(study_name="killed", storage=f"sqlite:///{study.folder}/optuna.db").trials
        has = [(f"trial-{trial.number}", trial.state.name[:6]) for trial in stored]
        if sorted(has) != sorted((row["name"], row["status"][:6].upper()) for row in ends):
            raise Difference(f"Optuna has {has}, the journal {ends}")
