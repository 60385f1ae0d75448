"""The program's commands, and what their ``--help`` shows beyond click's own: groups of options, and common ones."""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem

from tuner.spec.spelling import in_terminal
from tuner.workloads.custom import SPEC

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
        found = super().shell_complete(ctx, incomplete)
        default = self.commands[DEFAULT_COMMAND]
        found += default.shell_complete(click.Context(default, parent=ctx, info_name=DEFAULT_COMMAND), incomplete)
        return list({item.value: item for item in found}.values())

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
