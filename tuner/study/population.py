"""Population-based training: members pause at a checkpoint, and bad ones take over that of a good one.

If the population is larger than what fits at once, its members take turns: the one that is furthest behind goes on
first. What a member takes over is decided when there is room for it, by what others had reached after as many epochs.
So all train equally long, however many run at once.
"""

import math
from dataclasses import dataclass, replace
from random import Random

from tuner.decisions.events import Decision, Ended, Event, Retried
from tuner.decisions.policies import Engine
from tuner.decisions.state import State
from tuner.errors import InputError, option
from tuner.search.domains import Space
from tuner.search.drawing import draws
from tuner.search.optuna_names import PBT, make_population, mutated
from tuner.spec.listed import to_configuration
from tuner.study.sources import Listed, following
from tuner.trial import Trial
from tuner.values import config_key
from tuner.workloads.task import objectives_of

INTERVALS = 10  # how many a trial has by default


@dataclass(frozen=True)
class Member:
    """A member of the population as it paused."""

    trial: Trial
    loss: float
    epochs: int


@dataclass(eq=False)
class Population(Listed):
    """Decides with which checkpoint and values a paused trial goes on."""

    space: Space  # all of its values may change, unless ``scheduler_options`` name some

    def __post_init__(self) -> None:
        (self._objective,) = objectives_of(self.tasks).values()
        self._options = make_population(self.settings.scheduler_options)
        self._options.keys(self.space, {})  # says if one is missing
        self._members: dict[int, dict[str, Member]] = {}  # by epochs and trial id

    def paced(self, trial: Trial) -> Trial:
        """The trial that pauses after its next interval, if it is not its last one."""
        epochs = trial.epochs or self._options.epochs or self.settings.epochs
        if not epochs:
            given = f"give {option('epochs')}, after how many reports a trial ends"
            raise InputError(f"{option('scheduler', PBT)}: {given}, or a key epochs to each configuration")
        until = trial.begun + (self._options.interval or max(1, epochs // INTERVALS))
        return replace(trial, until=until if until < epochs else 0)

    def continue_paused(self, engine: Engine) -> None:
        """Leaves them paused: ``decide`` says how each goes on."""

    def kept(self, state: State) -> set[str]:
        """The names of the checkpoints that a member may still take over."""
        unfinished = {name: request.trial for name, request in state.requests.items() if name not in state.ended}
        paused = {ended.trial.trial_id: ended.epochs for ended in state.paused}
        least = min((paused.get(name, trial.begun) for name, trial in unfinished.items()), default=math.inf)
        of_others = {
            member.trial.pause
            for epochs, members in self._members.items()
            for member in members.values()
            if epochs >= least
        }
        # A running trial may just have written its next one.
        return (
            of_others
            | {trial.pause for trial in unfinished.values()}
            | {trial.parent for trial in unfinished.values()}
        )

    def hear(self, state: State, event: Event) -> None:
        """Remembers how far each member is."""
        if isinstance(event, Ended) and event.result.status == "paused":
            value = event.metrics.get(self._objective.metric)
            loss = math.inf if value is None or not math.isfinite(value) else self._objective.loss(value)
            members = self._members.setdefault(event.epochs, {})
            members[event.trial.trial_id] = Member(event.trial, loss, event.epochs)

    def decide(self, state: State, now: float) -> Decision | None:
        """The next attempt of the member that is furthest behind, if there is room for it."""
        if not state.paused or state.plan is None or state.stopping or state.waiting or state.bounds is not None:
            return None
        behind = min(state.paused, key=lambda ended: (ended.epochs, ended.trial.trial_id))
        need = min(state.requests[behind.trial.trial_id].need_bytes, state.limits.device_bytes)
        return self.after(state, behind, now) if self.packer.room_bytes >= need else None

    def after(self, state: State, ended: Ended, now: float) -> Retried:
        """How a paused member goes on: by itself, or with the checkpoint and changed values of a better one."""
        random = Random(f"{self.settings.seed}/{ended.trial.trial_id}/{ended.epochs}")
        members = self._members[ended.epochs]
        member = members[ended.trial.trial_id]
        ranked = sorted(members.values(), key=lambda other: (other.loss, other.trial.trial_id))
        count = min(math.ceil(len(ranked) * self._options.quantile), len(ranked) // 2)
        source = random.choice(ranked[:count]) if member in ranked[len(ranked) - count :] else member
        taken = replace(following(ended.trial, source.epochs), config=source.trial.config, parent=source.trial.pause)
        trial = self.paced(taken)
        return self.goes_on(state, ended, trial if source is member else self._mutated(trial, random), now)

    def goes_on(self, state: State, ended: Ended, trial: Trial, now: float = 0.0) -> Retried:
        """This next attempt of a paused member, with the memory that its values need."""
        if config_key(trial.config) == config_key(state.requests[trial.trial_id].trial.config):
            return super().goes_on(state, ended, trial, now)
        estimates = self.needs.of([trial])
        return Retried(ended, estimates.requests[0], now, raw=estimates.raw[trial.trial_id])

    def _mutated(self, trial: Trial, random: Random) -> Trial:
        """The trial with changed values, as far as they fit a device and the checkpoint."""
        parameters = self.needs.of([trial]).requests[0].estimate.parameters
        drawn = next(draws(self.space, random.getrandbits(32)))
        (task,) = self.tasks.values()
        for key in self._options.keys(self.space, trial.config):
            domain, config = self.space[key], trial.config
            value = mutated(domain, config[key], drawn.get(key, config[key]), self._options.resample, random)
            try:
                values = to_configuration(task.workload, {**config, key: value}, "member").values
                (request,) = self.needs.of([replace(trial, config=values)]).requests
            except InputError:  # the values do not go together
                continue
            fit, _ = self.needs.fitting([request])
            if fit and request.estimate.parameters == parameters:  # else no checkpoint would go with it
                trial = request.trial
        return trial
