"""An attempt, which is a line of the journal. A trial's latest attempt is a row of the CSV and of DataFrames."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, Self, cast, get_type_hints

from tuner.objective import Objective
from tuner.records import checking
from tuner.records.checking import Amount, CheckedValue, Metric, Moment, Name, Shown, Size, TrialId, Whole, checked
from tuner.trial import GB, AttemptResult, ConfigValue, Lost, MemoryEstimate, Outcome, Phase, ShortOf, Status
from tuner.values import encode, in_table

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config/"  # the prefix of a hyperparameter's column
STUDY = "study"
NOT_KEPT = "weights not kept"
CSV_END = "\r\n"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes

MISSING = float("nan")  # what a DataFrame has where a row has nothing
LARGEST = 2**63  # whole numbers of a DataFrame's column are smaller

Times = tuple[float, float]
Value = ConfigValue | None
Line = dict[str, Value]
BLANK = ""  # what a table shows where a row has nothing


def is_blank(value: object) -> bool:
    """Whether a table shows nothing; an array is never compared with a text."""
    return isinstance(value, str) and not value


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How an attempt ended. Times are in seconds; None means unknown.

    Memory is in bytes, here and in the journal. Tables have it in GB, in the columns of ``IN_GB``.
    """

    # The columns of the CSV before its metrics.
    trial_id: TrialId
    workload: Name
    name: Name
    seed: Whole
    status: Status
    attempts: Whole  # the attempt's number, from 1; 0 for a trial that never started
    metrics: Mapping[str, Metric]  # the final metrics, by name
    # The columns after them.
    epochs: Whole
    duration_s: Amount
    device: Shown | None = None
    gpu_fraction: Amount | None = None
    estimated_bytes: Size | None = None  # None if it had a share to begin with
    peak_bytes: Size | None = None
    peak_ram_bytes: Size | None = None  # of its host's RAM, for a trial on a GPU
    error: Shown = ""
    # In the journal alone, from here to ``config``: what resuming a study needs, and when the attempt was placed and
    # ended.
    limit_bytes: Size | None = None
    limit_ram_bytes: Size | None = None  # the limit of its host's RAM, for a trial on a GPU
    short_of: ShortOf = ""  # "RAM" if a trial on a GPU ran out of that
    lost: Lost = ""  # "worker" or "node" if that died during the attempt, "memory" if others held that of its share
    phase: Phase = ""  # the phase in which it failed
    rank_peaks: tuple[Size | None, ...] = ()  # of each rank, where there are several
    parent_checkpoint: Shown = ""  # the checkpoint that it took over, as a member of a population
    started_at: Moment | None = None  # when it was placed, in unix seconds
    ended_at: Moment | None = None
    order: Whole | None = None  # among all that happened in the study; None in those of earlier versions
    code_version: Whole | None = None  # of those in ``study.json``, from 1
    config: Mapping[str, CheckedValue] = field(default_factory=dict)
    study: str = ""  # the study's name where several are shown together

    @classmethod
    def of(
        cls, outcome: Outcome, estimate: MemoryEstimate, times: Times | None = None, order: int | None = None
    ) -> Self:
        """An attempt that has just ended; ``times`` are when it was placed and ended, in unix seconds."""
        trial, placement = outcome.trial, outcome.placement
        started_at, ended_at = times or (None, None)
        return cls(
            trial_id=trial.trial_id,
            workload=trial.workload,
            name=trial.name,
            seed=trial.seed,
            status=outcome.status,
            attempts=trial.attempt if placement else trial.attempt - 1,
            metrics=checking.recorded(outcome.metrics),
            epochs=outcome.epochs,
            duration_s=round(outcome.seconds, 3),
            device=placement.label if placement else None,
            # Rounded down: seven shares of 0.142857 fit on a device, but seven of 0.1429 do not.
            gpu_fraction=math.floor(placement.fraction * 1e6) / 1e6 if placement else None,
            estimated_bytes=estimate.predicted_bytes,
            peak_bytes=outcome.peak_bytes,
            peak_ram_bytes=outcome.host_peak_bytes,
            error=f"{outcome.phase}: {outcome.error}" if outcome.phase and outcome.error else outcome.error,
            limit_bytes=placement.limit_bytes if placement else None,
            limit_ram_bytes=(placement.host_bytes or None) if placement else None,
            short_of=outcome.short_of,
            lost=outcome.lost,
            phase=outcome.phase,
            rank_peaks=outcome.rank_peaks,
            parent_checkpoint=trial.parent,
            started_at=None if started_at is None else round(started_at, 3),
            ended_at=None if ended_at is None else round(ended_at, 3),
            order=order,
            config=trial.config,
        )

    @property
    def result(self) -> AttemptResult:
        """The part on which decisions are based."""
        limit, ram, peak = self.limit_bytes or 0, self.limit_ram_bytes or 0, self.peak_ram_bytes
        return AttemptResult(self.status, self.lost, limit, self.peak_bytes, self.phase, self.short_of, ram, peak)

    @property
    def estimated_memory_gb(self) -> float | None:
        """The estimate of its memory; None if it had a share to begin with."""
        return None if self.estimated_bytes is None else self.estimated_bytes / GB

    @property
    def peak_memory_gb(self) -> float | None:
        """The peak of its memory."""
        return None if self.peak_bytes is None else self.peak_bytes / GB

    @property
    def limit_gb(self) -> float | None:
        """The memory that was reserved for it."""
        return None if self.limit_bytes is None else self.limit_bytes / GB

    @property
    def own_seconds(self) -> float:
        """From its start to its end, without the training before a checkpoint with which it went on."""
        timed = self.started_at is not None and self.ended_at is not None
        return self.ended_at - self.started_at if timed else self.duration_s  # type: ignore[operator]

    @property
    def weights_kept(self) -> bool:
        """Whether its weights, if they were the best, could be written."""
        return not self.error.startswith(NOT_KEPT)

    def value(self, column: str, missing: Value = None) -> Value:
        """The value in a column of the table; ``missing`` if it is blank, as None may be a hyperparameter's value."""
        if column.startswith(CONFIG):
            return self.config.get(column.removeprefix(CONFIG), missing)
        value = self._shown(column) if column in FIXED or column == STUDY else self.metrics.get(column)
        return missing if value is None or value == "" else value

    def number(self, column: str) -> float:
        """The number in a column of the table; infinity, which is worse than any other, if there is none."""
        value: object = self.value(column)
        return value if isinstance(value, (int, float)) else math.inf

    def loss(self, objective: Objective) -> float:
        """Its value of the compared metric, negated if that is maximised: lower is better.

        Without a value it is infinity, which is worse than any other. Only completed trials have an infinite value.
        """
        value: object = self.value(objective.metric)
        if not isinstance(value, (int, float)) or math.isnan(value):
            return math.inf
        return objective.loss(value) if self.status == "completed" or math.isfinite(value) else math.inf

    def losses(self, objective: Objective) -> tuple[float, ...]:
        """The same for each of several objectives: of trials, the first in this order is on the first front.

        They are all infinite if one of several is, and the trial is not completed.
        """
        losses = tuple(map(self.loss, objective.all))
        comparable = not objective.others or self.status == "completed" or all(map(math.isfinite, losses))
        return losses if comparable else (math.inf,) * len(losses)

    def _shown(self, name: str) -> Value:
        value = getattr(self, IN_GB.get(name, name))
        if name == RANK_PEAKS:
            return ", ".join("?" if peak is None else f"{peak / GB:.4f}" for peak in value)
        if name not in IN_GB or value is None:
            return cast("Value", value)
        gb: float = value / GB
        return gb if name in JOURNAL_ONLY else round(gb, 4)

    def to_line(self, *, exact: bool = False, cells: bool = False) -> Line:
        """The row of a table, with values as they are; with ``cells`` that of the CSV, for people.

        ``exact`` is the line of the journal, with memory in bytes.
        """
        line: Line = {}
        form = encode if exact else in_table if cells else lambda value: value
        for name in _FIELDS if exact else _COLUMNS:
            if name == "metrics":
                line.update(checking.in_json(self.metrics) if exact else self.metrics)
            elif name == "config":
                line.update({sys.intern(f"{CONFIG}{key}"): form(value) for key, value in self.config.items()})
            else:
                line[name] = getattr(self, name) if exact else self._shown(name)
        return line


RANK_PEAKS = "rank_peaks_gb"
IN_GB = {  # the columns of tables, and of journals of earlier versions, with the fields that they show
    "estimated_memory_gb": "estimated_bytes",
    "peak_memory_gb": "peak_bytes",
    "peak_ram_gb": "peak_ram_bytes",
    "limit_gb": "limit_bytes",
    "limit_ram_gb": "limit_ram_bytes",
    RANK_PEAKS: "rank_peaks",
}
_FIELDS = {name: name for column in fields(Attempt) if (name := column.name) != STUDY}
_COLUMNS = {{field: column for column, field in IN_GB.items()}.get(name, name): name for name in _FIELDS}
_NAMES = tuple(_COLUMNS)
BEFORE_METRICS = _NAMES[: _NAMES.index("metrics")]
AFTER_METRICS = _NAMES[_NAMES.index("metrics") + 1 : _NAMES.index("limit_gb")]
JOURNAL_ONLY = _NAMES[_NAMES.index("limit_gb") : _NAMES.index("config")]
FIXED = frozenset((*BEFORE_METRICS, *AFTER_METRICS, *JOURNAL_ONLY, *IN_GB.values()))
_OF_TEXT = (str, str | None, Status, Lost, Phase, ShortOf)  # the types of annotations, however these are written
TEXTS = tuple(name for name, kind in get_type_hints(Attempt).items() if kind in _OF_TEXT)  # the columns of text


def parse_attempt(line: Mapping[str, object], where: str) -> Attempt:
    """The attempt in a line of the journal or of a table.

    Raises:
        InputError: a value is missing or has a wrong type; the message begins with ``where``.
    """
    fixed, config, metrics = dict[str, object](), dict[str, object](), dict[str, object]()
    # A table, or a line of an earlier version, may have a metric that is called as a field is now.
    names = _FIELDS if "estimated_bytes" in line and "estimated_memory_gb" not in line else _COLUMNS
    for key, value in line.items():
        if key in FIXED and key in names:
            fixed[key] = value
        elif key.startswith(CONFIG):
            config[sys.intern(key.removeprefix(CONFIG))] = value
        else:
            metrics[sys.intern(key)] = value
    given = {field: key for key, field in names.items()}
    values = {**checking.in_bytes(fixed, IN_GB), "metrics": metrics, "config": config}
    return checked(Attempt, values, where, partial(_column, given))


def columns(rows: Sequence[Attempt], expected: Iterable[str] = ()) -> list[str]:
    """The CSV's columns in order. The ``expected`` metrics are columns even if no row has them."""
    metrics = dict.fromkeys([*(key for row in rows for key in row.metrics), *expected])
    config = dict.fromkeys(f"{CONFIG}{key}" for row in rows for key in row.config)
    versions = {row.code_version for row in rows} - {None}
    return [*BEFORE_METRICS, *metrics, *AFTER_METRICS, *["code_version"] * (len(versions) > 1), *config]


def with_defaults(rows: Sequence[Attempt], defaults: Mapping[str, Mapping[str, ConfigValue]]) -> list[Attempt]:
    """The rows with each hyperparameter that another row of their workload has, at its default."""
    used: dict[str, dict[str, ConfigValue]] = {}
    for row in rows:
        default = defaults.get(row.workload, {})
        used.setdefault(row.workload, {}).update({key: default[key] for key in row.config if key in default})
    lacking = [used[row.workload].keys() - row.config.keys() for row in rows]
    return [
        replace(row, config={**used[row.workload], **row.config}) if keys else row
        for row, keys in zip(rows, lacking, strict=True)
    ]


def to_csv(rows: Sequence[Attempt]) -> str:
    """The rows as CSV text; missing values are blank."""
    return write_rows([row.to_line(cells=True) for row in rows], columns(rows))


def write_rows(rows: Sequence[Mapping[str, object]], names: Sequence[str] | None = None) -> str:
    """Rows as CSV text, with the columns in ``names`` or those of the first row."""
    text = io.StringIO()
    extra: Literal["ignore", "raise"] = "ignore" if names else "raise"
    names = list(names or rows[0])
    # The characters of this end of a line are quoted inside of cells; Python before 3.13 would leave \r as it is.
    lines = SimpleNamespace(write=lambda line: text.write(f"{line.removesuffix(CSV_END)}\n"))
    writer = csv.DictWriter(lines, names, restval="", extrasaction=extra, lineterminator=CSV_END)
    writer.writerow({name: defused(name) for name in names})
    writer.writerows({name: defused(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def defused(value: object) -> object:
    """A cell of a CSV file, with an apostrophe before a text that spreadsheets would compute as a formula."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def as_given(cell: str) -> str:
    """The text from which ``defused`` made a cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    return len(text) > 1 and text.lstrip("'").startswith(FORMULAS)


def _column(names: Mapping[str, str], path: Sequence[int | str]) -> str:
    """The column of a field, given as the path to it."""
    group, *key = map(str, path)
    return {"metrics": "", "config": CONFIG}.get(group, names.get(group, group)) + "".join(key[:1])


def frame_of(rows: Sequence[Attempt], names: Sequence[str] | None = None) -> pd.DataFrame:
    """Rows as a DataFrame with these columns, by default those of the CSV.

    Whole numbers and booleans stay these where some are missing (``Int64``, ``boolean``), and texts are as pandas has
    them. Columns of anything else but numbers are of objects: there None is a value of a hyperparameter, one that is
    absent is NaN, and a text that is blank is empty.
    """
    import pandas as pd

    names = columns(rows) if names is None else names
    return pd.DataFrame({name: _series([_cell(row, name) for row in rows]) for name in names}, columns=list(names))


def _cell(row: Attempt, name: str) -> object:
    value: object = row.value(name, MISSING)
    return "" if value is MISSING and name in TEXTS else value


def _series(values: Sequence[object]) -> pd.Series:
    import pandas as pd

    present = [value for value in values if value is not MISSING]
    kinds, gaps = set(map(type, present)), len(present) < len(values)
    if kinds == {bool}:
        kind = "boolean" if gaps else "bool"
    elif kinds == {int} and all(isinstance(value, int) and -LARGEST <= value < LARGEST for value in present):
        kind = "Int64" if gaps else "int64"
    elif kinds == {str}:
        return pd.Series(list(values))  # as pandas has texts
    else:
        kind = "float64" if kinds <= {int, float} and (float in kinds or not kinds) else "object"
    filled = [pd.NA if value is MISSING else value for value in values] if kind in ("boolean", "Int64") else values
    return pd.Series(list(filled), dtype=kind)


def attempts_of(table: pd.DataFrame) -> list[Attempt]:
    """The rows of a table of trials that a user gives, without hyperparameters; its missing columns are blank.

    Raises:
        InputError: a value has a wrong type.
    """
    names = [name for name in table.columns if not str(name).startswith(CONFIG)]
    plain = table[names].astype(object)
    lines = plain.where(plain.notna(), None).to_dict("records")
    return [_of_table({str(key): value for key, value in line.items()}, number) for number, line in enumerate(lines)]


def _of_table(line: Mapping[str, object], number: int) -> Attempt:
    """The attempt in a table's row. Missing columns get defaults; of unknown columns only numbers are metrics."""
    whole = {"seed": 0, "attempts": 1, "epochs": 0}
    blank = {**whole, "trial_id": f"row{number}", "workload": "-", "duration_s": 0}
    cells = {
        key: value
        for key, value in line.items()
        if value is not None
        and key != STUDY
        and (isinstance(value, (int, float)) or (key in FIXED and not (isinstance(value, str) and value == "")))
    }
    # pandas turns whole numbers into decimal ones in a column with gaps.
    cells |= {key: int(value) for key in whole if isinstance(value := cells.get(key), float)}
    return replace(parse_attempt({**blank, **cells}, f"row {number}"), study=str(line.get(STUDY) or ""))
