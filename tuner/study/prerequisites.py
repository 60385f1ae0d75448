"""Trains what a study's trials need first, such as a teacher: once, as a small study of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tuner.errors import ExecutionError, InputError, option
from tuner.execution.executor import Executor
from tuner.records.attempts import Attempt
from tuner.records.files import BEST, STUDY
from tuner.reporting.console import make_console
from tuner.spec.settings import Settings
from tuner.spec.spelling import in_terminal
from tuner.study.prepare import Selected
from tuner.study.result import StudyResult
from tuner.study.stored_options import to_stored
from tuner.study.study import run_study
from tuner.trial import Configuration
from tuner.workloads.protocols import prerequisites
from tuner.workloads.task import Selection

# Options of such a study, whatever those of the others are: it is one trial, needed to its end.
ALONE: Mapping[str, object] = {
    **{"seeds": 1, "epochs": None, "scheduler": "fifo", "scheduler_options": ()},
    **{"search": None, "search_options": (), "space": None, "points": None, "num_samples": None},
}


def train_prerequisites(selected: Selected, make_executor: Callable[[], Executor] | None = None) -> Selected:
    """Trains every prerequisite, and fills in the paths of their weights.

    A prerequisite has a folder of its own, ``<output>-<name>`` or a new one under ``results/``, and the study's
    options except for ``epochs``. If ``<output>-<name>`` exists, it is resumed, or taken as it is if it is complete.
    A dry run shows the plans and fills in nothing. The study gets what is left of a time limit.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: one could not be trained.
        KeyboardInterrupt: after everything that was finished has been written.
    """
    settings = selected.settings
    selections = [replace(selection, load_data=cache(selection.load_data)) for selection in selected.selections]
    found = [(selection, wanted) for selection in selections for wanted in needed(selection)]
    if not found:
        return replace(selected, selections=selections)
    began, paths = time.monotonic(), list[tuple[Configuration, str]]()
    # What would end the study, or a later one of these, is found before hours of training and not after them.
    for checked in (settings, *(_own_settings(settings, wanted.name, began) for _, wanted in found)):
        checked.check()
    for selection in selections:
        selection.load_checked()
    for selection, wanted in found:
        study = _Study(selection, wanted, selected, make_executor)
        paths.append((wanted, study.run(_own_settings(settings, wanted.name, began))))
    filled = [selection if settings.dry_run else _filled(selection, paths) for selection in selections]
    return replace(selected, selections=filled, settings=settings.changed(time_limit=_time_left(settings, began)))


@dataclass(frozen=True)
class _Study:
    """The study of one prerequisite."""

    selection: Selection
    wanted: Configuration
    whole: Selected
    make_executor: Callable[[], Executor] | None

    def run(self, settings: Settings) -> str:
        """Trains the prerequisite; returns the path of its best weights."""
        listed = self.selection.configurations
        whose = [taught.name for taught in listed if self.wanted in _of(self.selection, taught)]
        _say(f"{self.wanted.name} is trained first, once, for {', '.join(whose)}")
        try:
            alone = Selected(
                [replace(self.selection, configurations=[self.wanted])],
                settings,
                label=self.wanted.name,
                command=self.whole.command,
                options=None if self.whole.options is None else to_stored(settings),
                from_python=self.whole.from_python,
            )
            result = run_study(alone, self.make_executor() if self.make_executor else None)
        except KeyboardInterrupt:
            _say(self._remedy("DIR", settings.output or settings.resume))
            raise
        return "" if settings.dry_run else self._weights(result, settings.output or settings.resume)

    def _weights(self, result: StudyResult, output: str | None) -> str:
        (row,), folder = result.trials, result.folder
        assert folder is not None
        if not row.weights_kept:
            remedy = f"remove {folder} or give another {option('output')}"
            raise ExecutionError(f"{self.wanted.name} was trained, but has no {BEST}: {row.error}: {remedy}")
        if row.status != "completed":
            reason = f"{row.status}: {row.error}"
            raise ExecutionError(
                f"{self.wanted.name} could not be trained: {reason}: {self._remedy(str(folder), output, row)}"
            )
        _say(f"{self.wanted.name}: {folder / BEST}\n")
        return str((folder / BEST).resolve())

    def _remedy(self, folder: str, output: str | None, row: Attempt | None = None) -> str:
        status, again = (row.status, row.attempts) if row else ("interrupted", 0)
        if status in ("diverged", "stalled"):  # it never runs again, and would end as before
            return f"change what it is trained with, and remove {folder} or give another {option('output')}"
        more = {"failed": ("max_failures", again), "out_of_memory": ("max_attempts", again + 1)}.get(status)
        or_more = ", or with more memory," if status == "out_of_memory" else ""
        if output is not None:
            return f"the same command{f' and {option(*more)}' if more else ''}{or_more} continues it"
        keys = {
            key
            for configuration in self.selection.configurations
            for key, needed in prerequisites(self.selection.workload, configuration.values).items()
            if needed == self.wanted
        }
        resumed = " ".join(["tuner", in_terminal("resume", folder), *([in_terminal(*more)] if more else [])])
        path = f"{' and '.join(sorted(keys))}: {folder}/{BEST}"
        return f"{resumed}{or_more} continues it; then call the same command with {path} in what needs it"


def _of(selection: Selection, configuration: Configuration) -> list[Configuration]:
    return list(prerequisites(selection.workload, configuration.values).values())


def needed(selection: Selection) -> list[Configuration]:
    """The prerequisites of a workload's configurations, without duplicates.

    Raises:
        InputError: two different prerequisites have the same name.
    """
    found: list[Configuration] = []
    for configuration in selection.configurations:
        found += [wanted for wanted in _of(selection, configuration) if wanted not in found]
    for name, number in Counter(wanted.name for wanted in found).items():
        if number > 1:
            differing = sorted(
                key
                for key in found[0].values
                if len({repr(wanted.values[key]) for wanted in found if wanted.name == name}) > 1
            )
            raise InputError(f"{name} is needed with several values of {', '.join(differing)}: give one to all")
    return found


def _filled(selection: Selection, paths: Sequence[tuple[Configuration, str]]) -> Selection:
    """The selection with the paths of its configurations' prerequisites."""

    def path(wanted: Configuration) -> str:
        return next(path for known, path in paths if known == wanted)

    configurations = []
    for configuration in selection.configurations:
        known = {key: path(wanted) for key, wanted in prerequisites(selection.workload, configuration.values).items()}
        configurations.append(replace(configuration, values={**configuration.values, **known}))
    return replace(selection, configurations=configurations)


def _own_settings(settings: Settings, name: str, began: float) -> Settings:
    output = None if settings.output is None else f"{settings.output.rstrip('/')}-{name}"
    begun = output if output and (Path(output) / STUDY).exists() else None
    alone = settings.changed(**ALONE, time_limit=_time_left(settings, began))
    return alone.changed(output=None if begun else output, resume=begun)


def _time_left(settings: Settings, began: float) -> str | float | None:
    """The seconds that are left of the time limit, at least a tenth of one."""
    limit = settings.time_limit_seconds
    return None if limit is None else max(0.1, limit - (time.monotonic() - began))


def _say(text: str) -> None:
    make_console().print(text, markup=False, soft_wrap=True)
