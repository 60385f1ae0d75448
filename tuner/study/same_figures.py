"""Compares the figures of a trial that was trained again with those of its study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import InputError, TunerError, option
from tuner.records.attempts import Attempt
from tuner.study.past_trial import PastTrial
from tuner.study.record import versions
from tuner.trial import Device

Differences = Mapping[str, tuple[float | None, float | None]]  # the study's value and the new one, by metric
SAME = ("python", "torch", "numpy")  # the packages that figures depend on


class Differs(TunerError):
    """The study's figures should have come out again, and did not."""


def differing(here: Mapping[str, float | None], study: Mapping[str, float | None]) -> Differences:
    """The study's metrics that differ; metrics that only the new training has do not count."""
    return {name: (value, here.get(name)) for name, value in study.items() if value != here.get(name)}


def verdict(differences: Differences, past: PastTrial, device: Device, *, exact: bool) -> str:
    """Whether the study's figures came out again, and if not, what may be the reason.

    Raises:
        Differs: they did not, although that was asked for.
    """
    if not differences:
        return "the study's figures came out again, to the last digit"
    both = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differences.items())
    text = f"not the study's figures: {both} ({'; '.join(_reasons(past, device)) or 'no reason is known'})"
    if exact:
        raise Differs(f"{option('exact')}: {text}")
    return text


def _reasons(past: PastTrial, device: Device) -> list[str]:
    reasons, now, then = [], versions(), past.study.versions
    if others := [f"{name} {then.get(name)}" for name in SAME if then.get(name) != now[name]]:
        reasons.append(f"the study ran with {', '.join(others)}")
    names = [device.name for device in past.study.plan.devices]
    if device.name not in names:
        reasons.append(f"the study ran on {', '.join(dict.fromkeys(names))}")
    if device.kind == "cuda":
        reasons.append("on a GPU the last digits differ from run to run")
    return reasons


def check_exact(row: Attempt, changes: Sequence[str]) -> None:
    """Refuses to compare figures to the last digit where they cannot be the same.

    Raises:
        InputError: the trial is not completed, ran on a GPU, or is trained with other options (``changes``).
    """
    where = option("exact")
    if row.status != "completed":
        raise InputError(f"{where}: {row.trial_id} is {row.status}: it has no figures that could come out again")
    if not str(row.device).endswith("cpu"):
        raise InputError(
            f"{where}: {row.trial_id} ran on {row.device}, and on GPUs the last digits differ from run to run: "
            "leave it out"
        )
    if changes:
        raise InputError(f"{where} and {changes[0]}: the study's trial had another value: leave one of them out")
