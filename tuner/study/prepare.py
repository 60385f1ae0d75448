"""Makes a study: from what was selected to a plan of its trials on these devices.

``tuner plan`` and a dry run stop here. What an earlier process did in a study that is resumed is read from its
journal as events, before anything is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tuner.decisions.claims import Claims
from tuner.decisions.constraints import STEP, known_figures
from tuner.decisions.events import Dropped
from tuner.decisions.packer import Packer
from tuner.decisions.plan import Plan
from tuner.decisions.policies import Engine, Policy, replay
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
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study, read_suggestions
from tuner.reporting import phases
from tuner.spec.settings import Settings
from tuner.spec.study_spec import StudySpec
from tuner.study.auto_batch import SizedTrials, packed_uniformly, size_batches
from tuner.study.needs import Estimates, Needs, unwanted
from tuner.study.planning import Replanning, check_estimate, plan_requests, to_trials, usable
from tuner.study.population import Population
from tuner.study.pruning import Pruning
from tuner.study.resume import check_same, description, events_of, with_batches_of, with_code
from tuner.study.sampled import Sampled
from tuner.study.sources import Listed
from tuner.trial import KNOWN, Device, MemoryEstimate, Request, Trial
from tuner.workloads.task import Tasks, load_tasks, objectives_of, smaller

CHANGED = "code       changed since the last trials: the column code_version says which ran with which"


@dataclass(frozen=True)
class Loaded:
    """A study with its data, before devices are looked at."""

    spec: StudySpec
    tasks: Tasks  # the workloads with their data
    trials: Sequence[Trial]
    record: StudyRecord  # what ``study.json`` says of the study that is resumed
    attempts: Sequence[Attempt]  # the lines of its journal

    @property
    def settings(self) -> Settings:
        """The study's options."""
        return self.spec.settings

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """What trials are compared by, by workload."""
        return objectives_of(self.tasks)

    @property
    def most_trials(self) -> int:
        """How many trials the study has at most, with those that a search may suggest."""
        return max(len(self.trials), (self.settings.num_samples or 0) if self.spec.search else 0)


@dataclass(frozen=True)
class Study(Loaded):
    """What is tried, on what, and with what. It is made once, before the first trial.

    Its ``trials`` are those that are known from the start, or what a search has suggested in earlier processes.
    """

    needs: Needs  # what trials need of the devices where they may run
    sized: SizedTrials  # the trials that are known from the start, each with a batch that is a number
    estimates: Estimates  # of these, and of what a search has suggested now, before the first trial
    plan: Plan  # how the trials share the devices
    requests: Sequence[Request] = ()  # the trials that are left to run
    infeasible: Sequence[Request] = ()  # those that fit no device and are left out
    seconds: float | None = None  # how long they are expected to take together; None if unknown
    left: int = 0  # how many more trials a search may suggest
    notes: Sequence[str] = ()  # on what is not as it was when the study began

    @property
    def count(self) -> int:
        """How many trials are left, without those that break constraints."""
        unfit = [request for request in self.infeasible if not unwanted(request, self.settings)]
        return len(self.requests) + len(unfit) + self.left

    @property
    def devices(self) -> Sequence[Device]:
        """Where trials may run."""
        return self.needs.devices


@dataclass(frozen=True)
class Steering:
    """A study's engine, and those of its policies that others ask, too."""

    engine: Engine
    feedback: StudyFeedback
    packer: Packer
    source: Listed  # where the trials come from
    order: int = 0  # of the last line on disk


def load(spec: StudySpec) -> Loaded:
    """Loads the data, and the record and the journal of a resumed study.

    Raises:
        InputError: data cannot be read, do not serve a configuration, or are not the resumed study's.
    """
    settings = spec.settings
    check_estimate(settings, [selection.workload for selection in spec.selections])
    folder = settings.resume
    record = read_study(Path(folder), option("resume", folder)) if folder else UNKNOWN
    if folder and not settings.dry_run:
        check_unused(Path(folder))  # a plan of what cannot begin would be for nothing
    trials = to_trials(spec.selections, settings)
    if record.auto_batch or any(is_auto(trial.config) for trial in trials):
        spec = replace(spec, settings=packed_uniformly(settings))
    trials, attempts = with_batches_of(record, trials), list[Attempt]()
    phases.show("loading data")
    tasks = load_tasks(spec.selections)
    if folder:
        check_same(record, description(tasks, trials, settings), folder)
        attempts = read_attempts(Path(folder) / ATTEMPTS, record)[0]
        _check_ids(attempts, trials, Path(folder))
    return Loaded(spec, tasks, trials, record, attempts)


@collecting_later()
def prepare(loaded: Loaded, devices: Sequence[Device]) -> tuple[Study, Steering]:
    """Estimates each trial's needs on these devices, and plans the trials that are left, or all if none is.

    A live search suggests its first trials.
    """
    settings, tasks, spec = loaded.settings, loaded.tasks, loaded.spec
    needs = Needs(tasks, usable(devices, settings), settings)
    has_auto = any(is_auto(trial.config) for trial in loaded.trials)
    sized = size_batches(needs, loaded.trials) if has_auto else SizedTrials(needs.of(loaded.trials))
    if settings.resume:
        sized = timed_as_before(sized, loaded.record.plan.epoch_seconds)
        needs.remember(sized.estimates)
    steering = _steering(loaded, needs, sized.estimates)
    source, limits = steering.source, needs.limits

    def planning(fit: Sequence[Request]) -> tuple[Plan, list[Request]]:
        return plan_requests(needs, fit, source.expected(len(fit)))

    source.begin(steering.engine, lambda fit: planning(fit)[0].workers)
    fit: Sequence[Request] = steering.engine.state.left
    infeasible = [event.request for event in source.begun if isinstance(event, Dropped)]
    check_known(source.estimates.requests, settings)
    notes = [source.searcher.differs] if source.searcher else []
    notes += [CHANGED] if loaded.record.code and with_code(loaded.record, tasks) != loaded.record else []
    planned = partial(
        Study,
        spec,
        tasks,
        [request.trial for request in sized.estimates.requests],
        loaded.record,
        loaded.attempts,
        needs,
        sized,
        source.estimates,
        infeasible=infeasible,
        left=source.left,
        notes=notes,
    )
    if settings.resume:  # by the peaks of its own trials, but none is too large by that
        corrected = steering.feedback.begin(fit, own_bytes(settings, needs.devices))
        corrected = sorted(corrected, key=lambda request: request.trial.trial_id)
        fit = [limits.bound(now, before) for before, now in zip(fit, corrected, strict=True)]
    if fit:
        plan, served = planning(fit)
        seconds = None if spec.is_endless else expected_seconds(served, plan, source.expected(len(fit)))
        return planned(plan=plan, requests=served, seconds=seconds), steering
    if infeasible and not loaded.attempts:
        smallest = min(infeasible, key=lambda request: request.need_bytes)
        if why := unwanted(smallest, settings):
            raise InputError(
                f"{option('constraints')}: no trial keeps all: of {len(infeasible)}, the smallest: {why}"
            )
        plan_requests(needs, [smallest])  # says why it does not fit
    shown = [limits.bound(request) for request in sized.estimates.requests]
    return planned(plan=plan_requests(needs, shown)[0]), steering


def _source(loaded: Loaded, needs: Needs, estimates: Estimates, packer: Packer) -> Listed:
    """Where the trials come from, of which these are known."""
    spec, common = loaded.spec, (needs, estimates, packer)
    if spec.search is None:
        return Listed(*common) if spec.population is None else Population(*common, spec.population)
    if not spec.search.searcher.asked_by_objectives:
        return Sampled(*common, spec.search)
    from tuner.study.objective_trials import UsersOptunaStudy

    return UsersOptunaStudy(*common, spec.search)


def _steering(loaded: Loaded, needs: Needs, estimates: Estimates) -> Steering:
    """The study's policies, after they have heard what an earlier process did."""
    settings, tasks = loaded.settings, loaded.tasks
    feedback = StudyFeedback({}, needs.samples, needs.samples_in_ram, needs.samples_of)
    retrying = Retrying(settings.retry_policy, partial(smaller, tasks), settings.seed)
    packer = Packer()
    source = _source(loaded, needs, estimates, packer)
    pruning = Pruning(objectives_of(tasks), settings, source.searcher)
    stopping = StudyStopping(objectives_of(tasks), settings.limits)
    adapts = settings.adaptive_workers and settings.max_workers is None
    concurrency = ConcurrencyTuner(on=adapts, more=lambda: source.left)
    again, claims = Replanning(settings, lambda: source.left), Claims(packer, lambda: source.left)
    policies: list[Policy] = [retrying, stopping, source, feedback, pruning, again, concurrency, claims, packer]
    engine = Engine(State(needs.limits), policies)
    if planned := source.planned():
        engine.take(planned)
    order = 0
    if settings.resume:
        folder = Path(settings.resume)
        lines, suggestions = read_epochs(folder / EPOCHS), read_suggestions(folder)
        orders = [line.order for listed in (loaded.attempts, lines, suggestions) for line in listed]
        order = max([0, *(one or 0 for one in orders)])
        trials = {request.trial.trial_id: source.paced(request.trial) for request in estimates.requests}
        happened = events_of(loaded.attempts, lines, trials, source.paced, source.recalled(suggestions))
        replay(engine, retrying, happened, source.goes_on)
        source.continue_paused(engine)
    return Steering(engine, feedback, packer, source, order)


def timed_as_before(sized: SizedTrials, kept: Mapping[str, float]) -> SizedTrials:
    """The trials with the times that were expected as their study began: since then, its own have been timed."""

    def timed(trial_id: str, estimate: MemoryEstimate) -> MemoryEstimate:
        now, step = estimate.epoch_seconds, estimate.step_seconds
        then = kept.get(trial_id, now) if kept else None
        return replace(estimate, epoch_seconds=then, step_seconds=then and now and step and step * (then / now))

    estimates = sized.estimates
    requests = [replace(one, estimate=timed(one.trial.trial_id, one.estimate)) for one in estimates.requests]
    raw = {trial_id: timed(trial_id, estimate) for trial_id, estimate in estimates.raw.items()}
    return replace(sized, estimates=replace(estimates, requests=tuple(requests), raw=raw))


def own_bytes(settings: Settings, devices: Sequence[Device]) -> int:
    """The size of this process if trials run in it, on the CPU; else 0."""
    return status().get("VmRSS", 0) if settings.in_process and devices[0].kind == "cpu" else 0


def check_known(requests: Sequence[Request], settings: Settings) -> None:
    """Refuses a constraint or an objective on a figure that is not known of trials before they run."""
    named = [("constraints", one.text, one.name) for one in settings.limited_by]
    named += [("metric", name, name) for name in settings.metric]
    for parameter, text, name in named:
        for request in requests if name in KNOWN else ():
            if name not in known_figures(request.estimate):
                rule = f"{name} of {request.trial.workload} is not known before it runs"
                way = option("memory_estimation", "measured") if name == STEP else option("estimate")
                raise ParameterError(parameter, text, rule, f"give {way}, or leave it out")


def _check_ids(attempts: Sequence[Attempt], trials: Sequence[Trial], folder: Path) -> None:
    """Refuses a journal with another study's trials, as their names would be used to remove files."""
    trial_ids = {trial.trial_id for trial in trials}
    for row in attempts:
        if row.trial_id not in trial_ids:
            raise InputError(
                f"{folder / ATTEMPTS}: trial_id is {row.trial_id!r:.60}; the study has no such trial; remove its line"
            )
