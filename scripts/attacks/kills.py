"""SIGKILL at random moments, of a study's driver alone or of its whole group; the study is resumed each time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from scripts.attacks.answers import run_apart
from scripts.attacks.crash_study import COMMAND, OPTIONS, Difference, check, finished, left_behind, table
from scripts.attacks.tally import Tally

SECONDS = 240.0
WORKERS = {"ray": "2", "child": "1"}  # as Ray takes two workers, and none is needed for one


def kills(numbers: Sequence[int], seed: int, place: Path, tally: Tally) -> None:
    """Makes these kills: even ones of the driver, odd ones of the group; of every four two with Ray."""
    alone = place / "alone"
    alone.mkdir()
    whole: dict[str, float] = {}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for number in numbers:
        way = ("ray", "child")[number // 2 % 2]
        if way not in whole:
            answer = run_apart([*COMMAND, *_options(way), "--output", way], alone, environment, SECONDS)
            whole[way] = answer.seconds
        folder = place / f"kill-{number}"
        folder.mkdir()
        draw = random.Random(f"{seed}/kill/{number}")
        what = f"{way}: SIGKILL of {'the group' if number % 2 else 'the driver'}"
        try:
            what += f", {_kill(folder, _options(way), draw.uniform(0, whole[way]), bool(number % 2), environment)}"
            before = finished(folder / "study")
            table(folder / "study")
            left_behind(folder, 60.0)
            known = (folder / "study" / "study.json").exists()
            again = ["--resume", "study"] if known else [*_options(way), "--output", "study"]
            answer = run_apart([*COMMAND, *again], folder, environment, SECONDS)
            faults = answer.faults()
            if not faults and not answer.code:
                check(folder / "study", before, table(alone / way))
            elif answer.code:
                faults.append(f"exit code {answer.code}")
        except (Difference, OSError, ValueError) as error:
            faults, answer = [str(error)], None
        if tally.take("kills", way, number, faults, what, answer):
            shutil.rmtree(folder, ignore_errors=True)


def _options(way: str) -> list[str]:
    options = list(OPTIONS)
    options[options.index("--max-workers") + 1] = WORKERS[way]
    return [*options, "--no-report"]


def _kill(folder: Path, options: Sequence[str], seconds: float, of_group: bool, environment: dict[str, str]) -> str:
    """Begins a study and kills it after so many seconds; returns how it ended."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(
            [*COMMAND, *options, "--output", "study"],
            cwd=folder,
            env=environment,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            (os.killpg if of_group else os.kill)(process.pid, signal.SIGKILL)
        code = process.wait()
    return f"after {seconds:.1f} s" if code == -signal.SIGKILL else "when it had ended"
