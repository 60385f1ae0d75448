"""A search that suggests trials while others run, each estimated as it comes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.decisions.constraints import INFEASIBLE
from tuner.decisions.events import CapacityObserved, Corrected, Decision, Dropped, Event, Opened, Planned, Started
from tuner.decisions.policies import Engine
from tuner.decisions.state import State
from tuner.decisions.stopping import StudyStopping
from tuner.errors import InputError, option
from tuner.estimation.estimate_cache import memory_key
from tuner.records.study_record import Suggestion
from tuner.reporting.texts import count_text
from tuner.search.drawing import MAX_REJECTED_DRAWS
from tuner.spec.listed import to_configuration
from tuner.spec.searched import fewer
from tuner.spec.study_spec import Search
from tuner.study.needs import Estimates, unwanted
from tuner.study.planning import to_trials
from tuner.study.sources import Listed
from tuner.trial import ConfigValue, MemoryEstimate, Request, Trial
from tuner.workloads.protocols import OptionalMethods, call, prerequisites
from tuner.workloads.task import Selection

ESTIMATES = 8  # the most consecutive suggestions whose footprint cannot be estimated
PLANNED = 1000  # the number of trials to plan for if nobody has said how many there will be


@dataclass(eq=False)
class Sampled(Listed):
    """Decides what is tried next: asks a search for a trial wherever there is room, and estimates its needs.

    Values that do not go together, or whose footprint cannot be estimated, are told to the searcher as unfit, and are
    no trial: a model that cannot be built of some values must not end the trials of others.
    """

    search: Search

    def __post_init__(self) -> None:
        self.searcher = self.search.searcher
        self._requests: list[Request] = []  # of all trials so far
        self._raw: dict[str, MemoryEstimate] = {}  # theirs
        self._fault = ""  # why the last suggestion could not be used; empty if it could
        self._infeasible = 0  # suggestions that break a constraint
        self._refused: dict[str, str] = {}  # why there is no estimate, by ``memory_key``
        self._least = 0  # the smallest need so far
        self._new = ""  # the last suggestion, until it is known whether a device has room for it
        self._asked: Mapping[str, ConfigValue] = {}  # the values of the last one
        self._unusable: list[Mapping[str, ConfigValue]] = []  # those before it that cannot be used
        self._rests = False  # whether it has just suggested nothing that can be used

    @property
    def left(self) -> int:
        """How many more trials it may suggest. Up to ``INFEASIBLE`` times as many may break constraints besides."""
        most = self.search.most or self.settings.num_samples or 0
        return most + min(self._infeasible, INFEASIBLE * most) - len(self._requests)

    @property
    def estimates(self) -> Estimates:
        """Those of all trials so far."""
        return replace(self.listed, requests=tuple(self._requests), raw=dict(self._raw))

    def expected(self, known: int) -> int:
        """How many trials there will be, if so many are known; at most ``PLANNED`` if there is no end."""
        expected = super().expected(known)
        return min(expected, PLANNED) if self.search.endless else expected

    def planned(self) -> None:
        """None, as earlier suggestions are recalled."""

    def recalled(self, suggestions: Sequence[Suggestion]) -> list[tuple[int | None, Planned]]:
        """The suggestions of earlier processes, each with its order."""
        lines = {line.number: line for line in suggestions if line.configuration}
        asks: list[tuple[int | None, Planned]] = []
        for number, request in enumerate(self.listed.requests, 1):
            line, trial_id = lines.get(number, Suggestion(number=number)), request.trial.trial_id
            raw = {trial_id: self.listed.raw[trial_id]}
            asks.append((line.order, Planned((request,), raw, refused=tuple(line.refused))))
        alone = [line for line in suggestions if not line.configuration]
        return [*asks, *((line.order, Planned((), {}, refused=tuple(line.refused))) for line in alone)]

    def hear(self, state: State, event: Event) -> None:
        """Counts the trials, and remembers their estimates."""
        if not isinstance(event, CapacityObserved):
            self._rests = isinstance(event, Planned) and not event.requests
        if isinstance(event, Planned):
            self._requests += event.requests
            self._raw |= event.raw
            for request in event.requests:
                self._infeasible += bool(unwanted(request, self.settings))
            self._new = event.requests[-1].trial.trial_id if state.plan and event.requests else ""
            self._least = min([self._least, *(request.need_bytes for request in event.requests)])
        elif isinstance(event, Opened):
            self._least = min((request.need_bytes for request in event.requests), default=0)
        elif isinstance(event, (Corrected, Started)):
            self._new = ""
            corrected = event.requests.values() if isinstance(event, Corrected) else ()
            self._least = min([self._least, *(request.need_bytes for request in corrected)])

    def decide(self, state: State, now: float) -> Decision | None:
        """Drops the last suggestion if it fits no device; suggests another one where there is room and none waits."""
        if state.plan is None or state.stopping or state.bounds is not None:
            return None
        request = state.waiting.get(self._new)
        if request and self.needs.fitting([request])[1]:
            return self.needs.dropped(request)
        least = min(self._least, state.limits.device_bytes)  # a trial that needs more gets a whole device
        if state.waiting or self._rests or self.packer.room_bytes < max(1, least):
            return None
        return self.suggest()

    def suggest(self) -> Planned | None:
        """The next suggestion that can be used, and those before it that cannot; None if there are neither."""
        self._unusable = []
        for _ in range(ESTIMATES):
            trial = self._next(self.tasks[self.search.workload.name].data)
            if trial is None:
                break
            key = memory_key(trial.config)
            if key not in self._refused:
                try:
                    estimates = self.needs.of([trial])
                except InputError as error:
                    self._refused[key] = str(error)
                else:
                    self._fault = ""
                    return Planned(estimates.requests, estimates.raw, suggested=True, refused=tuple(self._unusable))
            self._refuse(trial.trial_id, self._refused[key])
        return Planned((), {}, suggested=True, refused=tuple(self._unusable)) if self._unusable else None

    def begin(self, engine: Engine, workers: Callable[[Sequence[Request]], int]) -> None:
        """Suggests trials before any runs, besides those that are left, so that they can be planned.

        They are as many as can run at once, for which ``workers`` plans, and at most ``first`` of the search; none
        if an earlier process had seen enough. Those that fit no device are dropped.

        Raises:
            InputError: none of its suggestions can be used, or the study has more than are asked for.
        """
        self._rests = False
        if self.left < 0:
            raise fewer(self.settings, (self.settings.num_samples or 0) - self.left)
        over = any(
            isinstance(policy, StudyStopping) and policy.decide(engine.state, 0.0) for policy in engine.policies
        )
        while True:
            fit, infeasible = self.needs.fitting(engine.state.left)
            most = min(self.search.first, workers(fit)) if fit else 1
            decided: Planned | Dropped | None = None
            if infeasible:
                decided = self.needs.dropped(infeasible[0])
            elif not (over or self._rests) and len(fit) < most:
                decided = self.suggest()
            if decided is None:
                break
            self._begin_with(engine, decided)
        if not self._requests:
            why = self._fault or "it suggests nothing"
            search = option("search", self.settings.search)
            raise InputError(f"{search}: none of its suggestions can be used: {why}")

    def ended_early(self) -> str:
        """A line on why there are fewer trials than it might have suggested; empty if there are not."""
        if self._infeasible and not self.left:
            constraints = option("constraints")
            return f"search: {count_text(self._infeasible, 'suggestion')} broke {constraints} and did not run"
        if not self.left:
            return ""
        done, why = len(self._requests), f", the last one because of {self._fault}" if self._fault else ""
        trials = count_text(done, "trial")
        if not self.search.endless:
            trials = f"{done} of {count_text(done + self.left, 'trial')}"
        return f"search: ended after {trials}, {self._ended_by() or f'as it suggests none that can be used{why}'}"

    def _ended_by(self) -> str:
        """What else has ended it."""
        return ""

    def _next(self, data: object) -> Trial | None:
        workload, searcher = self.search.workload, self.search.searcher
        for _ in range(MAX_REJECTED_DRAWS if self.left > 0 else 0):
            number = len(self._requests) + 1
            trial_id = f"t{number:0{max(3, len(str(self.settings.most_suggestions)))}d}"
            if (values := searcher.ask(trial_id)) is None:
                return None
            self._asked = values
            try:
                name = self.search.name_of(trial_id)
                configuration = to_configuration(workload, {**self.search.fixed, **values}, name)
                for key, wanted in prerequisites(workload, configuration.values).items():
                    path = option("overrides", f"{key}=PATH")
                    raise InputError(f"{wanted.name} must be trained first: do that, and give the path by {path}")
                call(workload, OptionalMethods.check, None, [configuration], data)
                (trial,) = to_trials([Selection(workload, lambda: None, [configuration])], self.settings)
                return replace(trial, trial_id=trial_id)
            except InputError as error:
                self._refuse(trial_id, str(error))
        return None

    def _refuse(self, trial_id: str, reason: str) -> None:
        self._fault = reason
        self._unusable.append(self._asked)
        self.search.searcher.tell(trial_id, "unfit")
