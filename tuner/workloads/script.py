"""The user's own Python script: each trial is a process, with its hyperparameters on the command line."""

from __future__ import annotations

import ast
import atexit
import runpy
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from tuner.errors import InputError, one_line
from tuner.trial import Config
from tuner.workloads.command_line import CommandLine, name_of
from tuner.workloads.function import HEAVY
from tuner.workloads.output import Output, Reports, failure
from tuner.workloads.session import Session


class Script(CommandLine):
    """A Python script, which runs in the trial's own process, and may also call ``tuner.report``."""

    def __init__(self, path: str | Path, arguments: Sequence[str]) -> None:
        """Raises ``InputError`` if the script cannot be read."""
        self.path = Path(path).resolve()
        self.program, self.start, self.arguments = self.path.name, ("python", str(self.path)), tuple(arguments)
        self.name = name_of(self.path.stem)
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

    def run(self, config: Config, data: object, session: Session) -> None:
        """Runs the script as ``python script.py …`` does, in this process."""
        with self.in_trial(session) as own:
            words = self.command(config, own)
            print(f"$ {self.program} {shlex.join(words)}", flush=True)
            sys.argv = [str(self.path), *words]
            sys.path.insert(0, str(self.path.parent))
            self._run(Reports(session))

    def _run(self, reports: Reports) -> None:
        with redirect_stdout(Output(reports)) as output:
            try:
                runpy.run_path(str(self.path), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    output.flush()
                    raise failure(ended.code)  # noqa: B904
            finally:
                atexit._run_exitfuncs()  # as the interpreter would, but this process ends without
            output.flush()
            reports.end()


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
