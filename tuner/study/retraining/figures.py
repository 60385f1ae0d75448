"""The figures of a model that was trained again, beside those of the study's trial."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from tuner.errors import TunerError, option
from tuner.records.attempts import written
from tuner.reporting.console import print_text
from tuner.study.retraining.past_trial import PastTrial
from tuner.trial import Device

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.training.endings import Fit

PACKAGES = ("torch", "numpy")


class Differs(TunerError):
    """The study's figures were to come out again, and did not."""


def written_figures(fitted: Fit) -> dict[str, float | None]:
    """A training's metrics as rows have them."""
    return {name: written(value) for name, value in fitted.metrics.items()}


def differing(
    here: Mapping[str, float | None], study: Mapping[str, float | None]
) -> dict[str, tuple[float | None, float | None]]:
    """The study's metrics that differ, with its value first; an earlier version may have measured fewer."""
    return {name: (value, here.get(name)) for name, value in study.items() if value != here.get(name)}


def judge(
    console: Console,
    differences: Mapping[str, tuple[float | None, float | None]],
    past: PastTrial,
    device: Device,
    exact: bool,
) -> None:
    """Says whether the study's figures came out again."""
    if not differences:
        print_text(console, "the study's figures came out again, to the last digit")
        return
    both = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differences.items())
    why = "; ".join(_reasons(past, device)) or "no reason is known"
    text = f"not the study's figures: {both} ({why})"
    if exact:
        raise Differs(f"{option('exact')}: {text}")
    print_text(console, text)


def versions() -> dict[str, str]:
    """What figures may depend on, by name."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def _reasons(past: PastTrial, device: Device) -> list[str]:
    """What may have changed the figures."""
    reasons = []
    known = past.study.versions
    others = [f"{name} {known.get(name)}" for name, now in versions().items() if known.get(name) != now]
    if others:
        reasons.append(f"the study ran with {', '.join(others)}")
    names = [each.name for each in past.study.plan.devices]
    if device.name not in names:
        reasons.append(f"the study ran on {', '.join(dict.fromkeys(names))}")
    if device.kind == "cuda":
        reasons.append("on a GPU the last digits differ from run to run")
    if len(set(past.accumulations)) > 1:
        reasons.append(f"its attempts took batches in {' and '.join(map(str, past.accumulations))} parts")
    return reasons
