"""Tuning on ratings that are in memory: the call of notebooks and scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.estimation.registry import Method
from tuner.machine.devices import DeviceChoice
from tuner.placement.packing import Packing
from tuner.placement.retry import OnOom
from tuner.search.configurations import configurations as parse_configurations
from tuner.spec.settings import Settings
from tuner.study.again import load_again
from tuner.study.study import run_study
from tuner.workloads.lookup import find_workload
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.reporting.frame import StudyFrame


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
    seeds: int = 1,
    split_seed: int | None = None,
    time_limit: str | float | None = None,
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
    report: bool = True,
    tensorboard: bool = False,
    mlflow: str | None = None,
    wandb: str | None = None,
) -> StudyFrame:
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
        seeds: train every configuration with so many seeds, from ``seed`` on: of weights, batches and dropout. The
            data are split by ``seed`` for all of them.
        split_seed: seed of the validation split, if it is not to be ``seed``.
        time_limit: end the study after this with what it has: seconds, or a text such as "90s", "30m" or "1h30m".
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
        report: write ``report.html`` into the study's folder at its end.
        tensorboard: write event files with hyperparameters for TensorBoard into the study's folder.
        mlflow: tell an MLflow server or store, too: its URI, such as "sqlite:///mlflow.db".
        wandb: tell Weights & Biases, too: the project, or "ENTITY/PROJECT".

    Returns:
        A DataFrame with one row for each trial (a configuration with one seed), best first, and the columns of
        ``results.csv``, which a notebook shows as a table. ``.best`` is the best trial, ``.best_model()`` its model,
        and ``.plot_curves()``, ``.plot_parallel()``, ``.plot_metric()``, ``.plot_timeline()`` and ``.plot_memory()``
        draw it; ``attrs["folder"]`` is the study's folder. ``tuner.compare`` gives the means over seeds.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    options = dict(locals())
    from tuner.datasets.ratings import from_tables

    workload = find_workload("graphsage")
    chosen = parse_configurations(configurations, workload.schema, finish=finish_of(workload))
    settings = Settings.from_options(options)

    def load_data() -> Any:
        return from_tables(trainset, testset, user_features, item_features, seed=settings.data_seed)

    result = run_study(
        [Selection(workload, load_data, chosen)],
        settings,
        label="notebook",
        command="tune_hyperparameters_parallel()",
        again=lambda _, folder, __: load_again(folder),
        returns_table=True,
        from_python=True,
    )
    return result.to_frame()
