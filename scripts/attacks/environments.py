"""The folders, limits and terminals that clusters, containers and services have: a small study in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.attacks.answers import Answer, changes, run_apart, state
from scripts.attacks.tally import Tally

SECONDS = 240.0
WORDS = ["run", "--epochs", "1", "--limit", "2", "--set", "batch_size=500", "--threads", "1"]
WORDS += ["--gpu-memory-buffer-gb", "0", "--device", "cpu"]
BEYOND = ("dac_override", "dac_read_search", "fowner")  # by which root reads and writes what permissions forbid
RAY, CHILD = ("--max-workers", "2"), ("--max-workers", "1")


class Skipped(Exception):
    """Why this machine cannot make an environment."""


@dataclass
class Place:
    """Where a study runs; an environment changes it before."""

    top: Path
    way: str  # "ray", or "child" without it
    variables: dict[str, str]
    data: str = "ml"
    bound: bool = False
    prelude: str = ""  # a shell's commands before the command, and behind it what ``behind`` says
    behind: str = ""
    output: str = "study"
    codes: Sequence[int] = (0,)
    untouched: bool = False  # refused: nothing must have been written
    undo: list[Callable[[], object]] = field(default_factory=list)

    @property
    def work(self) -> Path:
        """The current folder."""
        return self.top / "work"


def _tmpdir(length: int) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        path = place.top / "t"
        while len(str(path)) < length:
            path /= "d" * min(100, max(1, length - len(str(path)) - 1))
        path.mkdir(parents=True)
        place.variables["TMPDIR"] = str(path)

    return change


def _read_only_tmpdir(place: Place) -> None:
    _bound(place)
    place.variables["TMPDIR"] = str(_read_only(place.top / "ro"))


def _read_only_home(place: Place) -> None:
    _bound(place)
    _variables("XDG_CACHE_HOME", HOME=str(_read_only(place.top / "ro")))(place)


def _read_only(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o555)
    return path


def _bound(place: Place) -> None:
    """Lets permissions bind root, too."""
    if os.getuid():
        return
    if not shutil.which("setpriv"):
        raise Skipped("setpriv is missing, and permissions do not bind root")
    place.bound = True


def _strange_path(place: Place) -> None:
    strange = place.work / "with blank ü 日本 'q\" $x;"
    strange.mkdir()
    place.output = str((strange / "study").relative_to(place.work))


def _strange_folder(place: Place) -> None:
    _strange_path(place)
    strange = place.work / Path(place.output).parent
    shutil.copytree(place.work / "ml", strange / "ml ü")
    place.data = str(strange / "ml ü")
    place.variables["TMPDIR"] = str(strange)


def _limited(prelude: str) -> Callable[[Place], None]:
    return lambda place: setattr(place, "prelude", prelude)


def _full_tmp(place: Place) -> None:
    small = place.top / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True).returncode:
        raise Skipped("a small tmpfs cannot be mounted here")
    place.undo.append(lambda: subprocess.run(["umount", "-l", small], check=True))
    (small / "full").write_bytes(b"x" * (2**20 - 4096 * 3))
    place.variables["TMPDIR"] = str(small)
    place.codes = (0, 1, 2)


def _full_output(place: Place) -> None:
    _full_tmp(place)
    place.variables["TMPDIR"] = str(place.top)
    place.output = "../small/study"


def _redirected(behind: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        place.behind, place.codes = behind, (0, 1)

    return change


def _variables(*unset: str, **given: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        place.variables = {**{name: value for name, value in place.variables.items() if name not in unset}, **given}

    return change


def _read_only_current(place: Place) -> None:
    _bound(place)
    place.work.chmod(0o555)
    place.output = str(place.top / "other" / "study")
    (place.top / "other").mkdir()
    (place.top / "other").chmod(0o777)


def _read_only_output(place: Place) -> None:
    _bound(place)
    place.work.chmod(0o555)
    place.codes, place.untouched = (2,), True


def _gone_current(place: Place) -> None:
    place.prelude = 'mkdir gone && cd gone && rmdir "$PWD"'
    place.codes = (2,)


def _no_private_folder(place: Place) -> None:
    """No folder in which one for Ray could be made: that of the user's choice, and all others are not writable."""
    _bound(place)
    if not shutil.which("unshare"):
        raise Skipped("unshare is missing, by which /tmp is made read-only")
    place.prelude = 'mount --bind "$PWD" /mnt && mount -t tmpfs -o ro tmpfs /tmp && cd /mnt'
    place.variables |= {"TMPDIR": "/tmp", "HOME": "/mnt", "XDG_CACHE_HOME": "/nowhere"}
    if place.way == "ray":
        place.codes, place.untouched = (2,), True


ENVIRONMENTS: Mapping[str, Callable[[Place], None]] = {
    "tmpdir-40": _tmpdir(40),
    "tmpdir-100": _tmpdir(100),
    "tmpdir-200": _tmpdir(200),
    "tmpdir-missing": _variables(TMPDIR="/no/such"),
    "tmpdir-read-only": _read_only_tmpdir,
    "home-missing": _variables("XDG_CACHE_HOME", HOME="/nowhere/at/all"),
    "home-unset": _variables("HOME"),
    "home-read-only": _read_only_home,
    "strange-path": _strange_path,
    "strange-folders": _strange_folder,
    "no-runtime-dir": _variables("XDG_RUNTIME_DIR"),
    "runtime-dir-missing": _variables(XDG_RUNTIME_DIR="/nowhere"),
    "256-files": _limited("ulimit -n 256"),
    "stack-of-1-mb": _limited("ulimit -s 1024; ulimit -c 0"),
    "full-tmp": _full_tmp,
    "full-output": _full_output,
    "stdin-closed": _redirected("<&-"),
    "stdout-closed": _redirected(">&-"),
    "stderr-closed": _redirected("2>&-"),
    "all-closed": _redirected("<&- >&- 2>&-"),
    "broken-pipe": _redirected("| head -c 1"),
    "term-dumb": _variables(TERM="dumb", NO_COLOR="1"),
    "term-unset": _variables("TERM"),
    "lang-c": _variables(LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "columns-1": _variables(COLUMNS="1", LINES="1"),
    "current-read-only": _read_only_current,
    "output-read-only": _read_only_output,
    "current-removed": _gone_current,
    "tmp-read-only": _no_private_folder,
}


def environments(names: Sequence[str], ways: Sequence[str], place: Path, tally: Tally) -> None:
    """A study in each of these environments, with Ray and without."""
    place.chmod(0o755)
    for name in names:
        for way in ways:
            top = place / f"{name}-{way}"
            try:
                _one(name, way, top, place / "original", tally)
            except Skipped as why:
                tally.skipped.append(f"{name}: {why}")


def _one(name: str, way: str, top: Path, original: Path, tally: Tally) -> None:
    for part in ("work", "home", "tmp", "victim"):
        (top / part).mkdir(parents=True)
    shutil.copytree(original / "work/ml", top / "work/ml")
    (top / "victim/kept.txt").write_text("kept\n")
    left_out = ("XDG_RUNTIME_DIR", "RAY_TMPDIR", "TMPDIR", "PYTHONPATH")
    variables = {key: value for key, value in os.environ.items() if key not in left_out}
    variables |= {"HOME": str(top / "home"), "XDG_CACHE_HOME": str(top / "home/cache"), "TMPDIR": str(top / "tmp")}
    variables |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    one = Place(top, way, variables)
    try:
        ENVIRONMENTS[name](one)
        before = state(top, ("home", "tmp", "small", "other", "t"))
        words = [sys.executable, "-m", "tuner", *WORDS, "--data", one.data, *(RAY if way == "ray" else CHILD)]
        words += ["--output", one.output]
        answer = run_apart(_shell(one, words), one.work, one.variables, SECONDS)
        faults = [fault for fault in answer.faults() if not (name == "broken-pipe" and "stderr" in fault)]
        faults += (
            [] if answer.code in one.codes else [f"exit code {answer.code}, not {' or '.join(map(str, one.codes))}"]
        )
        after = changes(before, state(top, ("home", "tmp", "small", "other", "t")))
        inside = os.path.normpath(f"work/{one.output}")
        faults += [change for change in after if one.untouched or inside not in change]
        faults += _missing(one, answer)
    finally:
        for undo in one.undo:
            undo()
    if tally.take("environments", way, name, faults, f"{name}: tune {' '.join(words[3:])}", answer):
        shutil.rmtree(top, ignore_errors=True)


def _shell(one: Place, words: Sequence[str]) -> list[str]:
    """The command, bound by permissions or behind a shell's own commands where those are needed."""
    bound = ["setpriv", f"--bounding-set={','.join(f'-{power}' for power in BEYOND)}"] if one.bound else []
    if one.prelude.startswith("mount"):
        inner = f'{one.prelude} && exec "$@"'
        return ["unshare", "-m", "sh", "-c", inner, "sh", *bound, *words]
    if one.prelude or one.behind:
        run = '"$@"' if one.behind else 'exec "$@"'
        return [*bound, "bash", "-c", f"set -o pipefail; {one.prelude or ':'}; {run} {one.behind}", "bash", *words]
    return [*bound, *words]


def _missing(one: Place, answer: Answer) -> list[str]:
    """What a study that ended well has not left."""
    table = one.work / one.output / "results.csv"
    if answer.code == 0 and (not table.exists() or table.read_text().count("completed") != 2):
        return ["no table with two completed trials"]
    return []
