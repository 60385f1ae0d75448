"""What a study came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.placement import Plan
from tuner.records.rows import Row
from tuner.trial import SUCCESSFUL, MemoryEstimate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyResult:
    """What a study came to.

    Attributes:
        plan: how the trials shared the devices.
        estimates: each trial's estimate before calibration, by trial id.
        rows: one for each trial, each workload's best first, with the CSV's names; empty after a dry run.
        folder: where the results are; None after a dry run.
    """

    plan: Plan
    estimates: Mapping[str, MemoryEstimate]
    rows: list[Row] = field(default_factory=list)
    folder: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 if every trial was completed or pruned on purpose, else 1."""
        return 0 if all(row["status"] in SUCCESSFUL for row in self.rows) else 1

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame with the CSV's columns."""
        import pandas as pd

        from tuner.records.rows import columns

        return pd.DataFrame(self.rows, columns=columns(self.rows))
