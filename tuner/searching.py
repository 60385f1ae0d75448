"""A study that searches a space: what it tries from the start, and what it asks for and stops as trials run.

A grid and random samples are configurations like any others, known before the study begins. A live search suggests a
trial whenever a device has room, by what came of those before; each suggestion is estimated as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.epochs import Line
from tuner.errors import InputError
from tuner.memory.estimate import memory_key
from tuner.planning import Estimates, estimate_requests, to_trials, within
from tuner.search.domains import Space, grid, parse_space
from tuner.search.sampling import PATIENCE, draw
from tuner.search.searchers import Searcher, State, to_searcher
from tuner.selection import choose, chosen_before, parse_override
from tuner.settings import Settings
from tuner.space import configurations, mode_file, name_of, read_space
from tuner.study_folder import Row
from tuner.trial import AUTO, GB, Configuration, Device, Request, Status, Trial, is_auto
from tuner.workloads import DEFAULT_WORKLOAD, find_workload
from tuner.workloads.base import Choice, Jobs, Workload

UP_FRONT = ("grid", "random")
BUILT_IN = (*UP_FRONT, "optuna")
SELECTION = ("workload", "mode", "config", "only", "limit", "overrides")
FIRST = 8  # so many suggestions are asked for before anything runs, to plan by; with fewer workers only so many
STATES: Mapping[Status, State] = {
    "completed": "completed",
    "pruned": "pruned",
    "diverged": "pruned",
    "out_of_memory": "pruned",
}


@dataclass
class LiveSearch:
    """Suggests a study's trials.

    Attributes:
        workload: what they train.
        searcher: what suggests values.
        fixed: values of all of them.
        settings: the study's.
        trials: those suggested so far, in the order of their ids.
        fault: why the last suggestion could not be used.
    """

    workload: Workload
    searcher: Searcher
    fixed: Mapping[str, Any]
    settings: Settings
    trials: list[Trial] = field(default_factory=list)
    fault: str = ""

    @property
    def left(self) -> int:
        """How many more it may suggest."""
        return (self.settings.num_samples or 0) - len(self.trials)

    def next(self, data: Any) -> Trial | None:
        """The next suggestion that can be used; None if there is none, now or ever.

        Values that do not go together are told to the searcher as such, and are no trial.

        Args:
            data: the workload's.
        """
        for _ in range(PATIENCE if self.left > 0 else 0):
            number = len(self.trials) + 1
            trial_id = f"t{number:0{max(3, len(str(self.settings.num_samples)))}d}"
            values = self.searcher.ask(trial_id)
            if values is None:
                return None
            try:
                found = _configuration(self.workload, {**self.fixed, **values}, f"suggestion-{number}")
                _refuse_prerequisites(self.workload, found)
                self.workload.check([found], data)
                (trial,) = to_trials([_choice(self.workload, [found])], self.settings)
            except InputError as error:
                self.fault = str(error)
                self.searcher.tell(trial_id, "pruned", None)
                continue
            self.trials.append(replace(trial, trial_id=trial_id))
            return self.trials[-1]
        return None

    def recall(self, trials: Sequence[Trial], ended: Mapping[str, Row], epochs: Iterable[Line]) -> None:
        """Tells the searcher again what it suggested before this process began, and what came of it.

        Args:
            trials: all of them.
            ended: by trial id the last line of those that have ended for good.
            epochs: what they said after their epochs.

        Raises:
            InputError: the searcher cannot be told.
        """
        self.trials = list(trials)
        reports: dict[str, list[Line]] = {}
        for line in epochs:
            reports.setdefault(line["trial_id"], []).append(line)
        for trial in trials:
            self.searcher.recall(trial.trial_id, trial.config)
            for line in reports.get(trial.trial_id, []):
                value = line["metrics"].get(self.workload.metric)
                if value is not None:
                    self.searcher.report(trial.trial_id, line["epoch"], value)
            if row := ended.get(trial.trial_id):
                self.tell(trial.trial_id, row["status"], row.get(self.workload.metric))

    def tell(self, trial_id: str, status: Status, value: float | None) -> None:
        """Tells the searcher how a trial has ended for good."""
        self.searcher.tell(trial_id, STATES.get(status, "failed"), value)


def choose_searched(
    options: Mapping[str, Any], study: Mapping[str, Any], search: Any
) -> tuple[list[Choice], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that goes on with it, if it is live.

    Args:
        options: every option of ``tune run``, with ``search`` as text and ``space`` plain.
        study: the content of ``study.json``, where a study is gone on with.
        search: what the user gave: one of ``BUILT_IN``, an Optuna sampler, or a searcher of Ray Tune.

    Raises:
        InputError: one of these cannot be used; data are not looked at.
    """
    _check(options, search)
    asked = {name: options[name] for name in SELECTION} | {"data": options["data"], "skip_bad": options["skip_bad"]}
    seed, split_seed = options["seed"], Settings.from_options(options).data_seed
    label = Path(options["config"]).stem if options["config"] else "space" if options["space"] else options["mode"]
    if isinstance(search, str) and search in UP_FRONT:
        listing = partial(_listing, options, search)
        choices, _ = choose(**asked, seed=split_seed, listing=listing)
        return choices, f"{search}-{label}", None
    name, space, fixed = _one_space(options, search)
    before, stored = study.get("configurations", []), study.get("options")
    if isinstance(stored, Mapping) and any(
        options[key] != stored.get(key) for key in (*SELECTION, "search", "space")
    ):
        raise InputError(f"--resume {options['resume']}: it searches another space: start a new study for this one")
    workload = find_workload(name)
    # Anew, a sampler with the same seed would begin with the same suggestions.
    searcher = to_searcher(search, space, workload.metric, seed + 1_000_003 * len(before))
    live = LiveSearch(workload, searcher, fixed, Settings.from_options(options))
    if before:
        choices = chosen_before(before, [name], options["data"], split_seed, options["skip_bad"])
    else:
        one = {name: configurations([{}], workload.schema, finish=workload.finish)}
        asked |= {"overrides": (), "workload": [name]}
        choices = [
            replace(each, configurations=[]) for each in choose(**asked, seed=split_seed, listing=lambda _: one)[0]
        ]
    return choices, f"{options['search']}-{label}", live


def fitting(
    requests: Sequence[Request], whole: int, jobs: Jobs, settings: Settings
) -> tuple[list[Request], list[Request]]:
    """The requests that some device can serve, and those that none can.

    Args:
        requests: of trials.
        whole: the most that a trial can be given, in bytes.
        jobs: what they train.
        settings: the study's.
    """
    fit = [within(request, whole, jobs, settings).need_bytes <= whole for request in requests]
    return (
        [request for request, fits in zip(requests, fit, strict=True) if fits],
        [request for request, fits in zip(requests, fit, strict=True) if not fits],
    )


def misfit_text(request: Request, whole: int) -> str:
    """Why a suggestion was not run."""
    return f"not run: needs {request.need_bytes / GB:.2f} GB, and no device has more than {whole / GB:.2f} GB for it"


def first_suggestions(
    live: LiveSearch,
    left: Sequence[Request],
    estimates: Estimates,
    jobs: Jobs,
    devices: Sequence[Device],
    whole: int,
) -> list[Request]:
    """What a live search suggests before anything runs, so that there is something to plan by.

    Args:
        live: the search.
        left: trials of a study that is gone on with.
        estimates: of all trials; those of the suggestions are added.
        jobs: what is trained.
        devices: where trials may run.
        whole: the most that a trial can be given, in bytes.

    Raises:
        InputError: there is none that can be used.
    """
    settings = live.settings
    found: list[Request] = []
    fit = len(fitting(left, whole, jobs, settings)[0])
    while fit < min(FIRST, settings.max_workers or FIRST) and (trial := live.next(jobs[live.workload.name].data)):
        request = estimated(trial, estimates, jobs, devices, settings)
        found.append(request)
        fit += bool(fitting([request], whole, jobs, settings)[0])
    if not live.trials:
        why = live.fault or "it suggests nothing"
        raise InputError(f"--search {settings.search}: none of its suggestions can be used: {why}")
    return found


def estimated(
    trial: Trial, estimates: Estimates, jobs: Jobs, devices: Sequence[Device], settings: Settings
) -> Request:
    """The request of a suggested trial, whose estimate is kept with the others'.

    One that takes the same memory as an earlier one has that one's.

    Raises:
        InputError: its footprint cannot be estimated.
    """
    key = memory_key(trial.config)
    if like := next((each for each in estimates.requests if memory_key(each.trial.config) == key), None):
        estimates.raw[trial.trial_id] = estimates.raw[like.trial.trial_id]
        estimates.requests.append(replace(like, trial=trial))
        return estimates.requests[-1]
    found = estimate_requests({trial.workload: jobs[trial.workload]}, [trial], devices, settings)
    estimates.raw.update(found.raw)
    estimates.requests.extend(found.requests)
    return found.requests[0]


def _check(options: Mapping[str, Any], search: Any) -> None:
    """Refuses options that do not go with a search, or with this one."""
    if isinstance(search, str) and search not in BUILT_IN:
        raise InputError(f"--search {search}: choose one of {', '.join(BUILT_IN)}")
    number = options["num_samples"]
    if search == "grid":
        if number is not None:
            raise InputError(f"--num-samples {number}: --search grid tries every combination: leave it out")
        return
    if number is None:
        raise InputError(f"--search {options['search']}: say by --num-samples how many configurations to try")
    Settings.from_options(options).check()
    if search == "random":
        return
    if options["seeds"] > 1:
        raise InputError(
            f"--seeds {options['seeds']}: --search {options['search']} trains each suggestion once: leave it out"
        )
    for name in ("only", "limit"):
        if options[name] is not None:
            raise InputError(
                f"--{name} {options[name]}: has no effect with --search {options['search']}: leave it out"
            )


def _listing(options: Mapping[str, Any], search: str, names: Sequence[str]) -> dict[str, list[Configuration]]:
    """The configurations of a grid or of random samples."""
    found = {}
    for name, workload, space, fixed, source in _spaces(options, names):
        if search == "grid":
            values = grid(space, source)
            entries = [{**fixed, **each, "name": name_of(each)} for each in values]
        else:
            usable = partial(_unusable, workload, fixed)
            values = draw(space, options["num_samples"], options["seed"], source, usable)
            width = len(str(len(values)))
            entries = [
                {**fixed, **each, "name": f"sample-{number:0{width}d}"} for number, each in enumerate(values, 1)
            ]
        found[name] = configurations(entries, workload.schema, source=source, finish=workload.finish)
    return found


def _one_space(options: Mapping[str, Any], search: Any) -> tuple[str, Space, Mapping[str, Any]]:
    """The workload, the space and the fixed values of a live search; a searcher of Tune's may have its own space."""
    asked = [options["workload"]] if isinstance(options["workload"], str) else list(options["workload"])
    own = search != "optuna" and options["space"] is None and options["config"] is None
    if len(asked) > 1:
        raise InputError(f"--search {options['search']}: takes one workload, not {', '.join(asked)}")
    if own:
        return find_workload(asked[0] if asked else DEFAULT_WORKLOAD).name, {}, _fixed(options)
    ((name, _, space, fixed, source),) = _spaces(options, asked)
    if any(AUTO in domain.values for domain in space.values()) or is_auto(fixed):
        raise InputError(f"{source}: {AUTO}: a batch is found for trials that are known: use --search random or grid")
    return name, space, fixed


def _spaces(
    options: Mapping[str, Any], names: Sequence[str]
) -> list[tuple[str, Workload, Space, Mapping[str, Any], str]]:
    """Of each workload its name, itself, its space, the values of all configurations, and what messages call that."""
    if options["space"] is not None and options["config"]:
        raise InputError("space and config were both given: leave one of them out")
    if options["space"] is not None:
        given: list[tuple[object, Mapping[str, Any], str]] = [(options["space"], {}, "space")] * max(1, len(names))
    elif options["config"]:
        given = [(*read_space(Path(options["config"])), str(options["config"]))] * max(1, len(names))
    else:
        files = [mode_file(name, options["mode"]) for name in names or [DEFAULT_WORKLOAD]]
        given = [(*read_space(file), str(file)) for file in files]
    raw, defaults, _ = given[0]
    named = {**defaults, **(raw if isinstance(raw, Mapping) else {})}.get("workload", DEFAULT_WORKLOAD)
    found: list[tuple[str, Workload, Space, Mapping[str, Any], str]] = []
    for name, (space, common, source) in zip(names or [str(named)], given, strict=True):
        workload = find_workload(name)
        fixed = {key: value for key, value in {**common, **_fixed(options)}.items() if key != "workload"}
        mine = space
        if isinstance(space, Mapping):
            mine = {key: value for key, value in space.items() if key != "workload" and key not in _fixed(options)}
        parsed = parse_space(mine, workload.schema, source) if mine or not _fixed(options) else {}
        configurations([fixed], workload.schema, source=source)
        found.append((workload.name, workload, parsed, fixed, source))
    return found


def _fixed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``--set``."""
    return dict(parse_override(text) for text in options["overrides"])


def _unusable(workload: Workload, fixed: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    try:
        _configuration(workload, {**fixed, **values}, "sample")
    except InputError as error:
        return str(error)
    return ""


def _configuration(workload: Workload, values: Mapping[str, Any], name: str) -> Configuration:
    """The complete configuration of some values.

    Raises:
        InputError: the workload does not allow them, they do not go together, or something must be trained first.
    """
    (found,) = configurations(
        [{**values, "name": name}], workload.schema, source="a suggestion", finish=workload.finish
    )
    _choice(workload, [found])
    return found


def _refuse_prerequisites(workload: Workload, found: Configuration) -> None:
    for key, wanted in workload.prerequisites(found.values).items():
        raise InputError(f"{wanted.name} must be trained first: do that, and give the path by --set {key}=PATH")


def _choice(workload: Workload, listed: Sequence[Configuration]) -> Choice:
    return Choice(workload, lambda: None, listed)
