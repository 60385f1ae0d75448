"""The public functions: each command of the CLI is one of these, with the same parameters."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.estimation.registry import Method
from tuner.machine.devices import DeviceChoice
from tuner.placement.packing import Packing, Plan
from tuner.placement.retry import OnOom
from tuner.records.attempts import Attempt
from tuner.records.study_json import classes, read_study, workloads
from tuner.search.configurations import Configs
from tuner.search.schedulers import SchedulerName as Scheduler
from tuner.spec.settings import Settings
from tuner.study.again import arguments, its_options, load_again, program, run_again, train_again
from tuner.study.given_again import CALL, as_stored, check_given_again, gone_on_with
from tuner.study.live_search import LiveSearch
from tuner.study.prerequisites import train_prerequisites
from tuner.study.result import StudyResult
from tuner.study.searching import SELECTION, UP_FRONT, choose_searched, same_selection
from tuner.study.selection import DEFAULT_DATA, DEFAULT_MODE, choose, chosen_before
from tuner.study.study import run_study
from tuner.workloads.lookup import find_workload, listed, specs_of
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.workloads.lookup import Workloads


def run(
    workload: Workloads = (),
    *,
    mode: str = DEFAULT_MODE,
    config: Configs | None = None,
    overrides: Sequence[str] = (),
    data: str | Mapping[str, str] = DEFAULT_DATA,
    skip_bad: bool = False,
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
    search: Any = None,
    space: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
    scheduler: Scheduler = "fifo",
    report: bool = True,
    tensorboard: bool = False,
    mlflow: str | None = None,
    wandb: str | None = None,
    dry_run: bool = False,
) -> StudyResult:
    """Tunes a workload: what ``tune`` does in a terminal.

    Args:
        workload: what to train: "graphsage"; "module:Class", an object or a class of your own; several train side by
            side. Without one, what ``config`` names, else "graphsage".
        mode: a named list of configurations: "quick", "architecture", "learning", "regularization" or "full".
        config: a file of your own instead of a mode: ``configurations:`` or ``grid:`` in YAML, TOML or JSON. The
            key ``workload`` there says whose a configuration is. Or what such a file holds, as a mapping, or a list
            of configurations.
        overrides: ``"key=value"`` texts that replace values of every configuration whose workload has the key.
        data: "synthetic", "ml-100k" (downloaded once), or a folder; a workload of your own gets the text as it is.
            Or a mapping from workload to one of these.
        skip_bad: leave out data files that cannot be used, such as SWC files, instead of refusing them all.
        only: run just the configuration of this name.
        limit: run just the first so many of each workload.
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
        resume: the folder of a study to go on with: it keeps its options, but for those given here. An object that
            was its ``workload`` or ``search`` must be given again.
        address: a Ray cluster to join: "auto" or "HOST:PORT"; by default a local Ray is started.
        device: "cuda", "cpu", or "auto" for GPUs where there are any.
        memory_estimation: how ``auto_memory`` estimates: "static", "traced", "measured", or "auto" for traced
            where a step can be followed.
        calibration: correct estimates by what earlier trials on this device needed, and keep what these need.
        expandable_segments: set PyTorch's CUDA allocator option of that name, and estimate with it.
        search: how to search a space: "grid", "random" or "optuna"; or one of Optuna's samplers, or a searcher of
            ``ray.tune.search``. None tries the configurations of a list.
        space: what to search, in place of a file's ``space:``: from hyperparameter to a value, to a mapping such as
            ``{"loguniform": [1e-4, 0.1]}``, or to a domain of ``ray.tune``.
        num_samples: how many configurations "random" and those that suggest them try.
        scheduler: end trials early that are not worth their epochs: "asha", "median", or "fifo" for none.
        report: write ``report.html`` into the study's folder at its end.
        tensorboard: write event files with hyperparameters for TensorBoard into the study's folder.
        mlflow: tell an MLflow server or store, too: its URI, such as "sqlite:///mlflow.db".
        wandb: tell Weights & Biases, too: the project, or "ENTITY/PROJECT".
        dry_run: stop after printing the plan.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """
    options = dict(locals())
    defaults = run_defaults()
    given = {name for name, value in options.items() if value != defaults[name]}
    return run_given(options, given, from_python=True)


def run_given(options: Mapping[str, Any], given: Collection[str], *, from_python: bool = False) -> StudyResult:
    """What ``run`` does, where it is known which options were given: beside ``resume`` only these replace a study's.

    Args:
        options: every parameter of ``run`` by its name.
        given: the names of those that the user has set, if only to their defaults.
        from_python: the user called ``run``.

    Raises:
        InputError: as ``run``.
        ExecutionError: as ``run``.
    """
    defaults = run_defaults()
    options = {name: options.get(name, default) for name, default in defaults.items()}  # in one order, as in commands
    wanted, search, stored = options["workload"], options["search"], as_stored(options)
    study: Mapping[str, Any] = {}
    if resume := stored["resume"]:
        study = read_study(Path(resume))
        stored = gone_on_with(study, stored, given, defaults, wanted, from_python=from_python)
        wanted = wanted if "workload" in given else stored["workload"]
        search = search if "search" in given else stored["search"]
        check_given_again(study, wanted if "workload" in given else (), search, resume)
    selections, label, live = _selections(stored, study, wanted, search)
    command = _command(stored, defaults) if specs_of(wanted) is not None and search == stored["search"] else CALL
    settings = Settings.from_options(stored)
    selections, settings = train_prerequisites(selections, settings, command=command, options=stored)

    def again(best: Attempt, folder: Path, plan: Plan) -> str:
        return _again(stored, best, read_study(folder), folder, plan.threads, _call(best.workload, listed(wanted)))

    return run_study(
        selections,
        settings,
        label=label,
        command=command,
        options=stored,
        again=again,
        from_python=from_python,
        live=live,
    )


def _selections(
    options: Mapping[str, Any], study: Mapping[str, Any], wanted: Workloads, search: Any
) -> tuple[list[Selection], str, LiveSearch | None]:
    """What to try of each workload, what the list is called, and the search that adds to it.

    What a study tried, if nothing else is asked for.
    """
    selection = {**{name: options[name] for name in SELECTION}, "workload": wanted}
    data, skip_bad, seed = options["data"], options["skip_bad"], Settings.from_options(options).data_seed
    if search is None:
        for name in ("space", "num_samples"):
            if options[name] is not None:
                option = "space" if name == "space" else "--num-samples"  # a space is given by Python alone
                raise InputError(f"{option}: has no effect without --search grid, random or optuna")
    of_list = search is None or (isinstance(search, str) and search in UP_FRONT)
    if of_list and same_selection(study, options, (*SELECTION, "search", "space", "num_samples")):
        known = study["configurations"], workloads(study)
        return chosen_before(*known, data, seed, skip_bad, classes(study), wanted), options["mode"], None
    if search is not None:
        return choose_searched(options, study, wanted, search)
    return *choose(**selection, data=data, seed=seed, skip_bad=skip_bad), None


def _command(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """What a terminal would be told for such a study; a call, where it holds what no command can say."""
    if options["space"] is not None or not isinstance(options["config"], (str, NoneType)):
        return CALL
    words = {name: value for name, value in options.items() if name != "space"}
    return f"{program()} {shlex.join(arguments(words, defaults))}".rstrip()


def command_again(study: Mapping[str, Any], row: Attempt, folder: Path) -> str:
    """How to have a trial of a study again: the command, or for a study that Python started the call for its weights.

    Args:
        study: the content of ``study.json``.
        row: the trial's.
        folder: the study's.
    """
    return _again(study.get("options"), row, study, folder, study.get("plan", {}).get("threads"))


def _again(
    stored: object, row: Attempt, study: Mapping[str, Any], folder: Path, threads: int | None, call: str = "…"
) -> str:
    """The same, by these options of the study, with so many threads, and by the call that makes its workload."""
    if classes(study).get(row.workload, "") is None:
        return load_again(folder, call)
    if not isinstance(stored, Mapping):
        return load_again(folder)
    defaults = run_defaults()
    options = {name: stored.get(name, default) for name, default in defaults.items()}
    suggested = options["search"] not in (None, "grid")  # what it suggests depends on what ran beside it
    if suggested or options["space"] or not isinstance(options["config"], (str, NoneType)):
        return train_again(folder, row)
    return run_again(its_options(options, row, study), row, threads, defaults)


def _call(name: str, wanted: Sequence[Any]) -> str:
    """How the object or class of this name was made, in Python."""
    own = [each for each in wanted if not isinstance(each, str) and find_workload(each).name == name]
    if not own:
        return "…"
    cls = own[0] if isinstance(own[0], type) else type(own[0])
    return f"{cls.__name__}({'…' if own[0] is not cls and vars(own[0]) else ''})"


def run_defaults() -> dict[str, Any]:
    """Every option of ``run`` with its default."""
    return {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
