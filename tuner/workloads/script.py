"""The user's own Python script: each trial is a process, with its hyperparameters on the command line."""

import _thread
import ast
import atexit
import os
import runpy
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from tuner.errors import InputError, one_line
from tuner.trial import Config
from tuner.workloads.command_line import CommandLine, name_of
from tuner.workloads.function import HEAVY
from tuner.workloads.output import LOOK_SECONDS, Output, Reports, failure
from tuner.workloads.session import Session
from tuner.workloads.written_files import Wrote, writing


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
        with self.in_trial(config, session) as (words, reports):
            print(f"$ {self.program} {shlex.join(words)}", flush=True)
            sys.argv = [str(self.path), *words]
            sys.path.insert(0, str(self.path.parent))
            with writing(os.environ.get("TUNER_TRIAL_DIR", os.devnull)) as wrote:
                self._run(reports)
            if wrote:
                session.tell(Wrote(tuple(sorted(wrote))))

    def _run(self, reports: Reports) -> None:
        with redirect_stdout(Output(reports)) as output:
            try:
                with _looking(reports):
                    runpy.run_path(str(self.path), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    output.flush()
                    raise failure(ended.code)  # noqa: B904
            finally:
                atexit._run_exitfuncs()  # as the interpreter would, but this process ends without
                output.flush()
                reports.rest()
            reports.end()


@contextmanager
def _looking(reports: Reports) -> Iterator[None]:
    """Looks for reports from a thread while the block runs. What that raises interrupts the block, and is raised."""
    raised: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            try:
                if not raised:
                    reports.feed("")
            except BaseException as error:
                raised.append(error)
            if raised and not done.is_set():  # again and again, as the script may catch it
                _thread.interrupt_main()

    thread = threading.Thread(target=look, daemon=True, name="metrics")
    thread.start()
    try:
        yield
    finally:
        try:
            done.set()
            thread.join()
        except KeyboardInterrupt:
            if not raised:
                raise
        if raised:
            raise raised[0]


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
