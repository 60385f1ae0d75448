"""An attempt as the journal has it; of a trial the latest one is a row of the CSV."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, Self

from pydantic import TypeAdapter

from tuner.records.checking import Amount, CheckedValue, Metric, Name, Shown, TrialId, Whole, checked
from tuner.trial import GB, AttemptResult, ConfigValue, Lost, MemoryEstimate, Outcome, Status

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config/"  # begins a hyperparameter's column
STUDY = "study"
BEFORE_METRICS = ("trial_id", "workload", "name", "seed", "status", "attempts")
AFTER_METRICS = (
    "epochs",
    "duration_s",
    "device",
    "gpu_fraction",
    "estimated_memory_gb",
    "peak_memory_gb",
    "error",
)
# Not in the table: what going on with a study is decided by, and when an attempt was placed and ended (unix seconds).
JOURNAL_ONLY = ("limit_gb", "lost", "started_at", "ended_at")
FIXED = (*BEFORE_METRICS, *AFTER_METRICS, *JOURNAL_ONLY)
# What is text, in a table of several studies also "study"; all else are numbers, and hyperparameters may be either.
TEXTS = ("trial_id", "workload", "name", "status", "device", "error", "lost", STUDY)
NOT_KEPT = "weights not kept"

Times = tuple[float, float]
Value = ConfigValue | None
Line = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How an attempt ended; seconds, GB of 2**30 bytes, and None where nothing is known."""

    trial_id: TrialId
    workload: Name
    name: Name
    seed: Whole
    status: Status
    attempts: Whole  # which of its trial's it was, from 1; 0 for a trial that never started
    metrics: Mapping[str, Metric]  # the final ones, by name
    epochs: Whole
    duration_s: Amount
    device: Shown | None = None
    gpu_fraction: Amount | None = None
    estimated_memory_gb: Amount
    peak_memory_gb: Amount | None = None
    error: Shown = ""
    # the memory that it was given. It is not rounded, so that a resumed study gives a retry what it would have been
    # given before.
    limit_gb: Amount | None = None
    lost: Lost = ""  # "worker" or "node" where that died under it
    started_at: Amount | None = None  # when it was placed, in unix seconds
    ended_at: Amount | None = None
    config: Mapping[str, CheckedValue] = field(default_factory=dict)
    study: str = ""  # whose it is, where several studies are shown together

    @classmethod
    def of(cls, outcome: Outcome, estimate: MemoryEstimate, times: Times | None = None) -> Self:
        """An attempt that has just ended.

        Args:
            outcome: how.
            estimate: what it was expected to need.
            times: when it was placed and when it ended, in unix seconds.
        """
        trial, placement = outcome.trial, outcome.placement
        started_at, ended_at = times or (None, None)
        return cls(
            trial_id=trial.trial_id,
            workload=trial.workload,
            name=trial.name,
            seed=trial.seed,
            status=outcome.status,
            attempts=trial.attempt if placement else trial.attempt - 1,
            metrics={name: written(value) for name, value in outcome.metrics.items()},
            epochs=outcome.epochs,
            duration_s=round(outcome.seconds, 3),
            device=placement.device.label if placement else None,
            # Rounded down: seven shares of 0.142857 fit on a device, seven of 0.1429 do not.
            gpu_fraction=math.floor(placement.fraction * 1e6) / 1e6 if placement else None,
            estimated_memory_gb=round(estimate.total_bytes / GB, 4),
            peak_memory_gb=None if outcome.peak_bytes is None else round(outcome.peak_bytes / GB, 4),
            error=f"{outcome.phase}: {outcome.error}" if outcome.phase and outcome.error else outcome.error,
            limit_gb=placement.limit_bytes / GB if placement else None,
            lost=outcome.lost,
            started_at=None if started_at is None else round(started_at, 3),
            ended_at=None if ended_at is None else round(ended_at, 3),
            config=trial.config,
        )

    @property
    def result(self) -> AttemptResult:
        """The part that decisions are based on."""
        peak = self.peak_memory_gb
        limit = int((self.limit_gb or 0) * GB)
        return AttemptResult(self.status, self.lost, limit, None if peak is None else int(peak * GB))

    @property
    def weights_kept(self) -> bool:
        """Whether its weights could be written, if they were the best."""
        return not self.error.startswith(NOT_KEPT)

    def value(self, column: str) -> Value:
        """What a column of the table has; None where it is blank."""
        if column.startswith(CONFIG):
            return self.config.get(column.removeprefix(CONFIG))
        if column in FIXED or column == STUDY:
            found: Value = getattr(self, column)
            return None if found == "" else found
        return self.metrics.get(column)

    def number(self, column: str) -> float:
        """The number that a column of the table has; infinite, which is worse than any, where it has none."""
        found = self.value(column)
        return found if isinstance(found, (int, float)) else math.inf

    def to_line(self) -> Line:
        """The line of the journal."""
        line: Line = {}
        for each in _fields():
            if each == "metrics":
                line.update(self.metrics)
            elif each == "config":
                line.update({sys.intern(f"{CONFIG}{key}"): value for key, value in self.config.items()})
            else:
                line[each] = getattr(self, each)
        return line


def parse_attempt(line: Mapping[str, object], where: str) -> Attempt:
    """A line of the journal or of a table.

    Args:
        line: by column; a hyperparameter that is None is missing.
        where: it stands, for messages.

    Raises:
        InputError: something is missing, or is not what tuner writes.
    """
    fixed = {key: value for key, value in line.items() if key in FIXED}
    others = {key: value for key, value in line.items() if key not in FIXED}
    config = {
        sys.intern(key.removeprefix(CONFIG)): value
        for key, value in others.items()
        if key.startswith(CONFIG) and value is not None
    }
    metrics = {sys.intern(key): value for key, value in others.items() if not key.startswith(CONFIG)}
    return checked(_adapter(), {**fixed, "metrics": metrics, "config": config}, where, _column)


def attempts_of(table: pd.DataFrame) -> list[Attempt]:
    """The rows of a table of trials as Python returns it; columns that were left out of it are blank.

    Raises:
        InputError: a value is not what it must be.
    """
    plain = table.astype(object)
    lines = plain.where(plain.notna() & (plain != ""), None).to_dict("records")
    return [_of_table({str(key): value for key, value in line.items()}, number) for number, line in enumerate(lines)]


def _of_table(line: Mapping[str, object], number: int) -> Attempt:
    """A row with the columns that a table has: what it lacks is filled in, and texts of the user's are left out."""
    whole = {"seed": 0, "attempts": 1, "epochs": 0}
    blank = {**whole, "trial_id": f"row{number}", "workload": "-", "duration_s": 0, "estimated_memory_gb": 0}
    given = {key: value for key, value in line.items() if value is not None and key != STUDY}
    # Of a column with gaps pandas makes decimal numbers.
    given |= {key: int(value) for key in whole if isinstance(value := given.get(key), float)}
    texts = {key: value for key, value in given.items() if isinstance(value, str)}
    others = {key for key in texts if key not in FIXED and not key.startswith(CONFIG)}
    known = {key: value for key, value in given.items() if key not in others}
    return replace(parse_attempt({**blank, **known}, f"row {number}"), study=str(line.get(STUDY) or ""))


def written(value: float) -> float | None:
    """A metric as a row has it: to six decimals, and None where it is no finite number."""
    return round(value, 6) if math.isfinite(value) else None


def columns(rows: Sequence[Attempt], expected: Iterable[str] = ()) -> list[str]:
    """The CSV's columns in their order: fixed ones, metrics, fixed ones, then the configuration's keys.

    Args:
        rows: what the table holds.
        expected: metrics that are columns also while no row has them.
    """
    metrics = dict.fromkeys([*(key for row in rows for key in row.metrics), *expected])
    config = dict.fromkeys(f"{CONFIG}{key}" for row in rows for key in row.config)
    return [*BEFORE_METRICS, *metrics, *AFTER_METRICS, *config]


def to_csv(rows: Sequence[Attempt]) -> str:
    """The rows as CSV text; a value that is missing or None is left blank."""
    return write_rows([row.to_line() for row in rows], columns(rows))


def write_rows(rows: Sequence[Mapping[str, object]], names: Sequence[str] | None = None) -> str:
    """Any rows as CSV text, with these columns or those of the first row."""
    text = io.StringIO()
    others: Literal["ignore", "raise"] = "ignore" if names else "raise"
    writer = csv.DictWriter(text, names or list(rows[0]), restval="", extrasaction=others, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _column(place: Sequence[int | str]) -> str:
    """The column that a field stands in."""
    group, *key = map(str, place)
    return {"metrics": "", "config": CONFIG}.get(group, group) + "".join(key[:1])


@cache
def _fields() -> tuple[str, ...]:
    """The fields that a line has, in its order."""
    return tuple(each.name for each in fields(Attempt) if each.name != STUDY)


@cache
def _adapter() -> TypeAdapter[Attempt]:
    return TypeAdapter(Attempt)
