"""Configurations over their seeds, from a study or its rows: the function behind ``tuner.compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.noise import Average, Interval, Row, averages
from tuner.studies import read_studies
from tuner.workloads import BUILT_IN, find_workload

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("workload", "name", "seed", "status")


def compare(source: str | Path | pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """A study's configurations over their seeds, and which of them cannot be told from the best at 95 %.

    The differences are taken seed by seed, and have t-intervals; ``tuner/noise.py`` has the formulas. They are not
    corrected for being many.

    Args:
        source: a study's folder, its ``results.csv``, or a DataFrame of trials such as
            ``tune_hyperparameters_parallel`` and ``results`` return.
        metric: a column to compare by, smaller being better; by default each workload's own.

    Returns:
        A row for each configuration, each workload's best first: ``workload``, ``name``, ``seeds`` (trials there
        are), ``completed`` (those that count), ``mean``, ``half_width`` of its 95 % interval, ``difference`` to the
        best over the seeds that both have, ``difference_half_width``, ``common_seeds`` and ``verdict``: "best", "="
        where it cannot be told from the best, "worse", "better" on the seeds that both have, "not judged" with fewer
        than two of these, or "" where there is one seed.

    Raises:
        InputError: it holds no study, several ones, or no such column.
    """
    import pandas as pd

    rows = _rows(source)
    names = dict.fromkeys(row["workload"] for row in rows)
    found = [_record(name, each) for name in names for each in _averages(rows, name, metric)]
    return pd.DataFrame(found)


def _rows(source: Any) -> list[Row]:
    if not isinstance(source, (str, Path)):
        if missing := [name for name in NEEDED if name not in source]:
            raise InputError(f"the table has no column {missing[0]!r}: give a study's folder, or its trials")
        if "study" in source and source["study"].nunique() > 1:
            raise InputError("the table has trials of several studies: give those of one")
        records: list[Row] = source.astype(object).where(source.notna(), None).to_dict("records")
        return records
    studies = read_studies([source])
    if len(studies) > 1:
        raise InputError(f"{source}: holds {len(studies)} studies; give the folder of one")
    return list(studies[0].rows)


def _averages(rows: Sequence[Row], workload: str, metric: str | None) -> list[Average]:
    own = [row for row in rows if row["workload"] == workload]
    if metric is None and workload not in BUILT_IN:
        raise InputError(f"{workload}: say by which metric its trials are compared")
    by = find_workload(workload).metric if metric is None else metric
    if not any(by in row for row in own):
        raise InputError(f"metric {by!r}: the trials of {workload} have no such column")
    return averages(own, by)


def _record(workload: str, each: Average) -> dict[str, Any]:
    nothing = Interval(float("nan"), None, 0)
    mean, difference = each.interval or nothing, each.difference or nothing
    return {
        "workload": workload,
        "name": each.name,
        "seeds": each.seeds,
        "completed": len(each.values),
        "mean": mean.mean,
        "half_width": float("nan") if mean.half_width is None else mean.half_width,
        "difference": difference.mean,
        "difference_half_width": float("nan") if difference.half_width is None else difference.half_width,
        "common_seeds": difference.count,
        "verdict": each.verdict,
    }
