"""The result of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.decisions.packing import Plan
from tuner.errors import InputError, printable
from tuner.objective import Objective
from tuner.records.attempts import Attempt, Line
from tuner.records.ranking import best_of, stands
from tuner.reporting.result_tables import best_text
from tuner.reporting.texts import count_text
from tuner.trial import FRONT, SUCCESSFUL, MemoryEstimate
from tuner.workloads.program import Program

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from tuner.reporting.frame import StudyFrame
    from tuner.workloads.base import Trainable


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        plan: how the trials shared the devices.
        estimates: each trial's estimate before calibration, by trial id.
        trials: the last attempt of each trial, each workload's best first; empty after a dry run.
        folder: where the results are; None after a dry run.
        workloads: what was trained, by name.
        objectives: what the trials of each workload are compared by.
    """

    plan: Plan
    estimates: Mapping[str, MemoryEstimate]
    trials: Sequence[Attempt] = ()
    folder: Path | None = None
    workloads: Mapping[str, Trainable] = field(default_factory=dict)
    objectives: Mapping[str, Objective] = field(default_factory=dict)

    @property
    def rows(self) -> list[Line]:
        """A row for each trial with the CSV's columns, each workload's best first; empty after a dry run."""
        return [trial.to_line() for trial in self.trials]

    @property
    def exit_code(self) -> int:
        """0 if every trial was completed or pruned on purpose, and the best weights were kept, else 1."""
        return 0 if all(trial.status in SUCCESSFUL for trial in self.trials) and not self.unkept else 1

    @property
    def unkept(self) -> list[Attempt]:
        """Trials without weights that are better than those in ``best.pt``; their ``error`` says why."""
        found: list[Attempt] = []
        for workload, objective in self.objectives.items():
            ranked = (row for row in self.trials if row.workload == workload and stands(row, objective))
            found += takewhile(lambda row: not row.weights_kept, ranked)
        return found

    def __fspath__(self) -> str:
        """The study's folder, so that a result can be given wherever a folder is expected."""
        if self.folder is None:
            raise InputError("a dry run has no folder")
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
        found: list[Attempt] = []
        for workload, objective in self.objectives.items():
            rows = [row for row in self.trials if row.workload == workload]
            found += [row for row in rows if row.metrics.get(FRONT) == 1] or filter(None, [best_of(rows, objective)])
        return found

    @property
    def best_config(self) -> dict[str, object]:
        """The hyperparameters of the best trial; raises the errors of ``best``."""
        trial = self._best_of("best_config")
        workload = self.workloads[trial.workload]
        return workload.arguments_of(trial.config) if isinstance(workload, Program) else dict(trial.config)

    @property
    def best_value(self) -> float:
        """The best trial's value of the compared metric; raises the errors of ``best``."""
        trial = self._best_of("best_value")
        return trial.number(self.objectives[trial.workload].metric)

    def best_model(self) -> nn.Module:
        """The model of the trial with the best value, in evaluation mode.

        Raises:
            InputError: as for ``tuner.load_best``; or it was a dry run, or the study is of several workloads.
        """
        from tuner.records.weights import load_best

        workload = self._only_workload("best_model")
        assert self.folder is not None
        model: nn.Module = load_best(self.folder, workload)
        return model

    def to_frame(self) -> StudyFrame:
        """The rows as a DataFrame with the CSV's columns; with one workload it has the best trial and plots."""
        import pandas as pd

        from tuner.records.attempts import columns
        from tuner.reporting.frame import StudyFrame, study_frame

        table = pd.DataFrame(self.rows, columns=columns(self.trials))
        if len(self.workloads) != 1:
            return StudyFrame(table)
        (objective,) = self.objectives.values()
        return study_frame(table, str(self.folder), objective)

    def __repr__(self) -> str:
        """The study in a line."""
        if self.folder is None:
            return f"StudyResult(dry run of {count_text(len(self.estimates), 'trial')})"
        counts = ", ".join(
            f"{number} {status}" for status, number in Counter(trial.status for trial in self.trials).items()
        )
        return f"StudyResult({str(self.folder)!r}: {printable('; '.join([counts, *self._bests()]))})"

    def _repr_html_(self) -> str | None:
        """The trials as a table in a notebook."""
        return self.to_frame()._repr_html_() if self.trials else None

    def _only_workload(self, asked: str) -> Trainable:
        if self.folder is None:
            raise InputError(f"{asked}: a dry run has no results")
        if len(self.workloads) != 1:
            named = " and ".join(self.workloads)
            raise InputError(f"{asked}: the study is of {named}: use to_frame(), or tuner.load_best(folder, name)")
        return next(iter(self.workloads.values()))

    def _best_of(self, asked: str) -> Attempt:
        objective = self.objectives[self._only_workload(asked).name]
        if best := best_of(self.trials, objective):
            return best
        raise InputError(f"{asked}: no trial has reported {objective.metric}; its column error says why")

    def _bests(self) -> list[str]:
        """The best trial of each workload, in a few words."""
        bests = []
        for workload, objective in self.objectives.items():
            rows = [row for row in self.trials if row.workload == workload]
            if best := best_of(rows, objective):
                which = f"best of {workload}" if len(self.objectives) > 1 else "best"
                bests.append(f"{which}: {best_text(best, rows, objective)}")
        return bests
