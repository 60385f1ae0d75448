"""The public functions: each command of the CLI is one of these, with the same parameters."""

from __future__ import annotations

import inspect
import os
import pickle
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.devices import DeviceChoice
from tuner.errors import InputError
from tuner.memory.estimate import Method
from tuner.placement import Packing
from tuner.results import read_study
from tuner.resume import merged_options
from tuner.retry import OnOom
from tuner.selection import DEFAULT_MODE, choose
from tuner.settings import Settings
from tuner.space import configurations as parse_configurations
from tuner.study import StudyResult, run_study
from tuner.trial import Configuration
from tuner.workloads import find_workload

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from tuner.workloads.base import Workload


def run(
    *,
    workload: str = "graphsage",
    mode: str = DEFAULT_MODE,
    config: str | None = None,
    overrides: Sequence[str] = (),
    data: str = "synthetic",
    only: str | None = None,
    limit: int | None = None,
    auto_memory: bool = False,
    model_memory_gb: float = 1.5,
    packing: Packing | None = None,
    gpu_memory_buffer_gb: float = 2.0,
    device_memory_gb: float | None = None,
    caps: bool = True,
    max_workers: int | None = None,
    threads: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = "grow",
    max_failures: int = 0,
    checkpoint_seconds: float = 60.0,
    output: str | None = None,
    resume: str | None = None,
    address: str | None = None,
    device: DeviceChoice = "auto",
    memory_estimation: Method = "auto",
    calibration: bool = True,
    expandable_segments: bool = False,
    dry_run: bool = False,
) -> StudyResult:
    """Tunes a workload: what ``tune`` does in a terminal.

    Args:
        workload: what to train: "graphsage".
        mode: a named list of configurations: "quick", "architecture", "learning", "regularization" or "full".
        config: a file of your own instead of a mode: ``configurations:`` or ``grid:`` in YAML, TOML or JSON.
        overrides: ``"key=value"`` texts that replace values of every configuration.
        data: "synthetic", "ml-100k" (downloaded once), or a folder.
        only: run just the configuration of this name.
        limit: run just the first so many.
        auto_memory: estimate every configuration's footprint.
        model_memory_gb: what each trial is given without ``auto_memory``, in GB (2**30 bytes).
        packing: "per-trial" gives each trial what it needs (the default with ``auto_memory``), "uniform" gives all
            what the largest needs.
        gpu_memory_buffer_gb: memory to leave alone on each device, in GB.
        device_memory_gb: use no more of each device than if it had this much, in GB.
        caps: end a trial that outgrows its share, alone, before it takes its neighbours'.
        max_workers: at most so many trials at once.
        threads: CPU threads for each trial; by default the cores are divided between the workers.
        epochs: replaces every configuration's number of epochs.
        seed: seed of the validation split, weights, batches and dropout.
        max_attempts: a trial may run out of memory so many times.
        retry_growth: what a trial's share is multiplied by after that.
        backoff: the first retry waits about so many seconds while other trials run, each further one twice as long.
        backoff_max: but none longer than this, in seconds.
        on_oom: "grow" up to the whole device; "accumulate" then halves the micro-batch; "fail" does not retry.
        max_failures: so many times a trial that raised another exception is tried again.
        checkpoint_seconds: how often a running trial keeps a checkpoint, at the end of an epoch.
        output: the study's folder, new or empty; by default a new one under ``results/``.
        resume: the folder of a study to go on with: it keeps its options, but for those given here.
        address: a Ray cluster to join: "auto" or "HOST:PORT"; by default a local Ray is started.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured", or "auto" for traced
            where a step can be followed.
        calibration: correct estimates by what earlier trials on this device needed, and keep what these need.
        expandable_segments: set PyTorch's CUDA allocator option of that name, and estimate with it.
        dry_run: stop after printing the plan.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """
    options = dict(locals())
    study: Mapping[str, Any] = {}
    if resume:
        study = read_study(Path(resume))
        options = merged_options(study, options, _defaults(), resume)
    found, chosen, label = _choice(options, study)
    return run_study(
        found,
        lambda: found.load_data(options["data"], options["seed"]),
        chosen,
        Settings.from_options(options),
        label=label,
        command=shlex.join(["tune", *_arguments(options)]),
        options=options,
        again=lambda best, _, plan: _again(options, best["name"], plan.threads),
    )


def _choice(options: Mapping[str, Any], study: Mapping[str, Any]) -> tuple[Workload, list[Configuration], str]:
    """The workload, its configurations and what their list is called; those of a study, if none are asked for."""
    names = ("workload", "mode", "config", "only", "limit", "overrides")
    selection = {name: options[name] for name in names}
    if study and all(value == study["options"].get(name) for name, value in selection.items()):
        found = find_workload(options["workload"])
        return found, parse_configurations(study["configurations"], found.hyperparameters), options["mode"]
    return choose(**selection)


def tune_hyperparameters_parallel(
    trainset: Any,
    testset: Any,
    user_features: Any,
    item_features: Any,
    configurations: Sequence[Mapping[str, Any]],
    model_memory_gb: float = 1.5,
    gpu_memory_buffer_gb: float = 2.0,
    max_workers: int | None = None,
    *,
    auto_memory: bool = False,
    packing: Packing | None = None,
    device_memory_gb: float | None = None,
    caps: bool = True,
    threads: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = "grow",
    max_failures: int = 0,
    checkpoint_seconds: float = 60.0,
    output: str | None = None,
    resume: str | None = None,
    address: str | None = None,
    device: DeviceChoice = "auto",
    memory_estimation: Method = "auto",
    calibration: bool = True,
    expandable_segments: bool = False,
) -> pd.DataFrame:
    """Tunes GraphSAGE on ratings that are in memory: the call for notebooks and scripts.

    Args:
        trainset: ratings to learn from: a DataFrame with ``user_id``, ``item_id`` and ``rating``, or an array of
            those three columns. A twentieth of them is set aside to choose by.
        testset: ratings to report on, in the same form; nothing is chosen by them.
        user_features: (num_users, any number of) features; ids are row positions, or index labels of a DataFrame.
        item_features: the same for items.
        configurations: mappings from hyperparameter to value, with an optional ``name``.
        model_memory_gb: what each trial is given, in GB (2**30 bytes).
        gpu_memory_buffer_gb: memory to leave alone on each device, in GB.
        max_workers: at most so many trials at once.
        auto_memory: estimate every configuration's footprint instead of ``model_memory_gb``.
        packing: "per-trial" gives each trial what it needs (the default with ``auto_memory``), "uniform" gives all
            what the largest needs.
        device_memory_gb: use no more of each device than if it had this much, in GB.
        caps: end a trial that outgrows its share, alone, before it takes its neighbours'.
        threads: CPU threads for each trial; by default the cores are divided between the workers.
        epochs: replaces every configuration's number of epochs.
        seed: seed of the validation split, weights, batches and dropout.
        max_attempts: a trial may run out of memory so many times.
        retry_growth: what a trial's share is multiplied by after that.
        backoff: the first retry waits about so many seconds while other trials run, each further one twice as long.
        backoff_max: but none longer than this, in seconds.
        on_oom: "grow" up to the whole device; "accumulate" then halves the micro-batch; "fail" does not retry.
        max_failures: so many times a trial that raised another exception is tried again.
        checkpoint_seconds: how often a running trial keeps a checkpoint, at the end of an epoch.
        output: the study's folder, new or empty; by default a new one under ``results/``.
        resume: the folder of a study of the same data and configurations to go on with.
        address: a Ray cluster to join: "auto" or "HOST:PORT"; by default a local Ray is started.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured" or "auto".
        calibration: correct estimates by what earlier trials on this device needed, and keep what these need.
        expandable_segments: set PyTorch's CUDA allocator option of that name, and estimate with it.

    Returns:
        One row for each configuration, best first, with the columns of ``results.csv``; ``attrs["folder"]`` is the
        study's folder.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    options = dict(locals())
    from tuner.datasets.ratings import from_tables

    workload = find_workload("graphsage")
    chosen = parse_configurations(configurations, workload.hyperparameters)
    result = run_study(
        workload,
        lambda: from_tables(trainset, testset, user_features, item_features, seed=seed),
        chosen,
        Settings.from_options(options),
        label="notebook",
        command="tune_hyperparameters_parallel()",
        again=lambda _, folder, __: f"tuner.load_best({str(folder)!r})",
    )
    frame = result.to_frame()
    frame.attrs["folder"] = str(result.folder)
    return frame


def load_best(folder: str | Path) -> nn.Module:
    """The best model of a study, ready to evaluate; on the CPU, in evaluation mode.

    Args:
        folder: the study's folder.

    Raises:
        InputError: the folder holds no ``best.pt``, or one that is not tuner's.
    """
    import torch

    from tuner.results import BEST

    path = Path(folder) / BEST
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        workload = find_workload(content["workload"])
        model = workload.restore_model(content["config"], content["weights"])
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there: give the folder of a study with a completed trial") from error
    except pickle.UnpicklingError as error:  # its text tells how to load the file unsafely
        raise InputError(f"{path} cannot be loaded: it holds more than weights and plain values") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error
    return model.eval().requires_grad_(False)


def _again(options: Mapping[str, Any], name: str, threads: int) -> str:
    """The command that runs one configuration of a study again; on the CPU it gives the same figures.

    The number of threads is part of it, since the last digits of a sum depend on that.
    """
    anew = {"only": name, "limit": None, "output": None, "resume": None, "threads": threads, "max_workers": None}
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return f"{python} -m tuner {shlex.join(_arguments({**options, **anew}))}"


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """The command-line arguments of a run: every option that has not its default."""
    defaults = _defaults()
    arguments: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value == defaults[name]:
            continue
        if value is False:
            arguments.append(f"--no-{flag}")
        elif name == "overrides":
            arguments += [word for text in value for word in ("--set", text)]
        else:
            arguments += [f"--{flag}"] + ([] if value is True else [str(value)])
    return arguments


def _defaults() -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
