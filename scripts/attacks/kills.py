"""SIGKILL at random moments, of a study's driver alone or of its whole group; the study is resumed each time."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import yaml

from scripts.attacks import killed
from scripts.attacks.answers import run_apart
from scripts.attacks.crash_study import COMMAND, LISTED, Difference, check, finished, left_behind, lines, table
from scripts.attacks.tally import Tally

SECONDS = 240.0
KINDS = ("function", "script", "optuna", "workload")
PRUNERS = ("fifo", "asha", "median")
TRIALS, FIRST_GB, DEVICE_GB = 5, 0.3, 0.9
FIXED = {"device": "cpu", "threads": 1, "device_memory_gb": DEVICE_GB, "gpu_memory_buffer_gb": 0, "backoff": 0.1}
SPACE = {"space": {"x": {"uniform": [0, 1]}, "mb": {"choice": [*killed.MB]}}}
BUILT_IN = {
    "space": {"lr": {"loguniform": [1e-3, 1e-1]}, "hidden_dim": {"choice": [4, 8]}, "epochs": {"choice": [2]}}
}
LIST = {"configurations": [{"epochs": 2, **each} for each in [*LISTED, {"name": "e", "hidden_dim": 6}]]}
SHOWN = (
    "trial_id",
    "name",
    "seed",
    "status",
    "attempts",
    "score",
    "value",
    "val_rmse",
    "epochs",
    "duration_s",
    "error",
)
PLACE = {"env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, "start_new_session": True}
NOWHERE = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A study that is killed."""

    folder: Path
    kind: str
    workers: int
    search: str
    pruner: str
    given: bool  # whether its trials are given memory, which is too little; else it is estimated or learned

    @classmethod
    def of(cls, number: int, folder: Path) -> Study:
        """The study of a try; of each four one is of each kind."""
        kind, turn = KINDS[number % 4], number // 4
        given = turn % 4 == 1 if kind == "workload" else kind == "optuna" or turn % 4 != 2
        listed = kind == "workload" and turn % 4 == 2  # so that it comes to the same as one that is left alone
        search, pruner = ("listed", "fifo") if listed else (("tpe", "random")[turn % 2], PRUNERS[turn % 3])
        return cls(folder, kind, 2 if turn % 12 == 5 else 1, search, pruner, given)

    @property
    def words(self) -> list[str]:
        """The command that begins it or goes on with it."""
        options = {**FIXED, "max_workers": self.workers, **({"memory_gb": FIRST_GB} if self.given else {})}
        if self.kind == "optuna":
            options |= {"scheduler": self.pruner, "trials": TRIALS, "report": False}
            return [sys.executable, "-m", "scripts.attacks.killed", json.dumps(options)]
        if (self.folder / "study/study.json").exists():
            return [*COMMAND, "run", "--resume", "study"]
        space = LIST if self.search == "listed" else BUILT_IN if self.kind == "workload" else SPACE
        (self.folder / "space.yaml").write_text(yaml.safe_dump(space))
        options |= {"config": "space.yaml", "scheduler": self.pruner, "output": "study", "checkpoint_seconds": 0}
        options |= {"search": self.search, "num_samples": TRIALS} if self.search != "listed" else {}
        options |= {"metric": "score", "direction": "min"} if self.kind != "workload" else {}
        words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        what = {"script": ["script", killed.__file__], "function": ["run", "--workload", f"{killed.__name__}:train"]}
        end = ["--", "{x}", "{mb}"] if self.kind == "script" else []
        return [*COMMAND, *what.get(self.kind, ["run"]), *words, "--no-report", *end]


def kills(numbers: Sequence[int], seed: int, place: Path, tally: Tally) -> None:
    """Makes these tries: each kills a study, and up to two of three times what goes on with it, too."""
    alone = place / "alone"
    for number in numbers:
        draw, faults, before = random.Random(f"{seed}/kill/{number}"), list[str](), list[Row]()
        study = Study.of(number, place / f"kill-{number}")
        study.folder.mkdir()
        what = f"{study.search}, {study.pruner}"
        try:
            if study.search == "listed" and not alone.exists():
                alone.mkdir()
                run_apart(Study.of(number, alone).words, alone, PLACE["env"], SECONDS)
            for _ in range(draw.choice((1, 1, 2, 3))):
                what += f", {_kill(study, draw)}"
                left_behind(study.folder, 60.0)
                before = _kept(study, before)
                table(study.folder / "study")
            done = finished(study.folder / "study")
            answer = run_apart(study.words, study.folder, PLACE["env"], SECONDS)
            faults += [*answer.faults(), *([f"exit code {answer.code}"] if answer.code else [])]
            if not faults:
                _check(study, _kept(study, before))
            if not faults and study.search == "listed":
                check(study.folder / "study", done, table(alone / "study"))
        except (Difference, OSError, ValueError) as error:
            faults, answer = [str(error)], None
        kind = f"{study.kind}, {'Ray' if study.workers > 1 else 'child'}"
        if tally.take("kills", kind, number, faults, what, answer):
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
    with suppress(ProcessLookupError):
        (os.killpg if of_group else os.kill)(process.pid, signal.SIGKILL)
    if (code := process.wait()) not in (0, -signal.SIGKILL):
        raise Difference(f"exit code {code} before the kill")
    return f"{'group' if of_group else 'driver'} killed {delay:.2f} s after {more} rows" if code else "not killed"


def _kept(study: Study, before: Sequence[Row]) -> list[Row]:
    """The journal, which begins with what it had before."""
    rows = lines(study.folder / "study")
    if rows[: len(before)] != before:
        raise Difference(f"rows before a kill: {before}, afterwards: {rows}")
    return rows


def _check(study: Study, rows: Sequence[Row]) -> None:
    """Every trial has ended once, and came to what it should; the journal, the table and Optuna tell the same."""
    trials: dict[str, list[Row]] = {f"t{number:03d}": [] for number in range(1, TRIALS + 1)}
    for row in rows:
        trials[row["trial_id"]].append(row)
    for own in trials.values():
        wrong = [row["attempts"] for row in own] != [*range(1, len(own) + 1)]
        wrong |= [row["status"] in ("completed", "pruned") for row in own] != [*[False] * (len(own) - 1), True]
        if wrong or not all(_follows(study, *two) for two in pairwise(own)):
            raise Difference(f"a trial has these attempts: {own}")
        figure = own[-1].get("score", own[-1].get("value"))
        if study.kind != "workload" and abs(figure - own[-1]["config/x"] / own[-1]["epochs"]) > 1e-5:
            raise Difference(f"a trial has a wrong figure: {own[-1]}")
    with (study.folder / "study/results.csv").open(newline="") as file:
        cells = [[row.get(key, "") for key in SHOWN] for row in csv.DictReader(file, strict=True)]
    told = [[str(own[-1].get(key, "")) for key in SHOWN] for own in trials.values()]
    if cells != told:
        raise Difference(f"the table has {cells}, the journal {told}")
    if study.kind == "optuna":
        _check_storage(study.folder, [own[-1] for own in trials.values()])


def _follows(study: Study, row: Row, after: Row) -> bool:
    """Whether a retry has the right memory: out of it, a trial gets more, up to the whole device."""
    growth = 1.5 if study.given or study.kind == "workload" else 2
    grown = min(max(row["limit_gb"], row["peak_memory_gb"] or 0) * growth, DEVICE_GB)
    wanted = row["limit_gb"] if row["lost"] else grown
    return row["status"] == "out_of_memory" and abs(after["limit_gb"] - wanted) < 1e-6


def _check_storage(folder: Path, rows: Sequence[Row]) -> None:
    stored = optuna.load_study(study_name="killed", storage=f"sqlite:///{folder}/optuna.db").get_trials()
    owner, states = f"{folder.resolve()}/study/", {"COMPLETE": "completed", "PRUNED": "pruned"}
    has = [[trial.user_attrs.get("tuner"), states.get(trial.state.name), trial.last_step] for trial in stored]
    told = [[owner + row["trial_id"], row["status"], row["epochs"]] for row in rows]
    if sorted(map(str, has)) != sorted(map(str, told)):
        raise Difference(f"Optuna has {has}, the journal {told}")
