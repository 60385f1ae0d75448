"""A command line with placeholders, of which each trial is a process of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from itertools import takewhile

from tuner.errors import InputError
from tuner.trial import Config
from tuner.workloads.program import Program

SCRIPT = "script "  # begins the text of a script or a command with its arguments
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


class CommandLine(Program):
    """Words of a command line, in which ``{key}`` stands for a hyperparameter.

    It reports by lines of JSON on its output that have the metric.

    Attributes:
        program: what it is called in messages.
        start: the words with which people start it.
        arguments: the words behind these.
    """

    own_process = True
    program: str
    start: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def spec(self) -> str:
        """The text that makes it again."""
        return SCRIPT + shlex.join([self.start[-1], *self.arguments])

    @property
    def code(self) -> object:
        """None: no module is imported for it."""
        return None

    def check_keys(self, keys: Collection[str]) -> None:
        """Raises ``InputError`` if the arguments name another key than these, or lack one of them."""
        named = {key for argument in self.arguments for key in PLACEHOLDER.findall(argument)}
        if unknown := sorted(named - set(keys)):
            known = ", ".join(keys) or "no key"
            raise InputError(f"{self.program}: its arguments have {{{unknown[0]}}}, but the space has {known}")
        if unfit := [key for key in keys if not PLACEHOLDER.fullmatch(f"{{{key}}}")]:
            raise InputError(f"{self.program}: no placeholder can name {unfit[0]!r}: rename it, such as to lr_2")
        if missing := [key for key in keys if key not in named]:
            more = " ".join(f"--{key} {{{key}}}" for key in missing)
            raise InputError(f"{self.program}: its arguments lack {', '.join(missing)}: add for example {more}")

    def command(self, config: Config) -> list[str]:
        """The arguments of a trial.

        One that names a key that the trial has not is left out, and the flag before it if no value is left for it.
        """
        values, words = self.values_of(config), self.arguments
        kept = [all(key in values for key in PLACEHOLDER.findall(word)) for word in words]
        for place in reversed(range(len(words))):
            if FLAG.fullmatch(words[place]):
                follow = takewhile(lambda other: not words[other].startswith("-"), range(place + 1, len(words)))
                of_flag = [kept[other] for other in follow]
                kept[place] = any(of_flag) or not of_flag
        return [
            PLACEHOLDER.sub(lambda found: str(values[found[1]]), word)
            for word, keep in zip(words, kept, strict=True)
            if keep
        ]

    def remedy(self, metric: str) -> str:
        """See ``Program.remedy``."""
        return f'print a line of JSON such as {{"{metric}": 0.5}}, or call tuner.report({metric}=…)'


def name_of(text: str) -> str:
    """A workload's name from that of a file or a module."""
    return re.sub(r"[^\w.]+", "-", text).strip("-._") or "script"
