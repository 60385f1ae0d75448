"""The command line's options, made from the specification: see ``tuner.spec``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from tuner.cli.completion import complete_modes, complete_studies, complete_workloads
from tuner.errors import spelled
from tuner.spec.options import Options
from tuner.spec.spelling import flag, in_terminal

Command = TypeVar("Command", bound=Callable[..., object])
Chosen = TypeVar("Chosen", bound=Options)

COMPLETIONS = {
    "workload": complete_workloads,
    "mode": complete_modes,
    **dict.fromkeys(("resume", "like", "study", "directory", "paths"), complete_studies),
}
SEVERAL = ("workload", "data", "overrides", "sort", "where", "config_path", "key")  # can be given again


class GroupedCommand(click.Command):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section for each group, in the order in which the options were declared."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                groups.setdefault(getattr(param, "group", "Other options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Option(click.Option):
    """An option that knows its group."""

    def __init__(self, *declarations: Any, group: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group


def options(spec: type[Options]) -> Callable[[Command], Command]:
    """Adds the options of a specification to a command."""
    titles = spec.titles()
    order = list(dict.fromkeys(titles.values()))
    names = [name for name in titles if not spec.terminal(name).hidden]
    names.sort(key=lambda name: order.index(titles[name]))  # groups of one title stand together

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            made = _argument(spec, name) if spec.terminal(name).argument else _option(spec, name, titles[name])
            command = made(command)
        return command

    return decorate


def chosen(ctx: click.Context, spec: type[Chosen]) -> Chosen:
    """What was given on the command line, checked."""
    given = {
        name: value
        for name, value in ctx.params.items()
        if name in spec.model_fields and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if "data" in given and isinstance(given["data"], tuple):
        from tuner.study.selection import parse_data

        given["data"] = parse_data(given["data"])
    return spec(**given)


def _argument(spec: type[Options], name: str) -> Callable[[Command], Command]:
    several = spec.default(name) == ()
    return click.argument(
        name,
        metavar=spec.terminal(name).metavar,
        nargs=-1 if several else 1,
        required=spec.model_fields[name].default is not None and not several,
        shell_complete=COMPLETIONS.get(name),
    )


def _option(spec: type[Options], name: str, group: str) -> Callable[[Command], Command]:
    terminal, default, kind = spec.terminal(name), spec.default(name), _kind(spec, name)
    spelling, several = terminal.flag or flag(name), name in SEVERAL and _is_listed(spec, name)
    if kind is click.BOOL and "/" not in spelling and default is not False:
        spelling = f"{spelling}/{spelling.replace('--', '--no-', 1)}"
    text = spelled(str(spec.model_fields[name].description), in_terminal)
    unset = f"  [default: {spelled(terminal.unset, in_terminal)}]" if terminal.unset else ""
    return click.option(
        spelling,
        name,
        cls=_Option,
        group=group,
        type=None if kind is click.BOOL else kind,
        is_flag=kind is click.BOOL,
        multiple=several,
        default=None if several else default,
        show_default=not several and default is not None and default is not False,
        metavar=None if isinstance(kind, click.Choice) else terminal.metavar or None,
        help=f"{text}{' Can be given again.' if several else ''}{unset}",
        shell_complete=COMPLETIONS.get(name),
    )


def _is_listed(spec: type[Options], name: str) -> bool:
    """Whether an option of this name holds a list here: ``train`` has one workload and one place of data."""
    return spec.default(name) in ((), "")


def _kind(spec: type[Options], name: str) -> click.ParamType[object]:
    """The type of an option's value."""
    if spec.terminal(name).choices:
        return click.Choice(spec.terminal(name).choices)
    annotation = spec.model_fields[name].annotation
    kinds = [annotation, *get_args(annotation)]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
    return next(
        (
            made
            for kind, made in ((bool, click.BOOL), (str, click.STRING), (int, click.INT), (float, click.FLOAT))
            if kind in kinds
        ),
        click.STRING,
    )
