"""Every option of the command line, once: commands pick theirs by name, so that one is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.core import ParameterSource

from tuner.cli.completion import complete_modes, complete_studies, complete_workloads
from tuner.errors import InputError
from tuner.estimation.registry import methods

Command = Callable[..., None]


def _data(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | dict[str, str]:
    """``--data`` as Python takes it."""
    from tuner.study.selection import parse_data

    return parse_data(texts)


def _alone(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """``--mode`` and ``--config`` exclude each other, also where the mode that is given is the default."""
    both = [ctx.get_parameter_source(name) for name in ("mode", "config")]
    if both == [ParameterSource.COMMANDLINE] * 2:
        raise InputError("--config and --mode were both given: leave one of them out")
    _check_modes(ctx, ctx.params.get("workload", ()))
    return value


def _workload(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    _check_modes(ctx, names)
    return names


def _check_modes(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Refuses ``--mode`` for workloads of the user's own alone, also where the mode that is given is the default."""
    if (
        names
        and all(":" in name for name in names)
        and ctx.get_parameter_source("mode") is ParameterSource.COMMANDLINE
    ):
        raise InputError(f"--mode: workload {' and '.join(names)} has no modes: give it a list by --config FILE")


# By the parameter's name; an option that means another thing to another command has a name of its own here.
OPTIONS: dict[str, Callable[[Command], Command]] = {
    "workload": click.option(
        "--workload",
        multiple=True,
        callback=_workload,
        shell_complete=complete_workloads,
        metavar="NAME|MODULE:CLASS",
        help="What to train: graphsage, gt-ssl, kd-gat, or a class of your own; give it again for several side by "
        "side.  [default: --config's, or graphsage]",
    ),
    "mode": click.option(
        "--mode",
        default="quick",
        shell_complete=complete_modes,
        callback=_alone,
        show_default=True,
        metavar="NAME",
        help="A named list of configurations: quick, architecture, learning, regularization or full; for gt-ssl also "
        "pretrain, 8gb, 12gb, 16gb or 24gb.",
    ),
    "config": click.option(
        "--config",
        metavar="FILE",
        callback=_alone,
        help="A list, grid or space of your own (YAML, TOML or JSON), instead of --mode.",
    ),
    "overrides": click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Give a hyperparameter this value in every configuration; can be given again.",
    ),
    "data": click.option(
        "--data",
        multiple=True,
        callback=_data,
        metavar="[WORKLOAD=]NAME|DIR",
        help="synthetic, ml-100k (downloaded once), or a folder; any text for a workload of your own; for all "
        "workloads or one.  [default: synthetic]",
    ),
    "skip_bad": click.option("--skip-bad", is_flag=True, help="Leave out data files that cannot be used."),
    "only": click.option("--only", metavar="NAME", help="Just the configuration of this name."),
    "limit": click.option("--limit", type=int, metavar="N", help="Just the first N configurations of each workload."),
    "auto_memory": click.option(
        "--auto-memory", is_flag=True, help="Estimate what each configuration needs, and give each trial that."
    ),
    "model_memory_gb": click.option(
        "--model-memory-gb",
        type=float,
        default=1.5,
        show_default=True,
        metavar="GB",
        help="What each trial is given without --auto-memory.",
    ),
    "gpu_memory_buffer_gb": click.option(
        "--gpu-memory-buffer-gb",
        type=float,
        default=2.0,
        show_default=True,
        metavar="GB",
        help="Memory to leave alone on each device: a GPU, or the machine's RAM.",
    ),
    "packing": click.option(
        "--packing",
        type=click.Choice(["per-trial", "uniform"]),
        help="Give each trial what it needs, or what the largest needs.  [default: per-trial with --auto-memory]",
    ),
    "device_memory_gb": click.option(
        "--device-memory-gb", type=float, metavar="GB", help="Use each device as if it had no more than this."
    ),
    "caps": click.option(
        "--caps/--no-caps",
        default=True,
        show_default=True,
        help="End a trial that outgrows its share before it takes its neighbours'.",
    ),
    "max_attempts": click.option(
        "--max-attempts",
        type=int,
        default=4,
        show_default=True,
        metavar="N",
        help="Give a trial up when it has run out of memory so many times.",
    ),
    "retry_growth": click.option(
        "--retry-growth",
        type=float,
        default=1.5,
        show_default=True,
        metavar="FACTOR",
        help="What a trial's share is multiplied by after it ran out of memory.",
    ),
    "backoff": click.option(
        "--backoff",
        type=float,
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="Wait of the first retry while other trials run; each further one is twice as long.",
    ),
    "backoff_max": click.option(
        "--backoff-max",
        type=float,
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="The longest wait before a retry.",
    ),
    "on_oom": click.option(
        "--on-oom",
        type=click.Choice(["grow", "accumulate", "fail"]),
        default="grow",
        show_default=True,
        help="Out of memory: grow the share; halve the micro-batch where a whole device is not enough; or give up.",
    ),
    "max_failures": click.option(
        "--max-failures",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="How many times a trial that raised another error is tried again.",
    ),
    "checkpoint_seconds": click.option(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How often a running trial keeps a checkpoint.",
    ),
    "resume": click.option(
        "--resume",
        metavar="DIR",
        shell_complete=complete_studies,
        help="Go on with the study in this folder, with its options but those given.",
    ),
    "address": click.option(
        "--address", metavar="auto|HOST:PORT", help="Join this Ray cluster.  [default: a Ray of its own]"
    ),
    "max_workers": click.option(
        "--max-workers", type=int, metavar="N", help="At most N trials at once.  [default: as many as fit]"
    ),
    "threads": click.option(
        "--threads", type=int, metavar="N", help="CPU threads for each trial.  [default: cores / workers]"
    ),
    "epochs": click.option(
        "--epochs", type=int, metavar="N", help="Train every configuration for N epochs.  [default: its own]"
    ),
    "seed": click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of the validation split, weights, batches and dropout.",
    ),
    "seeds": click.option(
        "--seeds",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Train every configuration with N seeds from --seed on; the data stay split by --seed.",
    ),
    "split_seed": click.option(
        "--split-seed", type=int, metavar="N", help="Of the validation split alone.  [default: --seed]"
    ),
    "time_limit": click.option(
        "--time-limit", metavar="90s|30m|1h30m", help="End the study after this, with what it has."
    ),
    "output": click.option(
        "--output", metavar="DIR", help="The study's folder.  [default: a new one under results/]"
    ),
    "device": click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where to train; auto is GPUs where there are any, else the CPU.",
    ),
    "memory_estimation": click.option(
        "--memory-estimation",
        type=click.Choice(methods()),
        default="auto",
        show_default=True,
        help="How to estimate: by a formula, by following a step on tensors without content, or by running one; auto "
        "is traced where a step can be followed.",
    ),
    "calibration": click.option(
        "--calibration/--no-calibration",
        default=True,
        show_default=True,
        help="Correct estimates by what earlier trials on this device needed.",
    ),
    "expandable_segments": click.option(
        "--expandable-segments",
        is_flag=True,
        help="Use PyTorch's CUDA allocator option of that name, against fragmentation.",
    ),
    "model_embd": click.option("--model-embd", type=int, metavar="N", help="A transformer's width."),
    "model_layer": click.option("--model-layer", type=int, metavar="N", help="A transformer's blocks."),
    "model_head": click.option(
        "--model-head", type=int, metavar="N", help="A transformer's attention heads.  [default: heads of 64]"
    ),
    "model_positions": click.option(
        "--model-positions",
        type=int,
        metavar="N",
        help="A transformer's positions.  [default: --seq-len, or 512]",
    ),
    "batch_size": click.option("--batch-size", type=int, metavar="N", help="A transformer's batch, in sequences."),
    "seq_len": click.option(
        "--seq-len", type=int, metavar="N", help="Tokens in each sequence.  [default: --model-positions]"
    ),
    "mixed_precision": click.option(
        "--mixed-precision/--no-mixed-precision",
        default=None,
        help="Advise for training under autocast; all precisions are shown anyway.  [default: no-mixed-precision]",
    ),
    "checkpointing": click.option(
        "--checkpointing/--no-checkpointing",
        default=None,
        help="Compute a transformer's blocks again in backward, to keep less.  [default: no-checkpointing]",
    ),
    "attention": click.option(
        "--attention",
        type=click.Choice(["sdpa", "explicit"]),
        help="torch's kernel, or one that keeps every head's matrix of scores.  [default: sdpa]",
    ),
    "vocabulary": click.option(
        "--vocabulary", type=int, metavar="N", help="Tokens that there are.  [default: 50257]"
    ),
    "tied": click.option(
        "--tied/--untied", default=None, help="The head shares the token embedding's weight.  [default: tied]"
    ),
    "search": click.option(
        "--search",
        type=click.Choice(["grid", "random", "optuna"]),
        help="Search the space of --config, or of a mode that is a grid.  [default: try the configurations listed]",
    ),
    "num_samples": click.option(
        "--num-samples", type=int, metavar="N", help="Try N configurations of the space; all of a grid are tried."
    ),
    "scheduler": click.option(
        "--scheduler",
        type=click.Choice(["fifo", "asha", "median"]),
        default="fifo",
        show_default=True,
        help="End trials early that are not worth their epochs: those outside the best quarter, or below the median.",
    ),
    "report": click.option(
        "--report/--no-report", default=True, help="Write report.html at the end, a page of plots."
    ),
    "tensorboard": click.option(
        "--tensorboard",
        is_flag=True,
        help="Write event files for TensorBoard, with HParams, into the study's folder.",
    ),
    "mlflow": click.option(
        "--mlflow", metavar="URI", help="Tell MLflow, too: a server, or sqlite:///FILE; needs tuner[mlflow]."
    ),
    "wandb": click.option(
        "--wandb", metavar="[ENTITY/]PROJECT", help="Tell Weights & Biases, too; needs tuner[wandb]."
    ),
    "optuna": click.option(
        "--optuna", metavar="URL", help="Where the Optuna study goes, such as sqlite:///FILE; needs tuner[optuna]."
    ),
    "study_name": click.option(
        "--study-name", metavar="NAME", help="What it is called there.  [default: as the study's folder]"
    ),
    "dry_run": click.option("--dry-run", is_flag=True, help="Stop after the plan."),
    "gpus": click.option(
        "--gpus", type=int, metavar="N", help="Plan for N GPUs of --device-memory-gb each, which need not be there."
    ),
    "gpu": click.option(
        "--gpu", metavar="GB,GB,…", help="Say what the study would be on one card of each of these sizes, in GB."
    ),
    "like": click.option(
        "--like",
        metavar="DIR",
        shell_complete=complete_studies,
        help="The folder of a study whose trials tell how long an epoch takes.",
    ),
    "footprint": click.option(
        "--footprint",
        metavar="FILE",
        help="Size this footprint, or one in configs/footprints, in place of a workload.",
    ),
    "auto": click.option("--auto", is_flag=True, help="Size for this machine's device."),
    "gpu_memory": click.option(
        "--gpu-memory", type=float, metavar="GB", help="Size for a GPU of this size, which need not be there."
    ),
    "safety_margin": click.option(
        "--safety-margin",
        type=float,
        default=0.85,
        show_default=True,
        metavar="SHARE",
        help="Of the device's memory, what may be taken.",
    ),
    "target_effective_batch": click.option(
        "--target-effective-batch",
        type=int,
        default=256,
        show_default=True,
        metavar="N",
        help="Samples of an optimizer step, over all devices.",
    ),
    "devices": click.option(
        "--devices", type=int, default=1, show_default=True, metavar="N", help="Devices that share each step."
    ),
    "min_batch_size": click.option(
        "--min-batch-size",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="The smallest batch of interest.",
    ),
    "max_batch_size": click.option("--max-batch-size", type=int, metavar="N", help="The largest."),
    "profile": click.option("--profile", is_flag=True, help="Check the choice with real steps on the device."),
    "apply": click.option(
        "--apply", is_flag=True, help="Write the choice into the files of --config-path; keeps NAME.backup of each."
    ),
    "config_path": click.option(
        "--config-path", multiple=True, metavar="PATH", help="A YAML or TOML file, or a folder; may be given again."
    ),
    "dry_run_edits": click.option(
        "--dry-run", is_flag=True, help="Show what --apply would change, and write nothing."
    ),
    "key": click.option(
        "--key", multiple=True, metavar="NAME=PATH", help="Where in the files a value is, such as a.b.batch_size."
    ),
    "study": click.option(
        "--from", "study", metavar="DIR", shell_complete=complete_studies, help="The folder of the study."
    ),
    "trial": click.option(
        "--trial",
        default="best",
        show_default=True,
        metavar="best|ID|NAME",
        help="Which of its trials: the best (over seeds by the mean), one by its id, or the best of a configuration.",
    ),
    "all_data": click.option(
        "--all-data",
        is_flag=True,
        help="Train on training, validation and test data together, for as many epochs as the best took.",
    ),
    "exact": click.option(
        "--exact", is_flag=True, help="Fail unless the study's figures come out again, to the last digit (CPU)."
    ),
    "train_workload": click.option(
        "--workload",
        metavar="NAME",
        shell_complete=complete_workloads,
        help="Whose trial, where the study has several workloads.",
    ),
    "train_data": click.option(
        "--data", metavar="NAME|DIR", help="Where the data are now.  [default: where the study had them]"
    ),
    "train_epochs": click.option(
        "--epochs", type=int, metavar="N", help="Train for so many epochs.  [default: the study's]"
    ),
    "train_seed": click.option(
        "--seed",
        type=int,
        metavar="N",
        help="Of weights, batches and dropout; which trial, where there are several.  [default: the trial's]",
    ),
    "train_threads": click.option(
        "--threads", type=int, metavar="N", help="CPU threads.  [default: those of the study's trials]"
    ),
    "train_output": click.option(
        "--output", metavar="DIR", help="Where to leave the model.  [default: a new folder under results/]"
    ),
    "sort": click.option(
        "--sort",
        multiple=True,
        metavar="[-]COLUMN",
        help="Sort by this, with - or :desc the largest first.  [default: completed first, by their metric]",
    ),
    "where": click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        help='Only rows like "hidden_dim>=64"; = != < <= > >=, and ~ for contains. Given again, all must hold.',
    ),
    "columns": click.option(
        "--columns", metavar="A,B,C", help="Show these columns.  [default: what tells trials apart]"
    ),
    "top": click.option("--top", type=int, metavar="N", help="Just the first N of each workload."),
    "as_json": click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    "rows": click.argument("rows", metavar="ROWS.csv"),
    "footprint_output": click.option(
        "--output", "output", metavar="FILE", help="The TOML file to write.  [default: only show the fit]"
    ),
    "name": click.option("--name", metavar="NAME", help="What to call the model.  [default: the file's name]"),
    "batch": click.option(
        "--batch", default="batch_size", show_default=True, metavar="COLUMN", help="Which column is the batch."
    ),
    "overwrite": click.option("--overwrite", is_flag=True, help="Replace the file if it is there."),
    "as_csv": click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of text."),
    "debug": click.option("--debug", is_flag=True, help="Show the traceback of an error."),
}


def options(*names: str) -> Callable[[Command], Command]:
    """The options of these parameters, in this order."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return decorate
