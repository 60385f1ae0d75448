"""The user's Python script, or a command such as ``torchrun``, as a trial of its own process; the files it writes."""

import _thread
import ast
import atexit
import codecs
import os
import runpy
import select
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from pathlib import Path

from tuner.errors import InputError, WorkloadError, one_line, option
from tuner.machine.processes import adopt_descendants, end_descendants, free_port
from tuner.trial import Config
from tuner.workloads.command_line import SCRIPT, CommandLine, name_of
from tuner.workloads.output import LOOK_SECONDS, Output, Reports, failure
from tuner.workloads.packages import imported, on_this_machine
from tuner.workloads.program import HEAVY
from tuner.workloads.session import Session

MODULE = "-m"
POLL_SECONDS = 0.1  # between two looks whether a command has ended
END_SECONDS = 5.0  # that a command has to end when it is asked to, as launchers then end their processes
CHUNK_BYTES = 2**16
REMEDY = f"to give each trial its own folder, give {option('cwd', 'trial')}, or {{trial_dir}} among the arguments"
MOST_OF_TRIAL, MOST = 20, 10_000  # the most written files that are remembered, of a trial and of a study


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
        names = imported(tree, self.path.parent, set())
        self.imports = tuple(name for name in HEAVY if name in names)

    def run(self, config: Config, data: object, session: Session) -> None:
        """Runs the script as ``python script.py …`` does, in this process."""
        path = on_this_machine(self.path)
        with self.in_trial(config, session) as (words, reports):
            print(f"$ {self.program} {shlex.join(words)}", flush=True)
            sys.argv = [str(path), *words]
            sys.path.insert(0, str(path.parent))
            with writing(os.environ.get("TUNER_TRIAL_DIR", os.devnull)) as wrote:
                self._run(path, reports)
            if wrote:
                session.tell(Wrote(tuple(sorted(wrote))))

    def _run(self, path: Path, reports: Reports) -> None:
        with redirect_stdout(Output(reports)) as output, redirect_stderr(Output(reports, 2)) as errors:
            try:
                with _looking(reports):
                    runpy.run_path(str(path), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    output.flush()
                    errors.flush()
                    raise failure(ended.code)  # noqa: B904
            finally:
                atexit._run_exitfuncs()  # as the interpreter would, but this process ends without
                output.flush()
                errors.flush()
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


class Command(CommandLine):
    """A command, which runs in the process group of the trial."""

    def __init__(self, words: Sequence[str]) -> None:
        """``-m`` as the first word stands for this Python with ``-m``.

        Raises ``InputError`` if there is no such program.
        """
        first, *rest = words
        self.imports, self.arguments = (), tuple(rest)
        self.start = (
            ("python", MODULE) if first == MODULE else (os.path.abspath(first) if os.sep in first else first,)
        )
        self.program = f"{MODULE} {rest[0] if rest else ''}" if first == MODULE else first
        _starting(self.start)
        module = next((after for word, after in pairwise(words) if word == MODULE), "")
        self._file = next((word for word in rest if Path(word).is_file()), first)
        self.path = Path(self._file)
        self.name = name_of(module or self.path.stem)

    def run(self, config: Config, data: object, session: Session) -> None:
        """Runs the command, and reads what it and its processes print."""
        here = os.getcwd()
        with self.in_trial(config, session) as (words, reports):
            print(f"$ {shlex.join([*self.start, *words])}", flush=True)
            environment = {"PYTHONUNBUFFERED": "1", **_ports(), **os.environ}
            file = str(on_this_machine(Path(self._file)))
            words = [file if word == self._file else word for word in words]
            if self.options.cwd == "trial":  # where its file and its modules are not
                words = [os.path.join(here, word) if word == file else word for word in words]
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
            first = str(on_this_machine(Path(self.start[0]))) if os.sep in self.start[0] else self.start[0]
            self._run([*_starting((first, *self.start[1:])), *words], environment, reports)

    def _run(self, words: Sequence[str], environment: dict[str, str], reports: Reports) -> None:
        adopt_descendants()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        try:
            output = Output(reports)
            for text in _texts(process):
                output.write(text)
            output.flush()
        finally:
            _end(process)
        with suppress(*[WorkloadError] * bool(process.returncode)):
            reports.rest()
        if process.returncode:
            raise failure(process.returncode)
        reports.end()


def script_of(words: Sequence[str]) -> CommandLine:
    """The script or the command of these words; raises ``InputError`` if it cannot be run."""
    if not words or not words[0]:
        raise InputError(f"the script is missing, such as {SCRIPT}train.py {{lr}}")
    return Script(words[0], words[1:]) if words[0].endswith(".py") else Command(words)


def script_in(spec: str) -> CommandLine:
    """The script or the command of a text such as ``script train.py {lr}``, with words quoted as in a shell."""
    try:
        return script_of(shlex.split(spec)[1:])
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{spec}: {one_line(error)}") from error


def _starting(start: Sequence[str]) -> list[str]:
    """The words that start a program, maybe in this Python's folder; raises ``InputError`` if there is none."""
    if start[-1] == MODULE:
        return [sys.executable, MODULE]
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    program = shutil.which(start[0], path=folders)
    if not program:
        rule = "there is no such program: give FILE.py, -m MODULE, or a command such as torchrun FILE.py"
        raise InputError(f"{start[0]}: {rule}")
    return [program]


def _ports() -> dict[str, str]:
    """A free port for a launcher's processes: the launchers of all trials have the same default."""
    port = str(free_port())
    return {"MASTER_PORT": port, "PET_MASTER_PORT": port}  # torchrun reads the second one


def _texts(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What a process prints until it ends, with empty texts between; one that it leaves may keep its output."""
    assert process.stdout is not None
    pipe, decoder = process.stdout.fileno(), codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        yield ""  # so that reports in files are seen
        ended = process.poll() is not None
        ready, _, _ = select.select([pipe], [], [], 0 if ended else POLL_SECONDS)
        content = os.read(pipe, CHUNK_BYTES) if ready else b""
        if content:
            yield decoder.decode(content)
        elif ready or ended:
            process.wait()
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs, and all that it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    end_descendants()
    process.wait()


@dataclass(frozen=True)
class Wrote:
    """The files in the current folder that a trial has written, by their paths there."""

    paths: tuple[str, ...]


@dataclass
class WrittenFiles:
    """The files of a study's trials."""

    _writers: dict[str, str] = field(default_factory=dict)  # the first trial that wrote each, by path

    def remark(self, trial: str, wrote: Wrote) -> str:
        """Takes a trial's files; says which of them an earlier trial has written."""
        for path in wrote.paths[: MOST - len(self._writers)]:
            self._writers.setdefault(path, trial)
        shared = (path for path in wrote.paths if self._writers.get(path, trial) != trial)
        return next((f"{self._writers[path]} and {trial} both wrote {path}: {REMEDY}" for path in shared), "")


@contextmanager
def writing(own_folder: str) -> Iterator[set[str]]:
    """Yields a set that gets the files which this process writes below the current folder while the block runs.

    Files in ``own_folder`` and files that are appended to do not count. It is for a process that runs one trial, as
    Python's audit hooks stay.
    """
    folder, paths, active = os.getcwd(), set[str](), True

    def add(path: str | bytes) -> None:
        full = os.path.abspath(os.fsdecode(path))
        within = full.startswith(os.path.join(folder, "")) and not full.startswith(os.path.join(own_folder, ""))
        if within and "__pycache__" not in full and len(paths) < MOST_OF_TRIAL:
            paths.add(os.path.relpath(full, folder))

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if not active:
            return
        flags = arguments[2] if event == "open" else None
        overwrites = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and not flags & os.O_APPEND
        path = arguments[0] if overwrites else arguments[1] if event == "os.rename" else None
        if isinstance(path, (str, bytes)):
            add(path)

    sys.addaudithook(hear)
    if torch := sys.modules.get("torch"):  # which opens files without Python
        setattr(torch, "save", _saving(getattr(torch, "save"), add))  # noqa: B009, B010
    try:
        yield paths
    finally:
        active = False


def _saving(save: Callable[..., None], add: Callable[[str], None]) -> Callable[..., None]:
    @wraps(save)
    def saved(obj: object, f: object, *arguments: object, **named: object) -> None:
        if isinstance(f, (str, os.PathLike)):
            add(os.fspath(f))
        save(obj, f, *arguments, **named)

    return saved
