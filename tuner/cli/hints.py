"""Suggests what a wrong word on the command line was most likely meant for."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Sequence

import click

from tuner.cli.help import DEFAULT_COMMAND, PROGRAM
from tuner.errors import NOT_GIVEN
from tuner.spec.options import ALIKE
from tuner.spec.spelling import as_typed, in_terminal
from tuner.workloads.custom import SPEC

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def told(error: click.ClickException, commands: Collection[str], words: Sequence[str]) -> str:
    """An error in one line, with a suggestion or where to find help; ``words`` is the command line."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        meant = _option_meant(error, error.ctx, words)
    else:
        meant = _argument_meant(error.format_message(), error.ctx, commands)
    hint = f"did you mean {meant}?" if meant else f"see {error.ctx.command_path} --help"
    said = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    if isinstance(error, click.BadParameter) and error.param and error.param.name:
        said = said.replace(error.param.opts[0], as_typed(words)(error.param.name, NOT_GIVEN), 1)
    return f"{said.rstrip('.')}: {hint}"


def _argument_meant(message: str, ctx: click.Context, commands: Collection[str]) -> str:
    """What an unexpected argument was meant for; empty if unknown."""
    extra = re.fullmatch(r"Got unexpected extra argument \((.*)\)", message)
    word, command = extra[1] if extra else "", ctx.info_name
    close = difflib.get_close_matches(word, commands, n=1) if command == DEFAULT_COMMAND else []
    if word.endswith(".py"):
        return f"{PROGRAM} script {word}, or {word.removesuffix('.py')}:FUNCTION"
    if SPEC.fullmatch(word) and _takes(ctx, "workload"):
        return in_terminal("workload", word)
    if word and command == "train":
        return f"--from {word}"
    if word.endswith(CONFIG_SUFFIXES) and _takes(ctx, "config"):
        return f"--config {word}"
    return f"{PROGRAM} {close[0]}" if close else ""


def _option_meant(error: click.NoSuchOption, ctx: click.Context, words: Sequence[str]) -> str:
    """What an unknown option was meant for: a hyperparameter of the workload, or an option with a similar name.

    Functions and scripts of users may have any hyperparameter.
    """
    from tuner.workloads.built_in import BUILT_IN, DEFAULT_WORKLOAD
    from tuner.workloads.lookup import find_workload

    alike = " or ".join(_alike(error, ctx.command))
    key, value = error.option_name.lstrip("-").replace("-", "_"), _value_of(error.option_name, words)
    if not key.isidentifier() or not value or not _takes(ctx, "overrides"):
        return alike
    if ctx.info_name == "script" and not alike:
        return f"-- {error.option_name} {{{key}}}, as the script's arguments stand behind --"
    workload = _value_of(in_terminal("workload"), words) or DEFAULT_WORKLOAD
    own = workload not in BUILT_IN or any(map(SPEC.fullmatch, words))
    schema = None if own else find_workload(workload).schema
    known = not alike if schema is None else key in schema
    return in_terminal("overrides", shlex.quote(f"{key}={value}")) if known else alike


def _alike(error: click.NoSuchOption, command: click.Command) -> list[str]:
    """Options with similar names. Synonyms are replaced by the documented name."""
    documented = {alias: param.opts[0] for param in command.params for alias in getattr(param, "aliases", ())}
    close = difflib.get_close_matches(error.option_name, error.possibilities or (), n=2, cutoff=ALIKE)
    return list(dict.fromkeys(documented.get(name, name) for name in close))


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option on the command line; empty if it has none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return "" if following.startswith("--") else following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _takes(ctx: click.Context, parameter: str) -> bool:
    return any(param.name == parameter for param in ctx.command.params)
