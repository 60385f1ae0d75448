"""Every option of the command line, once: commands pick theirs by name, so that one is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

import click

Command = Callable[..., None]


def _data(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | dict[str, str]:
    """``--data`` as Python takes it."""
    from tuner.selection import parse_data

    return parse_data(texts)


# By the parameter's name.
OPTIONS: dict[str, Callable[[Command], Command]] = {
    "workload": click.option(
        "--workload",
        multiple=True,
        metavar="NAME",
        help="What to train; give it again for several side by side.  [default: --config's, or graphsage]",
    ),
    "mode": click.option(
        "--mode",
        default="quick",
        show_default=True,
        help="A named list of configurations: quick, architecture, learning, regularization or full.",
    ),
    "config": click.option("--config", metavar="FILE", help="A list or grid of your own (YAML, TOML or JSON)."),
    "overrides": click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replaces a value of every configuration."
    ),
    "data": click.option(
        "--data",
        multiple=True,
        callback=_data,
        metavar="[WORKLOAD=]NAME|DIR",
        help="synthetic, ml-100k (downloaded once), or a folder; for all workloads or one.  [default: synthetic]",
    ),
    "skip_bad": click.option("--skip-bad", is_flag=True, help="Leave out data files that cannot be used."),
    "only": click.option("--only", metavar="NAME", help="Just this configuration."),
    "limit": click.option("--limit", type=int, metavar="N", help="Just the first N configurations of each workload."),
    "auto_memory": click.option("--auto-memory", is_flag=True, help="Estimate what each configuration needs."),
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
        help="Memory to leave alone on each device.",
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
        "--caps/--no-caps", default=True, help="End a trial that outgrows its share before it takes its neighbours'."
    ),
    "max_attempts": click.option(
        "--max-attempts",
        type=int,
        default=4,
        show_default=True,
        metavar="N",
        help="How many times a trial may run out of memory.",
    ),
    "retry_growth": click.option(
        "--retry-growth",
        type=float,
        default=1.5,
        show_default=True,
        metavar="FACTOR",
        help="What a trial's share is multiplied by after that.",
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
        "--backoff-max", type=float, default=300.0, show_default=True, metavar="SECONDS", help="The longest wait."
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
        "--resume", metavar="DIR", help="Go on with the study in this folder, with its options but those given."
    ),
    "address": click.option(
        "--address", metavar="auto|HOST:PORT", help="Join this Ray cluster.  [default: a Ray of its own]"
    ),
    "max_workers": click.option("--max-workers", type=int, metavar="N", help="At most N trials at once."),
    "threads": click.option(
        "--threads", type=int, metavar="N", help="CPU threads for each trial.  [default: cores / workers]"
    ),
    "epochs": click.option("--epochs", type=int, metavar="N", help="Replaces every configuration's epochs."),
    "seed": click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Of the validation split, weights, batches and dropout.",
    ),
    "output": click.option(
        "--output", metavar="DIR", help="The study's folder.  [default: a new one under results/]"
    ),
    "device": click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where trials run; auto is GPUs where there are any.",
    ),
    "memory_estimation": click.option(
        "--memory-estimation",
        type=click.Choice(["auto", "static", "traced", "measured"]),
        default="auto",
        show_default=True,
        help="How to estimate; auto is traced where a step can be followed.",
    ),
    "calibration": click.option(
        "--calibration/--no-calibration",
        default=True,
        help="Correct estimates by what earlier trials on this device needed.",
    ),
    "expandable_segments": click.option(
        "--expandable-segments", is_flag=True, help="Use PyTorch's CUDA allocator option of that name."
    ),
    "report": click.option(
        "--report/--no-report", default=True, help="Write report.html at the end, a page of plots."
    ),
    "dry_run": click.option("--dry-run", is_flag=True, help="Stop after the plan."),
    "gpus": click.option(
        "--gpus", type=int, metavar="N", help="Plan for N GPUs of --device-memory-gb each, which need not be there."
    ),
    "like": click.option(
        "--like", metavar="DIR", help="The folder of a study whose trials tell how long an epoch takes."
    ),
    "as_json": click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    "debug": click.option("--debug", is_flag=True, help="Show the traceback of an error."),
}


def options(*names: str) -> Callable[[Command], Command]:
    """The options of these parameters, in this order."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return decorate
