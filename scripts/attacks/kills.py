"""SIGKILL and Ctrl-C at random moments, of a study's driver alone or of its whole group; it is resumed each time.

Nothing that has completed is lost, changed or trained again, and with one worker all comes out as in a study that
was left alone: configurations, scores, epochs, the best with its weights, and what was suggested.
"""

from __future__ import annotations

import csv
import json
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from scripts.attacks import killed
from scripts.attacks.answers import Answer, Child, answer_of, forked
from scripts.attacks.crash_study import Difference, left_behind, lines, table
from scripts.attacks.tally import Tally

SECONDS = 600.0
JOURNALS = ("attempts", "epochs", "suggestions")
ENDED = ("completed", "pruned", "infeasible")
OF_AN_ATTEMPT = {"attempts", "duration_s", "device", "gpu_fraction", "lost", "rank_peaks", "code_version", "order"}
OF_AN_ATTEMPT |= {"started_at", "ended_at", "parent_checkpoint", *killed.MEMORY}
Rows = list[dict[str, Any]]


def kills(numbers: Sequence[int], seed: int, place: Path, tally: Tally) -> None:
    """Makes these tries: each kills a study, and up to twice what goes on with it, too."""
    alone: dict[str, dict[str, object]] = {}
    counts: Counter[str] = Counter()
    for number in numbers:
        case, draw = [*killed.CASES][number % len(killed.CASES)], random.Random(f"{seed}/kill/{number}")
        folder, what, answer, faults = place / f"kill-{number}", list[str](), None, list[str]()
        try:
            if case not in alone and case not in killed.CHANGES:
                _end(case, place / f"alone-{case}")
                alone[case] = _outcome(place / f"alone-{case}")
            folder.mkdir()
            before, trained = _journals(folder), Counter[str]()
            for _ in range(draw.choice((1, 2, 2, 3))):
                what.append(_kill(case, folder, draw))
                counts[what[-1].split()[0]] += 1
                before, trained = check_kept(folder, before, trained)
            answer = _end(case, folder)
            before, trained = check_kept(folder, before, trained)
            _check_ends(case, folder, before["attempts"])
            if case in alone and (other := _differing(alone[case], _outcome(folder))):
                raise Difference(other)
            begun = [line for line in _trainings(folder) if line.endswith("begins")]
            counts["epochs trained again"] += len(begun) - len(set(begun))
            everything = _files(folder)
            _end(case, folder)
            if changed := [name for name, content in _files(folder).items() if content != everything.get(name)]:
                raise Difference(f"a further resume has changed {', '.join(changed)}")
        except (Difference, OSError, ValueError, KeyError) as error:
            faults = [f"{type(error).__name__}: {error}"]
        if tally.take("kills", case, number, faults, ", ".join(what), answer):
            shutil.rmtree(folder, ignore_errors=True)
    tally.notes.append("kills: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items())))


def _begin(case: str, folder: Path) -> Child:
    """A child that begins a study or goes on with it."""

    def work() -> None:
        os.chdir(folder)
        os.environ["TRAININGS"] = str(folder / killed.TRAININGS)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        try:
            if case in killed.APART:
                os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
                code = f"from scripts.attacks import killed; killed.study({case!r})"
                os.execv(sys.executable, [sys.executable, "-c", code])
            killed.study(case)
        except KeyboardInterrupt:
            sys.exit(130)
        except BaseException:
            traceback.print_exc()
            raise

    return forked(work, folder, SECONDS, limited=False)


def _end(case: str, folder: Path) -> Answer:
    """Begins a study or goes on with it, to its end."""
    folder.mkdir(exist_ok=True)
    return _answer(_begin(case, folder), (0,))


def _answer(child: Child, codes: Sequence[int]) -> Answer:
    """What a child leaves that ends by itself, and nothing that runs; another exit code raises ``Difference``."""
    if ended := _ended(child, SECONDS):
        left_behind(child.folder, 120.0)
    answer = answer_of(child, hung=not ended)
    if answer.hung or answer.code not in codes:
        raise Difference(answer.text())
    return answer


def _ended(child: Child, seconds: float = 0.0) -> bool:
    return bool(select.select([child.watched], [], [], seconds)[0])


def _kill(case: str, folder: Path, draw: random.Random) -> str:
    """Begins a study or goes on with it, and kills it at its start or once more epochs have begun or ended."""
    has, child = len(_trainings(folder)), _begin(case, folder)
    of_group, sign = draw.random() < 0.5, signal.SIGINT if draw.random() < 1 / 3 else signal.SIGKILL
    more = draw.choice((-1, *2 * [draw.randrange(12)], *3 * [draw.randrange(12, 50)]))
    delay = draw.uniform(0, 2 * killed.SECONDS)
    while more >= 0 and len(_trainings(folder)) < has + more and not _ended(child):
        time.sleep(0.002)
    time.sleep(delay if more >= 0 else 20 * delay)
    if not (ended := _ended(child)):
        (os.killpg if of_group else os.kill)(child.pid, sign)
    _answer(child, (0,) if ended else (-signal.SIGKILL,) if sign == signal.SIGKILL else (0, 1, 130, -signal.SIGINT))
    name = "not-killed" if ended else sign.name
    return f"{name} of {'the group' if of_group else 'the driver'} {delay:.3f} s after {more} lines"


def _trainings(folder: Path) -> list[str]:
    return path.read_text().splitlines() if (path := folder / killed.TRAININGS).exists() else []


def _journals(folder: Path) -> dict[str, Rows]:
    """The journals; the table must be readable, too."""
    table(folder / killed.STUDY)
    return {name: lines(folder / killed.STUDY, name) for name in JOURNALS}


def check_kept(folder: Path, before: dict[str, Rows], trained: Counter[str]) -> tuple[dict[str, Rows], Counter[str]]:
    """Nothing in the journals has changed, and what had ended was not trained again; ``trained`` counts that."""
    now = _journals(folder)
    for name, rows in before.items():
        if now[name][: len(rows)] != rows:
            raise Difference(f"{name}.jsonl was {rows[-3:]}, and is {now[name][len(rows) - 3 : len(rows) + 1]}")
    ended = [row["trial_id"] for row in now["attempts"] if row["status"] in ENDED]
    if len(set(ended)) != len(ended):
        raise Difference(f"a trial has ended twice: {ended}")
    begun = Counter(line.split()[0] for line in _trainings(folder))
    if again := [name for name, number in trained.items() if begun[name] != number]:
        raise Difference(f"trained again after its end: {', '.join(again)}")
    return now, Counter({name: begun[name] for name in ended})


def _last(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["trial_id"]: row for row in rows}


def _check_ends(case: str, folder: Path, rows: Rows) -> None:
    """Every trial has ended, and its score follows from its configuration; the table and Optuna tell the same."""
    ends, cells = _last(rows), {row["trial_id"]: row for row in _table(folder)}
    wrong = [row for row in ends.values() if row["status"] not in ENDED]
    if "pbt" not in case:
        for row in ends.values():
            config = {key[7:]: value for key, value in row.items() if key.startswith("config/")}
            noise = 0.0 if "value" in row else random.Random(row["seed"]).random()
            due = ([4.0, *killed.losses(config, noise)][row["epochs"]]) if row["epochs"] else None
            wrong += [row] * (row.get("score", row.get("value")) != due)
    wrong += [row for row in ends.values() if str(row.get("score", "")) != cells[row["trial_id"]].get("score", "")]
    if wrong or ends.keys() != cells.keys():
        raise Difference(f"it has ended otherwise than it should: {wrong[:3]}, {ends.keys() ^ cells.keys()}")
    if case == "Optuna study":
        stored = optuna.load_study(study_name="killed", storage=f"sqlite:///{folder}/optuna.db").trials
        has = sorted((f"trial-{trial.number}", trial.state.name[:6]) for trial in stored)
        if has != sorted((row["name"], row["status"][:6].upper()) for row in ends.values()):
            raise Difference(f"Optuna has {has}, the journal {ends}")


def _table(folder: Path) -> list[dict[str, str]]:
    text = (folder / killed.STUDY / "results.csv").read_text()
    return [*csv.DictReader(text.splitlines(keepends=True), strict=True)]


def _outcome(folder: Path) -> dict[str, object]:
    """What came of a study, without what may differ from one attempt to the next."""
    journals = _journals(folder)
    ends = _last(journals["attempts"])
    ranked = enumerate([*_table(folder), *journals["suggestions"]])  # both have an order
    said = json.loads((folder / killed.SAID).read_text()) if (folder / killed.SAID).exists() else None
    return {
        **{name: _lasting(row) for name, row in ends.items()},
        **{f"parent of {name}": row["parent_checkpoint"].split("@")[0] for name, row in ends.items()},
        **{f"{row['trial_id']}, {row['epoch']}": row["metrics"] for row in journals["epochs"] if row["metrics"]},
        **{f"row or suggestion {number}": _lasting(row) for number, row in ranked},
        "best config, value, weights and front": said,
    }


def _lasting(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in OF_AN_ATTEMPT}


def _differing(alone: dict[str, object], found: dict[str, object]) -> str:
    pairs = {key: (found.get(key), alone.get(key)) for key in {**alone, **found}}
    return "; ".join(
        f"{key} is {one}, and alone {two}" for key, (one, two) in pairs.items() if repr(one) != repr(two)
    )


def _files(folder: Path) -> dict[str, object]:
    """What a further resume leaves as it is; ``study.json`` may then have what ``suggestions.jsonl`` has."""
    study = folder / killed.STUDY
    paths = [*study.glob("*.jsonl"), study / "results.csv", folder / killed.TRAININGS]
    record = {**json.loads((study / "study.json").read_text()), "configurations": None}
    return {"study.json": record, **{path.name: path.read_bytes() for path in paths}}
