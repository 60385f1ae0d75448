"""What a word on the command line was most likely meant for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

import click

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def meant_for(error: click.ClickException, commands: Collection[str], default: str) -> str:
    """What an argument too many was meant for, else where help is."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    extra = re.fullmatch(r"Got unexpected extra argument \((.*)\)", error.format_message())
    word, command = extra[1] if extra else "", error.ctx.info_name
    takes_config = any(param.name == "config" for param in error.ctx.command.params)
    close = difflib.get_close_matches(word, commands, n=1) if command == default else []
    if word.endswith(".py"):
        return f": did you mean tune script {word}, or {word.removesuffix('.py')}:FUNCTION?"
    if word and command == "train":
        return f": did you mean --from {word}?"
    if word.endswith(CONFIG_SUFFIXES) and takes_config:
        return f": did you mean --config {word}?"
    return f": did you mean tune {close[0]}?" if close else f": see {error.ctx.command_path} --help"
