"""The largest batch for a workload or a footprint on one device: the function behind ``tuner optimize``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import InputError, ParameterError, Spelling, both_given, did_you_mean, in_python, option, spelled
from tuner.estimation.service import EstimationService
from tuner.machine.devices import Target, detected_target, given_target
from tuner.reporting import phases
from tuner.sizing.choices import Chosen, Goal, check_not_chosen, explanations
from tuner.sizing.config_edits import FileEdit, NewValues, apply_edits, config_files, plan_edits
from tuner.sizing.footprint import read_footprint
from tuner.sizing.stages import size_stages, stages_of
from tuner.sizing.workload_sizing import Predictor, batch_bound, batch_key, profiled, reachable, size_configuration
from tuner.spec.commands import OptimizeOptions
from tuner.spec.groups import SelectionOptions
from tuner.spec.listed import choose
from tuner.spec.options import public
from tuner.trial import ACCUMULATION, GB, Config, Device, title
from tuner.workloads.task import describe, load_tasks

# Options without effect on a footprint, which has no model to train.
OF_MODELS = (*SelectionOptions.names(), "profile", "memory_estimation", "expandable_segments")


@dataclass(frozen=True)
class Optimization:
    """The result of ``optimize``."""

    device: Device  # the device that was sized for
    goal: Goal  # the target, with the limit in bytes
    source: str  # the footprint's formula, or the workloads' data in a few words
    chosen: tuple[Chosen, ...]  # one for each of the footprint's stages or the workload's configurations
    notes: tuple[str, ...]  # the reasons, in sentences whose parameters are not spelled yet
    edits: tuple[FileEdit, ...] = ()  # the changes of the given files
    backups: tuple[Path, ...] = ()  # the files as they were, where they were changed

    @property
    def explanations(self) -> tuple[str, ...]:
        """The reasons, in short sentences."""
        return tuple(map(spelled, self.notes))


@public(OptimizeOptions)
def optimize(options: OptimizeOptions) -> Optimization:
    """Finds the largest batch that fits a device, and its gradient accumulation, as ``tuner optimize`` does.

    The limit is the device's memory times ``safety_margin``. It replaces the buffer and the margins of a study, so
    nothing is added to a prediction.

    Raises:
        InputError: something given cannot be used, or nothing fits; nothing has been written.
        ExecutionError: a step of ``profile`` failed.
    """
    _check(options)
    files, keys = _files(options)
    target = _target(options)
    goal = Goal(
        target.limit_bytes,
        options.safety_margin,
        options.target_effective_batch,
        options.devices,
        options.min_batch_size,
        options.max_batch_size,
    )
    if options.footprint is not None:
        sized = _of_footprint(options.footprint, options, goal)
    else:
        sized = _of_workloads(options, goal, target.device)
    edits, notes = _planned(files, keys, sized)
    return Optimization(
        device=target.device,
        goal=goal,
        source=sized.source,
        chosen=tuple(sized.chosen),
        notes=(*target.notes, *sized.notes, *notes),
        edits=tuple(edits),
        backups=tuple(apply_edits(edits)) if options.apply and not options.dry_run else (),
    )


@dataclass(frozen=True)
class _Found:
    """The choices with their reasons, and what goes into files."""

    source: str
    chosen: list[Chosen]
    notes: list[str]
    batch: str  # the batch's name
    to_write: list[Chosen]  # one, or a footprint's stages, which share their batch
    keys: Mapping[str, str]  # the names of values in files, if they differ
    one_step: bool  # the files' batch is the samples of an optimizer step, as in our files


def _of_footprint(file: str, options: OptimizeOptions, goal: Goal) -> _Found:
    footprint = read_footprint(file)
    stages = stages_of(footprint, options.overrides)
    chosen = size_stages(footprint, stages, goal)
    why = [line for stage in chosen for line in explanations(stage, goal, stages[stage.name])]
    return _Found(
        source=f"{footprint.name}: {footprint.formula()} GB",
        chosen=chosen,
        notes=why,
        batch=footprint.batch,
        to_write=chosen,
        keys=footprint.keys,
        one_step=footprint.batch_is_step,
    )


def _of_workloads(options: OptimizeOptions, goal: Goal, device: Device) -> _Found:
    for text in options.overrides:
        check_not_chosen(text, "")  # before ``choose``, which would divide the configurations' own batches by it
    choices, _ = choose(options, options.seed)
    for choice in choices:
        for text in options.overrides:
            check_not_chosen(text, choice.workload.memory_scales_with or "")
    phases.show("loading data")
    tasks = load_tasks(choices)
    service = EstimationService(options.memory_estimation, options.calibration, options.expandable_segments)
    number = sum(len(choice.configurations) for choice in choices)
    several, why, chosen = len(choices) > 1, list[str](), list[Chosen]()
    for choice in choices:
        predictor = Predictor(tasks[choice.workload.name], device, service)
        for configuration in choice.configurations:
            name = title(choice.workload.name, configuration.name, several=several)
            phases.show(f"looking for the largest batch, {len(chosen) + 1} of {number}")
            choice_made, lines = _sized(predictor, name, configuration.values, goal, profile=options.profile)
            chosen.append(choice_made)
            why += lines
    smallest = min(chosen, key=lambda choice_made: choice_made.batch_size)
    if options.config_path and options.overrides:
        values = ", ".join(options.overrides)
        why.append(f"sized with {values}, which is not written: the files must say so themselves")
    if options.config_path and len(chosen) > 1:
        why.append(f"{smallest.name}: its batch, the smallest of all, goes into the files")
    batch = batch_key(next(iter(tasks.values())))
    return _Found(describe(tasks), chosen, why, batch, [smallest], {}, one_step=True)


def _sized(predictor: Predictor, name: str, config: Config, goal: Goal, *, profile: bool) -> tuple[Chosen, list[str]]:
    """A configuration's choice, and the reasons for it."""
    chosen, notes = size_configuration(predictor, name, config, goal), list[str]()
    if profile:
        chosen, notes = profiled(predictor, config, goal, chosen)
    wanted = reachable(predictor.task, goal)
    why = explanations(chosen, replace(goal, effective_batch=wanted), config)
    if wanted < goal.effective_batch:
        bound = batch_bound(predictor.task)[1]
        why.append(f"{name}: {wanted} are wanted and not {goal.effective_batch}, as {bound} has no more")
    return chosen, [*why, *notes]


def _target(options: OptimizeOptions) -> Target:
    if options.auto:
        return detected_target(options.device, options.safety_margin)
    target = given_target(options.device, options.gpu_memory or 0.0, options.safety_margin)
    if options.profile and target.device.kind == "cuda" and not target.device.uuid:
        raise InputError(
            f"{option('profile')}: this machine has no GPU to run a step on: leave it out, or use "
            f"{option('device', 'cpu')}"
        )
    return target


def _files(options: OptimizeOptions) -> tuple[dict[Path, bool], dict[str, str]]:
    """The files to edit, and the user's names for values in them."""
    paths, wanted = options.config_path, options.apply or options.dry_run
    if wanted and not paths:
        name = "apply" if options.apply else "dry_run"
        raise InputError(f"{option(name)}: which files? Name them with {option('config_path')}")
    if paths and not wanted:
        raise ParameterError(
            "config_path", paths[0], f"add {option('apply')} to write it, or {option('dry_run')} to see the changes"
        )
    if options.key and not paths:
        raise ParameterError("key", options.key[0], f"has no effect without {option('config_path')}")
    keys = {}
    for text in options.key:
        name, _, keys[name] = text.partition("=")
        if not name or not keys[name]:
            raise ParameterError("key", text, "expected NAME=DOTTED.PATH")
    return config_files(paths), keys


def _planned(files: Mapping[Path, bool], given: Mapping[str, str], sized: _Found) -> tuple[list[FileEdit], list[str]]:
    """The changes of the files, and notes for the user."""
    if not files:
        return [], []
    first = sized.to_write[0]
    batch = first.step_size if sized.one_step else first.batch_size
    common = {sized.batch: batch, ACCUMULATION: first.accumulation}
    names = dict.fromkeys([*common, *(name for chosen in sized.to_write for name in chosen.variables)])
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names, f"known are {', '.join(sorted(names))}")
            raise ParameterError("key", f"{name}={given[name]}", "nothing that is chosen has this name", hint)
    keys = {name: given.get(name, sized.keys.get(name, name)) for name in names}
    return plan_edits(files, NewValues(sized.to_write, common, keys), list(given))


def _check(options: OptimizeOptions) -> None:
    """Refuses options that contradict each other."""
    if options.auto == (options.gpu_memory is not None):
        verb = "were both" if options.auto else "were not"
        raise InputError(f"{option('auto')} and {option('gpu_memory')} {verb} given: give one of them")
    least, most = options.min_batch_size, options.max_batch_size
    if most is not None and most < least:
        raise InputError(f"{option('min_batch_size', least)} is more than {option('max_batch_size', most)}")
    if options.footprint is not None:
        for name in (name for name in OF_MODELS if name in options.changes() and name != "overrides"):
            raise both_given(name, "footprint", "a footprint has no model to train")


def to_record(result: Optimization, spelling: Spelling = in_python) -> dict[str, object]:
    """The result as plain values, in GB."""
    return {
        "device": result.device.name,
        "device_memory_gb": round(result.device.total_bytes / GB, 4),
        "safety_margin": result.goal.safety_margin,
        "limit_gb": round(result.goal.limit_bytes / GB, 4),
        "source": result.source,
        "chosen": [_chosen_record(chosen, result.device) for chosen in result.chosen],
        "explanations": [spelled(text, spelling) for text in result.notes],
        "changes": [
            {"file": str(edit.path), "key": key, "before": before, "after": after}
            for edit in result.edits
            for key, before, after in edit.changes
        ],
        "backups": [str(path) for path in result.backups],
    }


def _chosen_record(chosen: Chosen, device: Device) -> dict[str, object]:
    sizes = {
        "predicted_gb": chosen.need_bytes,
        "one_more_gb": chosen.beyond_bytes,
        "measured_gb": chosen.measured_bytes,
    }
    return {
        "name": chosen.name,
        "batch_size": chosen.batch_size,
        "accumulation": chosen.accumulation,
        "devices": chosen.devices,
        "effective_batch": chosen.effective_batch,
        **chosen.variables,
        **{key: None if size is None else round(size / GB, 4) for key, size in sizes.items()},
        "share_of_device": round(chosen.need_bytes / device.total_bytes, 4),
        "stopped_by": chosen.stopped_by,
        "method": chosen.method,
    }
