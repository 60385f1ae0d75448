"""The command line's options, made from the specification, see ``tuner.spec``, and what a shell completes them with.

Click's own script asks for the latter: ``_TUNER_COMPLETE=bash_source tuner``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tuner.errors import spelled
from tuner.records.files import STUDY
from tuner.spec.options import Options
from tuner.spec.spelling import flag, in_terminal
from tuner.workloads.base import BUILT_IN, DEFAULT_WORKLOAD

Command = TypeVar("Command", bound=Callable[..., object])
Chosen = TypeVar("Chosen", bound=Options)

KINDS = {bool: click.BOOL, str: click.STRING, int: click.INT, float: click.FLOAT}  # the first that a type allows


def complete_workloads(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Built-in workloads that begin with what was typed."""
    return [name for name in BUILT_IN if name.startswith(incomplete)]


def complete_modes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Modes of the workloads that were named before, if they begin with what was typed."""
    from tuner.search.configurations import modes

    workloads = ctx.params.get("workload") or (DEFAULT_WORKLOAD,)
    names = {mode for name in workloads for mode in modes(name)}
    return sorted(mode for mode in names if mode.startswith(incomplete))


def complete_studies(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Studies' folders under ``results/``, newest first, or any other folder."""
    from tuner.records.read_studies import RESULTS_FOLDER

    files = sorted(RESULTS_FOLDER.glob(f"*/{STUDY}"), reverse=True)
    studies = [str(path.parent) for path in files]
    # First, as bash's script drops what stands before a kind of files.
    return [
        CompletionItem(incomplete, "dir"),
        *(CompletionItem(study) for study in studies if study.startswith(incomplete)),
    ]


COMPLETIONS = {
    "workload": complete_workloads,
    "mode": complete_modes,
    **dict.fromkeys(("resume", "like", "study", "directory", "paths"), complete_studies),
}


class SpecifiedOption(click.Option):
    """An option that knows its group, whether it is common, and other names, which the help does not show."""

    def __init__(
        self, *declarations: Any, group: str, common: bool, aliases: Sequence[str], **attributes: Any
    ) -> None:
        super().__init__(*declarations, **attributes)
        self.group, self.common, self.aliases = group, common, aliases

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Lets the parser know all names."""
        super().add_to_parser(parser, ctx)
        if self.aliases:
            action = "append" if self.multiple else "store"
            parser.add_option(obj=self, opts=self.aliases, dest=self.name, action=action, nargs=self.nargs)


def add_options(spec: type[Options]) -> Callable[[Command], Command]:
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
        from tuner.spec.listed import parse_data

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
    spelling, several = terminal.flag or flag(name), _is_listed(spec, name)
    if kind is click.BOOL and "/" not in spelling and default is not False:
        spelling = f"{spelling}/{spelling.replace('--', '--no-', 1)}"
    text = spelled(str(spec.model_fields[name].description), in_terminal)
    unset = f"  [default: {spelled(terminal.unset, in_terminal)}]" if terminal.unset else ""
    return click.option(
        spelling,
        name,
        cls=SpecifiedOption,
        group=group,
        common=terminal.common,
        aliases=terminal.aliases,
        type=None if kind is click.BOOL else kind,
        is_flag=kind is click.BOOL,
        multiple=several,
        default=None if several else default,
        show_default=not several and default is not None and default is not False,
        metavar=terminal.metavar or None,
        help=f"{text}{' Can be given again.' if several else ''}{unset}",
        shell_complete=COMPLETIONS.get(name),
    )


def _is_listed(spec: type[Options], name: str) -> bool:
    """Whether an option can be given again: a list, or the data, which may be of several workloads."""
    return spec.default(name) == () or (name == "data" and spec.default(name) == "")


def _kind(spec: type[Options], name: str) -> click.ParamType[object]:
    """The type of an option's value."""
    annotation = spec.model_fields[name].annotation
    kinds = [annotation, *get_args(annotation)]
    literal = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    if choices := spec.terminal(name).choices or literal:
        return click.Choice(choices)
    return next((click_type for kind, click_type in KINDS.items() if kind in kinds), click.STRING)
