"""The ``tune`` command: parses options, calls the function of the same name, prints errors in one line."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click
from click.core import ParameterSource

from tuner.errors import InputError, TunerError

DEFAULT_COMMAND = "run"
DEVICES = ["auto", "cpu", "cuda"]


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
@click.option("--workload", default="graphsage", show_default=True, help="What to train.")
@click.option(
    "--mode",
    default="quick",
    show_default=True,
    help="A named list of configurations: quick, architecture, learning, regularization or full.",
)
@click.option("--config", metavar="FILE", help="A list of configurations or a grid of your own (YAML, TOML, JSON).")
@click.option(
    "--data",
    default="synthetic",
    show_default=True,
    metavar="NAME|DIR",
    help="synthetic, ml-100k (downloaded once), or a folder.",
)
@click.option("--only", metavar="NAME", help="Run just this configuration.")
@click.option("--limit", type=int, metavar="N", help="Run just the first N configurations.")
@click.option("--auto-memory", is_flag=True, help="Estimate the footprints; each trial gets the largest.")
@click.option(
    "--model-memory-gb",
    type=float,
    default=1.5,
    show_default=True,
    metavar="GB",
    help="What each trial is given without --auto-memory.",
)
@click.option(
    "--gpu-memory-buffer-gb",
    type=float,
    default=2.0,
    show_default=True,
    metavar="GB",
    help="Memory to leave alone on each device.",
)
@click.option("--max-workers", type=int, metavar="N", help="At most N trials at once.")
@click.option("--threads", type=int, metavar="N", help="CPU threads for each trial.  [default: cores / workers]")
@click.option("--epochs", type=int, metavar="N", help="Replaces every configuration's number of epochs.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Of the validation split, weights, batches and dropout.",
)
@click.option("--output", metavar="DIR", help="The study's folder.  [default: a new one under results/]")
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where trials run.")
@click.option("--dry-run", is_flag=True, help="Stop after the plan.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def run(ctx: click.Context, /, debug: bool, **options: Any) -> None:
    """Tune a workload and leave a CSV of results."""
    given = ctx.get_parameter_source("model_memory_gb") is not ParameterSource.DEFAULT
    if options["auto_memory"] and given:
        raise InputError("--auto-memory and --model-memory-gb were both given: leave one of them out")
    if options["config"] and ctx.get_parameter_source("mode") is not ParameterSource.DEFAULT:
        raise InputError("--config and --mode were both given: leave one of them out")
    from tuner import api

    ctx.exit(api.run(**options).exit_code)


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
