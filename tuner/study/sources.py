"""Where a study's trials come from: one protocol, and the lists that are known before a study begins.

``sampled.py`` has the searches that suggest trials while others run, ``population.py`` the lists whose trials take
over each other's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tuner.decisions.events import Decision, Dropped, Ended, Event, Planned, Retried
from tuner.decisions.packer import Packer
from tuner.decisions.policies import Engine, goes_on
from tuner.decisions.state import State
from tuner.records.study_record import Scale, Suggestion
from tuner.search.searchers import Searcher
from tuner.spec.settings import Settings
from tuner.study.needs import Estimates, Needs
from tuner.trial import Outcome, Question, Request, Trial
from tuner.workloads.task import Tasks


class Objectives(Protocol):
    """The objectives of a user's own Optuna study, which ask for their values as they run."""

    def hear(self, state: State, event: Event) -> None:
        """An event of the study has happened."""

    def answer(self, question: Question) -> object:
        """The answer to a trial's question; raises what is to be raised in the trial."""

    def described(self, outcome: Outcome) -> Outcome:
        """The outcome with what its trial has asked for."""


@dataclass(eq=False)
class Listed:
    """A list of trials, all known before the study begins. Other sources override what differs.

    It is one of the study's policies, and decides nothing.
    """

    needs: Needs
    listed: Estimates  # of the trials that the study began with
    packer: Packer
    begun: list[Planned | Dropped] = field(default_factory=list, init=False)  # decisions before there is a folder

    searcher: Searcher | None = field(default=None, init=False)  # is told how trials end
    objectives: Objectives | None = field(default=None, init=False)  # those of a user's own Optuna study

    @property
    def tasks(self) -> Tasks:
        """The workloads with their data."""
        return self.needs.tasks

    @property
    def settings(self) -> Settings:
        """The study's options."""
        return self.needs.settings

    @property
    def left(self) -> int:
        """How many more trials it may suggest."""
        return 0

    @property
    def estimates(self) -> Estimates:
        """Those of all trials so far."""
        return self.listed

    def expected(self, known: int) -> int:
        """How many trials there will be, if so many are known."""
        return known + self.left

    def hear(self, state: State, event: Event) -> None:
        """An event has happened."""

    def decide(self, state: State, now: float) -> Decision | None:
        """What is tried next."""
        return None

    def planned(self) -> Planned | None:
        """The trials that the study begins with; None if it has none yet."""
        requests = tuple(replace(request, trial=self.paced(request.trial)) for request in self.listed.requests)
        return Planned(requests, self.listed.raw) if requests else None

    def recalled(self, suggestions: Sequence[Suggestion]) -> list[tuple[int | None, Planned]]:
        """The suggestions of earlier processes, each with its order."""
        return []

    def begin(self, engine: Engine, workers: Callable[[Sequence[Request]], int]) -> None:
        """Drops the trials that fit no device, where the options allow that."""
        if self.settings.search or self.settings.skip_too_large or self.settings.constraints:
            for request in self.needs.fitting(engine.state.left)[1]:
                self._begin_with(engine, self.needs.dropped(request))

    def paced(self, trial: Trial) -> Trial:
        """The trial as it runs; a member of a population pauses."""
        return trial

    def goes_on(self, state: State, ended: Ended, trial: Trial, now: float = 0.0) -> Retried:
        """This next attempt of a trial that has paused."""
        return goes_on(state, ended, trial, now)

    def continue_paused(self, engine: Engine) -> None:
        """Lets trials that an earlier process has paused go on by themselves."""
        for paused in engine.state.paused:
            engine.take(goes_on(engine.state, paused, following(paused.trial, paused.epochs)))

    def kept(self, state: State) -> set[str] | None:
        """The names of the checkpoints that a trial may still take over; None if no trial ever does."""
        return None

    def open(self, folder: Path, state: State) -> None:
        """The study has a folder, and its trials are about to run."""

    def scales(self) -> dict[str, Scale]:
        """The scale of each range that objectives asked for, by hyperparameter."""
        return {}

    def ended_early(self) -> str:
        """A line on why there are fewer trials than it might have suggested; empty if there are not."""
        return ""

    def _begin_with(self, engine: Engine, decision: Planned | Dropped) -> None:
        self.begun.append(decision)
        engine.take(decision)


def following(trial: Trial, epochs: int) -> Trial:
    """The next attempt of a trial that paused after this number of epochs. It goes on from that checkpoint."""
    return replace(trial, attempt=trial.attempt + 1, parent=trial.pause, begun=epochs, until=0)
