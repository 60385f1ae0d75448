"""A training function whose trials misbehave, each kind in its own way; and what each may come to.

``COMPLETES`` are kinds that harm nobody, ``EITHER`` those of which both is right. All others must not complete.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import tuner

LONG = 50_000
STUDY = os.environ.get("ATTACKED", "")  # now, as a trial clears the environment


class Unpicklable(Exception):
    """Cannot go to another process."""

    def __init__(self) -> None:
        super().__init__("unpicklable")
        self.lock = threading.Lock()


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Circular(Exception):
    """Is its own cause's cause."""

    def __init__(self) -> None:
        super().__init__("circular")
        self.__cause__ = ValueError("cause")
        self.__cause__.__cause__ = self


class Base(BaseException):
    """No ``Exception``."""


def _raise(error: BaseException) -> None:
    raise error


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


def _deep(depth: int = 0) -> int:
    return 1 + _deep(depth + 1)


def _forks() -> None:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


def _reports_from_a_child() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            tuner.report(score=99.0)
        finally:
            os._exit(0)
    for _ in range(50):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _prints_much() -> None:
    for _ in range(50):
        sys.stdout.write("x" * 2**20 + "\n")


def _prints_escapes() -> None:
    print("\x1b]0;title\x07\x1b[2J\x1b[31mred", flush=True)
    print("\x1b]0;title\x07", file=sys.stderr, flush=True)


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(5)


def _leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(30,)).start()


def _reports_later() -> None:
    def later() -> None:
        time.sleep(0.3)
        tuner.report(score=99.0)

    threading.Thread(target=later).start()


def _generator() -> Iterator[dict[str, float]]:
    yield {"score": 1.0}


def _in_removed_folder() -> None:
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)


def _patches(module: Any, name: str) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} is broken")

    setattr(module, name, broken)


def _allocates() -> None:
    kept = [bytearray(2**26) for _ in range(200)]
    print(len(kept))


def _fills_files() -> None:
    kept = []
    while True:
        kept.append(open(os.devnull))  # noqa: SIM115


def _hostile_checkpoint(kind: str) -> None:
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        if kind == "link":
            (folder / "passwd").symlink_to("/etc/passwd")
        elif kind == "pipe":
            os.mkfifo(folder / "pipe")
        else:
            (folder / "x\n\x1b]y").write_text("z")
        tuner.report(score=1.0, checkpoint=folder)
    finally:
        shutil.rmtree(folder)


def _study(name: str) -> Path:
    return Path(STUDY) / name


def _chmod() -> None:
    _study("checkpoints").chmod(0)
    tuner.report(score=1.0, checkpoint={"a": 1})


def _removes(name: str) -> None:
    path = _study(name)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _spawns() -> None:
    subprocess.Popen(["sleep", "5"], start_new_session=True)  # nobody can tell whose that is: it stays to its end


KINDS: dict[str, Callable[[], object]] = {
    "raises": lambda: _raise(ValueError("no\nsuch\nthing")),
    "key-error": lambda: _raise(KeyError(("a", None))),
    "base-exception": lambda: _raise(Base("base")),
    "system-exit": lambda: sys.exit(3),
    "exit-0": lambda: sys.exit(0),
    "keyboard-interrupt": lambda: _raise(KeyboardInterrupt()),
    "generator-exit": lambda: _raise(GeneratorExit()),
    "stop-iteration": lambda: _raise(StopIteration(1)),
    "mute-error": lambda: _raise(Mute()),
    "circular-error": lambda: _raise(Circular()),
    "long-error": lambda: _raise(ValueError("x" * 3_000_000)),
    "escapes-in-error": lambda: _raise(ValueError("\x1b]0;title\x07\0\ud800")),
    "unpicklable-error": lambda: _raise(Unpicklable()),
    "group-of-errors": lambda: _raise(ExceptionGroup("several", [ValueError("a"), KeyError("b")])),
    "recursion": _deep,
    "memory-error": lambda: _raise(MemoryError()),
    "exits-0-at-once": lambda: os._exit(0),
    "exits-3-at-once": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": lambda: _signal(signal.SIGABRT),
    "sigterm": lambda: _signal(signal.SIGTERM),
    "sigkill": lambda: _signal(signal.SIGKILL),
    "sigint": lambda: _signal(signal.SIGINT),
    "sighup": lambda: _signal(signal.SIGHUP),
    "fork-that-stays": _forks,
    "session-that-stays": _spawns,
    "report-from-a-fork": _reports_from_a_child,
    "prints-50-mb": _prints_much,
    "prints-escapes": _prints_escapes,
    "no-report": lambda: None,
    "reports-text": lambda: tuner.report(score="high"),
    "reports-none": lambda: tuner.report(score=None),
    "reports-list": lambda: tuner.report(score=[1.0]),
    "reports-nan": lambda: tuner.report(score=float("nan")),
    "reports-infinity": lambda: tuner.report(score=float("-inf")),
    "reports-huge": lambda: tuner.report(score=1e308),
    "reports-401-digits": lambda: tuner.report(score=10**400),
    "reports-bool": lambda: tuner.report(score=True),
    "reports-nothing": lambda: tuner.report({}),
    "reports-no-mapping": lambda: tuner.report(3),  # type: ignore[arg-type]
    "10000-metrics": lambda: tuner.report({"score": 1.0, **{f"m{n}": n for n in range(10_000)}}),
    "metric-name-1": lambda: tuner.report({1: 2.0, "score": 1.0}),  # type: ignore[dict-item]
    "metric-name-none": lambda: tuner.report({None: 2.0, "score": 1.0}),  # type: ignore[dict-item]
    "metric-name-empty": lambda: tuner.report({"": 2.0, "score": 1.0}),
    "metric-name-formula": lambda: tuner.report({"=cmd|' /C calc'!A0": 2.0, "score": 1.0}),
    "metric-name-lines": lambda: tuner.report({"a\n\x1b]b\0": 2.0, "score": 1.0}),
    "metric-name-surrogate": lambda: tuner.report({"\ud800": 2.0, "score": 1.0}),
    "metric-name-column": lambda: tuner.report({"trial_id": 2.0, "status": 1.0, "config/kind": 3.0, "score": 1.0}),
    "metric-name-long": lambda: tuner.report({"n" * LONG: 2.0, "score": 1.0}),
    "epoch-negative": lambda: tuner.report(score=1.0, epoch=-5),
    "epoch-huge": lambda: tuner.report(score=1.0, epoch=10**30),
    "epoch-text": lambda: tuner.report(score=1.0, epoch="x"),  # type: ignore[arg-type]
    "3000-reports": lambda: [tuner.report(score=float(n)) for n in range(3000)],
    "checkpoint-lambda": lambda: tuner.report(score=1.0, checkpoint={"a": lambda: 1}),
    "checkpoint-missing": lambda: tuner.report(score=1.0, checkpoint="/nowhere"),
    "checkpoint-link": lambda: _hostile_checkpoint("link"),
    "checkpoint-pipe": lambda: _hostile_checkpoint("pipe"),
    "checkpoint-name": lambda: _hostile_checkpoint("name"),
    "returns-generator": _generator,
    "returns-text": lambda: "score",
    "returns-self": lambda: (lambda itself: itself.append(itself) or itself)([]),
    "returns-names": lambda: {1: 2, "score": "x", None: None},
    "other-folder": lambda: os.chdir("/"),
    "removed-folder": _in_removed_folder,
    "closes-output": lambda: (sys.stdout.close(), sys.stderr.close()),
    "no-output": lambda: (setattr(sys, "stdout", None), setattr(sys, "stderr", None)),
    "closes-0-to-2": lambda: os.closerange(0, 3),
    "closes-all": lambda: os.closerange(0, 1024),
    "ignores-signals": lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)],
    "alarm": lambda: (signal.setitimer(signal.ITIMER_REAL, 0.05), time.sleep(1)),
    "few-files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096)),
    "no-file-size": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    "little-memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20)),
    "over-the-cap": _allocates,
    "too-many-files": _fills_files,
    "thread-that-stays": _leaves_a_thread,
    "thread-that-raises": lambda: _in_thread(lambda: _raise(ValueError("in a thread"))),
    "exit-in-thread": lambda: _in_thread(lambda: os._exit(4)),
    "report-from-a-thread": lambda: _in_thread(lambda: tuner.report(score=1.0)),
    "report-after-the-end": _reports_later,
    "import-error": lambda: __import__("no_such_module"),
    "syntax-error": lambda: exec("1 +"),
    "patches-json": lambda: (_patches(json, "dumps"), _patches(json, "loads")),
    "patches-time": lambda: (_patches(time, "monotonic"), _patches(time, "time")),
    "patches-open": lambda: _patches(builtins, "open"),
    "patches-print": lambda: _patches(builtins, "print"),
    "clears-environment": lambda: os.environ.clear(),
    "clears-path": lambda: (sys.path.clear(), sys.modules.pop("tuner", None)),
    "deep-recursion-limit": lambda: (sys.setrecursionlimit(10**6), _deep()),
    "removes-checkpoints": lambda: _removes("checkpoints"),
    "removes-table": lambda: _removes("results.csv"),
    "removes-epochs": lambda: _removes("epochs.jsonl"),
    "checkpoint-forbidden": _chmod,
    "umask": lambda: os.umask(0o777),
    "no-collector": lambda: gc.disable(),
    "metric-huge": lambda: tuner.report(score=1.0, perplexity=math.exp(705)),
    "output-is-3": lambda: setattr(sys, "stdout", 3),
    "float64-for-all": lambda: torch.set_default_dtype(torch.float64),
    "no-gradients": lambda: torch.set_grad_enabled(False),
    "changes-a-class": lambda: setattr(Base, "__init__", None),
}
ALONE: dict[str, Callable[[], object]] = {  # what hits the whole study
    "removes-journal": lambda: _removes("attempts.jsonl"),
    "removes-study": lambda: _removes("."),
    "kills-its-group": lambda: os.killpg(0, signal.SIGTERM),
}
COMPLETES = {
    *("fork-that-stays", "session-that-stays", "prints-50-mb", "prints-escapes", "reports-huge", "3000-reports"),
    *("metric-name-formula", "other-folder", "thread-that-stays", "thread-that-raises", "no-collector"),
    *("float64-for-all", "no-gradients", "changes-a-class", "removes-checkpoints", "removes-table"),
    *("removes-epochs", "clears-environment"),
}
# What ends is right, and so is that it goes on; but the study must not be harmed.
LIKEWISE = ("metric", "epoch", "patches", "closes", "returns", "checkpoint")
EITHER = {
    *(name for name in KINDS if name.split("-")[0] in LIKEWISE),
    *("exit-0", "10000-metrics", "reports-bool", "reports-nothing", "removed-folder", "no-output", "few-files"),
    *("output-is-3", "no-file-size", "umask", "clears-path", "report-from-a-thread", "report-after-the-end"),
    *("report-from-a-fork", "little-memory", "sigint", "sighup", "ignores-signals", "alarm", *ALONE),
}


def train(config: dict[str, Any]) -> object:
    """One good report, then the misbehaviour, then another good report."""
    kind = config["kind"]
    if kind == "good":
        for epoch in range(3):
            tuner.report(score=0.5 + epoch / 10)
        return None
    reported_before = not kind.startswith(("no-report", "reports-"))
    if reported_before:
        tuner.report(score=0.25)
    returned = {**KINDS, **ALONE}[kind]()
    if kind in COMPLETES:
        tuner.report(score=0.3)
    return returned if kind.startswith("returns") else None
