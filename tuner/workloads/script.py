"""The user's own script: each trial is a process, with its hyperparameters on the command line."""

from __future__ import annotations

import ast
import atexit
import io
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stdout, suppress
from itertools import takewhile
from pathlib import Path
from typing import Self

from tuner.errors import InputError, WorkloadError, one_line
from tuner.trial import Config
from tuner.workloads.function import HEAVY
from tuner.workloads.program import Program
from tuner.workloads.session import Session

SCRIPT = "script "  # begins the text of a script with its arguments
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


class Script(Program):
    """A Python script and its arguments, in which ``{key}`` stands for a hyperparameter.

    It reports by ``tuner.report``, or by lines of JSON on its standard output that have the metric.
    """

    own_process = True

    def __init__(self, path: str | Path, arguments: Sequence[str]) -> None:
        """Raises ``InputError`` if the script cannot be read."""
        self.path = Path(path).resolve()
        self.arguments = tuple(arguments)
        self.name = re.sub(r"[^\w.]+", "-", self.path.stem).strip("-._") or "script"
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: the script cannot be read: {error.strerror}") from error
        try:
            tree = ast.parse(text, str(path))
        except (SyntaxError, ValueError) as error:
            raise InputError(f"{path}: the script cannot be read: {one_line(error)}") from error
        names = _imported(tree, self.path.parent, set())
        self.imports = tuple(name for name in HEAVY if name in names)

    @classmethod
    def of(cls, spec: str) -> Self:
        """The script of a text such as ``script train.py {lr}``, in which words are quoted as in a shell."""
        try:
            _, *words = shlex.split(spec)
        except ValueError as error:
            raise InputError(f"{spec}: {one_line(error)}") from error
        if not words:
            raise InputError(f"{spec}: the script is missing, such as {SCRIPT}train.py {{lr}}")
        return cls(words[0], words[1:])

    @property
    def spec(self) -> str:
        """The text that makes it again."""
        return SCRIPT + shlex.join([str(self.path), *self.arguments])

    @property
    def code(self) -> object:
        """None: no module is imported for it."""
        return None

    def check_keys(self, keys: Collection[str]) -> None:
        """Raises ``InputError`` if the arguments name another key than these, or lack one of them."""
        named = {key for argument in self.arguments for key in PLACEHOLDER.findall(argument)}
        if unknown := sorted(named - set(keys)):
            known = ", ".join(keys) or "no key"
            raise InputError(f"{self.path.name}: its arguments have {{{unknown[0]}}}, but the space has {known}")
        if unfit := [key for key in keys if not PLACEHOLDER.fullmatch(f"{{{key}}}")]:
            raise InputError(f"{self.path.name}: no placeholder can name {unfit[0]!r}: rename it, such as to lr_2")
        if missing := [key for key in keys if key not in named]:
            more = " ".join(f"--{key} {{{key}}}" for key in missing)
            raise InputError(f"{self.path.name}: its arguments lack {', '.join(missing)}: add for example {more}")

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

    def run(self, config: Config, data: object, session: Session) -> None:
        """Runs the script as ``python script.py …`` does, in this process."""
        words = self.command(config)
        print(f"$ {self.path.name} {shlex.join(words)}", flush=True)
        sys.argv = [str(self.path), *words]
        sys.path.insert(0, str(self.path.parent))
        output = _Output(session)
        with redirect_stdout(output):
            try:
                runpy.run_path(str(self.path), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    output.flush()
                    raise WorkloadError(f"it ended with exit code {ended.code}{_last_line()}") from None
            finally:
                atexit._run_exitfuncs()  # as the interpreter would, but this process ends without
            output.end()


def _last_line() -> str:
    """The last line of this process's output and its log file; empty if the output is not kept."""
    try:
        file = Path(os.readlink("/proc/self/fd/1"))
        lines = file.read_text(errors="replace").strip().splitlines() if file.suffix == ".log" else []
    except OSError:
        return ""
    return f": {one_line(lines[-1], 200)} (logs/{file.name})" if lines else ""


class _Output(io.TextIOWrapper):
    """The script's standard output, in which lines of JSON are reports."""

    def __init__(self, session: Session) -> None:
        file = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
        super().__init__(io.BufferedWriter(file), "utf-8", line_buffering=True)
        self._session = session
        self._metric = session.metric
        self._line = ""
        self._broken = ""
        self._others: dict[str, None] = {}  # what lines of JSON without the metric had

    def write(self, text: str) -> int:
        """Writes text, and reports each complete line of JSON that has the metric."""
        super().write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._read(line.strip())
        return len(text)

    def end(self) -> None:
        """Reads the last line; raises ``WorkloadError`` if all that the script has reported was damaged."""
        self.flush()
        self._read(self._line.strip())
        if self._session.reports:
            return
        if self._others:
            raise WorkloadError(f"it reported {', '.join(self._others)}, but not {self._metric}")
        if self._broken:
            raise WorkloadError(f"a line of its output is no JSON, and none is a report: {self._broken:.80}")

    def _read(self, line: str) -> None:
        if not line.startswith("{"):
            return
        try:
            said = json.loads(line)
        except ValueError:
            self._broken = self._broken or line
            return
        if self._metric not in said:
            self._others |= dict.fromkeys(said)
            return
        epoch = said.pop("epoch", None)
        kept = {
            name: value for name, value in said.items() if isinstance(value, (int, float)) or name == self._metric
        }
        self._session.report(kept, epoch if isinstance(epoch, int) else None)


def _imported(tree: ast.Module, folder: Path, names: set[str]) -> set[str]:
    """The packages that a script and the modules in its folder import, found without running them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    new = found - names
    names |= new
    for name in new:
        with suppress(OSError, SyntaxError, ValueError):  # no such module in the folder, or one that cannot be parsed
            _imported(ast.parse((folder / f"{name}.py").read_bytes()), folder, names)
    return names
