"""Makes a study: from what was selected to a plan of its trials on these devices.

``tuner plan`` and a dry run stop here. What an earlier process did in a study that is resumed is read from its
journal as events, before anything is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.decisions.constraints import STEP, known_figures
from tuner.decisions.events import Dropped, Planned
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan, host_need_bytes, need_bytes
from tuner.decisions.policies import Engine, Policy, goes_on, replay
from tuner.decisions.retry import Retrying
from tuner.decisions.state import State
from tuner.decisions.stopping import StudyStopping
from tuner.decisions.throughput import ConcurrencyTuner
from tuner.errors import InputError, ParameterError, option
from tuner.estimation.feedback import StudyFeedback
from tuner.execution.simulation import expected_seconds
from tuner.hyperparameters import is_auto
from tuner.machine.holders import status
from tuner.objective import Objective
from tuner.records.attempts import Attempt
from tuner.records.checking import collecting_later
from tuner.records.epochs import read_epochs
from tuner.records.files import ATTEMPTS, EPOCHS
from tuner.records.journal import read_attempts
from tuner.records.study_folder import check_unused
from tuner.records.study_record import UNKNOWN, Scale, StudyRecord, read_study, read_suggestions
from tuner.reporting import phases
from tuner.search.domains import Space
from tuner.spec.settings import Settings
from tuner.study.auto_batch import SizedTrials, packed_uniformly, size_batches
from tuner.study.live_search import Search, Searching, fitting, unwanted
from tuner.study.planning import Estimates, TrialLimits, check_estimate, limits_of, plan_requests, to_trials, usable
from tuner.study.population import Population, following
from tuner.study.pruning import Pruning
from tuner.study.resume import asks_of, check_same, description, events_of, with_batches_of, with_code
from tuner.trial import KNOWN, Device, MemoryEstimate, Request, Trial
from tuner.workloads.task import Selection, Tasks, load_tasks, objectives_of, smaller

if TYPE_CHECKING:
    from tuner.study.objective_trials import ObjectiveTrials


CHANGED = "code       changed since the last trials: the column code_version says which ran with which"
PLANNED = 1000  # for so many trials is planned where nobody has said how many there will be


@dataclass(frozen=True)
class Selected:
    """What is to be tried, and who asked for it."""

    selections: Sequence[Selection]  # what to try of each workload, in the order in which trials are numbered
    settings: Settings
    label: str = ""  # ends the default folder's name: the mode
    command: str = ""  # what the user called
    # The options of ``tuner run`` that make this study, with which it is resumed; None if the call alone does.
    options: Mapping[str, object] | None = None
    # Suggests trials as others end; those in ``selections`` are what it suggested before.
    search: Search | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of the ranges in the space, by hyperparameter
    population: Space | None = None  # the space of a population that is trained by ``pbt``
    optuna: ObjectiveTrials | None = None  # of a user's own Optuna study, whose trials these are
    shows_end: bool = False  # tables, advice and how to repeat the best trial are printed
    returns_table: bool = False  # the caller returns a table that a notebook shows, so that none is printed there
    from_python: bool = False  # the user called a function, so that texts name its parameters

    @property
    def is_endless(self) -> bool:
        """Whether nobody has said how many trials there will be."""
        return self.search is not None and self.search.endless


@dataclass(frozen=True)
class Study:
    """What is tried, on what, and with what. It is made once, before the first trial."""

    selected: Selected
    settings: Settings
    tasks: Tasks  # the workloads with their data
    record: StudyRecord  # what ``study.json`` says of the study that is resumed
    attempts: Sequence[Attempt]  # the lines of its journal
    devices: tuple[Device, ...]  # where trials may run
    sized: SizedTrials  # the trials that are known from the start, each with a batch that is a number
    trials: Sequence[Trial]  # these, or what a search has suggested in earlier processes
    estimates: Estimates  # of these, and of what it has suggested now, before the first trial
    plan: Plan  # how the trials share the devices
    requests: Sequence[Request] = ()  # the trials that are left to run
    infeasible: Sequence[Request] = ()  # those that fit no device and are left out
    seconds: float | None = None  # how long they are expected to take together; None if unknown
    left: int = 0  # how many more trials a search may suggest
    notes: Sequence[str] = ()  # on what is not as it was when the study began

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """What trials are compared by, by workload."""
        return objectives_of(self.tasks)

    @property
    def count(self) -> int:
        """How many trials are left, without those that break constraints."""
        unfit = [request for request in self.infeasible if not unwanted(request, self.settings)]
        return len(self.requests) + len(unfit) + self.left

    @property
    def limits(self) -> TrialLimits:
        """The upper bounds of a trial's memory."""
        return limits_of(self.devices, self.settings)


@dataclass(frozen=True)
class Steering:
    """A study's engine, and those of its policies that others ask, too."""

    engine: Engine
    feedback: StudyFeedback
    packer: Packer
    searching: Searching | None
    population: Population | None = None
    order: int = 0  # of the last line on disk


@dataclass(frozen=True)
class Loaded:
    """A selection with its data, before devices are looked at."""

    selected: Selected
    settings: Settings
    tasks: Tasks
    trials: Sequence[Trial]
    record: StudyRecord = UNKNOWN
    attempts: Sequence[Attempt] = ()

    @property
    def most_trials(self) -> int:
        """How many trials the study has at most, with those that a search may suggest."""
        return max(len(self.trials), (self.settings.num_samples or 0) if self.selected.search else 0)


def load(selected: Selected) -> Loaded:
    """Loads the data, and the record and the journal of a resumed study.

    Raises:
        InputError: data cannot be read, do not serve a configuration, or are not the resumed study's.
    """
    settings = selected.settings
    check_estimate(settings, [selection.workload for selection in selected.selections])
    folder = settings.resume
    record = read_study(Path(folder), option("resume", folder)) if folder else UNKNOWN
    if folder and not settings.dry_run:
        check_unused(Path(folder))  # a plan of what cannot begin would be for nothing
    trials = to_trials(selected.selections, settings)
    if record.auto_batch or any(is_auto(trial.config) for trial in trials):
        settings = packed_uniformly(settings)
    trials, attempts = with_batches_of(record, trials), list[Attempt]()
    phases.show("loading data")
    tasks = load_tasks(selected.selections)
    if folder:
        check_same(record, description(tasks, trials, settings), folder)
        attempts = read_attempts(Path(folder) / ATTEMPTS, record)[0]
        _check_ids(attempts, trials, Path(folder))
    return Loaded(selected, settings, tasks, trials, record, attempts)


@collecting_later()
def prepare(loaded: Loaded, devices: Sequence[Device]) -> tuple[Study, Steering]:
    """Estimates each trial's needs on these devices, and plans the trials that are left, or all if none is.

    A live search suggests its first trials.
    """
    settings, tasks = loaded.settings, loaded.tasks
    mine = usable(devices, settings)
    sized = size_batches(tasks, loaded.trials, mine, settings)
    if settings.resume:
        sized = timed_as_before(sized, loaded.record.plan.epoch_seconds)
    steering = _steering(loaded, mine, sized)
    searching, limits = steering.searching, limits_of(mine, settings)

    def planning(fit: Sequence[Request]) -> tuple[int, Plan, list[Request]]:
        trials = len(fit) + searching.left if searching else 0
        trials = min(trials, PLANNED) if loaded.selected.is_endless else trials
        return trials, *plan_requests(tasks, fit, mine, settings, trials)

    if searching:
        searching.begin(steering.engine, lambda fit: planning(fit)[1].workers)
    left = steering.engine.state.left
    makes_room = settings.search or settings.skip_too_large or settings.constraints
    fit, infeasible = fitting(left, limits, tasks, settings) if makes_room else (left, [])
    begun = searching.begun if searching else []
    infeasible += [event.request for event in begun if isinstance(event, Dropped)]
    known = searching.estimates if searching else sized.estimates
    check_known(known.requests, settings)
    more = searching.left if searching else 0
    listed = [request.trial for request in sized.estimates.requests]
    before = (loaded.selected, settings, tasks, loaded.record, loaded.attempts)
    notes = [searching.search.searcher.differs] if searching else []
    notes += [CHANGED] if loaded.record.code and with_code(loaded.record, tasks) != loaded.record else []
    planned = partial(Study, *before, mine, sized, listed, known, infeasible=infeasible, left=more, notes=notes)
    if settings.resume:  # by the peaks of its own trials, but none is too large by that
        found = sorted(steering.feedback.begin(fit, own_bytes(settings, mine)), key=lambda one: one.trial.trial_id)
        fit = [
            _bounded(now, *map(max, limits.of(was.trial), (was.need_bytes, was.host_bytes)))
            for was, now in zip(fit, found, strict=True)
        ]
    if fit:
        trials, plan, served = planning(fit)
        seconds = None if loaded.selected.is_endless else expected_seconds(served, plan, trials)
        return planned(plan=plan, requests=served, seconds=seconds), steering
    if infeasible and not loaded.attempts:
        smallest = min(infeasible, key=lambda request: request.need_bytes)
        if why := unwanted(smallest, settings):
            raise InputError(
                f"{option('constraints')}: no trial keeps all: of {len(infeasible)}, the smallest: {why}"
            )
        plan_requests(tasks, [smallest], mine, settings)  # says why it does not fit
    shown = [_bounded(request, limits.device_bytes, limits.ram_bytes) for request in sized.estimates.requests]
    return planned(plan=plan_requests(tasks, shown, mine, settings)[0]), steering


def _steering(loaded: Loaded, devices: tuple[Device, ...], sized: SizedTrials) -> Steering:
    """The study's policies, after they have heard what an earlier process did."""
    settings, tasks, search, estimates = loaded.settings, loaded.tasks, loaded.selected.search, sized.estimates
    feedback = StudyFeedback({}, estimates.known, need_bytes, estimates.known_in_ram, host_need_bytes)
    retrying = Retrying(settings.retry_policy, partial(smaller, tasks), settings.seed)
    packer, searcher = Packer(), search.searcher if search else None
    searching = Searching(search, tasks, devices, settings, estimates, packer) if search else None
    # A user's Optuna study hears of trials from their objectives.
    pruning = Pruning(objectives_of(tasks), settings, None if loaded.selected.optuna else searcher)
    enough = StudyStopping(objectives_of(tasks), settings.limits)
    concurrency, limits = ConcurrencyTuner(on=settings.adaptive_workers), limits_of(devices, settings)
    space = loaded.selected.population
    population = Population(space, tasks, devices, settings, packer) if space is not None else None
    live = [policy for policy in (searching, population) if policy is not None]
    policies: list[Policy] = [retrying, enough, *live, feedback, pruning, concurrency, packer]
    engine = Engine(State(limits.device_bytes, limits.ram_bytes), policies)
    paced: Callable[[Trial], Trial] = population.paced if population else lambda trial: trial
    requests = tuple(replace(request, trial=paced(request.trial)) for request in estimates.requests)
    if requests and not search:
        engine.take(Planned(requests, estimates.raw))
    order = 0
    if settings.resume:
        folder = Path(settings.resume)
        lines, suggestions = read_epochs(folder / EPOCHS), read_suggestions(folder)
        order = max([0, *(row.order or 0 for row in loaded.attempts), *(line.order or 0 for line in lines)])
        order = max([order, *(line.order or 0 for line in suggestions)])
        asked = asks_of(suggestions, estimates) if search else []
        trials = {request.trial.trial_id: request.trial for request in requests}
        replay(
            engine,
            retrying,
            events_of(loaded.attempts, lines, trials, paced, asked),
            population.goes_on if population else goes_on,
        )
        for paused in [] if population else engine.state.paused:
            engine.take(goes_on(engine.state, paused, following(paused.trial, paused.epochs)))
    return Steering(engine, feedback, packer, searching, population, order)


def timed_as_before(sized: SizedTrials, kept: Mapping[str, float]) -> SizedTrials:
    """The trials with the times that were expected as their study began: since then, its own have been timed."""

    def timed(trial_id: str, estimate: MemoryEstimate) -> MemoryEstimate:
        now, step = estimate.epoch_seconds, estimate.step_seconds
        then = kept.get(trial_id, now) if kept else None
        return replace(estimate, epoch_seconds=then, step_seconds=then and now and step and step * (then / now))

    known = sized.estimates
    requests = [replace(one, estimate=timed(one.trial.trial_id, one.estimate)) for one in known.requests]
    raw = {trial_id: timed(trial_id, estimate) for trial_id, estimate in known.raw.items()}
    return replace(sized, estimates=replace(known, requests=tuple(requests), raw=raw))


def _bounded(request: Request, most: int, ram: int) -> Request:
    return replace(request, need_bytes=min(request.need_bytes, most), host_bytes=min(request.host_bytes, ram))


def own_bytes(settings: Settings, devices: Sequence[Device]) -> int:
    """The size of this process if trials run in it, on the CPU; else 0."""
    return status().get("VmRSS", 0) if settings.in_process and devices[0].kind == "cpu" else 0


def check_known(requests: Sequence[Request], settings: Settings) -> None:
    """Refuses a constraint or an objective on a figure that is not known of trials before they run."""
    asked = [("constraints", one.text, one.name) for one in settings.limited_by]
    asked += [("metric", name, name) for name in settings.metric]
    for parameter, text, name in asked:
        for request in requests if name in KNOWN else ():
            if name not in known_figures(request.estimate):
                rule = f"{name} of {request.trial.workload} is not known before it runs"
                way = option("memory_estimation", "measured") if name == STEP else option("estimate")
                raise ParameterError(parameter, text, rule, f"give {way}, or leave it out")


def _check_ids(attempts: Sequence[Attempt], trials: Sequence[Trial], folder: Path) -> None:
    """Refuses a journal with another study's trials, as their names would be used to remove files."""
    known = {trial.trial_id for trial in trials}
    for row in attempts:
        if row.trial_id not in known:
            raise InputError(
                f"{folder / ATTEMPTS}: trial_id is {row.trial_id!r:.60}; the study has no such trial; remove its line"
            )
