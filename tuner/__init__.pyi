# Made by scripts/generate from the specification in tuner/spec; do not edit.
"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

from tuner.api.capacity import Capacity as Capacity
from tuner.api.export import Exported as Exported
from tuner.api.optimize import Optimization as Optimization
from tuner.api.plan import Forecast as Forecast
from tuner.api.train import TrainingResult as TrainingResult
from tuner.decisions.plan import Packing as Packing
from tuner.decisions.retry import OnOom as OnOom
from tuner.machine.devices import DeviceChoice as DeviceChoice
from tuner.reporting.frame import StudyFrame as StudyFrame
from tuner.search.configurations import Configs as Configs
from tuner.sizing.transformers.formula import Attention as Attention
from tuner.spec.commands import CardSizes as CardSizes
from tuner.spec.commands import Estimate as Estimate
from tuner.spec.commands import Model as Model
from tuner.spec.commands import Paths as Paths
from tuner.spec.commands import Step as Step
from tuner.spec.commands import Table as Table
from tuner.spec.groups import Points as Points
from tuner.spec.groups import Scheduler as Scheduler
from tuner.spec.groups import Search as Search
from tuner.spec.groups import Space as Space
from tuner.spec.memory_groups import Build as Build
from tuner.spec.settings import KeptFolders as KeptFolders
from tuner.spec.settings import StartFolder as StartFolder
from tuner.study.result import StudyResult as StudyResult
from tuner.trial import FreshProcesses as FreshProcesses
from tuner.trial import MemoryEstimate as MemoryEstimate
from tuner.workloads.lookup import WorkloadLike as WorkloadLike
from tuner.workloads.lookup import WorkloadsLike as WorkloadsLike
import pandas as pd
from tuner.errors import DataError as DataError
from tuner.errors import ExecutionError as ExecutionError
from tuner.hyperparameters import Hyperparameter as Hyperparameter
from tuner.errors import InputError as InputError
from tuner.sizing.memory_state import MemoryBudget as MemoryBudget
from tuner.hyperparameters import TextHyperparameter as TextHyperparameter
from tuner.errors import TunerError as TunerError
from tuner.workloads.base import Workload as Workload
from tuner.estimation.graphsage_formula import auto_estimate_memory_from_configs as auto_estimate_memory_from_configs
from tuner.api.inside_trial import checkpoint as checkpoint
from tuner.api.compare import compare as compare
from tuner.sizing.batch_size_finder.batch_size import compute_batch_size as compute_batch_size
from tuner.health.doctor import doctor as doctor
from tuner.sizing.transformers.gpu_memory import estimate_gpu_memory_requirements as estimate_gpu_memory_requirements
from tuner.estimation.graphsage_formula import estimate_model_memory as estimate_model_memory
from tuner.records.weights import load_best as load_best
from tuner.sizing.memory_state import log_memory_state as log_memory_state
from tuner.api.inside_trial import report as report
from tuner.health.status import status as status
from tuner.api.inside_trial import trial_dir as trial_dir

__all__ = [
    "DataError",
    "ExecutionError",
    "Hyperparameter",
    "InputError",
    "MemoryBudget",
    "TextHyperparameter",
    "TunerError",
    "Workload",
    "auto_estimate_memory_from_configs",
    "calibrate",
    "checkpoint",
    "compare",
    "compute_batch_size",
    "doctor",
    "estimate",
    "estimate_gpu_memory_requirements",
    "estimate_model_memory",
    "export",
    "load_best",
    "log_memory_state",
    "memory_aware",
    "optimize",
    "plan",
    "report",
    "results",
    "run",
    "status",
    "train",
    "trial_dir",
    "tune_hyperparameters_parallel",
    "write_report",
]
__version__: str

def calibrate(
    workload: WorkloadsLike = (),
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
) -> pd.DataFrame:
    """Trains each configuration for two epochs, one at a time, and records its peak, as ``tuner calibrate`` does.

    Args:
        workload: What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as
            MODULE:NAME. Several train side by side. A class or an object of your own can be given as it is. By default
            the workload that config names, or graphsage.
        data: Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of
            your own. Give it once for all workloads, or for each one. A function gets whatever is given here; all trials
            share it. By default synthetic.
        skip_bad: Leave out data files that cannot be used, instead of refusing them all.
        label: The column of CAN recordings that says which frames are attacks, or none.
        normal: The value of that column in frames that are no attacks.
        columns: The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.
        largest_tree: Take the largest tree of an SWC file that has several.
        mode: A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also
            pretrain, 8gb, 12gb, 16gb or 24gb.
        config: A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON. What such a file
            holds, or a list of configurations, can be given as it is.
        overrides: The value of a hyperparameter in every configuration, as KEY=VALUE.
        only: Take only the configuration of this name.
        limit: Take only the first N configurations of each workload.
        seed: The seed of the validation split, weights, batches and dropout.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.

    Returns:
        For each configuration its status, its peak, and the traced estimate before and after, in GB.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: Ray does not start.
    """

def estimate(
    model: Model | None = None,
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    workload: WorkloadsLike = (),
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    model_embd: int | None = None,
    model_layer: int | None = None,
    model_head: int | None = None,
    model_positions: int | None = None,
    batch_size: int | None = None,
    seq_len: int | None = None,
    mixed_precision: bool | None = None,
    checkpointing: bool | None = None,
    attention: Attention | None = None,
    vocabulary: int | None = None,
    tied: bool | None = None,
    step: Step | None = None,
    snapshot: str | PathLike[str] | None = None,
) -> list[tuple[str, MemoryEstimate]]:
    """Estimates the memory of training without training, as ``tuner estimate`` does.

    Of a workload's configurations, of a model of your own (``step``), or of a GPT-style transformer, if ``model`` or
    one of its sizes is given. A transformer is always estimated for a GPU.

    Args:
        model: A TOML file with a transformer's sizes, named as the options from model_embd on, which take precedence; or,
            if it is not a text, a workload.
        data: Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of
            your own. Give it once for all workloads, or for each one. A function gets whatever is given here; all trials
            share it. By default synthetic.
        skip_bad: Leave out data files that cannot be used, instead of refusing them all.
        label: The column of CAN recordings that says which frames are attacks, or none.
        normal: The value of that column in frames that are no attacks.
        columns: The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.
        largest_tree: Take the largest tree of an SWC file that has several.
        workload: What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as
            MODULE:NAME. Several train side by side. A class or an object of your own can be given as it is. By default
            the workload that config names, or graphsage.
        mode: A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also
            pretrain, 8gb, 12gb, 16gb or 24gb.
        config: A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON. What such a file
            holds, or a list of configurations, can be given as it is.
        overrides: The value of a hyperparameter in every configuration, as KEY=VALUE.
        only: Take only the configuration of this name.
        limit: Take only the first N configurations of each workload.
        seed: The seed of the validation split, weights, batches and dropout.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.
        memory_estimation: How to estimate memory: static is GraphSAGE's formula, traced follows a training step on
            tensors without data, measured runs one, and auto traces where a step can be followed. The memory of a
            function or a script is learned: the first trials run with room to spare, and their peaks tell what the others
            need.
        calibration: Correct estimates by what earlier trials on this device took, and learn from new ones.
        model_embd: A transformer's width.
        model_layer: A transformer's number of blocks.
        model_head: A transformer's number of attention heads. By default heads of 64.
        model_positions: A transformer's number of positions. By default seq_len, or 512.
        batch_size: A transformer's batch, in sequences.
        seq_len: The number of tokens in each sequence. By default model_positions.
        mixed_precision: Advise for training under autocast; all precisions are shown anyway. By default no mixed
            precision.
        checkpointing: Recompute a transformer's blocks in the backward pass, to save memory. By default no checkpointing.
        attention: The attention: sdpa is torch's kernel, explicit keeps every head's matrix of scores. By default sdpa.
        vocabulary: The size of the vocabulary, in tokens. By default 50257.
        tied: Share the weight of the token embedding with the head. By default tied.
        step: For a model of your own, in place of a workload: a function that builds and returns the model, its optimizer
            (or None) and a function that computes a batch's loss. It runs on tensors without data.
        snapshot: Also write the allocations of one configuration on a GPU, which need not exist, to a new file that ends
            with .pickle. PyTorch's memory viewer (docs.pytorch.org/memory_viz) draws it.

    Returns:
        Name and estimate of each configuration, after those of what must be trained first, as "workload/name" where
        there are several workloads; of ``step`` alone under the name "step"; of a transformer as
        "float32", "amp" and "half".

    Raises:
        InputError: something given cannot be used.
        Untraceable: ``step`` cannot be traced; the text names the operation.
    """

def export(
    directory: str | PathLike[str] | None = None,
    *,
    optuna: str | None = None,
    study_name: str | None = None,
) -> list[Exported]:
    """Makes an Optuna study of a study: its trials with their parameters, values, states and epochs.

    A configuration that completed is COMPLETE, one that was pruned is PRUNED, and all others are FAIL, with status
    and error among their user attributes. Hyperparameters that vary are parameters; those that do not are the study's
    user attribute ``fixed``. What a parameter could have been is taken from the values that were tried: numbers span
    a range, on the scale of the search space, and everything else is a choice. Without a space, wide ranges of
    positive numbers are logarithmic.

    Args:
        directory: The study's folder. By default the newest study under results/.
        optuna: The URL of an Optuna storage, such as sqlite:///FILE.
        study_name: The name of the Optuna study. With several workloads each becomes a study, whose name ends with the
            workload's. By default the name of the study's folder.

    Returns:
        One for each workload.

    Raises:
        InputError: there is no such study, the URL cannot be used, or the database has a study of that name already.
    """

def memory_aware(
    trainable: object,
    *,
    device: DeviceChoice = 'auto',
    gpu_memory_buffer_gb: float = 2.0,
    device_memory_gb: float | None = None,
    caps: bool = True,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = 'grow',
    estimate: Estimate,
) -> type:
    """Wraps a trainable for ``ray.tune.Tuner``: each of its trials gets the share of a device that it needs.

    Tune's own loop runs the trials, as many side by side as their shares allow. A trial that takes more than its
    share fails alone, and Tune runs it again from its last checkpoint with a larger one. It stays one trial in Tune's
    results, which also have ``attempts``, ``gpu_fraction``, ``estimated_memory_gb`` and ``peak_memory_gb``. The
    devices are those of this machine, or of the cluster that Ray is connected to.

    Args:
        trainable: A function of a configuration, or a subclass of ray.tune.Trainable; as it is, or from
            tune.with_parameters or tune.with_resources, whose CPUs and custom resources stay.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        gpu_memory_buffer_gb: The memory to leave free on each device, a GPU or the machine's RAM, in GB.
        device_memory_gb: Use each device as if it had no more than this memory, in GB. By default all of its memory.
        caps: End a trial that takes more than its share, before it takes memory from the others.
        max_attempts: The maximum number of attempts for a trial that runs out of memory.
        retry_growth: The factor by which a trial's memory grows after it ran out of memory.
        backoff: The wait before the first retry while other trials run, in seconds; it doubles with each further retry.
        backoff_max: The longest wait before a retry, in seconds.
        on_oom: What to do when a trial runs out of memory: "grow" gives it more, up to a whole device; "fail" does not
            retry.
        estimate: The memory that a trial's process takes from its device: a number of GB, or a function of a
            configuration that returns one or a MemoryEstimate.

    Returns:
        A subclass of ``ray.tune.Trainable`` with the trainable's name.

    Raises:
        InputError: an argument cannot be used, or every trial needs more memory than there is.
    """

def optimize(
    workload: WorkloadsLike = (),
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    footprint: str | PathLike[str] | None = None,
    auto: bool = False,
    gpu_memory: float | None = None,
    safety_margin: float = 0.85,
    target_effective_batch: int = 256,
    devices: int = 1,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    profile: bool = False,
    apply: bool = False,
    config_path: str | Sequence[str] = (),
    dry_run: bool = False,
    key: str | Sequence[str] = (),
) -> Optimization:
    """Finds the largest batch that fits a device, and its gradient accumulation, as ``tuner optimize`` does.

    The limit is the device's memory times ``safety_margin``. It replaces the buffer and the margins of a study, so
    nothing is added to a prediction.

    Args:
        workload: What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as
            MODULE:NAME. Several train side by side. A class or an object of your own can be given as it is. By default
            the workload that config names, or graphsage.
        data: Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of
            your own. Give it once for all workloads, or for each one. A function gets whatever is given here; all trials
            share it. By default synthetic.
        skip_bad: Leave out data files that cannot be used, instead of refusing them all.
        label: The column of CAN recordings that says which frames are attacks, or none.
        normal: The value of that column in frames that are no attacks.
        columns: The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.
        largest_tree: Take the largest tree of an SWC file that has several.
        mode: A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also
            pretrain, 8gb, 12gb, 16gb or 24gb.
        config: A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON. What such a file
            holds, or a list of configurations, can be given as it is.
        overrides: The value of a hyperparameter in every configuration, as KEY=VALUE.
        only: Take only the configuration of this name.
        limit: Take only the first N configurations of each workload.
        seed: The seed of the validation split, weights, batches and dropout.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.
        memory_estimation: How to estimate memory: static is GraphSAGE's formula, traced follows a training step on
            tensors without data, measured runs one, and auto traces where a step can be followed. The memory of a
            function or a script is learned: the first trials run with room to spare, and their peaks tell what the others
            need.
        calibration: Correct estimates by what earlier trials on this device took, and learn from new ones.
        footprint: Size this footprint, a file or one in configs/footprints, in place of a workload.
        auto: Size for this machine's device; give either this or gpu_memory.
        gpu_memory: Size for a GPU of this many GB, which need not exist.
        safety_margin: The share of the device's memory that may be used.
        target_effective_batch: The number of samples of an optimizer step, over all devices.
        devices: The number of devices that share each step.
        min_batch_size: The smallest batch to consider.
        max_batch_size: The largest batch to consider.
        profile: Check the choice by running real steps on the device, and choose again where they take more.
        apply: Write the choice into the files of config_path; keeps NAME.backup of each.
        config_path: YAML or TOML files to write to, or folders of such files.
        dry_run: Show what apply would change, and write nothing.
        key: NAME=PATH: where a value is in the files, such as a.b.batch_size.

    Raises:
        InputError: something given cannot be used, or nothing fits; nothing has been written.
        ExecutionError: a step of ``profile`` failed.
    """

@overload
def plan(
    workload: WorkloadsLike = (),
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    search: Search | None = None,
    search_options: Mapping[str, object] | Sequence[str] = (),
    space: Space | None = None,
    points: Points | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    seeds: int = 1,
    split_seed: int | None = None,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    auto_memory: bool = True,
    model_memory_gb: float | None = None,
    memory_gb: float | Callable[[dict[str, Any]], float] | None = None,
    estimate: Build | None = None,
    gpu_memory_buffer_gb: float = 2.0,
    device_memory_gb: float | None = None,
    packing: Packing | None = None,
    max_workers: int | None = None,
    gpus_per_trial: str | int = 1,
    nodes_per_trial: int = 1,
    adaptive_workers: bool = True,
    threads: int | None = None,
    skip_too_large: bool = False,
    gpus: int | None = None,
    gpu: None = None,
    like: str | PathLike[str] | None = None,
) -> Forecast:
    """Shows the packing of a study without running it: what ``tuner plan`` prints.

    Where a trial's time is unknown, times are taken to grow with epochs and memory.

    Args:
        workload: What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as
            MODULE:NAME. Several train side by side. A class or an object of your own can be given as it is. By default
            the workload that config names, or graphsage.
        data: Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of
            your own. Give it once for all workloads, or for each one. A function gets whatever is given here; all trials
            share it. By default synthetic.
        skip_bad: Leave out data files that cannot be used, instead of refusing them all.
        label: The column of CAN recordings that says which frames are attacks, or none.
        normal: The value of that column in frames that are no attacks.
        columns: The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.
        largest_tree: Take the largest tree of an SWC file that has several.
        mode: A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also
            pretrain, 8gb, 12gb, 16gb or 24gb.
        config: A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON. What such a file
            holds, or a list of configurations, can be given as it is.
        overrides: The value of a hyperparameter in every configuration, as KEY=VALUE.
        only: Take only the configuration of this name.
        limit: Take only the first N configurations of each workload.
        search: How to search a space, or a mode that is a grid: grid, random, tpe, gp, cmaes, qmc, nsgaii, nsgaiii,
            bruteforce. All but grid are of Optuna. One of Optuna's samplers or a searcher of ray.tune.search can be given
            as it is. By default a list is tried as it is, choices alone as a grid, and any other space at random.
        search_options: An option of the sampler, as KEY=VALUE: an argument of its constructor in Optuna. A dictionary of
            them.
        space: A file with the space to search: YAML, TOML or JSON, with the space alone or under "space:". A mapping can
            be given as it is: from hyperparameter to a value, to a mapping such as {"loguniform": [1e-4, 0.1]}, to a
            domain of ray.tune or to a distribution of Optuna.
        points: Configurations to try before the search draws any, each a mapping with some or all hyperparameters.
        num_samples: The number of configurations that a search tries; a grid is tried as a whole.
        seed: The seed of the validation split, weights, batches and dropout.
        epochs: Train every configuration for N epochs; a function or a script is ended by its report of epoch N. By
            default each configuration's own number.
        seeds: Train every configuration with N seeds, starting with seed. The data stay split by that one.
        split_seed: The seed of the validation split alone. By default seed.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.
        memory_estimation: How to estimate memory: static is GraphSAGE's formula, traced follows a training step on
            tensors without data, measured runs one, and auto traces where a step can be followed. The memory of a
            function or a script is learned: the first trials run with room to spare, and their peaks tell what the others
            need.
        calibration: Correct estimates by what earlier trials on this device took, and learn from new ones.
        auto_memory: Estimate the memory of each configuration. model_memory_gb gives a fixed size instead.
        model_memory_gb: Give each trial this memory, in GB of 2**30 bytes. By default the memory is estimated.
        memory_gb: Give each trial this memory, in GB, including its process. A function of the configuration that returns
            it can be given, too. By default the memory is estimated; that of a function or a script is learned from its
            first trials.
        estimate: For a function of your own, whose step cannot be followed: a function of the configuration that builds
            and returns the model, its optimizer (or None) and a function that computes a batch's loss. It runs on tensors
            without data, so that memory is estimated instead of learned.
        gpu_memory_buffer_gb: The memory to leave free on each device, a GPU or the machine's RAM, in GB.
        device_memory_gb: Use each device as if it had no more than this memory, in GB. By default all of its memory.
        packing: Give each trial what it needs (per-trial), or what the largest trial needs (uniform). By default uniform
            if all trials are given the same memory, else per-trial.
        max_workers: The maximum number of trials at once; each rank of a trial counts as one. By default as many as fit.
        gpus_per_trial: The number of processes (ranks) that train a trial together by torch.distributed, each with a GPU
            of its own, or on the CPU with its own threads; auto: the fewest of 1, 2, 4 and 8 with which it fits. A key of
            this name in a configuration or a space takes precedence.
        nodes_per_trial: The number of machines of a cluster that share the ranks of a trial evenly.
        adaptive_workers: Without max_workers, run more or fewer trials at once on a GPU if measured to be faster.
        threads: The number of CPU threads of each trial. By default idle cores / workers.
        skip_too_large: Leave out configurations that fit on no device, and list them as too_large, instead of refusing
            all.
        gpus: Plan for N GPUs of device_memory_gb each. They need not exist; their machines are assumed to have enough CPU
            cores.
        gpu: The sizes of cards in GB, such as "8,16,24". They need not exist. For each size, show how the study would run
            on one such card, and with which changes the other trials would fit.
        like: A study's folder, whose trials tell how long an epoch takes where nothing has run on this machine yet.

    Returns:
        The forecast; with ``gpu`` a ``Capacity``.

    Raises:
        InputError: something given cannot be used.
    """

@overload
def plan(
    workload: WorkloadsLike = (),
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    search: Search | None = None,
    search_options: Mapping[str, object] | Sequence[str] = (),
    space: Space | None = None,
    points: Points | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    seeds: int = 1,
    split_seed: int | None = None,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    auto_memory: bool = True,
    model_memory_gb: float | None = None,
    memory_gb: float | Callable[[dict[str, Any]], float] | None = None,
    estimate: Build | None = None,
    gpu_memory_buffer_gb: float = 2.0,
    device_memory_gb: float | None = None,
    packing: Packing | None = None,
    max_workers: int | None = None,
    gpus_per_trial: str | int = 1,
    nodes_per_trial: int = 1,
    adaptive_workers: bool = True,
    threads: int | None = None,
    skip_too_large: bool = False,
    gpus: int | None = None,
    gpu: CardSizes,
    like: str | PathLike[str] | None = None,
) -> Capacity: ...

def results(
    paths: Paths = (),
    *,
    sort: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """The results of studies, a row for each trial: what ``tuner results`` shows.

    Args:
        paths: Folders of studies, folders that contain some, and files like results.csv. The studies may still be
            running. By default the study under results/ that was started last.
        sort: The columns to sort each workload's rows by; -COLUMN or COLUMN:desc sorts in descending order. By default
            completed first, by their metric.
        where: Show only rows that meet a condition such as "hidden_dim>=64"; the operators are = != < <= > >=, and ~ for
            contains. Several conditions, or one text with "and" between them, must all hold.
        columns: The columns to show; hyperparameters with or without config/. By default in a terminal what tells trials
            apart, in Python all.
        top: Show only the first N rows of each workload.

    Returns:
        ``study``, then the columns of ``results.csv`` (seconds, GB of 2**30 bytes), each of the type of its values,
        also where some are missing. What could not be read of a study is a warning.

    Raises:
        InputError: something given cannot be used, or no attempt has ended yet.
    """

def run(
    workload: WorkloadsLike = (),
    *,
    data: str | Mapping[str, str] | object = '',
    skip_bad: bool = False,
    label: str | None = None,
    normal: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    largest_tree: bool = False,
    mode: str = 'quick',
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    only: str | None = None,
    limit: int | None = None,
    metric: str | Sequence[str] = (),
    direction: str | Sequence[str] = (),
    score: str = 'best',
    constraints: str | Sequence[str] = (),
    inference_batch: int | None = None,
    cwd: StartFolder = 'script',
    metric_pattern: str | None = None,
    metrics_file: str | None = None,
    config_template: str | None = None,
    keep: KeptFolders = 'all',
    search: Search | None = None,
    search_options: Mapping[str, object] | Sequence[str] = (),
    space: Space | None = None,
    points: Points | None = None,
    num_samples: int | None = None,
    scheduler: Scheduler = 'fifo',
    scheduler_options: Mapping[str, object] | Sequence[str] = (),
    seed: int = 0,
    epochs: int | None = None,
    seeds: int = 1,
    split_seed: int | None = None,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    auto_memory: bool = True,
    model_memory_gb: float | None = None,
    memory_gb: float | Callable[[dict[str, Any]], float] | None = None,
    estimate: Build | None = None,
    gpu_memory_buffer_gb: float = 2.0,
    device_memory_gb: float | None = None,
    packing: Packing | None = None,
    max_workers: int | None = None,
    gpus_per_trial: str | int = 1,
    nodes_per_trial: int = 1,
    adaptive_workers: bool = True,
    threads: int | None = None,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = 'grow',
    max_failures: int = 0,
    trial_timeout: str | float | None = None,
    checkpoint_seconds: float = 60.0,
    caps: bool = True,
    fail_fast: int = 3,
    patience: int | None = None,
    target: float | None = None,
    time_limit: str | float | None = None,
    in_process: bool = False,
    fresh_processes: FreshProcesses = 'auto',
    address: str | None = None,
    skip_too_large: bool = False,
    output: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    report: bool = True,
    tensorboard: bool = False,
    mlflow: str | None = None,
    wandb: str | None = None,
    trial_time_limit: str | float | None = None,
    dry_run: bool = False,
    callbacks: Sequence[Callable[[object], object]] | None = None,
) -> StudyResult:
    """Tunes a workload: what ``tuner`` does in a terminal.

    An object that was the ``workload`` or the ``search`` of a study must be given again to ``resume`` it.

    Args:
        workload: What to train, built in or of your own: graphsage, gt-ssl or kd-gat, or a class or function as
            MODULE:NAME. Several train side by side. A class or an object of your own can be given as it is. By default
            the workload that config names, or graphsage.
        data: Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of
            your own. Give it once for all workloads, or for each one. A function gets whatever is given here; all trials
            share it. By default synthetic.
        skip_bad: Leave out data files that cannot be used, instead of refusing them all.
        label: The column of CAN recordings that says which frames are attacks, or none.
        normal: The value of that column in frames that are no attacks.
        columns: The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.
        largest_tree: Take the largest tree of an SWC file that has several.
        mode: A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also
            pretrain, 8gb, 12gb, 16gb or 24gb.
        config: A file with a list, grid or space of your own, in place of a mode: YAML, TOML or JSON. What such a file
            holds, or a list of configurations, can be given as it is.
        overrides: The value of a hyperparameter in every configuration, as KEY=VALUE.
        only: Take only the configuration of this name.
        limit: Take only the first N configurations of each workload.
        metric: The metric that trials are compared by, such as val_loss. With several metrics, such as val_loss and
            inference_gb, trials are ranked by Pareto fronts. By default the workload's own.
        direction: Whether a smaller or a larger metric is better: minimize (or min), or maximize (or max). By default
            what the workload says, else minimize; functions, scripts and metrics such as an accuracy need it.
        score: Which reports of a function or a script count: best, last, or mean:N for the mean of the last N, such as of
            N folds.
        constraints: A condition that the best trial must meet, such as 'estimated_gb <= 2' or 'val_latency_ms < 5': a
            name, a comparison and a number with a unit. A configuration that breaks one on estimated_gb, inference_gb,
            parameters or step_seconds is not run, as these are known before.
        inference_batch: The batch size of the forward pass that inference_gb measures, for a workload. By default that of
            training.
        cwd: Where a script or a command starts: in the current folder (script), or in the folder of its trial, trials/ID
            in the study's folder (trial).
        metric_pattern: A regular expression that finds the metric in a line that a script or a command prints, such as
            'Accuracy: ([0-9.]+)'. The last match of a line counts. Named groups, such as (?P<val_loss>[0-9.]+), give
            several metrics, and epoch. Lines of JSON are read in any case.
        metrics_file: The file of metrics that a script or a command writes in the folder of its trial, with wildcards,
            such as 'logs/**/metrics.csv': CSV with a header, lines of JSON, or TensorBoard's event files.
        config_template: The YAML, TOML or JSON file to which {config} among a script's arguments adds a trial's values.
        keep: Which folders of trials to keep once trials have ended: all, only that of the best trial (best), or none.
            Those of failed trials are kept.
        search: How to search a space, or a mode that is a grid: grid, random, tpe, gp, cmaes, qmc, nsgaii, nsgaiii,
            bruteforce. All but grid are of Optuna. One of Optuna's samplers or a searcher of ray.tune.search can be given
            as it is. By default a list is tried as it is, choices alone as a grid, and any other space at random.
        search_options: An option of the sampler, as KEY=VALUE: an argument of its constructor in Optuna. A dictionary of
            them.
        space: A file with the space to search: YAML, TOML or JSON, with the space alone or under "space:". A mapping can
            be given as it is: from hyperparameter to a value, to a mapping such as {"loguniform": [1e-4, 0.1]}, to a
            domain of ray.tune or to a distribution of Optuna.
        points: Configurations to try before the search draws any, each a mapping with some or all hyperparameters.
        num_samples: The number of configurations that a search tries; a grid is tried as a whole.
        scheduler: End bad trials early by one of Optuna's pruners: asha, hyperband, median, percentile, patient,
            threshold, wilcoxon. fifo ends none. With pbt the trials of a space are a population: bad ones take over
            checkpoints and changed values of good ones. One of Optuna's pruners can be given as it is.
        scheduler_options: An option of the pruner, as KEY=VALUE: an argument of its constructor in Optuna; for pbt
            interval and epochs, in reports, quantile, resample or mutate. A dictionary of them.
        seed: The seed of the validation split, weights, batches and dropout.
        epochs: Train every configuration for N epochs; a function or a script is ended by its report of epoch N. By
            default each configuration's own number.
        seeds: Train every configuration with N seeds, starting with seed. The data stay split by that one.
        split_seed: The seed of the validation split alone. By default seed.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.
        memory_estimation: How to estimate memory: static is GraphSAGE's formula, traced follows a training step on
            tensors without data, measured runs one, and auto traces where a step can be followed. The memory of a
            function or a script is learned: the first trials run with room to spare, and their peaks tell what the others
            need.
        calibration: Correct estimates by what earlier trials on this device took, and learn from new ones.
        auto_memory: Estimate the memory of each configuration. model_memory_gb gives a fixed size instead.
        model_memory_gb: Give each trial this memory, in GB of 2**30 bytes. By default the memory is estimated.
        memory_gb: Give each trial this memory, in GB, including its process. A function of the configuration that returns
            it can be given, too. By default the memory is estimated; that of a function or a script is learned from its
            first trials.
        estimate: For a function of your own, whose step cannot be followed: a function of the configuration that builds
            and returns the model, its optimizer (or None) and a function that computes a batch's loss. It runs on tensors
            without data, so that memory is estimated instead of learned.
        gpu_memory_buffer_gb: The memory to leave free on each device, a GPU or the machine's RAM, in GB.
        device_memory_gb: Use each device as if it had no more than this memory, in GB. By default all of its memory.
        packing: Give each trial what it needs (per-trial), or what the largest trial needs (uniform). By default uniform
            if all trials are given the same memory, else per-trial.
        max_workers: The maximum number of trials at once; each rank of a trial counts as one. By default as many as fit.
        gpus_per_trial: The number of processes (ranks) that train a trial together by torch.distributed, each with a GPU
            of its own, or on the CPU with its own threads; auto: the fewest of 1, 2, 4 and 8 with which it fits. A key of
            this name in a configuration or a space takes precedence.
        nodes_per_trial: The number of machines of a cluster that share the ranks of a trial evenly.
        adaptive_workers: Without max_workers, run more or fewer trials at once on a GPU if measured to be faster.
        threads: The number of CPU threads of each trial. By default idle cores / workers.
        max_attempts: The maximum number of attempts for a trial that runs out of memory.
        retry_growth: The factor by which a trial's memory grows after it ran out of memory.
        backoff: The wait before the first retry while other trials run, in seconds; it doubles with each further retry.
        backoff_max: The longest wait before a retry, in seconds.
        on_oom: What to do when a trial runs out of memory: grow gives it more, up to a whole device; accumulate then
            halves the micro-batch, or the chunks of an evaluation that ran out; fail does not retry.
        max_failures: The maximum number of retries of a trial that raised another error.
        trial_timeout: End a trial that reports nothing for this long, and retry it once: seconds, or a text such as "90s"
            or "10m". Each epoch is a report, and the time starts with your own code. By default no trial is ended for
            that.
        checkpoint_seconds: The time between two checkpoints of a running trial, in seconds.
        caps: End a trial that takes more than its share, before it takes memory from the others.
        fail_fast: End the study if its first N trials fail with the same error, and at once if a report lacks the metric.
            0 never ends it.
        patience: End the study after N trials without an improvement.
        target: End the study once the metric of a completed trial has reached this value.
        time_limit: End the study after this time and keep its results: seconds, or a text such as "90s", "30m" or
            "1h30m".
        in_process: Train one trial after another in this process, without Ray: it starts fastest, and a debugger works.
        fresh_processes: Run each trial in a new process, so that nothing of an earlier trial is left in it: on, off, or
            auto, which does so on the CPU, where it costs milliseconds.
        address: Join this Ray cluster: auto or HOST:PORT; local starts a Ray of the study's own. By default RAY_ADDRESS,
            else local.
        skip_too_large: Leave out configurations that fit on no device, and list them as too_large, instead of refusing
            all.
        output: The study's folder, new or empty. By default a new one under results/.
        resume: Continue the study in this folder. Its options are kept, except those that are given now.
        report: Write report.html, a page of plots and tables, at the end.
        tensorboard: Write event files for TensorBoard, with HParams, into the study's folder.
        mlflow: Also send results to this MLflow server, or to a store such as sqlite:///FILE; needs the extra mlflow.
        wandb: Also send results to this project of Weights & Biases; needs the extra wandb.
        trial_time_limit: End a function or a script that trains for this long, as completed: seconds, or a text such as
            "90s" or "10m". With in_process it ends at its next report. By default none.
        dry_run: Stop after the plan.
        callbacks: Functions that are called in this process with each event of the study: trials that start, report, end
            or are tried again. The events are classes of tuner.decisions.events.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """

def train(
    study: str | PathLike[str] | None = None,
    *,
    trial: str = 'best',
    workload: WorkloadLike | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    all_data: bool = False,
    exact: bool = False,
    data: str | None = None,
    device: DeviceChoice = 'auto',
    threads: int | None = None,
    output: str | PathLike[str] | None = None,
) -> TrainingResult:
    """Trains one configuration of a study again, as a study of this trial alone: what ``tuner train`` does.

    Args:
        study: The study's folder.
        trial: Which trial: the best one (over seeds by the mean), one by its id such as t003, or the best one of a
            configuration by its name.
        workload: The trial's workload, if the study has several. Or your own class or object, if the study does not know
            where it is defined.
        seed: The seed of weights, batches and dropout. It also chooses the trial if there are several. The data stay
            split as in the study. By default the trial's.
        epochs: The number of epochs. The learning rate falls over all of them. By default as many as the study's trial.
        all_data: Train on training, validation and test data together. The last epoch is kept; without epochs it is the
            epoch that was best in the study.
        exact: Fail unless the metrics equal those of the study, to the last digit (CPU only).
        data: Where the data are now. By default where the study had them.
        device: Where to train: cuda, cpu, or auto for a GPU if there is one.
        threads: The number of CPU threads. By default as many as the study's trials had.
        output: A folder for the model, new or empty. By default a new one under results/.

    Raises:
        InputError: something given cannot be used, or there is not enough memory; nothing has been written.
        Differs: ``exact``, and a figure is another; the model has been saved.
        ExecutionError: the trial was not completed; its row in the folder says why.
        KeyboardInterrupt: after the trial's checkpoint has been written, so that the folder can be resumed.
    """

def tune_hyperparameters_parallel(
    trainset: Table,
    testset: Table,
    user_features: Table,
    item_features: Table,
    configurations: Sequence[Mapping[str, object]],
    model_memory_gb: float | None = 1.5,
    gpu_memory_buffer_gb: float = 2.0,
    max_workers: int | None = None,
    *,
    seed: int = 0,
    epochs: int | None = None,
    seeds: int = 1,
    split_seed: int | None = None,
    device: DeviceChoice = 'auto',
    expandable_segments: bool = False,
    memory_estimation: str = 'auto',
    calibration: bool = True,
    auto_memory: bool = False,
    memory_gb: float | Callable[[dict[str, Any]], float] | None = None,
    estimate: Build | None = None,
    device_memory_gb: float | None = None,
    packing: Packing | None = None,
    gpus_per_trial: str | int = 1,
    nodes_per_trial: int = 1,
    adaptive_workers: bool = True,
    threads: int | None = None,
    max_attempts: int = 4,
    retry_growth: float = 1.5,
    backoff: float = 5.0,
    backoff_max: float = 300.0,
    on_oom: OnOom = 'grow',
    max_failures: int = 0,
    trial_timeout: str | float | None = None,
    checkpoint_seconds: float = 60.0,
    caps: bool = True,
    fail_fast: int = 3,
    patience: int | None = None,
    target: float | None = None,
    time_limit: str | float | None = None,
    in_process: bool = False,
    fresh_processes: FreshProcesses = 'auto',
    address: str | None = None,
    output: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    report: bool = True,
    tensorboard: bool = False,
    mlflow: str | None = None,
    wandb: str | None = None,
) -> StudyFrame:
    """Tunes GraphSAGE on ratings that are in memory: the call for notebooks and scripts.

    Args:
        trainset: Training ratings: a DataFrame with user_id, item_id and rating, or an array of these three columns. A
            twentieth of them is set aside for validation.
        testset: Test ratings, in the same form. Nothing is chosen by them.
        user_features: Features of shape (num_users, any number). Ids are row positions, or index labels of a DataFrame.
        item_features: The same for items.
        configurations: Mappings from hyperparameter to value, with an optional name.
        model_memory_gb: The memory of each trial, in GB of 2**30 bytes, where it is neither estimated nor given by
            memory_gb.
        gpu_memory_buffer_gb: The memory to leave free on each device, a GPU or the machine's RAM, in GB.
        max_workers: The maximum number of trials at once; each rank of a trial counts as one. By default as many as fit.
        seed: The seed of the validation split, weights, batches and dropout.
        epochs: Train every configuration for N epochs; a function or a script is ended by its report of epoch N. By
            default each configuration's own number.
        seeds: Train every configuration with N seeds, starting with seed. The data stay split by that one.
        split_seed: The seed of the validation split alone. By default seed.
        device: Where to train: cuda, cpu, or auto for GPUs where there are any.
        expandable_segments: Use the option of this name of PyTorch's CUDA allocator, which reduces fragmentation.
        memory_estimation: How to estimate memory: static is GraphSAGE's formula, traced follows a training step on
            tensors without data, measured runs one, and auto traces where a step can be followed. The memory of a
            function or a script is learned: the first trials run with room to spare, and their peaks tell what the others
            need.
        calibration: Correct estimates by what earlier trials on this device took, and learn from new ones.
        auto_memory: Estimate the memory of each configuration, and give each trial that instead of model_memory_gb.
        memory_gb: Give each trial this memory, in GB, including its process. A function of the configuration that returns
            it can be given, too. By default the memory is estimated; that of a function or a script is learned from its
            first trials.
        estimate: For a function of your own, whose step cannot be followed: a function of the configuration that builds
            and returns the model, its optimizer (or None) and a function that computes a batch's loss. It runs on tensors
            without data, so that memory is estimated instead of learned.
        device_memory_gb: Use each device as if it had no more than this memory, in GB. By default all of its memory.
        packing: Give each trial what it needs (per-trial), or what the largest trial needs (uniform). By default uniform
            if all trials are given the same memory, else per-trial.
        gpus_per_trial: The number of processes (ranks) that train a trial together by torch.distributed, each with a GPU
            of its own, or on the CPU with its own threads; auto: the fewest of 1, 2, 4 and 8 with which it fits. A key of
            this name in a configuration or a space takes precedence.
        nodes_per_trial: The number of machines of a cluster that share the ranks of a trial evenly.
        adaptive_workers: Without max_workers, run more or fewer trials at once on a GPU if measured to be faster.
        threads: The number of CPU threads of each trial. By default idle cores / workers.
        max_attempts: The maximum number of attempts for a trial that runs out of memory.
        retry_growth: The factor by which a trial's memory grows after it ran out of memory.
        backoff: The wait before the first retry while other trials run, in seconds; it doubles with each further retry.
        backoff_max: The longest wait before a retry, in seconds.
        on_oom: What to do when a trial runs out of memory: grow gives it more, up to a whole device; accumulate then
            halves the micro-batch, or the chunks of an evaluation that ran out; fail does not retry.
        max_failures: The maximum number of retries of a trial that raised another error.
        trial_timeout: End a trial that reports nothing for this long, and retry it once: seconds, or a text such as "90s"
            or "10m". Each epoch is a report, and the time starts with your own code. By default no trial is ended for
            that.
        checkpoint_seconds: The time between two checkpoints of a running trial, in seconds.
        caps: End a trial that takes more than its share, before it takes memory from the others.
        fail_fast: End the study if its first N trials fail with the same error, and at once if a report lacks the metric.
            0 never ends it.
        patience: End the study after N trials without an improvement.
        target: End the study once the metric of a completed trial has reached this value.
        time_limit: End the study after this time and keep its results: seconds, or a text such as "90s", "30m" or
            "1h30m".
        in_process: Train one trial after another in this process, without Ray: it starts fastest, and a debugger works.
        fresh_processes: Run each trial in a new process, so that nothing of an earlier trial is left in it: on, off, or
            auto, which does so on the CPU, where it costs milliseconds.
        address: Join this Ray cluster: auto or HOST:PORT; local starts a Ray of the study's own. By default RAY_ADDRESS,
            else local.
        output: The study's folder, new or empty. By default a new one under results/.
        resume: Continue the study in this folder. Its options are kept, except those that are given now.
        report: Write report.html, a page of plots and tables, at the end.
        tensorboard: Write event files for TensorBoard, with HParams, into the study's folder.
        mlflow: Also send results to this MLflow server, or to a store such as sqlite:///FILE; needs the extra mlflow.
        wandb: Also send results to this project of Weights & Biases; needs the extra wandb.

    Returns:
        A DataFrame with one row for each trial (a configuration with one seed), best first, and the columns of
        ``results.csv``, which a notebook shows as a table. ``.best`` is the best trial, ``.best_model()`` its model,
        and ``.plot_curves()``, ``.plot_parallel()``, ``.plot_metric()``, ``.plot_timeline()`` and ``.plot_memory()``
        draw it; ``attrs["folder"]`` is the study's folder. ``tuner.compare`` gives the means over seeds.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """

def write_report(
    directory: Paths = (),
    *,
    output: str | PathLike[str] | None = None,
    single_file: bool = False,
    watch: bool = False,
    port: int = 8765,
) -> Path:
    """Writes a study as one HTML page that works offline: results, plots, and what memory did.

    Several studies are compared on one page. What could not be read of a study is in the page, and a warning.

    Args:
        directory: The study's folder. Several studies are compared on one page. By default the newest study under
            results/.
        output: The page's file. By default report.html in the study's folder; of several studies compared.html beside the
            first.
        single_file: Put the plotting library (2 MB) into the page, so that it can be sent as one file. Otherwise all
            pages of a results folder share one file with it.
        watch: Serve the page on this machine until Ctrl-C, up to date while the study runs; then write it.
        port: The port where watch serves the page; 0 is any free one.

    Returns:
        The page's file.

    Raises:
        InputError: there is no such study, the file cannot be written or is there and no earlier page, the port is
            in use, or plotly is not installed.
    """
