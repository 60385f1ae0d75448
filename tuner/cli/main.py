"""The ``tuner`` command: parses options, calls the function of the same name, prints errors in one line."""

import functools
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import click

from tuner.cli.help import PROGRAM, CommandGroup, GroupedCommand, told
from tuner.cli.options import chosen, options
from tuner.errors import DISTRIBUTION, TunerError, WorkloadError, both_given, one_line, printable, spelled
from tuner.records.attempts import CONFIG, write_rows
from tuner.records.checking import in_json
from tuner.reporting import phases
from tuner.reporting.console import make_console
from tuner.spec.commands import (
    CalibrateOptions,
    EstimateOptions,
    ExportOptions,
    OptimizeOptions,
    PlanOptions,
    ReportOptions,
    ResultsOptions,
    TrainOptions,
)
from tuner.spec.options import Options
from tuner.spec.settings import Settings
from tuner.spec.spelling import in_terminal
from tuner.values import encode
from tuner.workloads.command import script_of

MOST_OF_ERROR = 4000  # the characters that are printed of an error
CONTROLS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\r\t"}


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["--help"], "max_content_width": 110},
    options_metavar="[COMMAND]",
    subcommand_metavar="[OPTIONS]",
)
@click.version_option(package_name=DISTRIBUTION, prog_name=PROGRAM)
def cli() -> None:
    """Tune hyperparameters side by side, each trial with the memory that it needs."""


PRINTING = {
    "as_json": click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    "as_csv": click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of text."),
}


def _log_decisions(ctx: click.Context, parameter: click.Parameter, debug: bool) -> None:
    if debug:
        from tuner.reporting.decision_log import VARIABLE

        os.environ[VARIABLE] = "debug"


def command(
    spec: type[Options] = Options, *printing: str, phase: str = "importing"
) -> Callable[[Callable[..., object]], click.Command]:
    """A command with the options of a specification, those of how it prints, and ``--debug``."""

    def decorate(function: Callable[..., object]) -> click.Command:
        @functools.wraps(function)
        def begun(*arguments: object, **given: object) -> object:
            phases.begin(phase)
            return function(*arguments, **given)

        made = click.pass_context(begun)
        debug = "Show the traceback of an error, and of a study each decision and its numbers."
        made = click.option("--debug", is_flag=True, expose_value=False, callback=_log_decisions, help=debug)(made)
        for name in reversed(printing):
            made = PRINTING[name](made)
        return cli.command(cls=GroupedCommand)(options(spec)(made))

    return decorate


@command(Settings)
def run(ctx: click.Context, /, **_: object) -> None:
    """Tune a workload and leave a CSV of results.

    As many trials run side by side as each device's memory has room for; the plan says how many, and why.
    A trial that runs out of memory is tried again with more.
    """
    from tuner.api import run

    ctx.exit(run.run_given(chosen(ctx, Settings)).exit_code)


@command(Settings)
@click.argument("path", metavar="FILE.py|COMMAND")
@click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
def script(ctx: click.Context, /, path: str, arguments: tuple[str, ...], **_: object) -> None:
    """Tune a script or a command of your own.

    Each trial runs in a process of its own. Behind -- are the script's arguments, or the whole command such as
    torchrun FILE.py or -m MODULE. In them {key} stands for a hyperparameter of the space. A script reports by
    tuner.report(), or like a command by lines of JSON on its output that have the metric.
    """
    from tuner.api import run

    asked = chosen(ctx, Settings)
    if asked.workload:
        raise both_given("workload", "script")
    ctx.exit(run.run_given(asked.changed(workload=script_of([path, *arguments]).spec)).exit_code)


@command(EstimateOptions, "as_json", "as_csv")
def estimate(ctx: click.Context, /, as_json: bool, as_csv: bool, **_: object) -> None:
    """Say what training will take, without training.

    Of a workload's configurations; or, with MODEL.toml or options such as --model-embd, of a GPT-style transformer on
    a GPU, which need not be there.
    """
    _check_formats(as_json, as_csv)
    from tuner.api import estimate

    asked = chosen(ctx, EstimateOptions)
    found = estimate.estimate.of(asked)
    if as_json or as_csv:
        _write_records([estimate.to_record(*named) for named in found], as_csv)
    else:
        from tuner.reporting.plan_text import estimates_text

        _say(estimates_text(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        if asked.snapshot:
            from tuner.reporting.texts import MEMORY_VIEWER

            _say(f"snapshot: {asked.snapshot}, for PyTorch's memory viewer: {MEMORY_VIEWER}")
        if config := estimate.transformer(asked):
            from tuner.cli.print_plan import transformer_text

            _say(transformer_text(config, found))


@command(PlanOptions, "as_json")
def plan(ctx: click.Context, /, as_json: bool, **_: object) -> None:
    """Show how a study would be packed, without running it.

    It also says how long the study would take. The devices are this machine's, GPUs that need not be there (--gpus),
    or single cards of several sizes (--gpu).
    """
    from tuner.api import capacity, plan
    from tuner.cli.print_plan import capacity_text, forecast_text

    found = plan.plan.of(chosen(ctx, PlanOptions))
    if as_json:
        made = capacity.to_record(found) if isinstance(found, capacity.Capacity) else plan.to_record(found)
        click.echo(json.dumps(made, indent=2))
    else:
        text = capacity_text(found) if isinstance(found, capacity.Capacity) else forecast_text(found)
        _say(spelled(text, in_terminal))


@command(OptimizeOptions, "as_json")
def optimize(ctx: click.Context, /, as_json: bool, **_: object) -> None:
    """Find the largest batch that fits a device.

    It can also be written into configuration files.
    """
    from tuner.api import optimize

    asked = chosen(ctx, OptimizeOptions)
    found = optimize.optimize.of(asked)
    if as_json:
        click.echo(json.dumps(optimize.to_record(found, in_terminal), indent=2))
    else:
        from tuner.cli.print_plan import optimization_text

        _say(spelled(optimization_text(found, asked.dry_run), in_terminal))


@command(CalibrateOptions)
def calibrate(ctx: click.Context, /, **_: object) -> None:
    """Measure what configurations take, to correct later estimates.

    Each is trained for two epochs, and what it took is kept. The command prints the peak and the estimate of each,
    before and after the correction.
    """
    from tuner.api import estimate

    table = estimate.calibrate.of(chosen(ctx, CalibrateOptions))
    _say(table.to_string(index=False))
    ctx.exit(0 if (table.status == "completed").all() else 1)


@command(TrainOptions)
def train(ctx: click.Context, /, **_: object) -> None:
    """Train one configuration of a study again.

    It can be trained longer, on all the data, or to the same digits, as a study of this trial alone. The memory that
    it will take is estimated first, and the command refuses to begin if that is not free.
    """
    from tuner.api.train import train_again

    train_again(chosen(ctx, TrainOptions), in_terminal)


@command(ResultsOptions, "as_json", "as_csv")
def results(ctx: click.Context, /, as_json: bool, as_csv: bool, **_: object) -> None:
    """Show and compare the results of studies, also while they run.

    Each DIR is the folder of a study or holds such folders; without one, it is the study under results/ that was
    begun last.
    """
    _check_formats(as_json, as_csv)
    from tuner.api import results

    options = chosen(ctx, ResultsOptions)
    found = results.side_by_side(options)
    for note in found.notes:
        _say(f"note: {note}", err=True)
    if as_json or as_csv:
        _write_records(found.records(), as_csv, found.names)
    else:
        from tuner.cli.print_results import print_results

        print_results(make_console(), found, options.top)


@command(ReportOptions)
def report(ctx: click.Context, /, **_: object) -> None:
    """Write a study as one HTML page: table, plots and memory.

    DIR is the study's folder; by default the newest one under results/.
    """
    from tuner.api import report

    file, notes = report.write_page_of(chosen(ctx, ReportOptions))
    for note in notes:
        _say(f"note: {note}", err=True)
    _say(f"report: {file}")


@command(ExportOptions)
def export(ctx: click.Context, /, **_: object) -> None:
    """Export a study to an Optuna database.

    optuna-dashboard and other programs can read the Optuna study that is written. DIR is the study's folder; by
    default the newest one under results/.
    """
    from tuner.api import export

    for made in export.export.of(chosen(ctx, ExportOptions)):
        _say(made.text())


@command(Options, "as_json", phase="looking at this machine")
def doctor(ctx: click.Context, /, as_json: bool) -> None:
    """Check this machine for what would stand in a study's way.

    It says how to mend what it finds. It looks at Python, torch, GPUs and who holds their memory, Ray, memory, disks,
    and which program the shell finds under the name tuner. Nothing is changed.
    """
    from tuner.health import doctor as health

    found = health.doctor()
    _say(json.dumps([asdict(finding) for finding in found], indent=2) if as_json else health.findings_text(found))
    ctx.exit(1 if any(finding.level == "problem" for finding in found) else 0)


@command(Options, "as_json", phase="looking at this machine")
def status(ctx: click.Context, /, as_json: bool) -> None:
    """List this machine's running studies and the memory they hold.

    It says what each has promised to its trials, and what other programs hold. Studies of other users, and those on
    other machines of a cluster, are not listed.
    """
    from tuner.health import status as health

    found = health.status()
    _say(json.dumps([asdict(study) for study in found], indent=2) if as_json else health.status_text(found))


def _say(text: str, err: bool = False) -> None:
    """Prints a text without what a terminal would obey."""
    click.echo(printable(text), err=err)


def _write_records(records: Sequence[Mapping[str, object]], as_csv: bool, names: Sequence[str] | None = None) -> None:
    """Writes records as CSV or as JSON."""
    if as_csv:
        _write_csv(records, names)
    else:

        def written(record: Mapping[str, object]) -> dict[str, object]:
            return in_json({name: encode(one) if name.startswith(CONFIG) else one for name, one in record.items()})

        click.echo(json.dumps([written(record) for record in records], indent=2))


def _write_csv(rows: Sequence[Mapping[str, object]], names: Sequence[str] | None = None) -> None:
    """Writes rows without control characters, as a pipe may end in a terminal; there also without what it hides."""
    table = write_rows(rows, names)
    click.echo(printable(table) if sys.stdout.isatty() else table.translate(CONTROLS), nl=False)


def _check_formats(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise both_given("as_json", "as_csv")


def main() -> None:
    """Runs the command line and exits: 0 success, 1 some trials did not complete, 2 bad input, 130 interrupted."""
    words, sys.argv[1:] = sys.argv[1:], []  # which a function's own parser would read
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors="replace")  # an encoding such as ASCII lacks some characters
    try:
        os.getcwd()
    except FileNotFoundError:
        _fail("the current folder has been removed: change to another", 2, debug)
    try:
        code = cli.main(words, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        _fail(told(error, cli.commands, words), error.exit_code, debug)
    except TunerError as error:
        hint = "; --debug shows where" if isinstance(error, WorkloadError) and error.__cause__ else ""
        _fail(error.told(in_terminal) + hint, error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130, debug)
    except MemoryError:
        _fail("not enough memory for this: free some, or give less data or smaller files", 1, debug)
    except Exception as error:
        if getattr(sys.stdout, "closed", True):
            _fail(
                "the standard output is closed: a module or function that ran here must leave sys.stdout open",
                2,
                debug,
            )
        # A defect of ours: still one line, and a way to see where.
        _fail(f"unexpected {type(error).__name__}: {error}: please report it with the output of --debug", 1, debug)
    else:
        phases.hide()
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        _say(traceback.format_exc().rstrip(), err=True)
    _say(printable(f"error: {one_line(message)}", MOST_OF_ERROR), err=True)  # others' texts may have several lines
    sys.exit(code)
