"""Runs commands with limits in children of this process, and says what is wrong with their answers."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 20  # of work for an answer within this process' children
SECONDS = 120.0  # for one, however busy the machine is
SECONDS_APART = 120.0  # for one of a real process, which has to load torch
MEMORY_BYTES = 2**30  # what an answer may take beside what this process has
OF_A_LINE = 4100  # the characters of the longest line of an error
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
BESIDE = ("note: ", "warning: ")  # how lines begin that may stand beside an error
# Of files by path: a hash of the content, the time of the last change, the mode.
State = Mapping[str, tuple[str, int, int]]
# What commands import on first use. Those of Ray are not among them.
WARM = ["pandas", "tuner.cli.main", "tuner.study.study", "tuner.execution.in_process", "ruamel.yaml", "tomlkit"]
APIS = ("run", "plan", "results", "report", "estimate", "optimize", "train", "export")
WARM += [*(f"tuner.api.{name}" for name in APIS), "optuna", "psutil", "torch._dynamo", "sympy", "rich.live"]
WARM += [f"tuner.workloads.{name}.workload" for name in ("graphsage", "gt_ssl", "kd_gat")]
WARM += ["tuner.workloads.graphsage.model", "tuner.estimation.tracing.tracer", "plotly.graph_objects"]


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    code: int  # its exit code, or the negative number of the signal that ended it
    seconds: float
    out: str
    err: str
    hung: bool = False

    def faults(self) -> list[str]:
        """What is wrong with it in itself."""
        found = []
        if self.hung:
            found.append(f"no end after {self.seconds:.0f} s")
        elif self.code not in (0, 1, 2):
            found.append(f"exit code {self.code}")
        if "Traceback (most recent call last)" in self.err + self.out:
            found.append("a traceback")
        if "error: unexpected " in self.err:
            found.append("an error that nobody thought of")
        lines = [line for line in self.err.splitlines() if not line.startswith(BESIDE)]
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) > 1 or (self.code == 2 and (len(errors) != 1 or lines != errors)):
            found.append(f"{len(lines)} lines for an error")
        if self.code in (0, 1) and not self.hung and lines != errors:
            found.append("a line in stderr that is neither note nor error")
        if any(len(line) > OF_A_LINE for line in lines):
            found.append("a very long line")
        if CONTROL.search(self.err + self.out):
            found.append("control characters")
        return found

    def text(self, most: int = 1500) -> str:
        return f"exit {self.code} in {self.seconds:.1f} s\n{self.out[-most:]}{self.err[-most:]}"


@dataclass
class Child:
    """A child that runs."""

    pid: int
    watched: int  # a descriptor that is readable when it has ended
    began: float
    seconds: float
    folder: Path


def warm() -> None:
    """Imports what children share, which are forked."""
    import torch

    for name in WARM:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.freeze()  # the clean-up after a trial then looks at what it leaves, as in a worker, and not at all of torch


def forked(work: Callable[[], None], folder: Path, seconds: float = SECONDS, *, limited: bool = True) -> Child:
    """Does something in a child with a group of its own, whose output goes to files in a folder."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            for descriptor, name in ((1, "out"), (2, "err")):
                opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(opened, descriptor)
                os.close(opened)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if limited:
                limit(MEMORY_BYTES)
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
    return Child(pid, os.pidfd_open(pid), time.monotonic(), seconds, folder)


def limit(more_bytes: int) -> None:
    """Lets this process map so many bytes more than it has."""
    with open("/proc/self/statm") as file:
        has = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + more_bytes, has + more_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # from the fork on


def answer_of(child: Child, hung: bool) -> Answer:
    """What a child left that has ended, or is ended now."""
    if hung:
        os.killpg(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.watched)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # what it has left running
    texts = [(child.folder / name).read_text(errors="replace") for name in ("out", "err")]
    return Answer(os.waitstatus_to_exitcode(status), time.monotonic() - child.began, *texts, hung)


def all_of(begin: Iterable[tuple[int, Callable[[], Child]]], jobs: int) -> Iterator[tuple[int, Answer]]:
    """The answers of children in the order in which they end; so many run at once."""
    running: dict[int, tuple[int, Child]] = {}
    todo, more = iter(begin), True
    while more or running:
        while more and len(running) < jobs:
            number, start = next(todo, (-1, None))
            more = start is not None
            if start:
                child = start()
                running[child.watched] = number, child
        ended, _, _ = select.select(list(running), [], [], 0.2)
        now = time.monotonic()
        for watched, (number, child) in list(running.items()):
            hung = watched not in ended and now - child.began > child.seconds
            if watched in ended or hung:
                del running[watched]
                yield number, answer_of(child, hung)


def run_apart(
    words: list[str], folder: Path, environment: Mapping[str, str], seconds: float = SECONDS_APART, **how: object
) -> Answer:
    """The answer of a real process and its group."""
    began = time.monotonic()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **how},  # type: ignore[call-overload]
    )
    hung = False
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        hung = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    texts = [(content or b"").decode(errors="replace") for content in (out, err)]
    return Answer(process.returncode, time.monotonic() - began, *texts, hung)


def state(folder: Path, without: Iterable[str] = ()) -> State:
    """What is in a folder, save what is in or below some of its entries."""
    found, left_out = {}, tuple(without)
    for place, names, files in os.walk(folder):
        below = os.path.relpath(place, folder)
        names[:] = [name for name in names if os.path.normpath(f"{below}/{name}") not in left_out]
        for name in [*names, *files]:
            path = Path(place, name)
            key = os.path.normpath(f"{below}/{name}")
            about = path.lstat()
            content = os.readlink(path) if path.is_symlink() else _hash(path) if path.is_file() else ""
            if key not in left_out:
                found[key] = content, about.st_mtime_ns if path.is_file() else 0, about.st_mode
    return found


def _hash(path: Path) -> str:
    if path.stat().st_size > 2**26:
        return str(path.stat().st_size)
    return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()


def changes(before: State, after: State) -> list[str]:
    """What was written or deleted."""
    return [
        f"{'has written' if path in after else 'has deleted'} {path}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]
