"""The program's commands, their ``--help`` beyond click's own, and what a wrong word was most likely meant for."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Sequence

import click
from click.shell_completion import CompletionItem

from tuner.spec.options import ALIKE
from tuner.spec.spelling import in_terminal
from tuner.workloads.lookup import SPEC

PROGRAM = "tuner"  # also called tune, as which Ray installs a script of its own
DEFAULT_COMMAND = "run"
FIRST_CLAUSE = re.compile(r"[.:;](?:\s|$)")


class GroupedCommand(click.Command):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section for each group of options, in the order of declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", "Other options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class CommandGroup(click.Group):
    """A group with a default command: ``tuner`` alone means ``tuner run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Adds the default command where none is named, unless the shell is completing the first word.

        ``module:name`` alone is the workload of the default command.
        """
        first = ctx.resilient_parsing and not args
        if not first and (not args or args[0] not in (*self.commands, "--help", "--version")):
            args = [DEFAULT_COMMAND, *args]
        if args[:1] == [DEFAULT_COMMAND] and args[1:] and SPEC.fullmatch(args[1]):
            args = [DEFAULT_COMMAND, in_terminal("workload"), *args[1:]]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Completes commands, and the options of the default command beside the program's own."""
        items = super().shell_complete(ctx, incomplete)
        default = self.commands[DEFAULT_COMMAND]
        items += default.shell_complete(click.Context(default, parent=ctx, info_name=DEFAULT_COMMAND), incomplete)
        return list({item.value: item for item in items}.values())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Shows the common options of the default command first, as most people look for these."""
        default = self.commands[DEFAULT_COMMAND]
        common = [param for param in default.params if getattr(param, "common", False)]
        records = [record for param in common if (record := param.get_help_record(ctx))]
        head = f"Common options of {DEFAULT_COMMAND}, the default command (all: {PROGRAM} {DEFAULT_COMMAND} --help)"
        with formatter.section(head):
            formatter.write_dl([(names, FIRST_CLAUSE.split(text)[0]) for names, text in records])
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


def told(error: click.ClickException, commands: Collection[str], words: Sequence[str]) -> str:
    """An error in one line, with a suggestion or where to find help; ``words`` is the command line."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        message, meant = error.message, _option_meant(error, error.ctx.command, words)
    else:
        message = error.format_message()
        meant = _argument_meant(message, commands if error.ctx.info_name == DEFAULT_COMMAND else ())
    hint = f"did you mean {meant}?" if meant else f"see {error.ctx.command_path} --help"
    return f"{message.rstrip('.')}: {hint}"


def _argument_meant(message: str, commands: Collection[str]) -> str:
    """What an unexpected argument was meant for, a script or one of the ``commands``; empty if unknown."""
    extra = re.fullmatch(r"Got unexpected extra argument \((.*)\)", message)
    word = extra[1] if extra else ""
    if word.endswith(".py"):
        return f"{PROGRAM} script {word}, or {word.removesuffix('.py')}:FUNCTION"
    close = difflib.get_close_matches(word, commands, n=1)
    return f"{PROGRAM} {close[0]}" if close else ""


def _option_meant(error: click.NoSuchOption, command: click.Command, words: Sequence[str]) -> str:
    """What an unknown option was meant for: an option with a similar name, or a hyperparameter."""
    documented = {alias: param.opts[0] for param in command.params for alias in getattr(param, "aliases", ())}
    close = difflib.get_close_matches(error.option_name, error.possibilities or (), n=2, cutoff=ALIKE)
    if close:
        return " or ".join(dict.fromkeys(documented.get(name, name) for name in close))
    key, value = error.option_name.lstrip("-").replace("-", "_"), _value_of(error.option_name, words)
    takes_hyperparameters = any(param.name == "overrides" for param in command.params)
    if not key.isidentifier() or not value or not takes_hyperparameters:
        return ""
    if command.name == "script":
        return f"-- {error.option_name} {{{key}}}, as the script's arguments come after --"
    return in_terminal("overrides", shlex.quote(f"{key}={value}"))


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option on the command line; empty if it has none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return "" if following.startswith("--") else following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
