"""docs/commands: a page for every command, made from its help.

What the help does not say (examples, files, exit codes of its own, where to read on) is in PAGES below. Examples are
parsed by the tests, never run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tuner.cli.help import DEFAULT_COMMAND
from tuner.cli.main import cli

FOLDER = Path(__file__).parents[1] / "docs" / "commands"
INDEX = "README.md"
PRINTING = {"as_json", "as_csv", "debug"}  # of the command line alone
NOTHING_GIVEN = "–"

Lines = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """What a command's help does not say.

    Attributes:
        examples: a command line, and what it does.
        files: a file that the command reads or writes, and what it is.
        exits: an exit code, and what it stands for with this command, in place of what is in EXITS.
        see: other commands, and files in docs/, by their names, with blanks between.
    """

    examples: Lines = ()
    files: Lines = ()
    exits: Lines = ()
    see: str = ""


EXITS = {
    "0": "success",
    "1": "it could not go on; a line on stderr says why",
    "2": "bad usage or bad input, told in one line on stderr; nothing was written",
    "130": "interrupted by Ctrl-C",
}
CALIBRATION = ("~/.cache/tuner/calibration.json", "what earlier trials on this machine took (on Linux)")

PAGES = {
    "run": Page(
        examples=(
            ("tuner --mode architecture", "eight GraphSAGE architectures on generated ratings"),
            (
                "tuner --workload gt-ssl --mode 12gb --data trees/ --skip-bad",
                "GT-SSL on SWC files, in the guide's sizes for a GPU of 12 GB",
            ),
            (
                "tuner --config own.yaml --set batch_size=512 --max-workers 2 --output study",
                "a list of your own, two trials at once, in a folder of your choice",
            ),
            ("tuner --workload my_model:MyModel", "a model of your own, in my_model.py"),
            ("tuner --mode full --dry-run", "only the plan"),
            ("tuner --resume study --max-failures 1", "continue a study, and run its failed trials again"),
            ("tuner --mode architecture --tensorboard --mlflow sqlite:///mlflow.db", "tell these trackers, too"),
        ),
        files=(
            ("results/<time>-<workload>-<mode>/", "the study's folder, unless `--output` names one"),
            ("…/results.csv", "a row for each trial"),
            ("…/attempts.jsonl", "the journal: a line for each attempt, on disk before it is shown"),
            ("…/study.json", "command, options, plan and versions"),
            ("…/best.pt", "the best weights, for `tuner.load_best()`; `best-<workload>.pt` if there are several"),
            ("…/checkpoints/", "where trials had got to that have not ended for good"),
            ("…/tracebacks.log", "full texts of errors, if there were any"),
            ("…/logs/<trial>.log", "what a trial printed, if anything"),
            ("…/tensorboard/, …/wandb/", "event files, and what W&B keeps; with `--tensorboard` and `--wandb`"),
            CALIBRATION,
        ),
        exits=(
            ("0", "every trial completed"),
            ("1", "some trials did not complete, or the study could not go on"),
            ("130", "interrupted, such as by Ctrl-C; what has finished is kept, and `--resume` goes on"),
        ),
        see="plan estimate results train function_or_script.md search.md results.md memory.md cluster.md",
    ),
    "script": Page(
        examples=(
            (
                "tuner script train.py --space space.yaml --metric loss --direction min --num-samples 8 -- --lr {lr}",
                "eight trials of a script, each with a learning rate of the space",
            ),
        ),
        files=(("…/logs/<trial>.log", "the output of a trial, in the study's folder"),),
        see="run function_or_script.md search.md",
    ),
    "estimate": Page(
        examples=(
            ("tuner estimate --mode architecture", "each configuration of a mode, by tracing a training step"),
            ("tuner estimate --only 64x2 --set batch_size=80000", "one of them, with another batch"),
            ("tuner estimate --mode architecture --device cuda", "as it would be on a GPU, which need not exist"),
            ("tuner estimate model.toml --mixed-precision", "a transformer, with its sizes in a file"),
            ("tuner estimate --model-embd 768 --model-layer 12 --batch-size 8", "a transformer, without a file"),
        ),
        files=(
            ("MODEL.toml", "a transformer's sizes, at the top level or under `[model]` and `[training]`"),
            CALIBRATION,
        ),
        see="plan calibrate memory.md",
    ),
    "plan": Page(
        examples=(
            ("tuner plan --mode architecture", "how the study would be packed on this machine"),
            ("tuner plan --mode architecture --gpus 2 --device-memory-gb 24", "on two GPUs of 24 GB"),
            ("tuner plan --mode full --gpu 8,12,16,24", "which card is large enough"),
        ),
        files=(("DIR/attempts.jsonl", "of the study that `--like` names: how long its epochs took"), CALIBRATION),
        see="run estimate memory.md",
    ),
    "calibrate": Page(
        examples=(("tuner calibrate --mode architecture", "on this machine's devices, one configuration at a time"),),
        files=(CALIBRATION,),
        exits=(("0", "every configuration completed"), ("1", "some did not, or it could not go on")),
        see="estimate memory.md",
    ),
    "train": Page(
        examples=(
            ("tuner train --from study --exact", "the best trial, to the last digit (CPU)"),
            ("tuner train --from study --trial 64x2 --epochs 60 --output longer", "another one, for longer"),
            ("tuner train --from study --all-data", "on training, validation and test data together"),
        ),
        files=(
            ("results/<time>-…/best.pt", "the weights, for `tuner.load_best()`; `--output` names another folder"),
            ("results/<time>-…/study.json", "the command, with the study and the trial, options and versions"),
        ),
        exits=(
            ("1", "it could not go on, or with `--exact` the metrics differed"),
            ("130", "interrupted by Ctrl-C; `tuner --resume DIR` goes on from the checkpoint"),
        ),
        see="run results results.md",
    ),
    "results": Page(
        examples=(
            ("tuner results", "the study under results/ that was started last"),
            ('tuner results results --where "hidden_dim>=64" --sort -seconds --top 5', "all studies, filtered"),
            ("tuner results a/results.csv b/results.csv --csv", "two tables together, for another program"),
        ),
        files=(
            ("DIR/attempts.jsonl", "a study's trials, also while it runs"),
            ("DIR/study.json", "its command, for the line that runs the best configuration again"),
        ),
        see="run train results.md",
    ),
    "optimize": Page(
        examples=(
            (
                "tuner optimize --gpu-memory 12 --mode architecture",
                "the largest batch of each configuration on a GPU of 12 GB",
            ),
            (
                "tuner optimize --footprint contrastive_encoder --gpu-memory 24 --config-path conf --dry-run",
                "what would be changed in the files of a folder",
            ),
            ("tuner optimize --auto --limit 1 --profile", "on this machine, checked by real steps"),
        ),
        files=(("NAME.backup", "each file that `--apply` changes, as it was"), CALIBRATION),
        see="estimate plan memory.md",
    ),
    "report": Page(
        examples=(
            ("tuner report", "the newest study under results/"),
            ("tuner report study --output page.html", "this one, into this file"),
            ("tuner report study --watch", "live, while the study runs"),
        ),
        files=(("report.html", "the page, in the study's folder unless `--output` names a file"),),
        see="results results.md",
    ),
    "export": Page(
        examples=(
            ("tuner export study --optuna sqlite:///optuna.db", "export the study to an Optuna database"),
            (
                "tuner export --optuna sqlite:///optuna.db --study-name mine",
                "of the newest, under a name of your own",
            ),
        ),
        files=(
            ("DIR/attempts.jsonl", "the study's trials"),
            ("DIR/epochs.jsonl", "what they said after their epochs"),
            ("optuna.db", "whatever database the URL names"),
        ),
        see="results optuna.md",
    ),
    "doctor": Page(
        examples=(
            ("tuner doctor", "a line for each thing that was looked at, and what to do"),
            ("tuner doctor --json", "the same for a program"),
        ),
        exits=(("0", "no problem; there may be warnings"), ("1", "a problem: studies fail until it is mended")),
        see="plan",
    ),
    "status": Page(
        examples=(
            ("tuner status", "the devices, and below each the studies that share it"),
            ("tuner status --json", "the same for a program"),
        ),
        see="plan memory.md",
    ),
}


FUNCTIONS = {"report": "write_report", "script": "run"}  # of commands with other names


def page_text(name: str) -> str:
    """A command's page."""
    command, page = cli.commands[name], PAGES.get(name, Page())
    more = inspect.cleandoc(command.help or "").partition("\n\n")[2]
    synopsis = f"tuner {' '.join([name, *command.collect_usage_pieces(context(name))])}"
    if name == DEFAULT_COMMAND:
        synopsis = synopsis.replace(name, f"[{name}]", 1)
    exits = {**EXITS, **dict(page.exits)}.items()
    sections = {
        "": f"# tuner {name}\n\n{summary(command)}",
        "Synopsis": f"```\n{synopsis}\n```",
        "Description": as_code(more),
        "Options": options_table(command, context(name)),
        "In Python": python_twin(name, command),
        "Exit codes": table(("code", "meaning"), [(f"`{code}`", text) for code, text in exits]),
        "Files": page.files and table(("file", "what it is"), [(f"`{file}`", text) for file, text in page.files]),
        "Examples": page.examples and examples(page),
        "See also": "\n".join(f"- {link(other)}" for other in (*page.see.split(), "troubleshooting.md")),
    }
    return (
        "\n\n".join(f"## {head}\n\n{text}" if head else str(text) for head, text in sections.items() if text) + "\n"
    )


def index_text() -> str:
    """The list of all pages."""
    commands = [(link(name), summary(command)) for name, command in sorted(cli.commands.items())]
    return f"""# Commands

A page for every command, made from its help by `scripts/generate`; `tuner COMMAND --help` says the same.

{table(("command", "what it does"), commands)}

`tuner` alone is `tuner {DEFAULT_COMMAND}`. `tuner --help` lists the commands and the common options of that one, and
`tuner run --help` shows all of them. `tuner --version` shows the version.

The command is also called `tune`, as is a script of Ray: of the two, the one that was installed last is found. In a
clone that is not installed it is `scripts/tuner` or `python -m tuner`.

Errors are one line on stderr: what was wrong, the value, the remedy. `--debug` shows the traceback as well.
"""


def context(name: str) -> click.Context:
    """A command as it is called from ``tuner``."""
    return click.Context(cli.commands[name], info_name=name, parent=click.Context(cli, info_name="tuner"))


def options_table(command: click.Command, ctx: click.Context) -> str:
    """Every option with its default and its help."""
    rows = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record and isinstance(param, click.Option):
            text, _, default = record[1].partition("[default: ")
            without = "off" if param.is_flag and param.expose_value and not param.secondary_opts else NOTHING_GIVEN
            rows.append((f"`{record[0]}`", as_code(default.rstrip("]")) or without, as_code(text.strip())))
    return table(("option", "default", "what it does"), rows)


def python_twin(name: str, command: click.Command) -> str:
    """The function of the same name, and the parameters that are called otherwise there."""
    renamed = [
        f"`{param.opts[0]}` is `{param.name}`"
        for param in command.params
        if isinstance(param, click.Option) and param.name not in PRINTING and param.opts[0] != as_option(param.name)
    ]
    function = FUNCTIONS.get(name, name.replace("-", "_"))
    twin = f"`tuner.{function}()` takes the same options as parameters"
    return f"{twin}; {', '.join(renamed)}." if renamed else f"{twin}."


def examples(page: Page) -> str:
    """Command lines, each under what it does."""
    lines = "\n".join(f"# {text}\n$ {line}" for line, text in page.examples)
    return f"```console\n{lines}\n```"


def as_option(name: str | None) -> str:
    """What an option is called if its parameter is called so."""
    return f"--{(name or '').replace('_', '-')}"


def as_code(text: str) -> str:
    """Text with the options in it in code formatting."""
    return re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", text)


def summary(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line and in full."""
    return as_code(" ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split()))


def link(name: str) -> str:
    """To a command's page, or to another page of the docs."""
    return f"[docs/{name}](../{name})" if name.endswith(".md") else f"[`tuner {name}`]({name}.md)"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def pages() -> dict[str, str]:
    """What is to be in docs/commands, by file name."""
    return {INDEX: index_text(), **{f"{name}.md": page_text(name) for name in cli.commands}}


def out_of_date(folder: Path = FOLDER) -> list[str]:
    """The files that are not what they should be, are missing, or are of no command."""
    wanted = pages()
    there = {path.name: path.read_text() for path in folder.glob("*")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def write(folder: Path = FOLDER) -> None:
    """Writes every page, and takes away those of commands that are gone."""
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for path in folder.glob("*"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
