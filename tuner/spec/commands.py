"""The options of the other commands: what they share with a study comes from the groups of ``settings.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator

from tuner.decisions.retry import OnOom
from tuner.errors import option
from tuner.machine.devices import DeviceChoice
from tuner.sizing.transformers.formula import Attention
from tuner.spec.groups import (
    Caps,
    OutOfMemory,
    PackingOptions,
    Records,
    Seed,
    SelectionOptions,
    SpaceOptions,
    StudyOptions,
    TooLarge,
    Training,
)
from tuner.spec.memory_groups import DeviceMemory, DeviceOptions, DeviceSelection, Estimation
from tuner.spec.options import Options, PathText, Terminal, field, required
from tuner.trial import MOST_GB, MOST_SEED, MemoryEstimate

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tuner.workloads.lookup import WorkloadLike, WorkloadsLike

    Model = str | Path | WorkloadsLike
    Step = Callable[[], tuple[nn.Module, Optimizer | None, Callable[[], Tensor]]]
    CardSizes = str | Sequence[float]
    Paths = str | Path | Sequence[str | Path]
    Estimate = float | Callable[[dict[str, Any]], float | MemoryEstimate]
    Table = Any  # whatever numpy makes an array of
else:  # looked over where they are used
    Model = Step = CardSizes = Paths = Estimate = Table = WorkloadLike = object

Listed = Annotated[Sequence[str], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
PORT = 8765


class PlanOptions(SelectionOptions, SpaceOptions, Training, PackingOptions, TooLarge, title="What to plan for"):
    """``plan``: how a study would be packed."""

    gpus: int | None = field(
        None,
        f"Plan for N GPUs of {option('device_memory_gb')} each. They need not exist; their machines are "
        "assumed to have enough CPU cores.",
        Terminal("N"),
        ge=1,
    )
    gpu: CardSizes | None = field(
        None,
        'The sizes of cards in GB, such as "8,16,24". They need not exist. For each size, show how the study '
        "would run on one such card, and with which changes the other trials would fit.",
        Terminal("GB,GB,…"),
    )
    like: PathText | None = field(
        None,
        "A study's folder, whose trials tell how long an epoch takes where nothing has run on this machine yet.",
        Terminal("DIR"),
    )


class TransformerOptions(Options, title="A transformer"):
    """The sizes of a GPT-style transformer."""

    model_embd: int | None = field(None, "A transformer's width.", Terminal("N"))
    model_layer: int | None = field(None, "A transformer's number of blocks.", Terminal("N"))
    model_head: int | None = field(
        None, "A transformer's number of attention heads.", Terminal("N", unset="heads of 64")
    )
    model_positions: int | None = field(
        None, "A transformer's number of positions.", Terminal("N", unset=f"{option('seq_len')}, or 512")
    )
    batch_size: int | None = field(None, "A transformer's batch, in sequences.", Terminal("N"))
    seq_len: int | None = field(
        None, "The number of tokens in each sequence.", Terminal("N", unset=option("model_positions"))
    )
    mixed_precision: bool | None = field(
        None,
        "Advise for training under autocast; all precisions are shown anyway.",
        Terminal(unset="no mixed precision"),
    )
    checkpointing: bool | None = field(
        None,
        "Recompute a transformer's blocks in the backward pass, to save memory.",
        Terminal(unset="no checkpointing"),
    )
    attention: Attention | None = field(
        None,
        "The attention: sdpa is torch's kernel, explicit keeps every head's matrix of scores.",
        Terminal(unset="sdpa", choices=("sdpa", "explicit")),
    )
    vocabulary: int | None = field(None, "The size of the vocabulary, in tokens.", Terminal("N", unset="50257"))
    tied: bool | None = field(
        None, "Share the weight of the token embedding with the head.", Terminal(flag="--tied/--untied", unset="tied")
    )


class EstimateOptions(SelectionOptions, Seed, Estimation, TransformerOptions, title="What to estimate"):
    """``estimate``: what training will take."""

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: Model | None = field(
        None,
        "A TOML file with a transformer's sizes, named as the options from model_embd on, which take "
        "precedence; or, if it is not a text, a workload.",
        Terminal("[MODEL.toml]", argument=True),
    )
    step: Step | None = field(
        None,
        "For a model of your own, in place of a workload: a function that builds and returns the model, its "
        "optimizer (or None) and a function that computes a batch's loss. It runs on tensors without data.",
        Terminal(hidden=True),
    )
    snapshot: PathText | None = field(
        None,
        "Also write the allocations of one configuration on a GPU, which need not exist, to a new file that "
        "ends with .pickle. PyTorch's memory viewer (docs.pytorch.org/memory_viz) draws it.",
        Terminal("FILE"),
    )


class CalibrateOptions(SelectionOptions, Seed, DeviceOptions, title="What to size"):
    """``calibrate``: what configurations take, measured."""


class OptimizeOptions(SelectionOptions, Seed, Estimation):
    """``optimize``: the largest batch that fits."""

    positional: ClassVar[tuple[str, ...]] = ("workload",)

    footprint: PathText | None = field(
        None, "Size this footprint, a file or one in configs/footprints, in place of a workload.", Terminal("FILE")
    )
    auto: bool = field(False, f"Size for this machine's device; give either this or {option('gpu_memory')}.")
    gpu_memory: float | None = field(
        None, "Size for a GPU of this many GB, which need not exist.", Terminal("GB"), gt=0, le=MOST_GB
    )
    safety_margin: float = field(
        0.85, "The share of the device's memory that may be used.", Terminal("SHARE"), gt=0, le=1
    )
    target_effective_batch: int = field(
        256, "The number of samples of an optimizer step, over all devices.", Terminal("N"), ge=1
    )
    devices: int = field(1, "The number of devices that share each step.", Terminal("N"), ge=1)
    min_batch_size: int = field(1, "The smallest batch to consider.", Terminal("N"), ge=1)
    max_batch_size: int | None = field(None, "The largest batch to consider.", Terminal("N"), ge=1)
    profile: bool = field(
        False, "Check the choice by running real steps on the device, and choose again where they take more."
    )
    apply: bool = field(
        False, f"Write the choice into the files of {option('config_path')}; keeps NAME.backup of each."
    )
    config_path: Listed = field((), "YAML or TOML files to write to, or folders of such files.", Terminal("PATH"))
    dry_run: bool = field(False, f"Show what {option('apply')} would change, and write nothing.")
    key: Listed = field(
        (), "NAME=PATH: where a value is in the files, such as a.b.batch_size.", Terminal("NAME=PATH")
    )


class NotebookOptions(StudyOptions, Records):
    """``tune_hyperparameters_parallel``: GraphSAGE on ratings that are in memory."""

    positional: ClassVar[tuple[str, ...]] = (
        *("trainset", "testset", "user_features", "item_features", "configurations"),
        *("model_memory_gb", "gpu_memory_buffer_gb", "max_workers"),
    )

    auto_memory: bool = field(
        False, "Estimate the memory of each configuration, and give each trial that instead of model_memory_gb."
    )
    model_memory_gb: float | None = field(
        1.5,
        "The memory of each trial, in GB of 2**30 bytes, where it is neither estimated nor given by memory_gb.",
        gt=0,
        le=MOST_GB,
    )
    trainset: Table = required(
        "Training ratings: a DataFrame with user_id, item_id and rating, or an array of these three columns. A "
        "twentieth of them is set aside for validation."
    )
    testset: Table = required("Test ratings, in the same form. Nothing is chosen by them.")
    user_features: Table = required(
        "Features of shape (num_users, any number). Ids are row positions, or index labels of a DataFrame."
    )
    item_features: Table = required("The same for items.")
    configurations: Sequence[Mapping[str, object]] = required(
        "Mappings from hyperparameter to value, with an optional name."
    )


class OptunaOptions(StudyOptions, Records):
    """``tuner.optuna.optimize``: an Optuna study's trials."""

    positional: ClassVar[tuple[str, ...]] = (
        *("study", "objective", "n_trials", "timeout", "n_jobs", "catch", "callbacks", "gc_after_trial"),
        "show_progress_bar",
    )

    study: Any = required("The optuna.Study.")
    objective: Any = required("A function of an optuna.Trial that returns a value, or one for each direction.")
    n_trials: int | None = field(None, "The number of trials, with those of a study that is resumed; 0 runs none.")
    timeout: float | None = field(
        None, "The number of seconds after which no trial starts; running trials continue.", ge=0
    )
    n_jobs: int | None = field(None, f"Optuna's name for {option('max_workers')}; -1 is as many as fit.", ge=-1)
    catch: Any = field(None, "The exceptions that do not end the study. By default none does.")
    callbacks: Any = field(
        None, "Functions that are called in this process with the study and each trial that has ended."
    )
    gc_after_trial: bool = field(False, "Garbage is always collected.")
    show_progress_bar: bool = field(False, "Progress is always shown.")
    fail_fast: int = field(0, "End the study if its first N trials fail with the same error; 0 goes on.", ge=0)


class MemoryAwareOptions(DeviceSelection, DeviceMemory, Caps, OutOfMemory):
    """``memory_aware``: a trainable of Ray Tune whose trials get the memory that they need."""

    positional: ClassVar[tuple[str, ...]] = ("trainable",)

    trainable: object = required(
        "A function of a configuration, or a subclass of ray.tune.Trainable; as it is, or from tune.with_parameters "
        "or tune.with_resources, whose CPUs and custom resources stay."
    )
    estimate: Estimate = required(
        "The memory that a trial's process takes from its device: a number of GB, or a function of a configuration "
        "that returns one or a MemoryEstimate."
    )
    on_oom: OnOom = field(
        "grow",
        'What to do when a trial runs out of memory: "grow" gives it more, up to a whole device; '
        '"fail" does not retry.',
    )


class TrainOptions(Options):
    """``train``: one configuration of a study again."""

    positional: ClassVar[tuple[str, ...]] = ("study",)

    study: PathText | None = field(None, "The study's folder.", Terminal("DIR", "--from"))
    trial: str = field(
        "best",
        "Which trial: the best one (over seeds by the mean), one by its id such as t003, or the best one of a "
        "configuration by its name.",
        Terminal("best|ID|NAME"),
    )
    workload: WorkloadLike | None = field(
        None,
        "The trial's workload, if the study has several.",
        Terminal("NAME", in_python="Or your own class or object, if the study does not know where it is defined."),
    )
    seed: int | None = field(
        None,
        "The seed of weights, batches and dropout. It also chooses the trial if there are several. The data stay "
        "split as in the study.",
        Terminal("N", unset="the trial's"),
        ge=0,
        le=MOST_SEED,
    )
    epochs: int | None = field(
        None,
        "The number of epochs. The learning rate falls over all of them.",
        Terminal("N", unset="as many as the study's trial"),
        ge=1,
    )
    all_data: bool = field(
        False,
        "Train on training, validation and test data together. The last epoch is kept; without "
        f"{option('epochs')} it is the epoch that was best in the study.",
    )
    exact: bool = field(False, "Fail unless the metrics equal those of the study, to the last digit (CPU only).")
    data: str | None = field(None, "Where the data are now.", Terminal("NAME|DIR", unset="where the study had them"))
    device: DeviceChoice = field("auto", "Where to train: cuda, cpu, or auto for a GPU if there is one.")
    threads: int | None = field(
        None, "The number of CPU threads.", Terminal("N", unset="as many as the study's trials had"), ge=1
    )
    output: PathText | None = field(
        None, "A folder for the model, new or empty.", Terminal("DIR", unset="a new one under results/")
    )


class ResultsOptions(Options):
    """``results``: the results of studies."""

    positional: ClassVar[tuple[str, ...]] = ("paths",)

    paths: Paths = field(
        (),
        "Folders of studies, folders that contain some, and files like results.csv. The studies may still be "
        "running.",
        Terminal("[DIR|CSV]...", unset="the study under results/ that was started last", argument=True),
    )
    sort: Listed = field(
        (),
        "The columns to sort each workload's rows by; -COLUMN or COLUMN:desc sorts in descending order.",
        Terminal("[-]COLUMN", unset="completed first, by their metric"),
    )
    where: Listed = field(
        (),
        'Show only rows that meet a condition such as "hidden_dim>=64"; the operators are = != < <= > >=, and '
        '~ for contains. Several conditions, or one text with "and" between them, must all hold.',
        Terminal("CONDITION"),
    )
    columns: str | Sequence[str] | None = field(
        None,
        "The columns to show; hyperparameters with or without config/.",
        Terminal("A,B,C", unset="in a terminal what tells trials apart, in Python all"),
    )
    top: int | None = field(None, "Show only the first N rows of each workload.", Terminal("N"), ge=1)


class ReportOptions(Options):
    """``report``: a study as a page, or several side by side."""

    positional: ClassVar[tuple[str, ...]] = ("directory",)

    directory: Paths = field(
        (),
        "The study's folder. Several studies are compared on one page.",
        Terminal("[DIR]...", unset="the newest study under results/", argument=True),
    )
    output: PathText | None = field(
        None,
        "The page's file.",
        Terminal(
            "FILE", unset="report.html in the study's folder; of several studies compared.html beside the first"
        ),
    )
    single_file: bool = field(
        False,
        "Put the plotting library (2 MB) into the page, so that it can be sent as one file. Otherwise all "
        "pages of a results folder share one file with it.",
    )
    watch: bool = field(
        False, "Serve the page on this machine until Ctrl-C, up to date while the study runs; then write it."
    )
    port: int = field(
        PORT, f"The port where {option('watch')} serves the page; 0 is any free one.", Terminal("N"), ge=0, le=65535
    )


class ExportOptions(Options):
    """``export``: a study for Optuna."""

    positional: ClassVar[tuple[str, ...]] = ("directory",)

    directory: PathText | None = field(
        None, "The study's folder.", Terminal("[DIR]", unset="the newest study under results/", argument=True)
    )
    optuna: str | None = field(None, "The URL of an Optuna storage, such as sqlite:///FILE.", Terminal("URL"))
    study_name: str | None = field(
        None,
        "The name of the Optuna study. With several workloads each becomes a study, whose name ends with the "
        "workload's.",
        Terminal("NAME", unset="the name of the study's folder"),
    )
