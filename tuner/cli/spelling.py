"""How a terminal spells the parameters of the public functions."""

from __future__ import annotations

from tuner.errors import NOT_GIVEN

FLAGS = {"overrides": "--set", "study": "--from", "as_json": "--json", "as_csv": "--csv"}  # the others are by rule


def flag(parameter: str) -> str:
    """The option of a parameter: ``--max-workers`` for ``max_workers``."""
    return FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def in_terminal(parameter: str, value: object = NOT_GIVEN) -> str:
    """A parameter as a terminal spells it: ``--max-workers 2``, ``--no-calibration``."""
    if value is NOT_GIVEN or value is True:
        return flag(parameter)
    if value is False:
        return flag(parameter).replace("--", "--no-", 1)
    return f"{flag(parameter)} {value:g}" if isinstance(value, float) else f"{flag(parameter)} {value}"
