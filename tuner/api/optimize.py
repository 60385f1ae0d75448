"""The largest batch for a workload or a footprint on one device: the function behind ``tune optimize``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.registry import Method, check_method
from tuner.estimation.service import EstimationService
from tuner.machine.devices import DeviceChoice
from tuner.search.configurations import Configs
from tuner.sizing.choices import Chosen, Goal, check_not_chosen, explanations
from tuner.sizing.config_edits.edit_plan import EditPlan, Values, parse_keys, plan_edits, values_of
from tuner.sizing.config_edits.file_edit import FileEdit, apply_edits
from tuner.sizing.config_edits.found_files import ConfigFile, find_config_files
from tuner.sizing.config_edits.listed_configurations import SizedConfiguration
from tuner.sizing.footprints.footprint import read_footprint
from tuner.sizing.footprints.stages import size_stages, stages_of
from tuner.sizing.profile import profiled
from tuner.sizing.target import Target, detected_target, given_target
from tuner.sizing.workload_sizing import (
    Predictor,
    batch_bound,
    batch_key,
    limited_by,
    reachable,
    size_configuration,
)
from tuner.study.selection import DEFAULT_DATA, DEFAULT_MODE, choose
from tuner.trial import GB, MOST_GB, Config, Device, title
from tuner.workloads.task import describe, load_tasks

if TYPE_CHECKING:
    from tuner.workloads.lookup import Workloads

# Options that are whole numbers of at least 1.
WHOLE = ("target_effective_batch", "devices", "min_batch_size", "max_batch_size")
# Options that choose configurations.
OF_CHOICE = ("workload", "mode", "config", "data", "only", "limit", "seed", "overrides", "skip_bad")
# Options that need a model to train, and what they are where they are not given.
NOT_OF_FOOTPRINTS: dict[str, Any] = {
    "workload": (),
    "config": None,
    "only": None,
    "limit": None,
    "skip_bad": False,
    "profile": False,
    "mode": DEFAULT_MODE,
    "data": DEFAULT_DATA,
    "memory_estimation": "auto",
    "expandable_segments": False,
}


@dataclass(frozen=True)
class Optimization:
    """What ``optimize`` found.

    Attributes:
        device: what was sized for.
        goal: what was asked for, with the limit in bytes.
        source: the footprint's formula, or the workloads' data in a few words.
        chosen: one for each of the footprint's stages or the workload's configurations.
        explanations: why, in short sentences.
        edits: what is to be changed in the files given.
        backups: the files as they were, where they were changed.
    """

    device: Device
    goal: Goal
    source: str
    chosen: tuple[Chosen, ...]
    explanations: tuple[str, ...]
    edits: tuple[FileEdit, ...] = ()
    backups: tuple[Path, ...] = ()


def optimize(
    workload: Workloads = (),
    *,
    mode: str = DEFAULT_MODE,
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    data: str | Mapping[str, str] = DEFAULT_DATA,
    skip_bad: bool = False,
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    footprint: str | None = None,
    auto: bool = False,
    gpu_memory: float | None = None,
    safety_margin: float = 0.85,
    target_effective_batch: int = 256,
    devices: int = 1,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    profile: bool = False,
    apply: bool = False,
    config_path: Sequence[str] = (),
    dry_run: bool = False,
    key: Sequence[str] = (),
    device: DeviceChoice = "auto",
    memory_estimation: Method = "auto",
    calibration: bool = True,
    expandable_segments: bool = False,
) -> Optimization:
    """Finds the largest batch that fits a device, and what goes with it: what ``tune optimize`` prints.

    The limit is the device's memory times ``safety_margin``, in the place of the buffer and the margins of a study: a
    footprint counts as what is predicted, with nothing added.

    Args:
        workload: what would be trained, or several names; without one, what ``config`` names, else "graphsage".
        mode: a named list of configurations.
        config: a file of your own instead of a mode, or its content, as ``run`` takes it.
        overrides: ``"key=value"`` texts that replace values of every configuration, or of a footprint's variables.
        data: "synthetic", "ml-100k", or a folder; or a mapping from workload to one of these.
        skip_bad: leave out data files that cannot be used.
        only: just the configuration of this name.
        limit: just the first so many.
        seed: seed of the validation split.
        footprint: instead of a workload, a footprint file or the name of one in ``configs/footprints``.
        auto: size for this machine's device; exactly one of this and ``gpu_memory``.
        gpu_memory: size for a GPU of so many GB, which need not be there.
        safety_margin: the share of the device that may be taken.
        target_effective_batch: the samples of an optimizer step that are wanted, over all devices.
        devices: how many share each optimizer step.
        min_batch_size: the smallest batch of interest.
        max_batch_size: the largest.
        profile: run real steps with what was chosen on the device, and choose anew where they take too much.
        apply: write what was chosen into the files of ``config_path``.
        config_path: YAML or TOML files, or folders that have them at any depth.
        dry_run: only say what would be changed in them.
        key: ``"name=dotted.path"`` texts: where in them a value is.
        device: "cuda", "cpu" for a machine's RAM, or "auto" for GPUs, with ``auto`` where there are any.
        memory_estimation: "static", "traced", "measured", or "auto" for traced where a step can be followed.
        calibration: correct by what earlier trials on this device needed.
        expandable_segments: simulate PyTorch's CUDA allocator with that option.

    Raises:
        InputError: something given cannot be used, or nothing fits; nothing has been written.
        ExecutionError: a step of ``profile`` failed.
    """
    given = dict(locals())
    _check(given)
    files, keys = _files(given)
    target = _target(given)
    goal = Goal(target.limit_bytes, safety_margin, target_effective_batch, devices, min_batch_size, max_batch_size)
    found = _of_footprint(given, goal) if footprint is not None else _of_workloads(given, goal, target.device)
    plan = plan_edits(files, found.to_write, found.keys, keys, found.sized) if files else EditPlan()
    return Optimization(
        device=target.device,
        goal=goal,
        source=found.source,
        chosen=tuple(found.chosen),
        explanations=(*target.notes, *found.explanations, *plan.notes),
        edits=plan.edits,
        backups=tuple(apply_edits(plan.edits)) if apply and not dry_run else (),
    )


@dataclass(frozen=True)
class _Found:
    """What was chosen, why, and what of it goes into files under which keys."""

    source: str
    chosen: list[Chosen]
    explanations: list[str]
    to_write: Values
    keys: Mapping[str, str]
    sized: tuple[SizedConfiguration, ...] = ()


def _of_footprint(given: Mapping[str, Any], goal: Goal) -> _Found:
    footprint = read_footprint(given["footprint"])
    stages = stages_of(footprint, given["overrides"])
    chosen = size_stages(footprint, stages, goal)
    why = [line for each in chosen for line in explanations(each, goal, stages[each.name])]
    return _Found(
        source=f"{footprint.name}: {footprint.formula()} GB",
        chosen=chosen,
        explanations=why,
        to_write=values_of(chosen, footprint.batch, one_step=footprint.batch_is_step),
        keys=footprint.keys,
    )


def _of_workloads(given: Mapping[str, Any], goal: Goal, device: Device) -> _Found:
    for text in given["overrides"]:
        check_not_chosen(text, "")  # before ``choose``, which would divide the configurations' own batches by it
    choices, _ = choose(**{name: given[name] for name in OF_CHOICE})
    for choice in choices:
        for text in given["overrides"]:
            check_not_chosen(text, choice.workload.memory_scales_with or "")
    tasks = load_tasks(choices)
    service = EstimationService(given["memory_estimation"], given["calibration"], given["expandable_segments"])
    several, why, sized = len(choices) > 1, list[str](), list[SizedConfiguration]()
    for choice in choices:
        predictor = Predictor(tasks[choice.workload.name], device, service)
        for each in choice.configurations:
            name = title(choice.workload.name, each.name, several=several)
            found, lines = _sized(predictor, name, each.values, goal, profile=given["profile"])
            sized.append(SizedConfiguration(choice.workload.name, each.name, found))
            why += lines
    chosen = [each.chosen for each in sized]
    smallest = min(chosen, key=lambda each: each.batch_size)
    batch = batch_key(next(iter(tasks.values())))
    if given["config_path"] and given["overrides"]:
        values = ", ".join(given["overrides"])
        why.append(f"sized with {values}, which is not written: the files must say so themselves")
    to_write = values_of([smallest], batch, one_step=True, whose=smallest.name if len(chosen) > 1 else "")
    return _Found(describe(tasks), chosen, why, to_write, {}, tuple(sized))


def _sized(predictor: Predictor, name: str, config: Config, goal: Goal, *, profile: bool) -> tuple[Chosen, list[str]]:
    """A configuration's choice, and why."""
    chosen, notes = size_configuration(predictor, name, config, goal), list[str]()
    if profile:
        chosen, notes = profiled(predictor, config, goal, chosen)
    wanted = reachable(predictor.task, goal)
    why = explanations(chosen, replace(goal, effective_batch=wanted), config)
    if wanted < goal.effective_batch:
        bound = batch_bound(predictor.task)[1]
        why.append(f"{name}: {wanted} are wanted and not {goal.effective_batch}, as {bound} has no more")
    limit = limited_by(predictor, config, chosen)
    if limit is not None:
        why.append(
            f"{name}: {limit} {config[limit]} ends batches before memory does: raise it (--set {limit}=N) to use more"
        )
    return chosen, [*why, *notes]


def _target(given: Mapping[str, Any]) -> Target:
    if given["auto"]:
        return detected_target(given["device"], given["safety_margin"])
    target = given_target(given["device"], given["gpu_memory"], given["safety_margin"])
    if given["profile"] and target.device.kind == "cuda" and not target.device.uuid:
        raise InputError("--profile: this machine has no GPU to run a step on: leave it out, or use --device cpu")
    return target


def _files(given: Mapping[str, Any]) -> tuple[list[ConfigFile], dict[str, str]]:
    """The files to be edited, and what they call what is written."""
    paths, wanted = given["config_path"], given["apply"] or given["dry_run"]
    if wanted and not paths:
        option = "--apply" if given["apply"] else "--dry-run"
        raise InputError(f"{option}: which files? Name them with --config-path PATH")
    if paths and not wanted:
        raise InputError(f"--config-path {paths[0]}: add --apply to write it, or --dry-run to see the changes")
    if given["key"] and not paths:
        raise InputError(f"--key {given['key'][0]}: has no effect without --config-path")
    return find_config_files(paths), parse_keys(given["key"])


def _check(given: Mapping[str, Any]) -> None:
    """Refuses options that make no sense, alone or together."""
    if given["auto"] == (given["gpu_memory"] is not None):
        verb = "were both" if given["auto"] else "were not"
        raise InputError(f"--auto and --gpu-memory {verb} given: give one of them")
    if given["gpu_memory"] is not None:
        _check_number("gpu_memory", given["gpu_memory"])
        if given["gpu_memory"] <= 0:
            raise InputError(f"--gpu-memory {given['gpu_memory']:g}: must be more than 0 GB")
        if given["gpu_memory"] > MOST_GB:
            raise InputError(f"--gpu-memory {given['gpu_memory']:g}: must be at most {MOST_GB:,} GB")
    _check_number("safety_margin", given["safety_margin"])
    if not 0 < given["safety_margin"] <= 1:
        raise InputError(f"--safety-margin {given['safety_margin']:g}: must be more than 0 and at most 1")
    for name in WHOLE:
        value = given[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{_option(name)} {value}: must be a whole number of at least 1")
    least, most = given["min_batch_size"], given["max_batch_size"]
    if most is not None and most < least:
        raise InputError(f"--min-batch-size {least} is more than --max-batch-size {most}")
    check_method(given["memory_estimation"])
    if given["footprint"] is not None:
        for name, default in NOT_OF_FOOTPRINTS.items():
            if given[name] != default:
                raise InputError(
                    f"{_option(name)} and --footprint were both given: a footprint has no model to train"
                )


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{_option(name)} {value!r}: must be a number")
    if not math.isfinite(value):
        raise InputError(f"{_option(name)} {value:g}: must be a finite number")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def to_record(found: Optimization) -> dict[str, Any]:
    """The same as plain values, in GB."""
    return {
        "device": found.device.name,
        "device_memory_gb": round(found.device.total_bytes / GB, 4),
        "safety_margin": found.goal.safety_margin,
        "limit_gb": round(found.goal.limit_bytes / GB, 4),
        "source": found.source,
        "chosen": [_chosen_record(each, found.device) for each in found.chosen],
        "explanations": list(found.explanations),
        "changes": [
            {"file": str(edit.path), "key": change.key, "before": change.before, "after": change.after}
            for edit in found.edits
            for change in edit.changes
        ],
        "backups": [str(path) for path in found.backups],
    }


def _chosen_record(each: Chosen, device: Device) -> dict[str, Any]:
    sizes = {"predicted_gb": each.need_bytes, "one_more_gb": each.beyond_bytes, "measured_gb": each.measured_bytes}
    return {
        "name": each.name,
        "batch_size": each.batch_size,
        "accumulation": each.accumulation,
        "devices": each.devices,
        "effective_batch": each.effective_batch,
        **each.variables,
        **{key: None if size is None else round(size / GB, 4) for key, size in sizes.items()},
        "share_of_device": round(each.need_bytes / device.total_bytes, 4),
        "stopped_by": each.stopped_by,
        "method": each.method,
    }
