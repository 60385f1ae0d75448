"""The accuracy of memory estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart, Names, plain, thinned
from tuner.reporting.figures.style import colour, new_plot
from tuner.reporting.result_tables import estimate_accuracy, measured_rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MANY = 200  # more points are drawn smaller


def estimate_against_peak(study: RecordedStudy) -> Chart:
    """A point for each completed trial: its estimated memory and its measured peak."""
    title = "Memory: estimate against measured peak"
    settings = study.record.used
    if not settings.get("auto_memory", True):
        # The latter had a default in earlier versions.
        given = settings.get("memory_gb") or settings.get("model_memory_gb")
        size = f"{given:g} GB" if isinstance(given, (int, float)) else "what a function of its configuration says"
        return Chart(title, f"No memory was estimated: each was given {size}.")
    first_shares = study.record.plan.first_shares
    rows = measured_rows(study.rows, first_shares)
    if not rows:
        return Chart(title, "No completed trial has an estimate and a measured peak yet, so none can be judged.")
    text = estimate_accuracy(study.rows, first_shares).removeprefix("estimates: ")
    text = f"Estimates were {text}. Triangles, above the diagonal, took more than was estimated."
    points = thinned(rows)
    if len(points) < len(rows):
        text += f" {len(points):,} of {len(rows):,} trials are drawn, evenly spaced by rank."
    return Chart(title, text, _draw(points, study.trial_names))


def _draw(rows: Sequence[Attempt], names: Names) -> Plot:
    estimated, peaks = ([row.number(f"{what}_memory_gb") for row in rows] for what in ("estimated", "peak"))
    least, most = min(*estimated, *peaks), 1.06 * max(*estimated, *peaks)
    low = 0.94 * least if least > most / 3 else 0.0
    over = [peak > guess for guess, peak in zip(estimated, peaks, strict=True)]
    at, ends = low + 0.8 * (most - low), [low, most]
    plot = new_plot(380)
    plot.add_scatter(
        mode="lines", x=ends, y=ends, hoverinfo="skip", line={"color": colour("muted"), "width": 1.5, "dash": "dash"}
    )
    plot.add_scatter(
        mode="markers",
        x=estimated,
        y=peaks,
        text=[plain(names[row.trial_id]) for row in rows],
        customdata=[[row.trial_id] for row in rows],
        hovertemplate="%{text}<br>estimated %{x} GB, peak %{y} GB<extra></extra>",
        marker={
            "size": 6 if len(rows) > MANY else 9,
            "opacity": 0.8,
            "color": [colour("out_of_memory" if above else "completed") for above in over],
            "symbol": ["triangle-up" if above else "circle" for above in over],
        },
    )
    plot.add_annotation(x=at, y=at, text="as estimated", xanchor="right", yanchor="bottom", xshift=-6)
    plot.update_xaxes(title="estimated, GB", range=ends)
    return plot.update_yaxes(title="measured peak, GB", range=ends)
