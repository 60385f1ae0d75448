"""The largest batch for a workload or a footprint on one device: the function behind ``tune optimize``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.devices import DeviceChoice
from tuner.errors import InputError
from tuner.memory.estimate import Method
from tuner.selection import DEFAULT_DATA, DEFAULT_MODE, choose
from tuner.sizing.choices import Chosen, Goal, explanations
from tuner.sizing.configuration import Estimator, limited_by, reachable, size_configuration
from tuner.sizing.configs import check_files, planned_edits
from tuner.sizing.edit import Edit
from tuner.sizing.edit import apply as write
from tuner.sizing.footprint import read_footprint
from tuner.sizing.profile import profiled
from tuner.sizing.stages import size_stages, stage_values
from tuner.sizing.target import Target, detected_target, given_target
from tuner.sizing.workload import batch_key
from tuner.trial import ACCUMULATION, GB, Device, title
from tuner.workloads.base import Choice, Job

# The smallest value of each option that is a whole number.
LEAST = {"target_effective_batch": 1, "devices": 1, "min_batch_size": 1, "max_batch_size": 1}
# Options that choose configurations of a workload, and what they are where they are not given.
OF_WORKLOADS = {"workload": (), "config": None, "only": None, "limit": None, "skip_bad": False, "profile": False}


@dataclass(frozen=True)
class Optimization:
    """What ``optimize`` found.

    Attributes:
        device: what was sized for.
        limit_bytes: what of it a step may take.
        goal: what was asked for.
        source: the footprint's formula, or the workloads' data in a few words.
        chosen: one for each of the footprint's stages or the workload's configurations.
        explanations: why, in short sentences.
        edits: what is to be changed in the files given.
        backups: the files as they were, where they were changed.
    """

    device: Device
    limit_bytes: int
    goal: Goal
    source: str
    chosen: tuple[Chosen, ...]
    explanations: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    backups: tuple[Path, ...] = ()


def optimize(
    *,
    workload: str | Sequence[str] = (),
    mode: str = DEFAULT_MODE,
    config: str | None = None,
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
        config: a file of your own instead of a mode.
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
        config_path: YAML or TOML files, or folders of them.
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
    paths = check_files(config_path, apply=apply, dry_run=dry_run, keys=key)
    target = _target(given)
    goal = Goal(
        target.limit_bytes, safety_margin, target_effective_batch, devices, min_batch_size, max_batch_size
    )
    if footprint is not None:
        found = _of_footprint(footprint, overrides, goal)
    else:
        choices, _ = choose(
            **{
                name: given[name]
                for name in ("workload", "mode", "config", "data", "only", "limit", "seed", "overrides", "skip_bad")
            }
        )
        found = _of_workloads(choices, goal, target, given)
    ...
