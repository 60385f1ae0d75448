"""Damaged files: every command that reads one answers with a line, writes elsewhere nothing, and loses no result."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from scripts.attacks.answers import Answer, Child, all_of, changes, forked, run_apart, state
from scripts.attacks.mutations import damaged
from scripts.attacks.originals import TARGETS, environment_of, run_tune
from scripts.attacks.tally import Tally

EVERY_APART = 100  # of so many tries one is a process of its own
MAY_CHANGE = ("work/study", "work/out", "work/cache", "tmp", "out", "err")
MAY_CHANGE_OF = {
    "export": ("work/out.db",),
    "report": ("work/report.html",),
    "optimize": tuple(f"work/edited.{kind}{backup}" for kind in ("yaml", "toml") for backup in ("", ".backup")),
    "run": ("work/results",),
}


class Try:
    """One damaged file and one command that reads it; both follow from the seed and the number."""

    def __init__(self, number: int, seed: int, original: Path, place: Path) -> None:
        self.number, self.folder, self._original = number, place / str(number), original
        self.draw = random.Random(f"{seed}/{number}")
        target = TARGETS[number % len(TARGETS)]
        self.name = target.name
        self.file = self.draw.choice(target.files)
        self.words = words_of(self.draw.choice(target.commands), self.file)
        self.how = ""

    def prepare(self) -> None:
        """Copies the files, damages one, and remembers what there is."""
        shutil.copytree(self._original, self.folder, symlinks=True)
        self.how = damaged(self.folder / "work" / self.file, self.draw)
        allowed = (*MAY_CHANGE, *MAY_CHANGE_OF.get(self.words[0], ()))
        self._allowed = [name for name in allowed if name != f"work/{self.file}" or self.words[0] == "optimize"]
        self._outside = state(self.folder, self._allowed)
        self._study = state(self.folder / "work/study")
        self._lines = _lines(self.folder)

    def begin(self) -> Child:
        """Starts the command in a child of this process."""
        self.prepare()
        return forked(lambda: run_tune(self.words, self.folder), self.folder)

    def faults(self, answer: Answer) -> list[str]:
        """What is wrong with the answer and with what it left."""
        found = answer.faults()
        found += changes(self._outside, state(self.folder, self._allowed))
        if answer.code == 2:
            found += changes(self._study, state(self.folder / "work/study"))
            found += ["has written out"] if (self.folder / "work/out").exists() else []
            if not self._names_what(answer.err):
                found.append("an error that names neither file nor option")
        if lost := self._lines - _lines(self.folder):
            found.append(f"{len(lost)} lines of the journal are lost")
        return found

    def _names_what(self, said: str) -> bool:
        path = Path(self.file)
        return any(name in said for name in (path.name, str(path.parent), "--", "study"))


def _lines(folder: Path) -> set[bytes]:
    """The lines of the journal."""
    path = folder / "work/study/attempts.jsonl"
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**26:
        return {line.strip() for line in path.read_bytes().split(b"\n") if _result(line)}
    return set()


def _result(line: bytes) -> bool:
    try:
        return bool(json.loads(line)["status"] == "completed")
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def undamaged(place: Path, jobs: int, tally: Tally) -> None:
    """Every command on undamaged files: else a wrong command would pass for a good answer."""
    pairs = {(target, file, command) for target in TARGETS for file in target.files for command in target.commands}
    words = sorted({(target.name, tuple(words_of(command, file))) for target, file, command in pairs})
    folders = [place / f"undamaged-{number}" for number in range(len(words))]

    def begun() -> Iterator[tuple[int, Callable[[], Child]]]:
        for number, (_, command) in enumerate(words):
            shutil.copytree(place / "original", folders[number])
            yield number, partial(forked, partial(run_tune, list(command), folders[number]), folders[number])

    for number, answer in all_of(begun(), jobs):
        name, command = words[number]
        faults = [*answer.faults(), *(["does not end with 0"] if answer.code else [])]
        if tally.take("undamaged", name, number, faults, f"tune {' '.join(command)}", answer):
            shutil.rmtree(folders[number])


def words_of(command: str, file: str) -> list[str]:
    """A target's command for one of its files."""
    return shlex.split(command.format(file, folder=str(Path(file).parent)))


def fuzz(numbers: Sequence[int], seed: int, place: Path, jobs: int, tally: Tally) -> None:
    """Makes these tries."""
    original = place / "original"
    tries: dict[int, Try] = {}

    def begun() -> Iterator[tuple[int, Callable[[], Child]]]:
        for number in numbers:
            tries[number] = Try(number, seed, original, place)
            if number % EVERY_APART == EVERY_APART - 1:
                one = tries.pop(number)
                one.prepare()
                judge(
                    one,
                    run_apart(
                        [sys.executable, "-m", "tuner", *one.words], one.folder / "work", environment_of(one.folder)
                    ),
                )
            else:
                yield number, tries[number].begin

    def judge(one: Try, answer: Answer) -> None:
        what = f"tune {' '.join(one.words)}  # {one.file}: {one.how}"
        if tally.take("fuzz", one.name, one.number, one.faults(answer), what, answer):
            shutil.rmtree(one.folder, ignore_errors=True)

    for number, answer in all_of(begun(), jobs):
        judge(tries.pop(number), answer)
    tally.notes.append(f"codes {dict(sorted(Counter(tally.codes).items()))}")
