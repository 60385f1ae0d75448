"""From a search and a space to what a study tries.

A grid and random samples are configurations like any others, known before the study begins. A live search suggests a
trial whenever a device has room, by what came of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tuner.errors import InputError, ParameterError, both_given, option
from tuner.objective import Objective
from tuner.records.study_record import StudyRecord
from tuner.search.configurations import GivenSpace, given_space, has_space, mode_file, named, read_space
from tuner.search.drawing import MAX_REJECTED_DRAWS, Draws, check_number, grid, without_grid
from tuner.search.optuna_names import FIFO, PBT, UP_FRONT, check_choice, make_pruner, make_sampler
from tuner.search.searchers import RaySearcher, Searcher, is_of_tune
from tuner.search.spaces import flat_keys, kinds_of, parse_points, parse_space
from tuner.spec.listed import choose, configurations_of, label_of, parse_override, selections_of, to_configuration
from tuner.spec.settings import Settings
from tuner.spec.study_spec import Search, SearchedSpace, StudySpec
from tuner.trial import AUTO, UNNAMED, Configuration, ConfigValue
from tuner.workloads.base import DEFAULT_WORKLOAD, Trainable, is_built_in
from tuner.workloads.lookup import Finder, as_list
from tuner.workloads.objectives import objective_of

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


def is_up_front(settings: Settings) -> bool:
    """Whether a search's configurations are known before the study begins. Constraints make others follow."""
    return settings.search in UP_FRONT and not (settings.search == "random" and settings.constraints)


def with_search(settings: Settings) -> Settings:
    """The settings with the search that goes with their space, if they name none.

    Choices alone are a grid, unless a number of samples is asked for. ``grid_search`` beside other domains has all of
    its values combined, and the others drawn once for each combination, as in Ray Tune.
    """
    settings.check_selection()
    has_one = settings.space is not None or (settings.config is not None and has_space(settings.config))
    given = _asked(settings) if has_one else None
    kinds = kinds_of(given.space) if given else set()
    if settings.search is None and given:
        is_grid = settings.num_samples is None and (kinds <= {"choice"} or kinds == {"grid_search"})
        settings = settings.changed(search="grid" if is_grid else "random")
    if "grid_search" in kinds and settings.search == "random" and settings.num_samples is None:
        settings = settings.changed(num_samples=1)
    return settings


def _asked(settings: Settings) -> GivenSpace | None:
    """The space of the options, or of their file for configurations; None without both."""
    if settings.space is not None and settings.config is not None:
        raise both_given("space", "config")
    if settings.space is not None:
        return given_space(settings.space)
    return None if settings.config is None else read_space(settings.config)


def choose_searched(settings: Settings, study: StudyRecord) -> StudySpec:
    """What these options ask for, beside what a study that is resumed has tried.

    Raises:
        InputError: one of these cannot be used; data are not looked at.
    """
    check_search(settings)
    search = settings.search
    if search is None:
        selections, label = choose(settings, settings.data_seed)
        return StudySpec(selections, settings, label)
    file = settings.space if isinstance(settings.space, str) else settings.config
    label = f"{settings.search_name}-{label_of(file) or ('space' if settings.space else settings.mode)}"
    find = Finder()
    names = list(dict.fromkeys(find(workload).name for workload in as_list(settings.workload)))
    if is_up_front(settings):
        spaces = searched_spaces(settings, names, find)
        earlier = study.configurations if len(spaces) == 1 else []
        listed = {
            one.workload.name: _grid(settings, one) if search == "grid" else _random(settings, one, earlier)
            for one in spaces
        }
        return StudySpec(selections_of(listed, settings, settings.data_seed, find), settings, label, spaces=spaces)
    one = _one_space(settings, names, find)
    workload, before = one.workload, study.configurations
    objective = objective_of(workload, settings.metric, settings.direction)
    live = Search(workload, _searcher(settings, one, objective, before), one.fixed)
    tried = configurations_of(workload, before or [Configuration(UNNAMED, _of_data(one))], "study.json")
    selections = selections_of({workload.name: tried}, settings.changed(overrides=()), settings.data_seed, find)
    selections = selections if before else [replace(selection, configurations=[]) for selection in selections]
    return StudySpec(selections, settings, label, search=live, spaces=[one])


def _searcher(
    settings: Settings, one: SearchedSpace, objective: Objective, before: Sequence[Configuration]
) -> Searcher:
    """What suggests values: draws, a sampler of Optuna with the pruner in its study, or a searcher of Tune."""
    from tuner.search.optuna_trials import OptunaTrials, new_study

    search, space = settings.search, one.space
    if is_of_tune(search):
        return RaySearcher(search, space, objective, one.points)
    if not space:
        raise InputError(
            f"{option('search')}: an Optuna sampler needs a space: give space={{...}} or a file with 'space:'"
        )
    if search == "random":
        check_number(space, settings.num_samples or 0, one.source, one.points)
        return Draws(space, settings.seed, one.points)
    endless = [key for key, domain in space.items() if domain.kind == "uniform" and domain.step is None]
    endless += [key for key, domain in space.items() if domain.kind == "loguniform"]  # Optuna knows no steps of these
    if search == "bruteforce" and endless:
        raise without_grid(endless, one.source)
    make = partial(make_sampler, search, settings.search_options, constrained=bool(settings.constraints))

    def anew() -> BaseSampler:
        sampler = make(settings.seed + 1_000_003 * len(before))
        if not isinstance(search, str):
            sampler.reseed_rng()
        return sampler

    pruner = make_pruner(settings.scheduler, settings.scheduler_options)
    study = new_study(make(settings.seed), pruner, [one.direction for one in objective.all])
    return OptunaTrials(study, space, one.points, anew)


def _of_data(one: SearchedSpace) -> dict[str, ConfigValue]:
    """What a space says of how data are loaded.

    Raises:
        InputError: it has several values of that.
    """
    keys = [key for key in one.workload.data_keys if key in one.space]
    for key in keys:
        if not one.space[key].is_constant:
            raise InputError(
                f"{one.source}: {key} = {one.space[key]}: data are loaded once for all trials: give it one value, "
                "and run a study for each"
            )
    return {key: one.space[key].values[0] for key in keys}


def check_search(settings: Settings) -> None:
    """Refuses options that do not go with a search or a scheduler, or with this one."""
    search, number, seeds = settings.search, settings.num_samples, settings.seeds
    check_choice("scheduler", settings.scheduler, settings.scheduler_options)
    if len(settings.metric) > 1:
        _check_several(settings)
    if settings.scheduler == PBT:
        _check_population(settings)
    if search is None:
        for name in ("points", "num_samples", "search_options"):
            if (value := getattr(settings, name)) not in (None, ()):
                rule = f"has no effect without {option('space')} or {option('search')}"
                raise ParameterError(name, value, rule)
        return
    check_choice("search", search, settings.search_options)
    named = option("search", settings.search_name)
    if search == "grid":
        if number is not None:
            raise ParameterError("num_samples", number, f"{named} tries every combination: leave it out")
        return
    if number is None:
        raise InputError(f"{named}: say by {option('num_samples')} how many configurations to try")
    if search == "random" and is_up_front(settings):
        return
    if seeds > 1:
        raise ParameterError("seeds", seeds, f"{named} trains each suggestion once: leave it out")
    for name in ("only", "limit"):
        if (value := getattr(settings, name)) is not None:
            raise ParameterError(name, value, f"has no effect with {named}: leave it out")


def _check_several(settings: Settings) -> None:
    """Refuses what has no meaning with several objectives."""
    count = f"{len(settings.metric)} metrics"
    if settings.scheduler != FIFO:
        raise ParameterError("scheduler", settings.scheduler_name, f"judges by one metric, not by {count}")
    if settings.target is not None:
        raise ParameterError("target", settings.target, f"is of one metric, and there are {count}")
    if settings.seeds > 1:
        raise ParameterError("seeds", settings.seeds, f"trials are ranked by fronts of {count}, not by means")
    if settings.search_name in ("cmaes", "CmaEsSampler"):
        raise ParameterError(
            "search", settings.search_name, f"takes one metric, not {count}", "give tpe, gp or nsgaii"
        )
    if is_of_tune(settings.search):
        raise ParameterError("search", settings.search_name, f"takes one metric, not {count}", "give one of Optuna's")


def _check_population(settings: Settings) -> None:
    """Refuses what population-based training cannot use."""
    named = option("scheduler", PBT)
    if settings.search is None or not is_up_front(settings):
        rule = f"{named}: its trials are drawn from a space at random: give {option('space')}"
        raise InputError(rule if settings.search is None else f"{rule}, and {option('search', 'random')}")
    if settings.seeds > 1:
        raise ParameterError("seeds", settings.seeds, f"{named} trains a member once: leave it out")


def _grid(settings: Settings, one: SearchedSpace) -> list[Configuration]:
    rows = grid(one.space, one.source, one.points, settings.seed)
    entries = named(({**one.fixed, **row} for row in rows), one.named)
    return configurations_of(one.workload, entries, one.source)


def _random(settings: Settings, one: SearchedSpace, before: Sequence[Configuration]) -> list[Configuration]:
    """Different random configurations, which go together; more samples keep the first ones.

    A study that is resumed keeps its own, also those that an earlier version drew in another way.
    """
    number = check_number(one.space, settings.num_samples or 0, one.source, one.points)
    configurations = configurations_of(one.workload, before, "study.json") if before else []
    if number < len(configurations):
        raise fewer(settings, len(configurations))
    drawn, rejected, reason = Draws(one.space, settings.seed, one.points), 0, "all were drawn already"
    for tried in configurations:
        drawn.recall("", tried.values)
    while len(configurations) < number:
        if rejected == MAX_REJECTED_DRAWS or (values := drawn.ask("")) is None:
            rule = f"{one.source} gave {len(configurations)} usable ones, and then none in {MAX_REJECTED_DRAWS} draws"
            raise ParameterError("num_samples", number, f"{rule}; reason of the last: {reason}")
        try:
            # The names are not padded: with more samples the first are called as before.
            configurations.append(
                to_configuration(one.workload, {**one.fixed, **values}, f"sample-{len(configurations) + 1}")
            )
            rejected = 0
        except InputError as error:
            rejected, reason = rejected + 1, error.text
    return configurations


def fewer(settings: Settings, number: int) -> ParameterError:
    """The error of fewer samples than a study has that is resumed."""
    return ParameterError(
        "num_samples", settings.num_samples, f"{settings.resume} has {number} already", "give no fewer"
    )


def _one_space(settings: Settings, names: Sequence[str], find: Finder) -> SearchedSpace:
    """What a live search searches; a searcher of Tune's may have its own space."""
    has_own_space = is_of_tune(settings.search) and settings.space is None and settings.config is None
    if len(names) > 1:
        raise ParameterError("search", settings.search_name, f"takes one workload, not {', '.join(names)}")
    if has_own_space:
        return SearchedSpace(find(names[0] if names else DEFAULT_WORKLOAD), {}, _fixed(settings), "space")
    (one,) = searched_spaces(settings, names, find)
    if one.workload.schema is not None and any(AUTO in domain.values for domain in one.space.values()):
        raise InputError(
            f"{one.source}: {AUTO}: a batch is found for trials that are known: use another {option('search')}, "
            "random or grid"
        )
    beside, others = (f" with {option('constraints')}", "grid") if settings.constraints else ("", "random or grid")
    if products := [key for key, domain in one.space.items() if domain.crossed]:
        raise InputError(
            f"{one.source}: {', '.join(products)}: grid_search has all combinations tried, which "
            f"{option('search', settings.search_name)}{beside} does not: give {{choice: [...]}}, or search {others}"
        )
    return one


def searched_spaces(
    settings: Settings, names: Sequence[str], find: Callable[[str], Trainable]
) -> list[SearchedSpace]:
    """What is searched for each workload."""
    shared = _asked(settings)
    if shared is not None:
        given = [shared] * max(1, len(names))
    else:
        given = [read_space(_mode_file(find(name), settings.mode)) for name in names or [DEFAULT_WORKLOAD]]
    raw = given[0].space if isinstance(given[0].space, Mapping) else {}
    named = names or [str({**given[0].defaults, **raw}.get("workload", DEFAULT_WORKLOAD))]
    return [_searched(settings, find(name), space) for name, space in zip(named, given, strict=True)]


def _searched(settings: Settings, workload: Trainable, given: GivenSpace) -> SearchedSpace:
    """The space with what is fixed as single values, so that conditions may name it.

    Where a workload's schema does not fill them in, configurations lack the keys whose conditions do not hold.
    """
    source, overrides = given.source, _fixed(settings)
    parsed = parse_space(given.space, workload.schema, source, given.defaults, overrides)
    if settings.points is not None and given.points is not None:
        raise InputError(f"{option('points')}: {source} has points, too: leave one of them out")
    listed = given.points if settings.points is None else settings.points
    points = [] if listed is None else parse_points(listed, parsed, source)
    fixed = {key: value for key, value in {**given.defaults, **overrides}.items() if key != "workload"}
    named = set(flat_keys(cast("Mapping[str, object]", given.space))) - set(overrides)
    # Without a schema all keys are the program's, and in its space.
    return SearchedSpace(workload, parsed, {} if workload.schema is None else fixed, source, points, named)


def _mode_file(workload: Trainable, mode: str) -> Path:
    if not is_built_in(workload):
        raise InputError(
            f"{option('search')}: workload {workload.name} has no modes: give it a space by {option('config')}, or "
            "in Python by space={...}"
        )
    return mode_file(workload.name, mode)


def _fixed(settings: Settings) -> dict[str, ConfigValue]:
    """The values that are the same in every configuration."""
    return dict(parse_override(text) for text in settings.overrides)
