"""Puts back what a trial has set in a process that runs further trials; and what seeds its random generators."""

import gc
import locale
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self
from zlib import crc32

from tuner.trial import Trial

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # how it is read, and how it is set


def _attribute(owner: object, name: str) -> Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _content(items: Any, copy: Callable[[Any], Any]) -> Setting:
    """The content of a list or mapping that others reference."""

    def put(value: Any) -> None:
        items.clear()
        items.extend(value) if hasattr(items, "extend") else items.update(value)

    return lambda: copy(items), put


def _settings() -> Iterator[Setting]:
    """The settings of the process and of this thread, with those of numpy and torch if they are loaded."""
    yield os.getcwd, os.chdir
    yield lambda: os.umask(os.umask(0o077)), os.umask
    yield _content(os.environ, dict)
    yield from (_content(items, list) for items in (sys.path, sys.argv, sys.meta_path, warnings.filters))
    yield from (_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook"))
    yield sys.getrecursionlimit, sys.setrecursionlimit
    yield gc.isenabled, lambda on: gc.enable() if on else gc.disable()
    yield gc.get_threshold, lambda value: gc.set_threshold(*value)
    yield lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    root = logging.getLogger()
    yield lambda: root.level, root.setLevel
    yield _content(root.handlers, list)
    yield lambda: root.manager.disable, logging.disable
    if numpy := sys.modules.get("numpy"):
        yield numpy.geterr, lambda value: numpy.seterr(**value)
        yield numpy.get_printoptions, lambda value: numpy.set_printoptions(**value)
    if torch := sys.modules.get("torch"):
        yield from _torch_settings(torch)


def _torch_settings(torch: ModuleType) -> Iterator[Setting]:
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_default_device, lambda value: torch.set_default_device(None if value.type == "cpu" else value)
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    )
    yield from (_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic"))


@dataclass(frozen=True)
class ProcessState:
    """Everything about a process and a thread that can be listed, as it was at one time.

    Modules and classes that a trial has changed are not in it, nor are threads that it has started.
    """

    settings: list[tuple[Setting, object]]

    @classmethod
    def now(cls) -> Self:
        """The state of this process and this thread."""
        settings = []
        for setting in _settings():
            with suppress(Exception):  # such as a current folder that has been removed
                settings.append((setting, setting[0]()))
        return cls(settings)

    def put_back(self) -> None:
        """Sets what has changed since."""
        for (read, put), value in reversed(self.settings):
            with suppress(Exception):  # what a trial has broken beyond that stays broken
                if (now := read()) is not value and now != value:
                    put(value)


@contextmanager
def put_back() -> Iterator[None]:
    """Puts the state back after the block."""
    before = ProcessState.now()
    try:
        yield
    finally:
        before.put_back()


def set_seeds(seed: int, *, of_torch: bool = True) -> None:
    """Seeds the random generators of Python, and of numpy and torch if they are loaded."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if of_torch and (torch := sys.modules.get("torch")):
        torch.manual_seed(seed)


def seed_of(trial: Trial) -> int:
    """The seed of a trial's random generators: in each interval of a member of a population another one."""
    return crc32(f"{trial.seed}/{trial.trial_id}/{trial.begun}".encode()) if trial.parent else trial.seed
