"""Runs a small study of every way to train (scripts/ways), kills its driver with SIGKILL, and resumes it.

Looks then into the study's records for what must hold of each:

    memory   footprints are learned or traced, and trials are placed by them
    packing  at least two trials have run at once, with no more than the device's memory, which is not enough for all
    retry    a trial has run out of memory, and another attempt with more has completed it
    resume   every line of the journal from before the kill is still there, and every trial has finished once

Prints a table, in which "held" are the trials that were placed by their footprints and needed no more, and exits with
1 if one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash_study import Difference, left_behind, lines

FOLDER = Path(__file__).parent / "ways"
TRIALS = 10
BEFORE = 4  # so many trials have finished before the kill
FINISHED = ("completed", "pruned")
SECONDS = 300.0  # a study that takes longer has failed
CHANCE = 0.1  # the accuracy of guessing one of ten classes
ON_CPU = ["--device", "cpu", "--gpu-memory-buffer-gb", "0", "--backoff", "0.1", "--no-report", "--output", "study"]
COMPARED = ["--num-samples", str(TRIALS), "--metric", "val_accuracy", "--direction", "maximize"]
MEMORY = {"learned from the peaks": "learned", "the largest (traced)": "traced"}
Line = dict[str, Any]


def in_terminal(space: str, device_memory_gb: float, *words: str, behind: Sequence[str] = ()) -> list[list[str]]:
    """The commands that begin a study of a space and that resume it."""
    tune, limit = [sys.executable, "-m", "tuner"], ["--device-memory-gb", str(device_memory_gb)]
    begin = [*tune, *words, "--space", str(FOLDER / space), *limit, *COMPARED, *ON_CPU, *behind]
    return [begin, [*tune, "--resume", "study"]]


def in_python(name: str) -> list[list[str]]:
    """The program that begins a study, and resumes it if there is one."""
    return [[sys.executable, str(FOLDER / name)]] * 2


ARGUMENTS = ("--", "--lr", "{lr}", "--hidden", "{hidden}", "--copies", "{copies}")
WAYS: Mapping[str, list[list[str]]] = {
    "function": in_python("function.py"),
    "script": in_terminal("script.yaml", 2.0, "script", str(FOLDER / "script.py"), behind=ARGUMENTS),
    "optuna": in_python("optuna_objective.py"),
    "lightning": in_python("lightning_module.py"),
    "transformers": in_python("transformers_trainer.py"),
    "lstm": in_python("lstm.py"),
    "sgd-function": in_terminal("sgd_function.yaml", 2.6, "--workload", "sgd_function:train"),
    "sgd-workload": in_python("sgd_workload.py"),
}


@dataclass(frozen=True)
class Found:
    """What the records say."""

    journal: Sequence[Line]
    before: Sequence[Line]  # the journal at the kill
    budget_gb: float
    memory: str  # where footprints come from, as the plan says
    metric: str

    @property
    def finished(self) -> list[Line]:
        """The last attempts of the trials that have completed, or pruned themselves."""
        return [line for line in self.journal if line["status"] in FINISHED]

    @property
    def at_once(self) -> list[list[Line]]:
        """At each attempt's start the attempts that ran."""
        placed = [line for line in self.journal if line["started_at"] is not None]
        return [
            [each for each in placed if each["started_at"] <= line["started_at"] < each["ended_at"]]
            for line in placed
        ]

    @property
    def retried(self) -> list[str]:
        """The trials that ran out of memory and were completed with more."""
        return [
            line["trial_id"]
            for line in self.finished
            if any(
                other["status"] == "out_of_memory"
                and other["attempts"] < line["attempts"]
                and other["limit_gb"] < min(line["limit_gb"], line["peak_memory_gb"] * 1.05)
                for other in self.journal
                if other["trial_id"] == line["trial_id"]
            )
        ]

    @property
    def by_estimate(self) -> list[Line]:
        """The first attempts that were given a share of their own, which is no equal one of the device's."""
        equal = self.budget_gb / 2
        return [line for line in self.journal if line["attempts"] == 1 and abs(line["limit_gb"] / equal - 1) > 0.02]

    @property
    def best(self) -> float:
        """The largest value of the metric."""
        return max((line[self.metric] for line in self.finished if line["status"] == "completed"), default=0.0)


def run(commands: Sequence[Sequence[str]], folder: Path) -> list[str]:
    """Begins a study, kills it, and resumes it; returns the journal's lines at the kill."""
    search_path = os.pathsep.join([str(FOLDER.parents[1]), str(FOLDER)])
    environment = {**os.environ, "PYTHONPATH": search_path, "HF_HUB_OFFLINE": "1"}
    journal, deadline = folder / "study" / "attempts.jsonl", time.monotonic() + SECONDS
    with (folder / "output.txt").open("wb") as output:
        begun = subprocess.Popen(commands[0], cwd=folder, stdout=output, stderr=output, env=environment)
        try:
            while begun.poll() is None and ended_well(lines(folder / "study")) < BEFORE:
                if time.monotonic() > deadline:
                    raise Difference(f"not {BEFORE} trials have finished in {SECONDS:.0f} s")
                time.sleep(0.05)
        finally:
            begun.kill()
        if begun.wait() != -signal.SIGKILL:
            raise Difference(f"it ended before it was killed, with {begun.returncode}")
        left_behind(folder, 90.0)  # a worker that was starting waits for its raylet
        before = [text for text in journal.read_text().splitlines(keepends=True) if text.endswith("\n")]
        resumed = subprocess.run(
            commands[1], cwd=folder, stdout=output, stderr=output, env=environment, timeout=SECONDS, check=False
        )
    if resumed.returncode:
        raise Difference(f"resumed, it ended with {resumed.returncode}")
    return before


def ended_well(journal: Sequence[Line]) -> int:
    return sum(line["status"] in FINISHED for line in journal)


def read(folder: Path, before: Sequence[str]) -> Found:
    """What a study has left; the journal must begin with what it had at the kill."""
    study = json.loads((folder / "study.json").read_text())
    if not (folder / "attempts.jsonl").read_text().startswith("".join(before)):
        raise Difference("the journal has lost or changed lines from before the kill")
    (metric,) = study["metrics"].values()
    budget_gb = study["plan"]["budgets"][0] / 2**30
    said = (folder.parent / "output.txt").read_text()
    memory = next((each for sign, each in MEMORY.items() if sign in said), "")
    return Found(lines(folder), list(map(json.loads, before)), budget_gb, memory, metric)


def check(found: Found) -> list[str]:
    """What does not hold, in words."""
    ids = [line["trial_id"] for line in found.finished]
    peaks = [line["peak_memory_gb"] for line in found.finished]
    most_gb = max(sum(line["limit_gb"] for line in running) for running in found.at_once)
    holds = {
        f"finished: {sorted(ids)}, not {TRIALS} different trials": len(ids) == len(set(ids)) == TRIALS,
        "no two trials have run at once": max(map(len, found.at_once)) >= 2,
        f"{most_gb:.2f} GB were given at once": most_gb <= found.budget_gb + 1e-6,
        f"the device has room for all trials at once, with {sum(peaks):.2f} GB": sum(peaks) > found.budget_gb,
        "no trial was completed by a retry with more memory": bool(found.retried),
        "the plan says of no footprint that it is learned or traced": bool(found.memory),
        "no trial was placed by an estimate": bool(found.by_estimate),
        "a trial was still to run after the kill": BEFORE <= ended_well(found.before) < TRIALS,
        f"nothing has been learned: {found.best}": found.best > 2 * CHANCE,
    }
    return [said for said, held in holds.items() if not held]


def check_optuna(folder: Path, best: float) -> list[str]:
    """What does not hold of a user's own study of Optuna's, if there is one."""
    if not (folder / "optuna.db").exists():
        return []
    import optuna

    study = optuna.load_study(study_name=None, storage=f"sqlite:///{folder / 'optuna.db'}")
    states = [trial.state.name for trial in study.trials]
    same = abs(study.best_value - best) < 1e-6 and len(states) == TRIALS and {*states} <= {"COMPLETE", "PRUNED"}
    return [] if same else [f"Optuna's study has {states}, {study.best_value}"]


HEADER = ("way", "memory", "held", "trials", "at once", "budget", "oom, then completed", "kept", "best", "seconds")
ROW = "{:13}{:9}{:>8}{:>8}{:>9}{:>9}{:>21}{:>9}{:>8}{:>9}"


def row(name: str, found: Found, seconds: float) -> str:
    return ROW.format(
        name,
        found.memory,
        f"{ended_well(found.by_estimate)} of {len(found.by_estimate)}",
        len(found.finished),
        max(map(len, found.at_once)),
        f"{found.budget_gb:.1f} GB",
        ", ".join(found.retried),
        f"{ended_well(found.before)} of {len(found.finished)}",
        f"{found.best:.3f}",
        f"{seconds:.0f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", nargs="*", help=f"only these of {', '.join(WAYS)}")
    asked = parser.parse_args().way or list(WAYS)
    if unknown := [name for name in asked if name not in WAYS]:
        parser.error(f"{unknown[0]}: choose from {', '.join(WAYS)}")
    print(ROW.format(*HEADER), flush=True)
    failed = False
    for name in asked:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                found = read(folder / "study", run(WAYS[name], folder))
                faults = check(found) + check_optuna(folder, found.best)
                print(row(name, found, time.monotonic() - began), flush=True)
            except (Difference, subprocess.TimeoutExpired) as error:
                faults = [str(error)]
            if faults:
                print((folder / "output.txt").read_text()[-3000:], file=sys.stderr)
            for fault in faults:
                print(f"error: {name}: {fault}", file=sys.stderr, flush=True)
            failed = failed or bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
