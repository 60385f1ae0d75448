"""Configurations over their seeds, from studies or their rows: the function behind ``tuner.compare``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tuner.errors import InputError, ParameterError, option, printable
from tuner.objective import DIRECTIONS, DirectionWord, Objective
from tuner.records.attempts import STUDY, Attempt, attempts_of
from tuner.records.read_studies import by_data, objective_in, read_together
from tuner.records.recorded_study import RecordedStudy
from tuner.records.seed_statistics import Average, Interval, averages
from tuner.workloads.objectives import is_score

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("workload", "name", "seed", "status")


def compare(
    source: str | Path | Sequence[str | Path] | pd.DataFrame,
    metric: str | None = None,
    direction: DirectionWord | None = None,
) -> pd.DataFrame:
    """Studies' configurations over their seeds, and which of them cannot be told from the best at 95 %.

    The differences are taken seed by seed, and have t-intervals; ``tuner/records/seed_statistics.py`` has the
    formulas. They are not corrected for being many.

    Args:
        source: a study's folder, its ``results.csv``, several of these or a folder that holds some; or a DataFrame
            of trials such as ``tune_hyperparameters_parallel`` and ``results`` return.
        metric: a column to compare by; by default each workload's own.
        direction: whether less of it is better ("minimize", "min") or more ("maximize", "max"); by default what the
            study says of its own metric, on the test split, too, else "minimize". Another one such as an accuracy
            needs it.

    Returns:
        A row for each configuration, each workload's best first: ``workload``, ``name``, ``seeds`` (trials there
        are), ``completed`` (those that count), ``mean``, ``half_width`` of its 95 % interval, ``difference`` to the
        best over the seeds that both have, ``difference_half_width``, ``common_seeds`` and ``verdict``: "best", "="
        where it cannot be told from the best, "worse", "better" on the seeds that both have, "not judged" with fewer
        than two of these, or "" where there is one seed. With several studies the first column is ``study``, and
        only studies whose folders say that their data are the same are compared with each other: each of the others
        has a best of its own. What could not be read of a study is a warning.

    Raises:
        InputError: it holds no study or no such column, or the direction must be said.
    """
    import pandas as pd

    if metric is not None and not isinstance(metric, str):
        raise InputError(f"metric {metric!r}: is not a text; give the name of a column, such as 'val_rmse'")
    if direction is not None and direction not in DIRECTIONS:
        raise ParameterError("direction", direction, f"choose one of {', '.join(map(str, DIRECTIONS))}")
    rows, studies = _read(source)
    names = dict.fromkeys(row.workload for row in rows)
    return pd.DataFrame([record for name in names for record in _records(rows, studies, name, metric, direction)])


def _read(source: str | Path | Sequence[str | Path] | pd.DataFrame) -> tuple[list[Attempt], dict[str, RecordedStudy]]:
    """The trials, with the column ``study`` where there are several studies, and what is known of these."""
    if isinstance(source, (str, Path)) or not hasattr(source, "to_dict"):
        studies, rows, notes = read_together(source)
        for note in notes:
            warnings.warn(printable(note), stacklevel=3)
        return rows, studies
    if missing := [name for name in NEEDED if name not in source]:
        raise InputError(f"the table has no column {missing[0]!r}: give a study's folder, or its trials")
    return attempts_of(cast("pd.DataFrame", source)), {}


def _objective(objective: Objective, workload: str, metric: str | None, direction: DirectionWord | None) -> Objective:
    """The objective to compare by: that of the study, unless another metric or direction was given."""
    name = objective.metric if metric is None else metric
    if not name:
        raise InputError(f"{workload}: say by which metric its trials are compared")
    if direction is not None:
        return Objective(name, DIRECTIONS[direction])
    if name in (objective.metric, objective.metric.replace("val_", "test_")):
        return replace(objective, metric=name)
    if is_score(name):
        words = " or ".join(option("direction", word) for word in ("maximize", "minimize"))
        raise ParameterError("metric", name, "is a higher or a lower value better?", f"give {words}")
    return Objective(name)


def _records(
    rows: Sequence[Attempt],
    studies: Mapping[str, RecordedStudy],
    workload: str,
    metric: str | None,
    direction: DirectionWord | None,
) -> Iterator[dict[str, object]]:
    chosen = [row for row in rows if row.workload == workload]
    by = _objective(objective_in(workload, [], studies.values()), workload, metric, direction)
    if not any(by.metric in row.metrics or row.value(by.metric) is not None for row in chosen):
        hint = "" if metric is None else "; several studies are given as a list, such as compare(['a', 'b'])"
        raise InputError(f"metric {by.metric!r}: the trials of {workload} have no such column{hint}")
    several = len({row.study for row in rows}) > 1
    for group in by_data(chosen, workload, studies):
        for average in averages(group, by):
            yield {**({STUDY: average.study} if several else {}), **_record(workload, average)}


def _record(workload: str, average: Average) -> dict[str, object]:
    nothing = Interval(float("nan"), None, 0)
    mean, difference = average.interval or nothing, average.difference or nothing
    return {
        "workload": workload,
        "name": average.name,
        "seeds": average.seeds,
        "completed": len(average.values),
        "mean": mean.mean,
        "half_width": float("nan") if mean.half_width is None else mean.half_width,
        "difference": difference.mean,
        "difference_half_width": float("nan") if difference.half_width is None else difference.half_width,
        "common_seeds": difference.count,
        "verdict": average.verdict,
    }
