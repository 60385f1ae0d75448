"""Detects running trials that have reported nothing for too long since the user's own code began."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.errors import option
from tuner.trial import Trial

NOTICE_SECONDS = 600.0
SUGGESTED = "30m"  # where no limit is given
# The most that counts between two calls of ``look``. In a longer time the study itself was suspended or busy, and may
# have missed reports.
STEP_SECONDS = 2.0


@dataclass(frozen=True)
class _Heard:
    """A trial's last sign of life."""

    trial: Trial
    at: float  # by ``StallDetector``'s own clock
    epoch: int | None = None  # the last one that it reported; None before its first report
    noted: bool = False  # whether a notice has been given since


class StallDetector:
    """Watches for trials that report nothing."""

    def __init__(self, timeout_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Watches nothing yet. Without a timeout there are only notices, and no trial is stalled."""
        self._timeout = timeout_seconds
        self._clock = clock
        self._looked = clock()
        self._now = 0.0
        self._heard: dict[str, _Heard] = {}

    def begins(self, trial: Trial) -> None:
        """The user's code begins in this trial."""
        self._heard[trial.trial_id] = _Heard(trial, self._now)

    def hears(self, trial_id: str, epoch: int | None = None) -> None:
        """A trial has reported this epoch, or has got the answer to its question."""
        if heard := self._heard.get(trial_id):
            last = heard.epoch if epoch is None else epoch
            self._heard[trial_id] = replace(heard, at=self._now, epoch=last, noted=False)

    def ends(self, trial_id: str) -> None:
        """A trial is not watched any more."""
        self._heard.pop(trial_id, None)

    def look(self) -> tuple[dict[str, str], list[str]]:
        """Advances the clock.

        Returns:
            The errors of trials that have been silent for too long, by id, and notices for the user about others, one
            for each silence.
        """
        now = self._clock()
        self._now += min(now - self._looked, STEP_SECONDS)
        self._looked = now
        stalled, notices = {}, []
        for trial_id, heard in self._heard.items():
            silent = self._now - heard.at
            if self._timeout is not None and silent > self._timeout:
                stalled[trial_id] = f"no report for {_span(self._timeout)}{_since(heard.epoch)}"
            elif silent > NOTICE_SECONDS and not heard.noted:
                self._heard[trial_id] = replace(heard, noted=True)
                notices.append(self._notice(heard.trial))
        return stalled, notices

    def _notice(self, trial: Trial) -> str:
        follows = f"{option('trial_timeout', SUGGESTED)} would end such trials"
        if self._timeout is not None:
            follows = f"it is ended after {_span(self._timeout)}"
        return f"{trial.trial_id} {trial.name} has reported nothing for {_span(NOTICE_SECONDS)}; {follows}"


def _since(epoch: int | None) -> str:
    if epoch is None:
        return " since it began"
    return f" after epoch {epoch}" if epoch else " in its first epoch"


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"
