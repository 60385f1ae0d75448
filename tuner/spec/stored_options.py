"""A study's options as ``study.json`` keeps them, and those of a study that is resumed."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError, ParameterError, option
from tuner.records.study_record import OPTUNA_CALL, StudyRecord
from tuner.search.configurations import content_of, given_space, has_space
from tuner.search.optuna_names import SCHEDULERS, SEARCHES, canonical
from tuner.search.plain_values import plain_configs, plain_space
from tuner.spec.settings import Settings
from tuner.values import OBJECT, decode, encode, has_objects, label
from tuner.workloads.lookup import WorkloadLike, as_list, find_workload, texts_of

CALL = "tuner.run()"  # in ``study.json``, for a study that no command can start
FUNCTIONS = ("memory_gb", "estimate", "data")  # options that may be functions or data, of which only a mark is kept
OBJECTS = ("space", "points", "config", *FUNCTIONS)  # options that may hold objects
NAMED = ("search", "scheduler")  # options that are a name or an object
KEPT = ("search", "search_options", "space", "points", "constraints", "score")  # what a study that is resumed keeps
OF_SPACE = ("mode", "config", "overrides")  # what it keeps, too, if it searches
MEMORY = ("auto_memory", "model_memory_gb", "memory_gb")  # of which one is given


def plainly(settings: Settings) -> Settings:
    """The settings with configurations and space in the form that a file has."""
    forms = {"config": plain_configs, "space": plain_space}
    given = {name: value for name in forms if (value := getattr(settings, name)) is not None}
    for name, value in given.items():
        try:
            encode(value)
        except RecursionError as error:
            raise InputError(f"{option(name)}: it is nested too deep, or holds itself") from error
    return settings.changed(**{name: forms[name](value) for name, value in given.items()}) if given else settings


def to_stored(settings: Settings) -> dict[str, object]:
    """Every option by its name, with marks in the place of objects that only this process has.

    Of a space it is the content, so that a study does not depend on the file.
    """
    values = {
        **settings.values(),
        "callbacks": None,
        "space": content_of(settings.space, "space"),
        "config": _with_content(settings.config),
        "auto_memory": settings.estimates_memory,
    }
    if not is_source(settings.data):
        values["data"] = type(settings.data)  # data may be large, and their digest is kept
    marked = {name: encode(values[name]) for name in OBJECTS}
    named = {"search": settings.search_name, "scheduler": settings.scheduler_name}
    return {**values, **marked, **named, "workload": texts_of(settings.workload)}


def _with_content(config: object) -> object:
    """The content of a file with a space; other configurations as they are given."""
    if not isinstance(config, (str, Path)):
        return config
    searched = Path(config).is_file() and has_space(config)
    return content_of(config, "configuration file") if searched else str(config)


def unlike(study: StudyRecord, settings: Settings, names: Collection[str]) -> dict[str, tuple[object, object]]:
    """The options that are not as ``study.json`` has them, with its values and these.

    A space is compared by its content, an object by its label. Of two mappings it is what differs.
    Earlier versions kept labels of tuples, dates and paths too.
    """
    differing: dict[str, tuple[object, object]] = {}
    current = json.loads(json.dumps(to_stored(settings)))
    stored = {**json.loads(json.dumps(to_stored(Settings()))), **(study.options or {})}
    for name in names:
        before, after = _compared(name, stored[name]), _compared(name, current[name])
        if not _same(before, after):
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                apart = [key for key in {**before, **after} if not _same(before.get(key, name), after.get(key, name))]
                before, after = ({key: one[key] for key in apart if key in one} for one in (before, after))
            differing[name] = before, after
    return differing


def _same(stored: object, current: object) -> bool:
    """Whether two options of ``study.json`` are the same value, the first perhaps one of an earlier version."""
    if isinstance(stored, list) and isinstance(current, list):
        return len(stored) == len(current) and all(map(_same, stored, current))
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        if OBJECT in stored and OBJECT not in current:
            return stored[OBJECT] in (repr(value := decode(current)), label(value))
        return set(stored) == set(current) and all(_same(stored[key], current[key]) for key in stored)
    return stored == current


def _compared(name: str, value: object) -> object:
    if name == "space" and value is not None:
        given = given_space(value)
        more = {"defaults": given.defaults, "points": given.points}
        others = {key: one for key, one in more.items() if one}
        return {**given.space, **others} if isinstance(given.space, Mapping) else given.space
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return " ".join(value)
    return _with_content(value) if name == "config" else canonical(value)


def from_stored(stored: Mapping[str, object]) -> Settings:
    """The options of a study, without functions and data, which only Python can give again."""
    left_out = {*functions_of(stored), "auto_memory"}  # which follows from what is given
    values = {name: value for name, value in stored.items() if name in Settings.model_fields and name not in left_out}
    values |= {name: decode(values[name]) for name in OBJECTS if name in values}
    return Settings.of({name: value for name, value in values.items() if value != Settings.default(name)})


def functions_of(options: Mapping[str, object]) -> list[str]:
    """The options of a study that were functions or data."""
    return [name for name in FUNCTIONS if has_objects(options.get(name))]


def is_source(data: object) -> bool:
    """Whether data are named, and not given as an object."""
    named = data.values() if isinstance(data, Mapping) else [data]
    return all(isinstance(source, str) for source in named)


def is_object(name: object) -> bool:
    """Whether a search or a scheduler of this name in ``study.json`` is an object that only Python gives again."""
    return canonical(name) not in (None, *SEARCHES, *SCHEDULERS)


def resumed(study: StudyRecord, settings: Settings) -> Settings:
    """The settings of a study that is continued.

    The number of threads stays, as results depend on it; a limit of time is only ever one run's. A folder for results
    is kept only if it was given, so that it is refused.

    Raises:
        InputError: only another call can continue it, a workload or an object must be given again, or a workload is
            none of the study's.
    """
    folder = str(settings.resume)
    if study.options is None or study.command == OPTUNA_CALL:
        again = f"call that again with resume={folder!r}"
        raise ParameterError("resume", folder, f"it was started by {study.command}", again)
    before = from_stored(study.options)
    given = as_list(settings.workload) if "workload" in settings.given() else []
    workloads = {find_workload(workload, study.classes).name: workload for workload in given}
    objects = [name for name, spec in study.classes.items() if spec is None]
    if not workloads or set(workloads) & set(study.workloads):
        left_out = [name for name in objects if name not in workloads]
        kinds = ["function" if name in study.programs else "workload" for name in left_out]
        _check_given_again(study, settings, [f"{kind} {name}" for kind, name in zip(kinds, left_out, strict=True)])
    if workloads and set(workloads) not in (set(study.workloads), set(objects)):
        named = list(workloads) if len(workloads) > 1 else next(iter(workloads))
        rule = f"its workload is {study.workload!r}, not {named!r}"
        raise ParameterError("resume", folder, rule, "start a new study for that")
    anew: dict[str, object] = {"workload": _workloads(study, before, workloads)} if workloads else {}
    if isinstance(settings.data, Mapping) and isinstance(before.data, Mapping):
        anew["data"] = {**before.data, **settings.data}
    return with_own(study, settings).changed(**anew)


def _workloads(study: StudyRecord, before: Settings, given: Mapping[str, WorkloadLike]) -> object:
    """The study's own workloads, with the objects that were given in the place of their names."""
    names = {spec: name for name, spec in study.classes.items()}
    workloads = [given.get(names.get(str(text), str(text)), text) for text in as_list(before.workload)]
    return before.workload if all(isinstance(workload, str) for workload in workloads) else workloads


def with_own(study: StudyRecord, settings: Settings) -> Settings:
    """The settings of a study that is continued, in which those that are given now replace its own.

    Raises:
        InputError: one of its own has objects, and must be given again, or one cannot be changed.
    """
    _check_given_again(study, settings)
    stored, given = study.options or {}, settings.given()
    if "mode" in given and (source := next((name for name in ("space", "config") if stored.get(name)), "")):
        raise ParameterError("mode", settings.mode, f"{settings.resume} has a {option(source)}", "leave it out")
    kept = {*KEPT, *(OF_SPACE if stored.get("search") else ())} & set(given)
    for name, (before, after) in unlike(study, settings, kept).items():
        shown = [one if len(repr(one)) <= 60 else f"{one!r:.60}…" for one in (before, after)]  # may be a whole file
        rule = f"{settings.resume} has {option(name, shown[0]) if before else 'none'}"
        raise ParameterError(name, shown[1], rule, "leave it out, or start a new study")
    given = {name: value for name, value in given.items() if name not in kept or name in _objects_in(stored)}
    if set(MEMORY) & set(given):
        replaced = (*MEMORY, *["memory_estimation"] * (not settings.estimates_memory))
        stored = {name: value for name, value in stored.items() if name not in replaced}
    kept_settings = from_stored(stored)
    of_one_run: dict[str, object] = {"output": None, "time_limit": None, "dry_run": False}
    if kept_settings.scheduler_name != settings.scheduler_name and "scheduler" in given:
        of_one_run["scheduler_options"] = ()  # it has others
    return kept_settings.changed(**{**of_one_run, "threads": kept_settings.threads or study.plan.threads, **given})


def with_options(study: StudyRecord, settings: Settings) -> StudyRecord:
    """The record of a study that is resumed with these options."""
    of_one_run = {"output", "resume", "dry_run", *["threads"] * (settings.threads == study.plan.threads)}
    options = json.loads(json.dumps(to_stored(settings)))
    options = {name: value for name, value in options.items() if name not in of_one_run}
    if study.options is None:
        return replace(study, settings={**study.settings, **options})
    return replace(study, options={**study.options, **options})


def needs_objects(study: StudyRecord) -> bool:
    """Whether only Python can continue a study, as it was given objects that no text finds again."""
    return None in study.classes.values() or bool(_objects_in(study.options or {}))


def _objects_in(options: Mapping[str, object]) -> dict[str, str]:
    """The options of a study that hold objects which only Python gives again, and what they are called."""
    named = {name: f"{name} {options[name]}" for name in NAMED if is_object(options.get(name))}
    return named | {name: name for name in OBJECTS if has_objects(options.get(name))}


def same_call(folder: str) -> str:
    """How a study is continued that only Python can continue."""
    return f"the same call, with resume={folder!r} in place of output"


def _check_given_again(study: StudyRecord, settings: Settings, left_out: Sequence[str] = ()) -> None:
    """Refuses to continue a study without its objects that only Python can give; ``left_out`` are some of them."""
    needed, folder = _objects_in(study.options or {}), str(settings.resume)
    if lacking := [*left_out, *(text for name, text in needed.items() if name not in settings.given())]:
        *first, last = lacking
        named = f"{', '.join(first)} and {last}" if first else last
        rule = f"its {named} must be given again, as only Python can give {'them' if first else 'it'}"
        raise ParameterError("resume", folder, rule, f"make {same_call(folder)}")
