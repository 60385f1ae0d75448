"""A command line with placeholders, of which each trial is a process of its own."""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Literal, Self

from tuner.errors import InputError, WorkloadError
from tuner.trial import Config
from tuner.workloads.program import Program
from tuner.workloads.session import Session

SCRIPT = "script "  # begins the text of a script or a command with its arguments
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")

FOLDER, ID, SEED = "trial_dir", "trial_id", "seed"  # the placeholders of every trial
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class How:
    """The options of scripts and commands."""

    cwd: Literal["trial", "script"] = "script"  # where they start


class CommandLine(Program):
    """Words of a command line, in which ``{key}`` stands for a hyperparameter.

    It reports by lines of JSON on its output that have the metric.

    Attributes:
        program: what it is called in messages.
        start: the words with which people start it.
        arguments: the words behind these.
        how: see ``How``.
    """

    own_process = True
    program: str
    start: tuple[str, ...]
    arguments: tuple[str, ...]
    how = How()

    @property
    def spec(self) -> str:
        """The text that makes it again."""
        return SCRIPT + shlex.join([self.start[-1], *self.arguments])

    @property
    def code(self) -> object:
        """None: no module is imported for it."""
        return None

    def with_options(self, how: How) -> Self:
        """The same program with these options."""
        program = copy.copy(self)
        program.how = how
        return program

    @property
    def named(self) -> set[str]:
        """The placeholders in its arguments."""
        return {key for argument in self.arguments for key in PLACEHOLDER.findall(argument)}

    def check_keys(self, keys: Collection[str]) -> None:
        """Raises ``InputError`` if the arguments name another key than these, or lack one of them."""
        named = self.named
        if unknown := sorted(named - {*keys, FOLDER, ID, SEED}):
            known = ", ".join(keys) or "no key"
            raise InputError(f"{self.program}: its arguments have {{{unknown[0]}}}, but the space has {known}")
        if unfit := [key for key in keys if not PLACEHOLDER.fullmatch(f"{{{key}}}")]:
            raise InputError(f"{self.program}: no placeholder can name {unfit[0]!r}: rename it, such as to lr_2")
        if missing := [key for key in keys if key not in named]:
            more = " ".join(f"--{key} {{{key}}}" for key in missing)
            raise InputError(f"{self.program}: its arguments lack {', '.join(missing)}: add for example {more}")

    @contextmanager
    def in_trial(self, session: Session) -> Iterator[dict[str, str]]:
        """Sets the trial's folder and its environment variables for the block; yields the placeholders for them.

        A folder in which nothing was written is removed.
        """
        own = {ID: session.trial_id, SEED: str(session.seed)}
        try:
            own[FOLDER] = str(session.folder())
        except WorkloadError:
            if self.how.cwd == "trial" or FOLDER in self.named:
                raise
        os.environ.update({f"TUNER_{name.upper()}": value for name, value in own.items()})
        before = os.getcwd()
        try:
            if self.how.cwd == "trial":
                os.chdir(own[FOLDER])
            yield own
        finally:
            os.chdir(before)
            with suppress(OSError, KeyError):
                os.rmdir(own[FOLDER])

    def command(self, config: Config, own: Mapping[str, str] = NONE) -> list[str]:
        """The arguments of a trial, which has its ``own`` placeholders besides.

        One that names a key that the trial has not is left out, and the flag before it if no value is left for it.
        """
        values, words = {**own, **self.values_of(config)}, self.arguments
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
