"""From a search and a space to what a study tries.

A grid and random samples are configurations like any others, known before the study begins. A live search suggests a
trial whenever a device has room, by what came of those before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tuner.errors import InputError, ParameterError, both_given, option
from tuner.records.study_record import StudyRecord
from tuner.search.configurations import configurations, mode_file, name_of, read_space, source_name
from tuner.search.searchers import to_searcher
from tuner.search.spaces import Space, draw, grid, parse_space
from tuner.spec.groups import SEARCHES, UP_FRONT
from tuner.spec.settings import Settings
from tuner.study.live_search import LiveSearch, to_configuration
from tuner.study.selection import choose, label_of, parse_override
from tuner.study.stored_options import to_stored
from tuner.trial import AUTO, Configuration, ConfigValue
from tuner.workloads.base import Trainable
from tuner.workloads.built_in import DEFAULT_WORKLOAD, is_built_in
from tuner.workloads.lookup import Finder, as_list
from tuner.workloads.objectives import objective_of
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection

_SpaceOf = tuple[Trainable, Space, Mapping[str, object], str]
SELECTION = ("workload", "mode", "config", "only", "limit", "overrides")


def choose_searched(settings: Settings, study: StudyRecord) -> tuple[list[Selection], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that adds to it, if it is live.

    Raises:
        InputError: one of these cannot be used; data are not looked at.
    """
    _check(settings)
    search = settings.search
    label = label_of(settings.config) or ("space" if settings.space else settings.mode)
    if search in UP_FRONT:
        selections, _ = choose(settings, settings.data_seed, listing=partial(_listing, settings))
        return selections, f"{search}-{label}", None
    workload, space, fixed = _one_space(settings)
    before = study.configurations
    if study.options and not same_selection(study, settings, (*SELECTION, "search", "space")):
        raise ParameterError("resume", settings.resume, "it searches another space", "start a new study for this one")
    if (settings.num_samples or 0) < len(before):
        rule = f"{settings.resume} has {len(before)} already: give no fewer"
        raise ParameterError("num_samples", settings.num_samples, rule)
    # Anew, a sampler with the same seed would begin with the same suggestions.
    objective = objective_of(workload, settings.metric, settings.direction)
    searcher = to_searcher(search, space, objective, settings.seed + 1_000_003 * len(before))
    live = LiveSearch(workload, searcher, fixed, settings, objective)
    tried = configurations(before or [{}], workload.schema, source="study.json", finish=finish_of(workload))
    asked = settings.changed(overrides=())
    selections, _ = choose(asked, settings.data_seed, workload=[workload], listing=lambda *_: {workload.name: tried})
    selections = selections if before else [replace(each, configurations=[]) for each in selections]
    return selections, f"{settings.search_name}-{label}", live


def same_selection(study: StudyRecord, settings: Settings, names: Collection[str]) -> bool:
    """Whether these options are a study's own, as ``study.json`` has them."""
    stored = study.options
    asked = json.loads(json.dumps({name: value for name, value in to_stored(settings).items() if name in names}))
    return stored is not None and all(asked[name] == stored.get(name) for name in names)


def _check(settings: Settings) -> None:
    """Refuses options that do not go with a search, or with this one."""
    search, number, seeds = settings.search, settings.num_samples, settings.seeds
    if isinstance(search, type):
        raise InputError(f"search={search.__name__}: it is a class: give an object, such as {search.__name__}()")
    if isinstance(search, str) and search not in SEARCHES:
        raise ParameterError("search", search, f"choose one of {', '.join(SEARCHES)}")
    named = option("search", settings.search_name)
    if search == "grid":
        if number is not None:
            raise ParameterError("num_samples", number, f"{named} tries every combination: leave it out")
        return
    if number is None:
        raise InputError(f"{named}: say by {option('num_samples')} how many configurations to try")
    settings.check()
    if search == "random":
        return
    if seeds > 1:
        raise ParameterError("seeds", seeds, f"{named} trains each suggestion once: leave it out")
    for name in ("only", "limit"):
        if (value := getattr(settings, name)) is not None:
            raise ParameterError(name, value, f"has no effect with {named}: leave it out")


def _listing(settings: Settings, names: Sequence[str], find: Finder) -> dict[str, list[Configuration]]:
    """The configurations of a grid or of random samples."""
    found = {}
    for workload, space, fixed, source in _spaces(settings, names, find):
        if settings.search == "grid":
            values = grid(space, source)
            entries = [{**fixed, **each, "name": name_of(each)} for each in values]
        else:
            usable = partial(_unusable, workload, fixed)
            values = draw(space, settings.num_samples or 0, settings.seed, source, usable)
            # Not padded: with more samples the first are called as before.
            entries = [{**fixed, **each, "name": f"sample-{number}"} for number, each in enumerate(values, 1)]
        found[workload.name] = configurations(entries, workload.schema, source=source, finish=finish_of(workload))
    return found


def _one_space(settings: Settings) -> tuple[Trainable, Space, Mapping[str, object]]:
    """The workload, the space and the fixed values of a live search; a searcher of Tune's may have its own space."""
    find = Finder()
    asked = list(dict.fromkeys(find(each).name for each in as_list(settings.workload)))
    own = settings.search != "optuna" and settings.space is None and settings.config is None
    if len(asked) > 1:
        raise ParameterError("search", settings.search_name, f"takes one workload, not {', '.join(asked)}")
    if own:
        return find(asked[0] if asked else DEFAULT_WORKLOAD), {}, _fixed(settings)
    ((workload, space, fixed, source),) = _spaces(settings, asked, find)
    if any(AUTO in domain.values for domain in space.values()) or AUTO in fixed.values():
        raise InputError(
            f"{source}: {AUTO}: a batch is found for trials that are known: use another {option('search')}, "
            "random or grid"
        )
    return workload, space, fixed


def _spaces(
    settings: Settings, names: Sequence[str], find: Finder
) -> list[tuple[Trainable, Space, Mapping[str, object], str]]:
    """Of each workload itself, its space, the values of all configurations, and what messages call that."""
    config = settings.config
    if settings.space is not None and config is not None:
        raise both_given("space", "config")
    if settings.space is not None:
        given: list[tuple[object, Mapping[str, object], str]] = [(settings.space, {}, "space")] * max(1, len(names))
    elif config is not None:
        given = [(*read_space(config), source_name(config))] * max(1, len(names))
    else:
        files = [_mode_file(find(name), settings.mode) for name in names or [DEFAULT_WORKLOAD]]
        given = [(*read_space(file), str(file)) for file in files]
    raw, defaults, _ = given[0]
    named = {**defaults, **(raw if isinstance(raw, Mapping) else {})}.get("workload", DEFAULT_WORKLOAD)
    found: list[_SpaceOf] = []
    for name, (space, common, source) in zip(names or [str(named)], given, strict=True):
        workload = find(name)
        fixed = {key: value for key, value in {**common, **_fixed(settings)}.items() if key != "workload"}
        mine = space
        if isinstance(space, Mapping):
            mine = {key: value for key, value in space.items() if key != "workload" and key not in _fixed(settings)}
        parsed = parse_space(mine, workload.schema, source) if mine or not _fixed(settings) else {}
        configurations([fixed], workload.schema, source=source)
        found.append((workload, parsed, fixed, source))
    return found


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


def _unusable(workload: Trainable, fixed: Mapping[str, object], values: Mapping[str, ConfigValue]) -> str:
    try:
        to_configuration(workload, {**fixed, **values}, "sample")
    except InputError as error:
        return error.text
    return ""
