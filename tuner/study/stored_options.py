"""A study's options: as ``study.json`` keeps them, and as a study that is resumed has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import InputError, ParameterError
from tuner.records.study_record import OPTUNA_CALL, StudyRecord
from tuner.search.configurations import space_content
from tuner.search.plain_values import has_objects, plain_configs, plain_points, plain_space, stored
from tuner.spec.groups import SEARCHES, ObjectiveOptions, SelectionOptions
from tuner.spec.settings import Settings
from tuner.workloads.lookup import WorkloadLike, as_list, find_workload, texts_of

GIVEN = ("space", "points", "config")  # options that may hold objects
CALL = "tuner.run()"  # for ``study.json``: what no command can say
FUNCTIONS = ("memory_gb", "estimate", "data")  # options that may be functions, or data, of which no more is kept
OBJECTS = (*GIVEN, *FUNCTIONS)
MEMORY = ("auto_memory", "model_memory_gb", "memory_gb")  # of which one is given


def plainly(settings: Settings) -> Settings:
    """The settings with a list of configurations and a space that a file can hold."""
    plain: dict[str, object] = {}
    if settings.config is not None:
        plain["config"] = plain_configs(settings.config)
    if settings.space is not None:
        plain["space"] = plain_space(settings.space)
    if settings.points is not None:
        plain["points"] = plain_points(list(settings.points))
    return settings.changed(**plain) if plain else settings


def to_stored(settings: Settings) -> dict[str, object]:
    """Every option by its name; of a workload or a search that only this process has, its name.

    Of a space it is the content, so that a study does not depend on the file.
    """
    values = {**settings.values(), "space": space_content(settings.space), "auto_memory": settings.estimates_memory}
    if not is_source(settings.data):
        values["data"] = type(settings.data)  # they may be large, and their digest is kept
    plain = {name: stored(values[name]) for name in OBJECTS}
    return {**values, **plain, "workload": texts_of(settings.workload), "search": settings.search_name}


def how_it_runs(settings: Settings) -> dict[str, object]:
    """The options that say how a study runs, and not what it trains."""
    selection = (*SelectionOptions.names(), *ObjectiveOptions.names(), "space", "points")
    return {name: value for name, value in to_stored(settings).items() if name not in selection}


def from_stored(stored: Mapping[str, object]) -> Settings:
    """The options of a study. What its version lacked has its default; what no longer exists is left out.

    So are functions, of which nothing but that they were given is known.
    """
    left_out = {*functions_of(stored), "auto_memory"}  # which follows from what is given
    if stored.get("auto_memory") or stored.get("memory_gb") is not None:
        left_out.add("model_memory_gb")  # an earlier version's default
    stored = {name: value for name, value in stored.items() if name not in left_out}
    return Settings.of(
        {
            name: value
            for name, value in stored.items()
            if name in Settings.model_fields and value != Settings.default(name)
        }
    )


def functions_of(options: Mapping[str, object]) -> list[str]:
    """Those of a study's options that were functions or data, of which no more is kept than that."""
    return [name for name in FUNCTIONS if has_objects(options.get(name))]


def is_source(data: object) -> bool:
    """Whether data are named, and not given as an object."""
    named = data.values() if isinstance(data, Mapping) else [data]
    return all(isinstance(each, str) for each in named)


def is_object(search: object) -> bool:
    """Whether a search, or what ``study.json`` calls it, is an object that only Python can give again."""
    return search not in (None, *SEARCHES)


def resumed(study: StudyRecord, settings: Settings, *, from_python: bool) -> Settings:
    """The settings of a study that is continued.

    The number of threads stays, as results depend on it; a limit of time is only ever one run's. A folder for results
    is kept only if it was given, so that it is refused.

    Raises:
        InputError: only another call can continue it: a workload or a searcher must be given again, a workload is
            none of the study's, or it was started from Python with data that are not known here.
    """
    folder, given = str(settings.resume), settings.given()
    if study.options is None and study.command == CALL and from_python:
        _check_given_again(study, settings, _check_workloads(study, as_list(settings.workload), folder))
        return settings  # an earlier version kept none of these: they are all in the same call
    if study.options is None or study.command == OPTUNA_CALL:
        again = f"call that again with resume={folder!r}"
        raise ParameterError("resume", folder, f"it was started by {study.command}", again)
    own = from_stored(study.options)
    asked = as_list(settings.workload) if "workload" in given else []
    _check_given_again(study, settings, _check_workloads(study, asked, folder))
    anew = {"workload": _workloads(study, own, asked)} if asked else {}
    if isinstance(settings.data, Mapping) and isinstance(own.data, Mapping):
        anew["data"] = {**own.data, **settings.data}
    return with_own(study, settings).changed(**anew)


def with_own(study: StudyRecord, settings: Settings) -> Settings:
    """The settings of a study that is continued, in which those that are given now replace its own.

    Raises:
        InputError: one of its own has objects, and must be given again.
    """
    _check_given_again(study, settings)
    stored, given = study.options or {}, settings.given()
    learned = study.settings.get("auto_memory") and not stored.get("auto_memory")  # by a program, in earlier versions
    if learned or set(MEMORY) & set(given):
        replaced = (*MEMORY, *["memory_estimation"] * (not settings.estimates_memory))
        stored = {name: value for name, value in stored.items() if name not in replaced}
    own, of_one_run = from_stored(stored), dict.fromkeys(("output", "time_limit")) | {"dry_run": False}
    return own.changed(**{**of_one_run, "threads": own.threads or study.plan.threads, **given})


def needs_objects(study: StudyRecord) -> bool:
    """Whether only Python can continue a study, as it was given objects that no text finds again."""
    options = study.options or {}
    kept = any(has_objects(options.get(name)) for name in OBJECTS)
    return None in study.classes.values() or is_object(options.get("search")) or kept


def same_call(folder: str) -> str:
    """How a study is continued that only Python can continue."""
    return f"the same call, with resume={folder!r} in place of output"


def _check_given_again(study: StudyRecord, settings: Settings, left_out: Sequence[str] = ()) -> None:
    """Refuses to continue a study without objects of it that only Python can give; ``left_out`` are some of these."""
    stored, given, folder = study.options or {}, settings.given(), str(settings.resume)
    needed = {name: name for name in OBJECTS if has_objects(stored.get(name))}
    if is_object(search := stored.get("search")):
        needed = {"search": f"search {search}", **needed}
    if left := [*left_out, *(text for name, text in needed.items() if name not in given)]:
        *first, last = left
        named = f"{', '.join(first)} and {last}" if first else last
        rule = f"its {named} must be given again, as only Python can give {'them' if first else 'it'}"
        raise ParameterError("resume", folder, rule, f"make {same_call(folder)}")


def _check_workloads(study: StudyRecord, asked: Sequence[WorkloadLike], folder: str) -> list[str]:
    """Refuses workloads that are none of the study's; returns those that must be given again and were not."""
    known = study.classes
    names = [find_workload(each).name for each in asked if not (isinstance(each, str) and each in known)]
    if names and not set(names) & set(study.workloads):
        rule = f"its workload is {study.workload!r}, not {names if len(names) > 1 else names[0]!r}"
        raise InputError(ParameterError("resume", folder, rule).text + "; start a new study for that")
    left_out = [name for name, spec in known.items() if spec is None and name not in names]
    return [f"{'function' if name in study.programs else 'workload'} {name}" for name in left_out]


def _workloads(study: StudyRecord, own: Settings, asked: Sequence[WorkloadLike]) -> object:
    """The study's own workloads, in the place of each the one that was given; or others, which are then refused.

    It is no change if all of them are given, or only those that must be given again.
    """
    found = {find_workload(each, study.classes).name: each for each in asked}
    must = {name for name, spec in study.classes.items() if spec is None}
    if set(found) not in (set(study.workloads), must):
        return asked if len(asked) > 1 else asked[0]
    named = {spec: name for name, spec in study.classes.items()}
    stored = [found.get(named.get(str(each), str(each)), each) for each in as_list(own.workload)]
    return stored if any(not isinstance(each, str) for each in stored) else own.workload
