"""How a terminal spells the parameters of the public functions."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.errors import NOT_GIVEN
from tuner.spec.commands import TrainOptions
from tuner.spec.options import Options
from tuner.spec.settings import Settings

PRINTING = {"as_json": "--json", "as_csv": "--csv"}  # options of the command line alone
FLAGS = PRINTING | {  # the others follow from their names
    name: spec.terminal(name).flag
    for spec in (TrainOptions, Settings)
    for name in spec.names()
    if spec.terminal(name).flag
}


def flag(parameter: str) -> str:
    """The option of a parameter: ``--max-workers`` for ``max_workers``."""
    return FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def in_terminal(parameter: str, value: object = NOT_GIVEN) -> str:
    """A parameter as a terminal spells it: ``--max-workers 2``, ``--no-calibration``."""
    if value is NOT_GIVEN or value is True:
        return flag(parameter)
    if value is False:
        return flag(parameter).replace("--", "--no-", 1)
    if value == "":
        return f"{flag(parameter)} ''"
    return f"{flag(parameter)} {value:g}" if isinstance(value, float) else f"{flag(parameter)} {value}"


def arguments(options: Options) -> list[str]:
    """The command line that gives these options: a word for each that has not its default, and one for its value."""
    words: list[str] = []
    for name, value in options.changes().items():
        if isinstance(value, bool):
            words.append(in_terminal(name, value))
        else:
            words += [word for text in _texts(value) for word in (flag(name), text)]
    return words


def _texts(value: object) -> list[str]:
    """What follows an option, each time that it is given."""
    if isinstance(value, Mapping):
        return [f"{key}={text}" for key, text in value.items()]
    return [str(value)] if isinstance(value, str) or not isinstance(value, Sequence) else list(map(str, value))


def command(settings: Settings) -> str:
    """The command line of a study."""
    return f"{program()} {shlex.join(arguments(settings))}".rstrip()


def program() -> str:
    """The words that start this process's tuner again, also where ``tuner`` is not on the path."""
    path = shutil.which("tuner")  # it may be one of another environment
    if path and Path(path).parent == Path(sys.executable).parent:
        return "tuner"
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, "-m", "tuner"])
