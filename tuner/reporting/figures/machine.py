"""The load of the study's machine over time, and the accuracy of memory estimates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tuner.records.attempts import Attempt
from tuner.records.machine_log import SECONDS, MachineLine
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import Chart, Names, of_trials, plain, some_drawn, thinned, time_unit
from tuner.reporting.figures.style import colour, new_plot, series
from tuner.reporting.result_tables import estimate_accuracy, measured_rows
from tuner.reporting.texts import number_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 600  # the maximum number of points of a line
GAP_SECONDS = 30.0  # and ten times the usual distance of two lines: the study did not run in between


def machine_load(study: RecordedStudy) -> Chart:
    """The share of time in which CPU and GPUs were busy, and below it the memory in use."""
    title, lines = "Load of the machine", without_gaps(study.machine)
    if len(lines) < 2:
        return Chart(
            title, "No load was recorded: the study ran for less than two seconds, or in an earlier version."
        )
    gpus = sorted({label for line in lines for label in line.gpus})
    text = " ".join(_finding(name, lines) for name in ["CPU", *gpus])
    lines = thinned(lines, MOST)
    began = lines[0].at
    unit, seconds = time_unit(lines[-1].at - began)
    times = [round((line.at - began) / seconds, 4) for line in lines]
    plot = new_plot(380, showlegend=True, margin={"l": 56, "r": 14, "t": 36, "b": 42}, dragmode=False)
    plot.update_layout(
        xaxis={"title": f"time, {unit}", "anchor": "y2", "showgrid": False},
        yaxis={"title": "busy", "domain": [0.56, 1], "range": [0, 1.04], "tickformat": ".0%"},
        yaxis2={"title": "GB in use", "domain": [0, 0.42], "rangemode": "tozero"},
    )
    for number, name in enumerate(["CPU", *gpus]):
        busy = [_of(line, name) for line in lines]
        memory = "RAM" if name == "CPU" else f"memory of {name}"
        common = {"mode": "lines", "x": times, "legendgroup": name, **series(number, width=1.6)}
        plot.add_scatter(
            **common,
            y=[load and load[0] for load in busy],
            name=plain("CPU, RAM" if name == "CPU" else name),
            hovertemplate=f"{plain(name)} %{{y:.0%}} busy at %{{x}} {unit}<extra></extra>",
        )
        plot.add_scatter(
            **common,
            y=[load and load[1] for load in busy],
            yaxis="y2",
            showlegend=False,
            hovertemplate=f"{plain(memory)} %{{y:.2f}} GB at %{{x}} {unit}<extra></extra>",
        )
    plot.update_xaxes(fixedrange=True).update_yaxes(fixedrange=True)
    text += " The figures include all programs of the machine, not only this study."
    return Chart(title, text, plot)


def without_gaps(lines: Sequence[MachineLine]) -> list[MachineLine]:
    """The lines with the time left out in which the study did not run, as before it was resumed."""
    kept, back, usual = list(lines[:1]), 0.0, 0.0
    for before, line in pairwise(lines):
        passed = line.at - before.at
        if kept[1:] and passed > 10 * usual + GAP_SECONDS:
            back += passed - usual
        else:
            usual = passed
        kept.append(replace(line, at=line.at - back))
    return kept


def _of(line: MachineLine, name: str) -> tuple[float | None, float] | None:
    """How busy the CPU or a GPU was, if that is known, and the memory in use."""
    if name == "CPU":
        return line.busy, line.ram_gb
    gpu = line.gpus.get(name)
    return (gpu.busy, gpu.used_gb) if gpu else None


def _finding(name: str, lines: Sequence[MachineLine]) -> str:
    """The mean load, each line counting for the time since the line before, and the most memory in use."""
    passed = [SECONDS, *(max(SECONDS, line.at - before.at) for before, line in pairwise(lines))]
    loads = [(*load, seconds) for line, seconds in zip(lines, passed, strict=True) if (load := _of(line, name))]
    shares = [(share, seconds) for share, _, seconds in loads if share is not None]
    busy = f"busy {statistics.fmean(*zip(*shares, strict=True)):.0%} of the time on average, " if shares else ""
    memory = "RAM" if name == "CPU" else "memory"
    most = max(used for _, used, _ in loads)
    return f"{name}: {busy}at most {number_text(most)} GB of {memory} in use."


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
    rows = measured_rows(study.rows)
    if not rows:
        return Chart(
            title, "No completed trial has an estimate and a measured peak yet, so no estimate can be judged."
        )
    text = estimate_accuracy(study.rows).removeprefix("estimates: ")
    points = thinned(rows)
    text = f"Estimates were {text}. Triangles, above the diagonal, took more than was estimated."
    return Chart(title, text + some_drawn(len(points), len(rows)), _draw(points, study.trial_names))


def _draw(rows: Sequence[Attempt], trial_names: Names) -> Plot:
    names = {row.trial_id: plain(trial_names[row.trial_id]) for row in rows}
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
        **of_trials([row.trial_id for row in rows], names, "estimated %{x} GB, peak %{y} GB"),
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
