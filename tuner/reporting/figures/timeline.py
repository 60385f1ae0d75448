"""A timeline of all attempts, with their devices and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from tuner.reporting.figures.attempt_bars import Bar, in_lanes, memory_over_time, to_bars, used_share, without_pauses
from tuner.reporting.figures.chart import Chart, Names, plain
from tuner.reporting.figures.style import PALE, colour, new_plot
from tuner.reporting.study_view import StudyView
from tuner.reporting.texts import count_text, duration, number_text
from tuner.trial import GB, Status

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

DEVICES = 8  # the maximum number of devices that are drawn
Pauses = Sequence[tuple[float, float]]  # the time and length of each, in seconds
Unit = tuple[str, int]  # the unit's name and its seconds


def timelines(study: StudyView) -> list[Chart]:
    """A chart for each device: its attempts over time, and the memory that they reserved and used."""
    title = "Timeline"
    bars = to_bars(study.attempts)
    if not bars:
        placed = any(row.device for row in study.attempts)
        why = "an earlier version ran it and did not record times" if placed else "no attempt has ended yet"
        return [Chart(title, f"There is no timeline: {why}.")]
    bars, pauses = without_pauses(bars)
    budgets = {device.label: (device, budget) for device, budget in study.devices()}
    labels = sorted({bar.device for bar in bars})
    end, names = max(bar.end for bar in bars), study.trial_names
    unit = ("s", 1) if end < 300 else ("min", 60) if end < 3 * 3600 else ("h", 3600)
    charts = []
    for label in labels[:DEVICES]:
        device, budget = budgets.get(label, (None, 0))
        lanes = in_lanes([bar for bar in bars if bar.device == label])
        name = f"Timeline of {label}" + (f" ({device.name})" if device and device.name else "")
        plot = _draw(lanes, budget / GB, pauses, unit, names)
        charts.append(Chart(name, _finding(lanes, budget / GB, pauses), plot))
    if len(labels) > DEVICES:
        left = len(labels) - DEVICES
        charts.append(Chart(title, f"{count_text(left, 'more device')} are not drawn."))
    return charts


def _draw(bars: Sequence[Bar], budget_gb: float, pauses: Pauses, unit: Unit, names: Names) -> Plot:
    """Draws the attempts on their lanes, and the memory below them."""
    lanes, (word, seconds) = _lanes(bars), unit
    height = 340 + min(lanes, 16) * (26 if lanes <= 8 else 16)
    plot = new_plot(height, barmode="overlay", showlegend=True, margin={"l": 56, "r": 14, "t": 40, "b": 42})
    plot.update_layout(
        xaxis={"title": f"time since the first trial was placed, {word}", "anchor": "y2", "rangemode": "tozero"},
        yaxis={"title": "trials", "domain": [0.44, 1], "range": [lanes - 0.4, -0.6], "showgrid": False},
        yaxis2={"title": "GB", "domain": [0, 0.37], "rangemode": "tozero", "nticks": 5},
    )
    plot.update_yaxes(fixedrange=True).update_layout(yaxis_showticklabels=False)
    for status in get_args(Status):
        if own := [bar for bar in bars if bar.status == status]:
            _add_bars(plot, status, own, 0.84 if lanes <= 24 else 1.0, unit, names)
    _add_memory(plot, bars, budget_gb, seconds)
    line = {"color": colour("muted"), "dash": "dot", "width": 1.5}
    for at, length in [(at / seconds, length) for at, length in pauses]:
        for axis in ("y", "y2"):
            plot.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, yref=f"{axis} domain", line=line)
        plot.add_annotation(x=at, y=0, yref="y domain", yanchor="top", text=f"paused {duration(length)}")
    return plot


def _lanes(bars: Sequence[Bar]) -> int:
    return 1 + max(bar.lane for bar in bars)


def _add_bars(plot: Plot, status: str, bars: Sequence[Bar], height: float, unit: Unit, names: Names) -> None:
    """Adds a pale bar for each attempt, and in it a solid one with the height of the used share of its memory."""
    (word, seconds), full, surface = unit, colour(status), colour("surface")
    shares = [min(1.0, (bar.used_gb or 0.0) / bar.reserved_gb) if bar.reserved_gb else 0.0 for bar in bars]
    stripes = ["/" if bar.attempt > 1 else "" for bar in bars]
    common = {
        "orientation": "h",
        "x": [round((bar.end - bar.start) / seconds, 4) for bar in bars],
        "base": [round(bar.start / seconds, 4) for bar in bars],
        "legendgroup": status,
        "name": status.replace("_", " "),
    }
    plot.add_bar(
        **common,
        y=[bar.lane for bar in bars],
        width=height,
        text=[plain(names[bar.trial_id]) for bar in bars],
        customdata=[[bar.trial_id, bar.attempt, round(bar.end / seconds, 2), _memory(bar)] for bar in bars],
        textposition="none",
        hovertemplate=f"%{{text}}, attempt %{{customdata[1]}}: {status}<br>%{{base:.2f}} to %{{customdata[2]:.2f}} "
        f"{word}<br>reserved %{{customdata[3]}}<extra></extra>",
        marker={
            "color": full + PALE,
            "line": {"color": full, "width": 1 if len(bars) <= 300 else 0},
            "pattern": {"shape": stripes, "fgcolor": full, "bgcolor": full + PALE, "size": 6, "solidity": 0.35},
        },
        showlegend=False,
    )
    plot.add_bar(
        **common,
        y=[round(bar.lane + height * (1 - share) / 2, 4) for bar, share in zip(bars, shares, strict=True)],
        width=[round(height * share, 4) for share in shares],
        hoverinfo="skip",
        marker={
            "color": full,
            "line": {"width": 0},
            "pattern": {"shape": stripes, "fgcolor": surface, "bgcolor": full, "size": 6, "solidity": 0.25},
        },
    )


def _memory(bar: Bar) -> str:
    used = "peak not known" if bar.used_gb is None else f"used {number_text(bar.used_gb)} GB"
    return f"{number_text(bar.reserved_gb)} GB, {used}"


def _add_memory(plot: Plot, bars: Sequence[Bar], budget_gb: float, seconds: int) -> None:
    """Adds the memory that running attempts reserved and used over time, and the device's memory for trials."""
    steps = memory_over_time(bars)
    times, accent = [round(at / seconds, 4) for at, _, _ in steps], colour("accent")
    common = {"mode": "lines", "yaxis": "y2", "hovertemplate": "%{y:.2f} GB<extra>%{fullData.name}</extra>"}
    filled = {**common, "x": times, "fill": "tozeroy"}
    line = {"shape": "hv", "width": 1, "color": accent}
    plot.add_scatter(**filled, y=[step[1] for step in steps], name="reserved", fillcolor=accent + PALE, line=line)
    plot.add_scatter(**filled, y=[step[2] for step in steps], name="used (peaks)", fillcolor=accent, line=line)
    if budget_gb and budget_gb < 4 * max(step[1] for step in steps):
        ends, budget = [times[0], times[-1]], [round(budget_gb, 4)] * 2
        plot.add_scatter(
            **common, x=ends, y=budget, name="for trials", line={"dash": "dash", "width": 1.5, "color": colour("ink")}
        )
    elif budget_gb:  # it would flatten everything else
        text = f"{number_text(budget_gb)} GB for trials, far above this scale"
        plot.add_annotation(x=1, xref="x domain", xanchor="right", y=1, yref="y2 domain", yanchor="bottom", text=text)


def _finding(bars: Sequence[Bar], budget_gb: float, pauses: Pauses) -> str:
    steps = memory_over_time(bars)
    reserved, used = max(step[1] for step in steps), max(step[2] for step in steps)
    of = f" of the device's {number_text(budget_gb)} GB" if budget_gb else ""
    took = duration(max(bar.end for bar in bars))
    text = f"{count_text(len(bars), 'attempt')} in {took}, up to {_lanes(bars)} at once. "
    text += f"At most {number_text(reserved)} GB{of} were reserved at a time and {number_text(used)} GB used"
    share = used_share(bars)
    text += f"; over time, {share:.0%} of what was reserved was used. " if share is not None else ". "
    retried = sum(bar.attempt > 1 for bar in bars)
    short = sum(bar.status == "out_of_memory" for bar in bars)
    text += f"{count_text(retried, 'bar')} with stripes: a further attempt. " if retried else "No trial was retried. "
    text += f"{count_text(short, 'attempt')} ran out of memory. " if short else ""
    text += f"{count_text(len(pauses), 'pause')} in which nothing ran left out (dotted). " if pauses else ""
    return text + "The solid part of a bar is the share of its reserved memory that it used."
