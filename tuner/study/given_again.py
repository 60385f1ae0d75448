"""A call's options as ``study.json`` keeps them, and what must be given again, as no file can hold it: objects."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.records.study_json import classes, workloads
from tuner.search.plain_values import plain_configs, plain_space
from tuner.study.resume import merged_options
from tuner.study.searching import BUILT_IN
from tuner.workloads.lookup import WAS_OBJECT, find_workload, listed, texts_of

if TYPE_CHECKING:
    from tuner.workloads.lookup import Workloads

CALL = "tuner.run()"  # for ``study.json``: what no command can say


def as_stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as ``study.json`` keeps them: of objects that only this process has their names.

    Raises:
        InputError: one cannot be kept so.
    """
    search, config, space = options["search"], options["config"], options["space"]
    return {
        **{name: _plain(value) for name, value in options.items()},
        "workload": texts_of(options["workload"]),
        "search": search if search is None or isinstance(search, str) else type(search).__name__,
        "config": None if config is None else plain_configs(config),
        "space": None if space is None else plain_space(space),
    }


def gone_on_with(
    study: Mapping[str, Any],
    options: dict[str, Any],
    given: Collection[str],
    defaults: Mapping[str, Any],
    wanted: Workloads,
    *,
    from_python: bool,
) -> dict[str, Any]:
    """The options of a study, but for those that were given; as ``study.json`` keeps them.

    A workload that is the study's own is no change, whether it is given as an object, a class or a text; nor is it
    that of several only those are given which must be given again.

    Args:
        study: the content of ``study.json``.
        options: of this call.
        given: the names of those that the user has set.
        defaults: of all options.
        wanted: the workloads of this call, where they are among them.
        from_python: the user called ``run``.

    Raises:
        InputError: only another call can go on with it.
    """
    if study.get("options") is None and study.get("command") == CALL and from_python:
        return options  # an earlier version kept none of these: they are all in the same call
    chosen = {name: value for name, value in options.items() if name in given}
    merged = merged_options(study, chosen, defaults, options["resume"])
    if "workload" in given:
        names = {find_workload(each, classes(study)).name for each in listed(wanted)}
        stored = study["options"].get("workload", options["workload"])
        own = {name for name, spec in classes(study).items() if spec is None}
        merged["workload"] = stored if names in (set(workloads(study)), own) else options["workload"]
    return merged


def needs_objects(study: Mapping[str, Any]) -> bool:
    """Whether only Python can go on with a study, as it was given objects that no text finds again."""
    return None in classes(study).values() or _is_object((study.get("options") or {}).get("search"))


def check_given_again(study: Mapping[str, Any], wanted: Workloads, search: Any, folder: str) -> None:
    """Refuses to go on with a study without what only the call that started it had, or with another workload.

    Args:
        study: the content of ``study.json``.
        wanted: the workloads that are given now, if any.
        search: the search that is given now, else the study's.
        folder: the study's, for messages.

    Raises:
        InputError: a workload or a searcher must be given again, or a workload is none of the study's.
    """
    known = classes(study)
    again = [each for each in listed(wanted) if not (isinstance(each, str) and each in known)]
    names = [find_workload(each).name for each in again]
    if names and not set(names) & set(workloads(study)):
        own, asked = study["workload"], names if len(names) > 1 else names[0]
        raise InputError(f"--resume {folder}: its workload is {own!r}, not {asked!r}; start a new study for that")
    for name, spec in known.items():
        if spec is None and name not in names:
            raise InputError(
                f"--resume {folder}: its workload {name} {WAS_OBJECT}: give it again, from Python: "
                f"tuner.run(workload=…, resume={folder!r})"
            )
    if isinstance(search, str) and _is_object(search):
        raise InputError(
            f"--resume {folder}: its search was given as an object: give it again, from Python: "
            f"tuner.run(search={search}(…), resume={folder!r})"
        )


def _is_object(search: object) -> bool:
    return search not in (None, *BUILT_IN)


def _plain(value: Any) -> Any:
    """A path as text, which ``study.json`` can hold; in a mapping, too."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value
