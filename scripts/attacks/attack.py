"""Attacks tuner with damaged files, kills, bad trials and hostile surroundings, and counts how it answers.

    undamaged     every command of the next section on undamaged files, where all must end with 0
    fuzz          damaged files of every kind, read by every command that reads them
    kills         SIGKILL and Ctrl-C of a study at random moments; it is resumed, and compared with one left alone
    trials        trials that misbehave in every way, beside good ones
    environments  the folders, limits and terminals that clusters and services have

A try is answered as it should be if it ends in time with exit code 0, 1 or 2, without a traceback and with one line
for an error, writes nothing outside its folders, and loses no finished result. Exits with 1 if fewer than 99.9 % are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from scripts.attacks import originals
from scripts.attacks.answers import warm
from scripts.attacks.environments import ENVIRONMENTS, environments
from scripts.attacks.fuzz import fuzz, undamaged
from scripts.attacks.killed import CASES
from scripts.attacks.kills import kills
from scripts.attacks.misbehaving import ALONE, KINDS
from scripts.attacks.tally import BAR, Tally
from scripts.attacks.trials import WAYS, trials

SECTIONS = {"undamaged": 0, "fuzz": 5000, "kills": 2 * len(CASES), "trials": len(KINDS) + len(ALONE)}
SECTIONS |= {"environments": len(ENVIRONMENTS)}


def attack(section: str, options: argparse.Namespace, place: Path, tally: Tally) -> None:
    """Makes the tries of a section, or those that were named."""
    named = options.only.split(",") if options.only else None
    ways = options.way or list(WAYS)
    numbers = [int(number) for number in named] if named and section in ("fuzz", "kills") else None
    if section in ("undamaged", "fuzz", "environments") and not (place / "original").exists():
        originals.write(place / "original")
    tries = options.tries or SECTIONS[section]
    if section == "undamaged":
        undamaged(place, options.jobs, tally)
    elif section == "fuzz":
        fuzz(numbers or range(tries), options.seed, place, options.jobs, tally)
    elif section == "kills":
        kills(numbers or range(tries), options.seed, place, tally)
    elif section == "trials":
        trials(named or [*KINDS, *ALONE][:tries], ways, place, tally)
    else:
        environments(named or [*ENVIRONMENTS][:tries], ways, place, tally)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="*", help=f"only these of {', '.join(SECTIONS)}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what is drawn follows from it (default 0)")
    parser.add_argument("--tries", type=int, metavar="N", help=f"of each section (default {SECTIONS})")
    parser.add_argument(
        "--way", choices=list(WAYS), action="append", help="of trials and environments: only in these processes"
    )
    parser.add_argument("--only", metavar="NUMBER,…|NAME,…", help="only these tries")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at once (default 2)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of tries that failed here")
    options = parser.parse_args()
    asked = options.section or list(SECTIONS)
    if unknown := [name for name in asked if name not in SECTIONS]:
        parser.error(f"{unknown[0]}: choose from {', '.join(SECTIONS)}")
    if {"undamaged", "fuzz", "kills"} & {*asked}:
        warm()
    tally, began = Tally(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        place = options.keep or Path(name)
        place.mkdir(parents=True, exist_ok=True)
        for section in asked:
            attack(section, options, place, tally)
    print(tally.table())
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s, slowest answer {tally.slowest:.1f} s")
    return 0 if tally.share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
