"""How good the estimates of memory were."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.records.rows import Row
from tuner.reporting.page.figure import Figure
from tuner.reporting.page.study import PageStudy
from tuner.reporting.tables import estimate_accuracy


def estimate_against_peak(study: PageStudy) -> Figure:
    """A point for each completed trial: what it was estimated to take, and what it took."""
    title = "Memory: estimate against measured peak"
    settings = study.study.get("settings", {})
    if not settings.get("auto_memory", True):
        given = f"each was given {settings.get('model_memory_gb')} GB"
        return Figure("estimates", title, f"No memory was estimated: {given}. --auto-memory estimates it.")
    rows = measured(study.rows)
    if not rows:
        return Figure(
            "estimates", title, "No completed trial has a measured peak, so estimates cannot be judged yet."
        )
    data = {
        "ids": [row["trial_id"] for row in rows],
        "estimated": [row["estimated_memory_gb"] for row in rows],
        "peak": [row["peak_memory_gb"] for row in rows],
    }
    text = estimate_accuracy(study.rows).removeprefix("estimates: ")
    text = f"Estimates were {text}. Triangles, above the diagonal, took more than was estimated."
    return Figure("estimates", title, text, data, height=380)


def measured(rows: Sequence[Row]) -> list[Row]:
    """The completed rows whose peak is known."""
    return [row for row in rows if row["status"] == "completed" and row["peak_memory_gb"]]
