"""From ``--search`` and a space to what a study tries.

A grid and random samples are configurations like any others, known before the study begins. A live search suggests a
trial whenever a device has room, by what came of those before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.search.configurations import configurations, mode_file, name_of, read_space, source_name
from tuner.search.searchers import to_searcher
from tuner.search.spaces import Space, draw, grid, parse_space
from tuner.spec.settings import Settings
from tuner.study.live_search import LiveSearch, to_configuration
from tuner.study.selection import choose, label_of, parse_override
from tuner.trial import AUTO, Configuration, is_auto
from tuner.workloads.base import Workload
from tuner.workloads.built_in import DEFAULT_WORKLOAD, is_built_in
from tuner.workloads.lookup import Finder
from tuner.workloads.lookup import listed as as_list
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.workloads.lookup import Workloads

UP_FRONT = ("grid", "random")
BUILT_IN = (*UP_FRONT, "optuna")
SELECTION = ("workload", "mode", "config", "only", "limit", "overrides")


def choose_searched(
    options: Mapping[str, Any], study: Mapping[str, Any], wanted: Workloads, search: Any
) -> tuple[list[Selection], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that goes on with it, if it is live.

    Args:
        options: every option of ``tune run``, with ``search`` as text and ``space`` plain.
        study: the content of ``study.json``, where a study is gone on with.
        wanted: what to train, as ``choose`` takes it.
        search: what the user gave: one of ``BUILT_IN``, an Optuna sampler, or a searcher of Ray Tune.

    Raises:
        InputError: one of these cannot be used; data are not looked at.
    """
    _check(options, search)
    asked = {name: options[name] for name in (*SELECTION, "data", "skip_bad")} | {"workload": wanted}
    seed, split_seed = options["seed"], Settings.from_options(options).data_seed
    label = label_of(options["config"]) or ("space" if options["space"] else options["mode"])
    if isinstance(search, str) and search in UP_FRONT:
        listing = partial(_listing, options, search)
        selections, _ = choose(**asked, seed=split_seed, listing=listing)
        return selections, f"{search}-{label}", None
    workload, space, fixed = _one_space(options, wanted, search)
    before = study.get("configurations", [])
    if study.get("options") and not same_selection(study, options, (*SELECTION, "search", "space")):
        raise InputError(f"--resume {options['resume']}: it searches another space: start a new study for this one")
    if options["num_samples"] < len(before):
        raise InputError(
            f"--num-samples {options['num_samples']}: {options['resume']} has {len(before)} already: give no fewer"
        )
    # Anew, a sampler with the same seed would begin with the same suggestions.
    searcher = to_searcher(search, space, workload.metric, seed + 1_000_003 * len(before))
    live = LiveSearch(workload, searcher, fixed, Settings.from_options(options))
    tried = configurations(before or [{}], workload.schema, source="study.json", finish=finish_of(workload))
    asked |= {"overrides": (), "workload": [workload]}
    selections, _ = choose(**asked, seed=split_seed, listing=lambda *_: {workload.name: tried})
    selections = selections if before else [replace(each, configurations=[]) for each in selections]
    return selections, f"{options['search']}-{label}", live


def same_selection(study: Mapping[str, Any], options: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether these options are a study's own, as ``study.json`` has them."""
    stored = study.get("options")
    asked = json.loads(json.dumps({name: options[name] for name in names}))
    return isinstance(stored, Mapping) and all(asked[name] == stored.get(name) for name in names)


def _check(options: Mapping[str, Any], search: Any) -> None:
    """Refuses options that do not go with a search, or with this one."""
    if isinstance(search, type):
        raise InputError(f"search={search.__name__}: it is a class: give an object, such as {search.__name__}()")
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


def _listing(
    options: Mapping[str, Any], search: str, names: Sequence[str], find: Finder
) -> dict[str, list[Configuration]]:
    """The configurations of a grid or of random samples."""
    found = {}
    for workload, space, fixed, source in _spaces(options, names, find):
        if search == "grid":
            values = grid(space, source)
            entries = [{**fixed, **each, "name": name_of(each)} for each in values]
        else:
            usable = partial(_unusable, workload, fixed)
            values = draw(space, options["num_samples"], options["seed"], source, usable)
            # Not padded: with more samples the first are called as before.
            entries = [{**fixed, **each, "name": f"sample-{number}"} for number, each in enumerate(values, 1)]
        found[workload.name] = configurations(entries, workload.schema, source=source, finish=finish_of(workload))
    return found


def _one_space(
    options: Mapping[str, Any], wanted: Workloads, search: Any
) -> tuple[Workload, Space, Mapping[str, Any]]:
    """The workload, the space and the fixed values of a live search; a searcher of Tune's may have its own space."""
    find = Finder()
    asked = list(dict.fromkeys(find(each).name for each in as_list(wanted)))
    own = search != "optuna" and options["space"] is None and options["config"] is None
    if len(asked) > 1:
        raise InputError(f"--search {options['search']}: takes one workload, not {', '.join(asked)}")
    if own:
        return find(asked[0] if asked else DEFAULT_WORKLOAD), {}, _fixed(options)
    ((workload, space, fixed, source),) = _spaces(options, asked, find)
    if any(AUTO in domain.values for domain in space.values()) or is_auto(fixed):
        raise InputError(f"{source}: {AUTO}: a batch is found for trials that are known: use --search random or grid")
    return workload, space, fixed


def _spaces(
    options: Mapping[str, Any], names: Sequence[str], find: Finder
) -> list[tuple[Workload, Space, Mapping[str, Any], str]]:
    """Of each workload itself, its space, the values of all configurations, and what messages call that."""
    config = options["config"]
    if options["space"] is not None and config is not None:
        raise InputError("space and config were both given: leave one of them out")
    if options["space"] is not None:
        given: list[tuple[object, Mapping[str, Any], str]] = [(options["space"], {}, "space")] * max(1, len(names))
    elif config is not None:
        given = [(*read_space(config), source_name(config))] * max(1, len(names))
    else:
        files = [_mode_file(find(name), options["mode"]) for name in names or [DEFAULT_WORKLOAD]]
        given = [(*read_space(file), str(file)) for file in files]
    raw, defaults, _ = given[0]
    named = {**defaults, **(raw if isinstance(raw, Mapping) else {})}.get("workload", DEFAULT_WORKLOAD)
    found: list[tuple[Workload, Space, Mapping[str, Any], str]] = []
    for name, (space, common, source) in zip(names or [str(named)], given, strict=True):
        workload = find(name)
        fixed = {key: value for key, value in {**common, **_fixed(options)}.items() if key != "workload"}
        mine = space
        if isinstance(space, Mapping):
            mine = {key: value for key, value in space.items() if key != "workload" and key not in _fixed(options)}
        parsed = parse_space(mine, workload.schema, source) if mine or not _fixed(options) else {}
        configurations([fixed], workload.schema, source=source)
        found.append((workload, parsed, fixed, source))
    return found


def _mode_file(workload: Workload, mode: str) -> Path:
    if not is_built_in(workload):
        raise InputError(
            f"--search: workload {workload.name} has no modes: give it a space by --config FILE or space={{...}}"
        )
    return mode_file(workload.name, mode)


def _fixed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``--set``."""
    return dict(parse_override(text) for text in options["overrides"])


def _unusable(workload: Workload, fixed: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    try:
        to_configuration(workload, {**fixed, **values}, "sample")
    except InputError as error:
        return str(error)
    return ""
