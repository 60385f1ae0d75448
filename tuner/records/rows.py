"""Rows: an attempt as the journal has it, a trial as the CSV has it."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from tuner.records.journal import Row as Row
from tuner.trial import GB, MemoryEstimate, Outcome

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
Times = tuple[float, float]
NOT_KEPT = "weights not kept"


def to_row(outcome: Outcome, estimate: MemoryEstimate, times: Times | None = None) -> Row:
    """An attempt as its line in the journal says it; seconds, GB of 2**30 bytes, and None where nothing is known."""
    trial, placement = outcome.trial, outcome.placement
    started_at, ended_at = times or (None, None)
    return {
        "trial_id": trial.trial_id,
        "workload": trial.workload,
        "name": trial.name,
        "seed": trial.seed,
        "status": outcome.status,
        "attempts": trial.attempt if placement else trial.attempt - 1,
        **{name: written(value) for name, value in outcome.metrics.items()},
        "epochs": outcome.epochs,
        "duration_s": round(outcome.seconds, 3),
        "device": placement.device.label if placement else None,
        # Rounded down: seven shares of 0.142857 fit on a device, seven of 0.1429 do not.
        "gpu_fraction": math.floor(placement.fraction * 1e6) / 1e6 if placement else None,
        "estimated_memory_gb": round(estimate.total_bytes / GB, 4),
        "peak_memory_gb": None if outcome.peak_bytes is None else round(outcome.peak_bytes / GB, 4),
        "error": f"{outcome.phase}: {outcome.error}" if outcome.phase and outcome.error else outcome.error,
        # Not rounded: what a retry is given when the study is gone on with is what it would have been given before.
        "limit_gb": placement.limit_bytes / GB if placement else None,
        "lost": outcome.lost,
        "started_at": None if started_at is None else round(started_at, 3),
        "ended_at": None if ended_at is None else round(ended_at, 3),
        **{sys.intern(f"config/{key}"): value for key, value in trial.config.items()},
    }


def written(value: float) -> float | None:
    """A metric as a row has it: to six decimals, and None where it is no finite number."""
    return round(value, 6) if math.isfinite(value) else None


def columns(rows: Iterable[Row]) -> list[str]:
    """The CSV's columns in their order: fixed ones, metrics, fixed ones, then the configuration's keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    config = [key for key in keys if key.startswith("config/")]
    metrics = [key for key in keys if key not in (*BEFORE_METRICS, *AFTER_METRICS, *JOURNAL_ONLY, *config)]
    return [*BEFORE_METRICS, *metrics, *AFTER_METRICS, *config]


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV text; a value that is missing or None is left blank."""
    return write_rows(rows, columns(rows))


def write_rows(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """Any rows as CSV text, with these columns or those of the first row."""
    text = io.StringIO()
    others: Literal["ignore", "raise"] = "ignore" if names else "raise"
    writer = csv.DictWriter(text, names or list(rows[0]), restval="", extrasaction=others, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
