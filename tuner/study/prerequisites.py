"""Trains what a study's trials need first, such as a teacher: once, as a small study of its own."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tuner.errors import ExecutionError, InputError, option
from tuner.execution.executor import Executor
from tuner.records.attempts import Attempt
from tuner.records.files import BEST, STUDY
from tuner.reporting.console import make_console, print_text
from tuner.spec.settings import Settings
from tuner.spec.spelling import in_terminal
from tuner.spec.stored_options import to_stored
from tuner.spec.study_spec import StudySpec
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.trial import Configuration
from tuner.workloads.protocols import prerequisites
from tuner.workloads.task import Selection

# The options of a prerequisite's study: it has one trial, which must complete.
ALONE: Mapping[str, object] = {
    **{"seeds": 1, "epochs": None, "scheduler": "fifo", "scheduler_options": ()},
    **{"search": None, "search_options": (), "space": None, "points": None, "num_samples": None},
}


def train_prerequisites(spec: StudySpec, make_executor: Callable[[], Executor] | None = None) -> StudySpec:
    """Trains every prerequisite, and fills in the paths of their weights.

    A prerequisite has a folder of its own, ``<output>-<name>`` or a new one under ``results/``, and the study's
    options except for ``epochs``. If ``<output>-<name>`` exists, it is resumed, or taken as it is if it is complete.
    A dry run shows the plans and fills in nothing. The study gets what is left of a time limit.

    Raises:
        InputError: something given cannot be used.
        ExecutionError: one could not be trained.
        KeyboardInterrupt: after everything that was finished has been written.
    """
    settings = spec.settings
    selections = [replace(selection, load_data=cache(selection.load_data)) for selection in spec.selections]
    needs = [(selection, needed(selection)) for selection in selections]
    if not any(wanted for _, wanted in needs):
        return replace(spec, selections=selections)
    began = time.monotonic()
    # Refuses what would end a later study now, and not after hours of training.
    names = [one.name for _, wanted in needs for one in wanted]
    for name in names:
        _own_settings(settings, name, began).check()
    for selection in selections:
        selection.load_checked()
    filled = []
    for selection, wanted in needs:
        studies = {one.name: _Study(selection, one, spec, make_executor) for one in wanted}
        paths = {name: study.run(_own_settings(settings, name, began)) for name, study in studies.items()}
        filled.append(selection if settings.dry_run else _filled(selection, paths))
    return replace(spec, selections=filled, settings=settings.changed(time_limit=_time_left(settings, began)))


@dataclass(frozen=True)
class _Study:
    """The study of one prerequisite."""

    selection: Selection
    wanted: Configuration
    whole: StudySpec
    make_executor: Callable[[], Executor] | None

    def run(self, settings: Settings) -> str:
        """Trains the prerequisite; returns the path of its best weights."""
        listed, workload = self.selection.configurations, self.selection.workload
        whose = [taught.name for taught in listed if self.wanted in prerequisites(workload, taught.values).values()]
        _say(f"{self.wanted.name} is trained first, once, for {', '.join(whose)}")
        try:
            alone = StudySpec(
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
        listed, workload = self.selection.configurations, self.selection.workload
        items = [item for taught in listed for item in prerequisites(workload, taught.values).items()]
        keys = sorted({key for key, wanted in items if wanted == self.wanted})
        resumed = " ".join(["tuner", in_terminal("resume", folder), *([in_terminal(*more)] if more else [])])
        path = f"{' and '.join(keys)}: {folder}/{BEST}"
        return f"{resumed}{or_more} continues it; then call the same command with {path} in what needs it"


def needed(selection: Selection) -> list[Configuration]:
    """The prerequisites of a workload's configurations, without duplicates.

    Raises:
        InputError: two different prerequisites have the same name.
    """
    by_name: dict[str, Configuration] = {}
    for configuration in selection.configurations:
        for wanted in prerequisites(selection.workload, configuration.values).values():
            first = by_name.setdefault(wanted.name, wanted)
            if differing := sorted(key for key in wanted.values if wanted.values[key] != first.values[key]):
                several = f"{wanted.name} is needed with several values of {', '.join(differing)}"
                raise InputError(f"{several}: give one to all")
    return list(by_name.values())


def _filled(selection: Selection, paths: Mapping[str, str]) -> Selection:
    """The selection with the paths of its configurations' prerequisites, which are given by name."""
    filled = []
    for configuration in selection.configurations:
        needs = prerequisites(selection.workload, configuration.values)
        weights = {key: paths[wanted.name] for key, wanted in needs.items()}
        filled.append(replace(configuration, values={**configuration.values, **weights}))
    return replace(selection, configurations=filled)


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
    print_text(make_console(), text)
