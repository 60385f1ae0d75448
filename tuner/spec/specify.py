"""The first stage: from options to what is to be tried."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import cast

from tuner.errors import InputError, ParameterError, one_line, option
from tuner.objective import BEST
from tuner.records.study_record import UNKNOWN, StudyRecord, read_study
from tuner.search.configurations import read_configs, source_name
from tuner.search.domains import objects_of
from tuner.search.optuna_names import PBT
from tuner.search.parsing import parse_file
from tuner.search.spaces import listed_objects
from tuner.spec.data_groups import DEFAULT_DATA
from tuner.spec.listed import chosen_before
from tuner.spec.searched import check_search, choose_searched, is_up_front, searched_spaces, with_search
from tuner.spec.settings import ScriptOptions, Settings
from tuner.spec.spelling import command
from tuner.spec.stored_options import CALL, KEPT, OF_SPACE, is_object, is_source, plainly, resumed, to_stored, unlike
from tuner.spec.study_spec import SearchedSpace, StudySpec
from tuner.trial import Configuration, Objects
from tuner.workloads.command_line import CommandLine, CommandOptions
from tuner.workloads.lookup import specs_of
from tuner.workloads.objectives import objective_of
from tuner.workloads.program import Function, Program
from tuner.workloads.task import Selection, on_all_data

SELECTION = (*KEPT, *OF_SPACE, "workload", "only", "limit", "num_samples")  # options that say what is tried


def specify(settings: Settings, *, from_python: bool = False) -> StudySpec:
    """What these options ask for; a resumed study keeps its own options unless they are given anew.

    Raises:
        InputError: an option cannot be used; data are not read.
    """
    settings, record, folder = plainly(settings), UNKNOWN, settings.resume
    anew = not folder or {"space", "config"} & set(settings.given())
    if folder:
        record = read_study(Path(folder), option("resume", folder))
        settings = resumed(record, settings)
    if anew:  # else its file may be gone
        settings = with_search(settings)
    chosen = _chosen(settings, record)
    selections = _with_objectives(chosen.selections, settings)
    selections = [_with_arguments(selection, settings, chosen.spaces) for selection in selections]
    if record.last_epoch is not None:
        selections = [on_all_data(selection, record.last_epoch) for selection in selections]
    if settings.scheduler == PBT and len(selections) > 1:
        raise ParameterError("scheduler", PBT, "takes one workload", "run a study for each")
    return replace(
        chosen,
        selections=selections,
        command=_command(settings),
        options=to_stored(settings),
        shows_end=True,
        from_python=from_python,
    )


def _with_arguments(selection: Selection, settings: Settings, spaces: Sequence[SearchedSpace]) -> Selection:
    """The selection whose program knows the objects that labels of its configurations stand for.

    Raises:
        InputError: a script's arguments do not go with the configurations.
    """
    program = selection.workload
    if not isinstance(program, CommandLine):
        for name, value in ScriptOptions.of(settings.values()).changes().items():
            if name != "keep":
                raise ParameterError(name, value, "only scripts and commands have it", "leave it out")
    if not isinstance(program, Program):
        for name, given in (("score", settings.score != BEST), ("trial_time_limit", settings.trial_seconds)):
            if given:
                rule = f"workload {program.name} has its own epochs: only functions and scripts have it"
                raise ParameterError(name, getattr(settings, name), rule, "leave it out")
        return selection
    has_data = not isinstance(settings.data, str) or settings.data != DEFAULT_DATA
    if isinstance(program, CommandLine) and has_data:
        raise ParameterError("data", settings.data, "a script reads its own data", "give it among its arguments")
    if isinstance(program, Function) and has_data and not program.takes_data:
        rule = f"{program.name} takes no data: define it as def {program.name}(config, data)"
        raise ParameterError("data", f"a {type(settings.data).__name__}", rule)
    if isinstance(program, Function) and program.needs_data and not has_data:
        raise InputError(f"{program.name}(config, data) takes data: give {option('data')}")
    objects: Objects = {}
    keys = {key: None for configuration in selection.configurations for key in configuration.values}
    if spaces:
        (searched,) = spaces
        objects, keys = objects_of(searched.space), dict.fromkeys(searched.space)
    elif settings.config is not None:
        listed, defaults = read_configs(settings.config)
        entries = [defaults, *cast("list[Mapping[str, object] | Configuration]", listed)]
        objects = listed_objects(entries, source_name(settings.config))
    if isinstance(program, CommandLine):
        if settings.in_process:
            raise ParameterError("in_process", True, "a script needs processes of its own", "leave it out")
        program.check_keys(keys)
        program = program.replaced(options=_command_options(settings, program, selection.objective.metric))
    program = program.replaced(objects=objects, most_epochs=settings.epochs, most_seconds=settings.trial_seconds)
    return replace(selection, workload=program)


def _command_options(settings: Settings, program: CommandLine, metric: str) -> CommandOptions:
    """How a script or a command runs; raises ``InputError`` if that cannot be."""
    pattern, file, template = settings.metric_pattern, settings.metrics_file, settings.config_template
    options = CommandOptions(settings.cwd, pattern or "", file or "")
    if pattern is not None:
        names = _groups(options, pattern)
        if metric not in names and set(names) != {""}:
            groups = ", ".join(names) or "no group"
            raise ParameterError("metric_pattern", pattern, f"it has {groups}", f"add a group (?P<{metric}>…)")
    if file is not None and (Path(file).is_absolute() or ".." in Path(file).parts or not file):
        rule = "it is in the folder of the trial, whose path is {trial_dir} among the arguments"
        raise ParameterError("metrics_file", file, rule, "give its path within that")
    if template is None:
        return options
    if not program.config_names:
        raise ParameterError("config_template", template, "no argument names the file", "add {config} to them")
    content = parse_file(Path(template), "template")
    if not isinstance(content, Mapping):
        raise ParameterError("config_template", template, "expected a mapping", "give a file with keys and values")
    return replace(options, template=content, suffix=Path(template).suffix)


def _groups(options: CommandOptions, pattern: str) -> list[str]:
    """The names of a pattern's groups; an empty one if it has only a group without a name."""
    try:
        compiled = options.pattern
    except Exception as error:  # the library's own
        raise ParameterError("metric_pattern", pattern, f"not a regular expression: {one_line(error)}") from error
    assert compiled is not None
    return list(compiled.groupindex) or [""] * min(1, compiled.groups)


def _with_objectives(selections: Sequence[Selection], settings: Settings) -> list[Selection]:
    """The selections with the objective of each workload.

    Raises:
        InputError: an objective is missing, or one is given for several workloads, which may mean different things by
            it.
    """
    for name in ("metric", "direction"):
        if (given := getattr(settings, name)) and len(selections) > 1:
            workloads = " and ".join(selection.workload.name for selection in selections)
            rule = f"takes one workload, not {workloads}"
            raise ParameterError(name, " ".join(given), rule, f"write {name} into the class of each")
    goal = settings.metric, settings.direction
    objectives = (replace(objective_of(one.workload, *goal), score=settings.score) for one in selections)
    return [replace(one, objective=objective) for one, objective in zip(selections, objectives, strict=True)]


def _chosen(settings: Settings, record: StudyRecord) -> StudySpec:
    """What is to be tried. A resumed study has its earlier selections if no others are asked for."""
    of_list = settings.search is None or is_up_front(settings)
    if of_list and record.options is not None and not unlike(record, settings, SELECTION):
        check_search(settings)
        stored = record.configurations, record.workloads, settings.data, settings.data_seed, settings.loading()
        before = chosen_before(*stored, record.classes, settings.workload)
        programs = {one.workload.name: one.workload for one in before if isinstance(one.workload, Program)}
        named = {one.workload.name: one.workload for one in before} if settings.scheduler == PBT else programs
        searched = named and settings.search is not None  # programs' objects are in the space
        spaces = searched_spaces(settings, list(named), named.__getitem__) if searched else ()
        return StudySpec(before, settings, settings.mode, spaces=spaces)
    return choose_searched(settings, record)


def _command(settings: Settings) -> str:
    """The command line of such a study, or ``CALL`` if no command can start it."""
    texts = specs_of(settings.workload)
    functions = callable(settings.memory_gb) or settings.estimate is not None or settings.points is not None
    objects = is_object(settings.search_name) or is_object(settings.scheduler_name)
    if texts is None or objects or functions or not is_source(settings.data):
        return CALL
    if not all(isinstance(value, (str, NoneType)) for value in (settings.config, settings.space)):
        return CALL
    return command(settings.changed(workload=texts))
