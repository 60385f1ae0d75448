"""The ``tune`` command: parses options, calls the function of the same name, prints errors in one line."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from tuner.errors import InputError, TunerError

DEFAULT_COMMAND = "run"
Command = Callable[..., None]


def _data(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | dict[str, str]:
    """``--data`` as Python takes it."""
    from tuner.selection import parse_data

    return parse_data(texts)


# Every option once, by its parameter's name; commands pick theirs, so that one is the same wherever it occurs.
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


class CommandGroup(click.Group):
    """A group in which ``tune`` alone means ``tune run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command in front of arguments that name none."""
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "--version")):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Shows the default command's options too: they are what most people look for."""
        command = self.commands[DEFAULT_COMMAND]
        with formatter.section(f"Options of {DEFAULT_COMMAND}, which can be left out"):
            records = [param.get_help_record(ctx) for param in command.params]
            formatter.write_dl([record for record in records if record])
        super().format_options(ctx, formatter)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["--help"], "max_content_width": 110})
@click.version_option(package_name="tuner", prog_name="tuner")
def cli() -> None:
    """Tune hyperparameters side by side, each trial with the memory that it needs.

    `tune --mode architecture --auto-memory` tries GraphSAGE architectures on a synthetic MovieLens.
    """


@cli.command()
@options(
    "workload", "mode", "config", "overrides", "data", "skip_bad", "only", "limit", "auto_memory", "model_memory_gb"
)
@options("packing", "gpu_memory_buffer_gb", "device_memory_gb", "caps", "max_workers", "threads", "epochs", "seed")
@options("max_attempts", "retry_growth", "backoff", "backoff_max", "on_oom", "max_failures", "checkpoint_seconds")
@options("output", "resume", "address", "device", "memory_estimation", "calibration", "expandable_segments")
@options("dry_run", "debug")
@click.pass_context
def run(ctx: click.Context, /, debug: bool, **chosen: Any) -> None:
    """Tune a workload and leave a CSV of results."""
    from tuner import api

    ctx.exit(api.run(**chosen).exit_code)


@cli.command()
@options("workload", "mode", "config", "overrides", "data", "skip_bad", "only", "limit", "seed")
@options("device", "memory_estimation", "calibration", "expandable_segments")
@options("as_json")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@options("debug")
def estimate(debug: bool, as_json: bool, as_csv: bool, **chosen: Any) -> None:
    """Say what training will take, without training."""
    if as_json and as_csv:
        raise InputError("--json and --csv were both given: leave one of them out")
    from tuner import estimation

    found = estimation.estimate(**chosen)
    if as_json:
        click.echo(json.dumps([estimation.to_record(*each) for each in found], indent=2))
    elif as_csv:
        from tuner.results import write_rows

        click.echo(write_rows([estimation.to_record(*each) for each in found]), nl=False)
    else:
        from tuner.report.tables import estimates_text

        click.echo(estimates_text(found))


@cli.command()
@options(
    "workload", "mode", "config", "overrides", "data", "skip_bad", "only", "limit", "auto_memory", "model_memory_gb"
)
@options("packing", "gpu_memory_buffer_gb", "device_memory_gb", "max_workers", "threads", "epochs", "seed")
@options("device", "gpus", "memory_estimation", "calibration", "expandable_segments", "like", "as_json", "debug")
def plan(debug: bool, as_json: bool, **chosen: Any) -> None:
    """Show how a study would be packed and how long it would take, without running it."""
    from tuner import forecast

    found = forecast.plan(**chosen)
    if as_json:
        click.echo(json.dumps(forecast.to_record(found), indent=2))
    else:
        from tuner.report.forecast import forecast_text

        click.echo(forecast_text(found))


@cli.command()
@options(
    "workload",
    "mode",
    "config",
    "data",
    "skip_bad",
    "only",
    "limit",
    "seed",
    "device",
    "expandable_segments",
    "debug",
)
@click.pass_context
def calibrate(ctx: click.Context, /, debug: bool, **chosen: Any) -> None:
    """Train each configuration for an epoch and keep what it took, to correct later estimates."""
    from tuner import estimation

    table = estimation.calibrate(**chosen)
    click.echo(table.to_string(index=False))
    ctx.exit(0 if (table.status == "completed").all() else 1)


def main() -> None:
    """Runs the command line and exits: 0 success, 1 some trials did not complete, 2 bad input, 130 interrupted."""
    debug = "--debug" in sys.argv
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        message = error.format_message()
        hint = f": see {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        _fail(f"{message.rstrip('.')}{hint}", error.exit_code, debug)
    except TunerError as error:
        _fail(str(error), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130, debug)
    except Exception as error:  # a defect of ours: still one line, and a way to see where
        _fail(f"unexpected {type(error).__name__}: {error}: please report it with the output of --debug", 1, debug)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    click.echo(f"error: {message}", err=True)
    sys.exit(code)
