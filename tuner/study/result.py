"""The result of a study, and what later studies learn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuner.decisions.plan import Plan, is_tight
from tuner.errors import InputError, TunerError, printable
from tuner.estimation.calibration import kind_of
from tuner.hyperparameters import shrunk
from tuner.objective import Objective
from tuner.records.attempts import Attempt, Line
from tuner.records.epochs import seconds_per_epoch
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.console import print_text
from tuner.reporting.result_tables import best_text
from tuner.reporting.texts import count_text, counted
from tuner.trial import SUCCESSFUL, MemoryEstimate
from tuner.workloads.program import Program, given_values

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from torch import nn

    from tuner.reporting.frame import StudyFrame
    from tuner.study.prepare import Study
    from tuner.workloads.base import Trainable

NOT_RUN = RecordedStudy(Path(), "")


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        plan: how the trials shared the devices.
        estimates: each trial's estimate before calibration, by trial id.
        study: what is recorded of it, which says all else; of nothing after a dry run.
        workloads: what was trained, by name.
    """

    plan: Plan
    estimates: Mapping[str, MemoryEstimate]
    study: RecordedStudy = NOT_RUN
    workloads: Mapping[str, Trainable] = field(default_factory=dict)

    def with_objects(self) -> Self:
        """The same, with the user's own objects in the place of their labels."""
        objects = {name: one.objects for name, one in self.workloads.items() if isinstance(one, Program)}
        attempts = [
            replace(row, config=given_values(row.config, objects[row.workload])) if objects.get(row.workload) else row
            for row in self.study.attempts
        ]
        return replace(self, study=replace(self.study, attempts=attempts)) if any(objects.values()) else self

    @property
    def trials(self) -> Sequence[Attempt]:
        """The last attempt of each trial, each workload's best first; empty after a dry run."""
        return self.study.rows

    @property
    def folder(self) -> Path | None:
        """Where the results are; None after a dry run."""
        return None if self.study is NOT_RUN else self.study.path

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """What the trials of each workload are compared by."""
        return self.study.objectives

    @property
    def rows(self) -> list[Line]:
        """A row for each trial with the CSV's columns, each workload's best first; empty after a dry run."""
        return [trial.to_line() for trial in self.trials]

    @property
    def exit_code(self) -> int:
        """0 if every trial was completed or pruned on purpose, and the best weights were kept, else 1."""
        return 0 if all(trial.status in SUCCESSFUL for trial in self.trials) and not self.study.unkept else 1

    def __fspath__(self) -> str:
        """The study's folder, so that a result can be given wherever a folder is expected."""
        if self.folder is None:
            raise InputError(f"{self._unrun} has no folder")
        return str(self.folder)

    @property
    def best(self) -> pd.Series[Any]:
        """The row of the best trial, as ``StudyFrame.best``.

        Raises:
            InputError: no trial has reported the metric, it was a dry run, or the study is of several workloads.
        """
        self._only_workload("best")
        return self.to_frame().best

    @property
    def best_trials(self) -> list[Attempt]:
        """The completed trials that none is better than in every objective; with one objective the best one."""
        return [row for workload in self.objectives for row in self.study.front(workload)]

    @property
    def best_config(self) -> dict[str, object]:
        """The hyperparameters of the best trial; raises the errors of ``best``."""
        trial = self._best_trial("best_config")
        workload = self.workloads[trial.workload]
        return workload.arguments_of(trial.config) if isinstance(workload, Program) else dict(trial.config)

    @property
    def best_value(self) -> float:
        """The best trial's value of the compared metric; raises the errors of ``best``."""
        trial = self._best_trial("best_value")
        return trial.number(self.objectives[trial.workload].metric)

    def best_model(self) -> nn.Module:
        """The model of the best trial, in evaluation mode.

        Raises:
            InputError: as for ``tuner.load_best``; or it was a dry run, or the study is of several workloads.
        """
        from tuner.records.weights import load_best

        workload = self._only_workload("best_model")
        model: nn.Module = load_best(self.study.path, workload)
        return model

    def to_frame(self) -> StudyFrame:
        """The rows as a DataFrame with the CSV's columns; with one workload it has the best trial and plots."""
        from tuner.reporting.frame import study_frame

        return study_frame(self.study)

    def __repr__(self) -> str:
        """The study in a line."""
        if self.folder is None:
            trials = count_text(len(self.estimates), "trial")
            return f"StudyResult(dry run of {trials})" if self.plan.devices else "StudyResult(nothing was run)"
        parts = [counted(trial.status for trial in self.trials)]
        for workload, objective in self.objectives.items():
            if best := self.study.best(workload):
                which = f"best of {workload}" if len(self.objectives) > 1 else "best"
                parts.append(f"{which}: {best_text(best, self.study.of_workload(workload), objective)}")
        return f"StudyResult({str(self.folder)!r}: {printable('; '.join(parts))})"

    def _repr_html_(self) -> str | None:
        """The best trial and the table in a notebook, with the selection and the panels of the page."""
        from tuner.reporting.page.document import Page, inline_html
        from tuner.reporting.page.sections import inline_main
        from tuner.study.past_trial import how_to_repeat

        if not self.trials:
            return None
        study = self.study
        main = inline_main(study, lambda row: how_to_repeat(study.record, row, study.path))
        return inline_html(Page(study.name, main))

    @property
    def _unrun(self) -> str:
        return "a dry run" if self.plan.devices else "a call that ran nothing (n_trials=0 or timeout=0)"

    def _only_workload(self, name: str) -> Trainable:
        if self.folder is None:
            raise InputError(f"{name}: {self._unrun} has no results")
        if len(self.workloads) != 1:
            named = " and ".join(self.workloads)
            raise InputError(f"{name}: the study is of {named}: use to_frame(), or tuner.load_best(folder, name)")
        return next(iter(self.workloads.values()))

    def _best_trial(self, name: str) -> Attempt:
        workload = self._only_workload(name).name
        if best := self.study.best(workload):
            return best
        raise InputError(f"{name}: {self.study.no_best(workload)}")


def learn_from(result: StudyResult, study: Study, console: Console) -> None:
    """Records what completed trials took, so that later studies on this machine estimate better."""
    names = {device.label: device.name for device in result.plan.devices}
    took = seconds_per_epoch(result.study.epochs)
    ended: dict[tuple[str, str, str], list[tuple[MemoryEstimate, Attempt]]] = {}
    for row in result.trials:
        raw = result.estimates.get(row.trial_id)  # a changed line of the journal may be of no trial
        device = (row.device or "").partition("+")[0]  # of rank 0
        if raw and row.status == "completed" and device in names and not shrunk(row.config):
            kind = kind_of(row.workload, row.config)
            ended.setdefault((row.workload, kind, names[device]), []).append((raw, row))
    service = study.needs.service
    try:
        for (workload, kind, device), trials in ended.items():
            task = study.tasks[workload]
            peaks = [(raw, row.peak_bytes) for raw, row in trials if row.peak_bytes and not _filled(raw, row)]
            service.learn(kind, device, peaks)
            if kind != workload:  # ranks wait for each other, and those of a machine share its RAM
                continue
            in_ram = [(raw, row.peak_ram_bytes) for raw, row in trials if row.peak_ram_bytes and raw.host_bytes]
            times = [(raw, row.config, took[row.trial_id]) for raw, row in trials if row.trial_id in took]
            if in_ram:
                service.learn_in_ram(workload, device, in_ram)
            service.learn_times(task.workload, task.data, device, times)
    except TunerError as error:  # the study is complete all the same
        print_text(console, f"not calibrated: {error.text}")


def _filled(raw: MemoryEstimate, row: Attempt) -> bool:
    """Whether a trial had a whole device that was smaller than its estimate: then its peak is what there was."""
    return row.gpu_fraction == 1 and is_tight(raw, row.result.limit_bytes)
