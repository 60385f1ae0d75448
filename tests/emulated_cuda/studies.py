"""Studies on emulated cards as a user starts them: a process, its output, its exit code, and what it leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulated_cuda.cards import on_cards
from tuner.records.journal import read_attempts

Line = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A study's folder, and the file of the cards' log beside it."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def attempts(self) -> list[Line]:
        """The journal: every attempt, in the order in which they ended."""
        return [row.to_line() for row in read_attempts(self.folder / "attempts.jsonl")[0]]

    @property
    def finished(self) -> dict[str, Line]:
        """The completed attempts by the trial's name, of which each has one."""
        done = [line for line in self.attempts if line["status"] == "completed"]
        assert len(done) == len({line["trial_id"] for line in done}), "a trial was completed twice"
        return {line["name"]: line for line in done}

    @property
    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "study.json").read_text())["plan"]
        return found

    def contexts(self) -> dict[int, set[int]]:
        """The processes that have used CUDA, and the cards of each, by their place on the bus."""
        cards = defaultdict(set)
        for kind, pid, *rest in map(str.split, self.log.read_text().splitlines()):
            if kind == "context":
                cards[int(pid)].add(int(rest[0]))
        return cards

    def most_shared_gb(self, device: str) -> float:
        """The most that was given at once to trials on a device."""
        here = [line for line in self.attempts if line["device"] == device]
        starts = [line["started_at"] for line in here]
        at_once = [[line for line in here if line["started_at"] <= now < line["ended_at"]] for now in starts]
        return max(sum(line["limit_gb"] for line in running) for running in at_once)

    def config(self, *configurations: Line) -> tuple[str, str]:
        """An option with a file of these configurations."""
        path = self.folder.with_name(f"{self.folder.name}.json")
        path.write_text(json.dumps({"configurations": configurations}))
        return "--config", str(path)


def start(study: Study, *arguments: str, **cards: Any) -> subprocess.Popen[str]:
    """Starts ``tune`` with these arguments on the cards of the study's folder, see ``on_cards``."""
    command = [sys.executable, "-m", "tuner", *arguments, "--device", "cuda", "--output", str(study.folder)]
    return _start(study, command, **cards)


def resume(study: Study, **cards: Any) -> subprocess.Popen[str]:
    return _start(study, [sys.executable, "-m", "tuner", "--resume", str(study.folder)], **cards)


def _start(study: Study, command: list[str], **cards: Any) -> subprocess.Popen[str]:
    variables = {"EMULATED_CUDA_LOG": str(study.log), "XDG_CACHE_HOME": f"{study.folder}-cache"}
    environment = on_cards(study.folder.with_name("cards"), **variables, **cards)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a command said that ends with this exit code."""
    said, _ = process.communicate(timeout=240)
    assert process.returncode == code, said
    return said


def run(study: Study, *arguments: str, **cards: Any) -> str:
    """Runs a study in which every trial is completed; what it said."""
    return ended(start(study, *arguments, **cards))


def rows(said: str, name: str) -> str:
    """The line of the plan, of a trial or of a device that begins with this name."""
    return next(line for line in said.splitlines() if re.match(rf"{re.escape(name)}\b", line))
