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
from tuner.cli.options import add_options, chosen
from tuner.errors import DISTRIBUTION, TunerError, WorkloadError, both_given, one_line, printable, spelled
from tuner.records.attempts import CONFIG, write_rows
from tuner.records.checking import in_json
from tuner.reporting import phases
from tuner.reporting.console import make_console, print_wrapped
from tuner.spec import commands
from tuner.spec.options import Options
from tuner.spec.settings import Settings
from tuner.spec.spelling import in_terminal
from tuner.values import encode
from tuner.workloads.script import script_of

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
    "all_rows": click.option("--all", "all_rows", is_flag=True, help="Show all of many rows."),
}


def _log_decisions(ctx: click.Context, parameter: click.Parameter, debug: bool) -> None:
    if debug:
        from tuner.reporting.decision_log import VARIABLE

        os.environ[VARIABLE] = "debug"


def command(
    spec: type[Options] = Options, *printing: str, phase: str = "importing"
) -> Callable[[Callable[..., int | None]], click.Command]:
    """A command with the options of a specification, those of how it prints, and ``--debug``.

    The function gets the checked options, and by name how to print. It returns the exit code; None is 0.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        @functools.wraps(function)
        def begun(ctx: click.Context, /, **words: object) -> None:
            phases.begin(phase)
            others = {name: value for name, value in words.items() if name not in spec.model_fields}
            if others.get("as_json") and others.get("as_csv"):
                raise both_given("as_json", "as_csv")
            ctx.exit(function(chosen(ctx, spec), **others) or 0)

        made = click.pass_context(begun)
        debug = "Show the traceback of an error, and each decision of a study with its numbers."
        made = click.option("--debug", is_flag=True, expose_value=False, callback=_log_decisions, help=debug)(made)
        for name in reversed(printing):
            made = PRINTING[name](made)
        return cli.command(cls=GroupedCommand)(add_options(spec)(made))

    return decorate


@command(Settings)
def run(settings: Settings) -> int:
    """Tune a workload, and write the results to a CSV file.

    As many trials run side by side as fit the memory of each device; the plan says how many, and why.
    A trial that runs out of memory is retried with more.
    """
    from tuner.api import run

    return run.run_given(settings).exit_code


@command(Settings)
@click.argument("path", metavar="FILE.py|COMMAND")
@click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
def script(settings: Settings, path: str, arguments: tuple[str, ...]) -> int:
    """Tune a script or a command of your own.

    Each trial runs in a process of its own. After -- come the script's arguments, or the whole command such as
    torchrun FILE.py or -m MODULE. In them {key} stands for a hyperparameter of the space. A script reports by calling
    tuner.report(), or, like a command, by printing lines of JSON that have the metric.
    """
    from tuner.api import run

    if settings.workload:
        raise both_given("workload", "script")
    return run.run_given(settings.changed(workload=script_of([path, *arguments]).spec)).exit_code


@command(commands.EstimateOptions, "as_json", "as_csv")
def estimate(options: commands.EstimateOptions, as_json: bool, as_csv: bool) -> None:
    """Estimate the memory of training, without training.

    The estimate is of a workload's configurations or, with MODEL.toml or options such as --model-embd, of a GPT-style
    transformer on a GPU, which need not exist.
    """
    from tuner.api import estimate

    estimates = estimate.estimate.of(options)
    if as_json or as_csv:
        _write_records([estimate.to_record(*named) for named in estimates], as_csv)
    else:
        from tuner.reporting.plan_text import estimates_text

        _say(estimates_text(estimates, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        if options.snapshot:
            from tuner.reporting.texts import MEMORY_VIEWER

            _say(f"snapshot: {options.snapshot}, for PyTorch's memory viewer: {MEMORY_VIEWER}")
        if config := estimate.transformer(options):
            from tuner.cli.print_plan import transformer_text

            _say(transformer_text(config, estimates))


@command(commands.PlanOptions, "as_json")
def plan(options: commands.PlanOptions, as_json: bool) -> None:
    """Show how a study would be packed, without running it.

    It also says how long the study would take. The devices are this machine's, GPUs that need not exist (--gpus),
    or single cards of several sizes (--gpu).
    """
    from tuner.api import capacity, plan
    from tuner.cli.print_plan import capacity_text, forecast_text

    planned = plan.plan.of(options)
    if isinstance(planned, capacity.Capacity):
        _print(capacity.to_record(planned) if as_json else spelled(capacity_text(planned), in_terminal))
    else:
        if as_json:
            _print(plan.to_record(planned))
        else:
            print_wrapped(make_console(in_terminal), forecast_text(planned))


@command(commands.OptimizeOptions, "as_json")
def optimize(options: commands.OptimizeOptions, as_json: bool) -> None:
    """Find the largest batch that fits a device.

    It can also be written into configuration files.
    """
    from tuner.api import optimize
    from tuner.cli.print_plan import optimization_text

    sized = optimize.optimize.of(options)
    text = optimization_text(sized, options.dry_run)
    _print(optimize.to_record(sized, in_terminal) if as_json else spelled(text, in_terminal))


@command(commands.CalibrateOptions)
def calibrate(options: commands.CalibrateOptions) -> int:
    """Measure the memory of configurations to correct estimates.

    Each is trained for two epochs, and its peak is kept. The command prints the peak and the estimate of each,
    before and after the correction.
    """
    from tuner.api import estimate

    table = estimate.calibrate.of(options)
    _say(table.to_string(index=False))
    return 0 if (table.status == "completed").all() else 1


@command(commands.TrainOptions)
def train(options: commands.TrainOptions) -> None:
    """Train one configuration of a study again.

    It can be trained longer, on all the data, or to the last digit, as a study of this trial alone. The memory that
    it will take is estimated first, and the command refuses to start if that is not free.
    """
    from tuner.api.train import train_again

    train_again(options, in_terminal)


@command(commands.ResultsOptions, "as_json", "as_csv", "all_rows")
def results(options: commands.ResultsOptions, as_json: bool, as_csv: bool, all_rows: bool) -> None:
    """Show and compare the results of studies, also while they run.

    Each DIR is the folder of a study or contains such folders; without one, it is the study under results/ that was
    started last.
    """
    from tuner.api import results

    shown = results.side_by_side(options)
    _say_notes(shown.notes)
    if as_json or as_csv:
        _write_records(shown.records(), as_csv, shown.names)
    else:
        from tuner.cli.print_results import print_results

        print_results(make_console(), shown, all_rows=all_rows or options.top is not None)


@command(commands.ReportOptions)
def report(options: commands.ReportOptions) -> None:
    """Write a study as one HTML page: table, plots and memory.

    DIR is the study's folder; by default the newest one under results/.
    """
    from tuner.api import report

    file, notes = report.write_page_of(options)
    _say_notes(notes)
    _say(f"report: {file}")


@command(commands.ExportOptions)
def export(options: commands.ExportOptions) -> None:
    """Export a study to an Optuna database.

    optuna-dashboard and other programs can read the Optuna study that is written. DIR is the study's folder; by
    default the newest one under results/.
    """
    from tuner.api import export

    for exported in export.export.of(options):
        _say(exported.text())


@command(Options, "as_json", phase="looking at this machine")
def doctor(_: Options, as_json: bool) -> int:
    """Check this machine for what could hinder a study.

    It says how to fix what it finds. It looks at Python, torch, GPUs and who holds their memory, Ray, memory, disks,
    and which program the shell finds under the name tuner. Nothing is changed.
    """
    from tuner.health import doctor as health

    findings = health.doctor()
    _print([asdict(finding) for finding in findings] if as_json else health.findings_text(findings))
    return 1 if any(finding.level == "problem" for finding in findings) else 0


@command(Options, "as_json", phase="looking at this machine")
def status(_: Options, as_json: bool) -> None:
    """List this machine's running studies and the memory they hold.

    It shows what each has reserved for its trials, and what other programs hold. Studies of other users, and those on
    other machines of a cluster, are not listed.
    """
    from tuner.health import status as health

    devices = health.status()
    _print([asdict(device) for device in devices] if as_json else health.status_text(devices))


def _print(content: object) -> None:
    """Prints a text, or anything else as JSON."""
    _say(content if isinstance(content, str) else json.dumps(content, indent=2))


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _say(f"note: {note}", err=True)


def _say(text: str, err: bool = False) -> None:
    """Prints a text without what a terminal would obey."""
    click.echo(printable(text), err=err)


def _write_records(records: Sequence[Mapping[str, object]], as_csv: bool, names: Sequence[str] | None = None) -> None:
    """Writes records as CSV or as JSON."""
    if as_csv:
        _write_csv(records, names)
    else:
        encoded = [
            {name: encode(value) if name.startswith(CONFIG) else value for name, value in record.items()}
            for record in records
        ]
        _print(list(map(in_json, encoded)))


def _write_csv(rows: Sequence[Mapping[str, object]], names: Sequence[str] | None = None) -> None:
    """Writes rows without control characters, as a pipe may end in a terminal; there also without what it hides."""
    table = write_rows(rows, names)
    click.echo(printable(table) if sys.stdout.isatty() else table.translate(CONTROLS), nl=False)


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
