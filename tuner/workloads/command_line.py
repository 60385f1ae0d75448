"""A command line with placeholders. Each trial runs it as a separate process."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tuner.errors import InputError, WorkloadError, one_line, option
from tuner.trial import PLACING, Config
from tuner.workloads.metrics_files import MetricsFiles
from tuner.workloads.output import Reports, last_lines
from tuner.workloads.program import Program, values_of
from tuner.workloads.session import Session

if TYPE_CHECKING:
    import regex

SCRIPT = "script "  # begins the text of a script or a command with its arguments
# {key}; or {key?text}, and {key?text:other} with another text where the key is false or 0, also as a text.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)(?:\?([^{}:]*)(?::([^{}]*))?)?\}")
NO = ("false", "0")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
OPTION = re.compile(r"(\{[^{}]*[?:])?-")  # the begin of a word that is no value of the flag before it

FOLDER, ID, SEED = "trial_dir", "trial_id", "seed"  # the placeholders of every trial
CONFIG = "config"  # a further one: a file with the configuration, also as {config.toml}
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
LAST, SHOWN = 3, 100  # the last lines of output in an error, and characters of each
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class CommandOptions:
    """The options of scripts and commands."""

    cwd: Literal["trial", "script"] = "script"  # where they start
    metric_pattern: str = ""  # a regular expression that finds the metrics in a line of output; empty for none
    metrics_file: str = ""  # the files with metrics in the trial's folder, with wildcards; empty for none
    template: Mapping[str, object] = field(default_factory=dict)  # what the file with the configuration has besides
    suffix: str = SUFFIXES[0]  # of that file

    @property
    def pattern(self) -> regex.Pattern[str] | None:
        """The pattern, which is run with a time limit; raises ``regex.error`` for one that is none."""
        import regex

        return regex.compile(self.metric_pattern) if self.metric_pattern else None


class CommandLine(Program):
    """Words of a command line, in which ``{key}`` stands for a hyperparameter.

    It reports by its output or by files: see ``Reports``.
    """

    own_process = True
    program: str  # its name in messages
    path: Path  # the file with its code, if it has one
    start: tuple[str, ...]  # the words with which people start it
    arguments: tuple[str, ...]  # the words behind these
    options = CommandOptions()

    @property
    def spec(self) -> str:
        """The text that makes it again."""
        return SCRIPT + shlex.join([self.start[-1], *self.arguments])

    @property
    def code(self) -> object:
        """None: no module is imported for it."""
        return None

    @property
    def config_names(self) -> set[str]:
        """The placeholders for a file with the configuration."""
        return self.named.intersection([CONFIG, *(CONFIG + suffix for suffix in SUFFIXES)])

    @property
    def named(self) -> set[str]:
        """The placeholders in its arguments."""
        return {key for argument in self.arguments for key in _keys(argument)}

    def check_keys(self, keys: Collection[str]) -> None:
        """Raises ``InputError`` if the arguments name another key than these, or lack one of them."""
        named, files, keys = self.named, self.config_names, [key for key in keys if key not in PLACING]
        if unknown := sorted(named - {*keys, FOLDER, ID, SEED} - files):
            listed = ", ".join(keys) or "no key"
            raise InputError(f"{self.program}: its arguments have {{{unknown[0]}}}, but the space has {listed}")
        if unfit := [key for key in keys if not PLACEHOLDER.fullmatch(f"{{{key}}}")]:
            raise InputError(f"{self.program}: no placeholder can name {unfit[0]!r}: rename it, such as to lr_2")
        if not files.difference(keys) and (missing := [key for key in keys if key not in named]):
            more = " ".join(f"--{key} {{{key}}}" for key in missing)
            rule = f"add for example {more}, or {{{CONFIG}}} for a file that has all"
            raise InputError(f"{self.program}: its arguments lack {', '.join(missing)}: {rule}")

    def own(self, trial_id: str, seed: int, folder: Path | None) -> dict[str, str]:
        """What stands for the placeholders of every trial, with this folder if it has one."""
        placeholders = {ID: trial_id, SEED: str(seed)}
        if folder is not None:
            files = {
                name: f"{CONFIG}{name.removeprefix(CONFIG) or self.options.suffix}" for name in self.config_names
            }
            placeholders |= {FOLDER: str(folder), **{name: str(folder / file) for name, file in files.items()}}
        return placeholders

    @contextmanager
    def in_trial(self, config: Config, session: Session) -> Iterator[tuple[list[str], Reports]]:
        """Sets the trial's folder and its environment variables for the block; yields its arguments and its reports.

        A folder in which nothing was written is removed.
        """
        folder: Path | None = None
        try:
            folder = session.folder()
        except WorkloadError:
            if self.options.cwd == "trial" or self.options.metrics_file or FOLDER in self.named or self.config_names:
                raise
        placeholders = self.own(session.trial_id, session.seed, folder)
        told = {name: placeholders[name] for name in (ID, SEED, FOLDER) if name in placeholders}
        os.environ.update({f"TUNER_{name.upper()}": value for name, value in told.items()})
        for name in self.config_names.difference(values_of(config, self.objects)):
            write_config(Path(placeholders[name]), self.options.template, self.arguments_of(config))
        files = MetricsFiles(folder, self.options.metrics_file) if folder and self.options.metrics_file else None
        before = os.getcwd()
        try:
            if self.options.cwd == "trial":
                os.chdir(placeholders[FOLDER])
            yield self.command(config, placeholders), Reports(session, self.options.pattern, files)
        finally:
            os.chdir(before)
            with suppress(OSError, KeyError):
                os.rmdir(placeholders[FOLDER])

    def command(self, config: Config, placeholders: Mapping[str, str] = NONE) -> list[str]:
        """The arguments of a trial; ``placeholders`` are those that every trial has.

        An argument is left out if the trial lacks its key or has null there, and so is the flag before it if that has
        no other value. A list alone is a word for each of its values.
        """
        values, words = {**placeholders, **values_of(config, self.objects)}, self.arguments
        parts = [_words(word, values) for word in words]
        kept = [part is not None for part in parts]
        for place in reversed(range(len(words))):
            if FLAG.fullmatch(words[place]):
                follow = takewhile(lambda other: not OPTION.match(words[other]), range(place + 1, len(words)))
                of_flag = [kept[other] for other in follow]
                kept[place] = any(of_flag) or not of_flag
        return [word for part, keep in zip(parts, kept, strict=True) if keep for word in part or ()]

    def remedy(self, metric: str) -> str:
        """See ``Program.remedy``."""
        ways = f'{{"{metric}": 0.5}}, or give {option("metric_pattern")} or {option("metrics_file")}'
        output = " | ".join(one_line(line, SHOWN) for line in last_lines(LAST))
        given = self.options.metric_pattern
        way = (
            f"no line matches {option('metric_pattern', given)}" if given else f"print a line of JSON such as {ways}"
        )
        return way + (f"; its output ends with: {output}" if output else "")


def _keys(word: str) -> list[str]:
    return [match[1] for match in PLACEHOLDER.finditer(word)]


def _words(word: str, values: Mapping[str, object]) -> list[str] | None:
    """The words for one with placeholders; None if it is left out."""
    if any(values.get(key) is None for key in _keys(word)):
        return None
    alone = PLACEHOLDER.fullmatch(word)
    if alone and alone[2] is not None:
        return [text] if (text := _text(alone, values)) else None
    if alone and isinstance(listed := values[alone[1]], (list, tuple)):
        return list(map(_word, listed))
    return [PLACEHOLDER.sub(lambda match: _text(match, values), word)]


def _text(match: re.Match[str], values: Mapping[str, object]) -> str:
    key, of_true, of_false = match.groups()
    if of_true is None:
        return _word(values[key])
    no = not (value := values[key]) or (isinstance(value, str) and value.lower() in NO)
    return of_false or "" if no else of_true


def _word(value: object) -> str:
    """A value as a word: lists and dicts as JSON."""
    return json.dumps(value, default=str) if isinstance(value, (list, tuple, dict)) else str(value)


def name_of(text: str) -> str:
    """A workload's name from that of a file or a module."""
    return re.sub(r"[^\w.]+", "-", text).strip("-._") or "script"


def write_config(path: Path, template: Mapping[str, object], values: Mapping[str, object]) -> None:
    """Writes a YAML, TOML or JSON file, by its ending, with what a template has and these values in its place.

    Raises ``WorkloadError`` for a value that such a file cannot have.
    """
    try:
        text = _WRITERS[path.suffix](_merged(template, values))
    except Exception as error:  # each library has its own
        raise WorkloadError(f"{path.name} cannot hold the configuration: {one_line(error)}") from error
    path.write_text(text, encoding="utf-8")


def _merged(template: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """The values within a template: mappings of both are merged in turn."""
    merged = dict(template)
    for key, value in values.items():
        inner = merged.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged


def _yaml(content: Mapping[str, object]) -> str:
    import yaml

    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _toml(content: Mapping[str, object]) -> str:
    import tomlkit

    return tomlkit.dumps(content)


_WRITERS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
    ".json": lambda content: json.dumps(content, indent=2),
}
