"""A timeline of all attempts, with their devices and memory."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from tuner.records.attempts import Attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import MOST_POINTS, Chart, Names, plain, thinned
from tuner.reporting.figures.style import PALE, colour, new_plot
from tuner.reporting.texts import count_text, duration, number_text
from tuner.trial import GB, Status

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

# A pause of all devices is left out if it is longer than PAUSE_SECONDS and than PAUSE_SHARE of the busy time.
PAUSE_SECONDS = 30.0
PAUSE_SHARE = 0.1


@dataclass(frozen=True)
class Bar:
    """An attempt on its device."""

    trial_id: str
    device: str  # its label
    attempt: int  # from 1
    status: str
    start: float  # seconds from the first attempt's placement
    end: float
    reserved_gb: float
    used_gb: float | None  # its peak; None if unknown
    lane: int = 0  # the line on which it is drawn, from 0


def to_bars(attempts: Sequence[Attempt]) -> list[Bar]:
    """The attempts with known times and devices; times are in seconds since the first. All lanes are 0."""
    known = [
        (row, row.device, row.started_at, row.ended_at)
        for row in attempts
        if row.device and row.started_at is not None and row.ended_at is not None and row.ended_at >= row.started_at
    ]
    zero = min((started for _, _, started, _ in known), default=0.0)
    times = [(round(started - zero, 3), round(ended - zero, 3)) for _, _, started, ended in known]
    return [
        Bar(row.trial_id, device, row.attempts, row.status, *both, row.limit_gb or 0.0, row.peak_memory_gb)
        for (row, device, _, _), both in zip(known, times, strict=True)
    ]


def in_lanes(bars: Sequence[Bar]) -> list[Bar]:
    """The bars in the order of their start, each on the lowest lane that is free then."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        while busy and busy[0][0] <= bar.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (bar.end, lane))
        placed.append(replace(bar, lane=lane))
    return placed


def without_pauses(bars: Sequence[Bar]) -> tuple[list[Bar], list[tuple[float, float]]]:
    """The bars without long pauses of all devices, such as before a study is resumed.

    Returns:
        The shifted bars, and each pause's new time and its length in seconds.
    """
    ordered = sorted(bars, key=lambda bar: bar.start)
    gaps, until, busy = [], ordered[0].start if ordered else 0.0, 0.0
    for bar in ordered:
        if bar.start > until:
            gaps.append((until, bar.start - until))
        busy += max(0.0, bar.end - max(bar.start, until))
        until = max(until, bar.end)
    long = [(at, length) for at, length in gaps if length > max(PAUSE_SECONDS, PAUSE_SHARE * busy)]
    left_out = [0.0, *accumulate(length for _, length in long)]  # before each pause, and after the last
    moved = []
    for bar in ordered:
        back = left_out[bisect_left(long, (bar.start,))]
        moved.append(replace(bar, start=round(bar.start - back, 3), end=round(bar.end - back, 3)))
    return moved, [(round(at - back, 3), length) for (at, length), back in zip(long, left_out, strict=False)]


def memory_over_time(bars: Sequence[Bar]) -> list[tuple[float, float, float]]:
    """The memory that running attempts have reserved, and the sum of their peaks, after each change.

    Returns:
        Time in seconds, reserved GB and used GB. An attempt's peak counts while it runs; an unknown peak counts as 0.
    """
    changes: dict[float, list[float]] = {}
    for bar in bars:
        for at, sign in ((bar.start, 1), (bar.end, -1)):
            change = changes.setdefault(at, [0.0, 0.0])
            change[0] += sign * bar.reserved_gb
            change[1] += sign * (bar.used_gb or 0.0)
    steps, reserved, used = [], 0.0, 0.0
    for at in sorted(changes):
        reserved, used = reserved + changes[at][0], used + changes[at][1]
        steps.append((at, round(max(0.0, reserved), 4), round(max(0.0, used), 4)))
    return steps


def used_share(bars: Sequence[Bar]) -> float | None:
    """The peaks' share of the reserved GB-seconds, over the attempts with a known peak."""
    known = [bar for bar in bars if bar.used_gb is not None and bar.reserved_gb]
    reserved = sum(bar.reserved_gb * (bar.end - bar.start) for bar in known)
    return sum((bar.used_gb or 0.0) * (bar.end - bar.start) for bar in known) / reserved if reserved else None


DEVICES = 8  # the maximum number of devices that are drawn
Pauses = Sequence[tuple[float, float]]  # the time and length of each, in seconds
Step = tuple[float, float, float]  # as of ``memory_over_time``
Unit = tuple[str, int]  # the unit's name and its seconds


def timeline(study: RecordedStudy) -> Chart:
    """The attempts of each device over time, and below them the memory that they reserved and used."""
    title = "Timeline"
    bars, pauses = without_pauses(to_bars(study.attempts))
    if not bars:
        placed = any(row.device for row in study.attempts)
        why = "an earlier version ran it and did not record times" if placed else "no attempt has ended yet"
        return Chart(title, f"There is no timeline: {why}.")
    known = {device.label: (device.name, budget / GB) for device, budget in study.devices()}
    labels = sorted({bar.device for bar in bars})
    lanes = {label: in_lanes([bar for bar in bars if bar.device == label]) for label in labels[:DEVICES]}
    budgets = {label: known.get(label, ("", 0.0))[1] for label in lanes}
    heads = [label + (f" ({known[label][0]})" if label in known and known[label][0] else "") for label in lanes]
    texts = [_finding(own, budgets[label], pauses) for label, own in lanes.items()]
    lines = [f"{head}: {text}" for head, text in zip(heads, texts, strict=True)]
    if len(labels) > DEVICES:
        lines.append(f"{count_text(len(labels) - DEVICES, 'more device')} are not drawn.")
    most = MOST_POINTS // len(lanes)
    if any(len(own) > most for own in lanes.values()):
        lines.append(f"Of a device at most {most:,} attempts and steps of memory are drawn, evenly spaced in time.")
    lines.append("The solid part of a bar is the share of its reserved memory that it used.")
    end = max(bar.end for bar in bars)
    unit = ("s", 1) if end < 300 else ("min", 60) if end < 3 * 3600 else ("h", 3600)
    heights = [340 + min(_lanes(own), 16) * (26 if _lanes(own) <= 8 else 16) for own in lanes.values()]
    plot, names = _rows(heights, heads), study.trial_names
    for number, (label, own) in enumerate(lanes.items()):
        _draw(plot, 2 * number + 1, own, budgets[label], pauses, unit, names, most)
    plot.update_xaxes(title=f"time since the first trial was placed, {unit[0]}", row=2 * len(lanes))
    return Chart(title, "\n".join(lines), plot)


def _rows(heights: Sequence[int], heads: Sequence[str]) -> Plot:
    """An empty plot with two rows for each device, of these heights together."""
    from plotly.subplots import make_subplots

    whole = sum(heights)
    legend = {"y": 1 + 30 / whole}
    plot = new_plot(
        whole, barmode="overlay", showlegend=True, margin={"l": 56, "r": 14, "t": 66, "b": 42}, legend=legend
    )
    return make_subplots(
        figure=plot,
        rows=2 * len(heights),
        row_heights=[share * height / whole for height in heights for share in (0.6, 0.4)],
        vertical_spacing=0.16 / len(heights),
        shared_xaxes="all",
        subplot_titles=[text for head in heads for text in (plain(head), "")],
    )


def _draw(
    plot: Plot, row: int, bars: Sequence[Bar], budget_gb: float, pauses: Pauses, unit: Unit, names: Names, most: int
) -> None:
    """Draws ``most`` attempts of a device on their lanes, in this row, and the memory in the row below."""
    lanes, (_, seconds) = _lanes(bars), unit
    plot.update_yaxes(title="trials", range=[lanes - 0.4, -0.6], showgrid=False, showticklabels=False, row=row)
    plot.update_yaxes(title="GB", rangemode="tozero", nticks=5, row=row + 1)
    plot.update_xaxes(rangemode="tozero").update_yaxes(fixedrange=True)
    for status in get_args(Status):
        if own := [bar for bar in thinned(bars, most) if bar.status == status]:
            _add_bars(plot, row, status, own, 0.84 if lanes <= 24 else 1.0, unit, names)
    _add_memory(plot, row + 1, thinned(memory_over_time(bars), most), budget_gb, seconds)
    line = {"color": colour("muted"), "dash": "dot", "width": 1.5}
    for at, length in [(at / seconds, length) for at, length in pauses]:
        for part in (row, row + 1):
            plot.add_vline(x=at, line=line, row=part, col=1)
        text = f"paused {duration(length)}"
        plot.add_annotation(x=at, y=0, yref="y domain", yanchor="top", text=text, row=row, col=1)


def _lanes(bars: Sequence[Bar]) -> int:
    return 1 + max(bar.lane for bar in bars)


def _add_bars(
    plot: Plot, row: int, status: str, bars: Sequence[Bar], height: float, unit: Unit, names: Names
) -> None:
    """Adds a pale bar for each attempt, and in it a solid one with the height of the used share of its memory."""
    (word, seconds), full, name = unit, colour(status), status.replace("_", " ")
    shares = [min(1.0, (bar.used_gb or 0.0) / bar.reserved_gb) if bar.reserved_gb else 0.0 for bar in bars]
    common = {
        "row": row,
        "col": 1,
        "orientation": "h",
        "x": [round((bar.end - bar.start) / seconds, 4) for bar in bars],
        "base": [round(bar.start / seconds, 4) for bar in bars],
        "legendgroup": status,
        "name": name,
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
        marker={"color": full + PALE, "line": {"color": full, "width": 1 if len(bars) <= 300 else 0}},
        showlegend=False,
    )
    plot.add_bar(
        **common,
        y=[round(bar.lane + height * (1 - share) / 2, 4) for bar, share in zip(bars, shares, strict=True)],
        width=[round(height * share, 4) for share in shares],
        hoverinfo="skip",
        showlegend=not _named(plot, name),
        marker={"color": full, "line": {"width": 0}},
    )


def _named(plot: Plot, name: str) -> bool:
    """Whether the legend has this name already, of another device."""
    return any(trace.name == name and trace.showlegend is not False for trace in plot.data)


def _memory(bar: Bar) -> str:
    used = "peak not known" if bar.used_gb is None else f"used {number_text(bar.used_gb)} GB"
    return f"{number_text(bar.reserved_gb)} GB, {used}"


def _add_memory(plot: Plot, row: int, steps: Sequence[Step], budget_gb: float, seconds: int) -> None:
    """Adds the memory that running attempts reserved and used over time, and the device's memory for trials."""
    times, accent = [round(at / seconds, 4) for at, _, _ in steps], colour("accent")
    common = {"mode": "lines", "hovertemplate": "%{y:.2f} GB<extra>%{fullData.name}</extra>", "row": row, "col": 1}
    common["showlegend"] = not _named(plot, "reserved")
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
        place = {"xref": "x domain", "yref": "y domain", "row": row, "col": 1}
        plot.add_annotation(x=1, xanchor="right", y=1, yanchor="bottom", text=text, **place)


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
    text += f"{count_text(retried, 'attempt')} of a trial that had failed before. " if retried else ""
    text += f"{count_text(short, 'attempt')} ran out of memory. " if short else ""
    text += f"{count_text(len(pauses), 'pause')} in which nothing ran left out (dotted). " if pauses else ""
    return text.rstrip()
