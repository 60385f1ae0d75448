"""Suggests what a wrong word on the command line was most likely meant for."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Sequence

import click

from tuner.cli.help import DEFAULT_COMMAND, PROGRAM
from tuner.spec.options import ALIKE
from tuner.spec.spelling import in_terminal


def told(error: click.ClickException, commands: Collection[str], words: Sequence[str]) -> str:
    """An error in one line, with a suggestion or where to find help; ``words`` is the command line."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        said, meant = error.message, _option_meant(error, error.ctx.command, words)
    else:
        said = error.format_message()
        meant = _argument_meant(said, commands if error.ctx.info_name == DEFAULT_COMMAND else ())
    hint = f"did you mean {meant}?" if meant else f"see {error.ctx.command_path} --help"
    return f"{said.rstrip('.')}: {hint}"


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
        return f"-- {error.option_name} {{{key}}}, as the script's arguments stand behind --"
    return in_terminal("overrides", shlex.quote(f"{key}={value}"))


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option on the command line; empty if it has none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return "" if following.startswith("--") else following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
