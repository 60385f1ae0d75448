"""A timeline of all attempts, with their devices and memory, and how a population's hyperparameters changed."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from tuner.records.attempts import Attempt
from tuner.records.recorded_study import RecordedStudy
from tuner.reporting.figures.chart import MOST_POINTS, Chart, Names, plain, thinned, time_unit
from tuner.reporting.figures.style import PALE, colour, house_style, new_plot, ranked
from tuner.reporting.texts import count_text, duration, number_text
from tuner.trial import GB, Status
from tuner.values import in_table, value_key

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

# A pause of all devices is left out if it is longer than PAUSE_SECONDS and than PAUSE_SHARE of the busy time.
PAUSE_SECONDS = 30.0
PAUSE_SHARE = 0.1
GOES_ON = ("paused", "interrupted", "completed")  # attempts with these ends did not fail


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
    retried: bool = False  # whether the attempt before it failed; one that paused or was interrupted did not


def to_bars(attempts: Sequence[Attempt]) -> list[Bar]:
    """The attempts with known times and devices; times are in seconds since the first. All lanes are 0."""
    zero = min((row.started_at for row in attempts if row.device and row.started_at is not None), default=0.0)
    bars, failed = [], {(row.trial_id, row.attempts + 1) for row in attempts if row.status not in GOES_ON}
    for row in attempts:
        if row.device and row.started_at is not None and row.ended_at is not None and row.ended_at >= row.started_at:
            start, end = round(row.started_at - zero, 3), round(row.ended_at - zero, 3)
            memory = row.limit_gb or 0.0, row.peak_memory_gb
            retried = (row.trial_id, row.attempts) in failed
            bars.append(Bar(row.trial_id, row.device, row.attempts, row.status, start, end, *memory, retried=retried))
    return bars


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
    measured = [bar for bar in bars if bar.used_gb is not None and bar.reserved_gb]
    reserved = sum(bar.reserved_gb * (bar.end - bar.start) for bar in measured)
    return sum((bar.used_gb or 0.0) * (bar.end - bar.start) for bar in measured) / reserved if reserved else None


DEVICES = 8  # the maximum number of devices that are drawn
Pauses = Sequence[tuple[float, float]]  # the time and length of each, in seconds
Step = tuple[float, float, float]  # as of ``memory_over_time``


def timeline(study: RecordedStudy) -> Chart:
    """The attempts of each device over time, and below them the memory that they reserved and used."""
    title = "Timeline"
    bars, pauses = without_pauses(to_bars(study.attempts))
    if not bars:
        placed = any(row.device for row in study.attempts)
        why = "an earlier version ran it and did not record times" if placed else "no attempt has ended yet"
        return Chart(title, f"There is no timeline: {why}.")
    devices = {device.label: (device.name, budget / GB) for device, budget in study.devices()}
    labels = sorted({bar.device for bar in bars})
    lanes = {label: in_lanes([bar for bar in bars if bar.device == label]) for label in labels[:DEVICES]}
    names, budgets = zip(*(devices.get(label, ("", 0.0)) for label in lanes), strict=True)
    heads = [f"{label} ({name})" if name else label for label, name in zip(lanes, names, strict=True)]
    parts = zip(heads, lanes.values(), budgets, strict=True)
    lines = [f"{head}: {_finding(bars, budget, pauses)}" for head, bars, budget in parts]
    if len(labels) > DEVICES:
        lines.append(f"{count_text(len(labels) - DEVICES, 'more device')} are not drawn.")
    most = MOST_POINTS // len(lanes)
    if any(len(bars) > most for bars in lanes.values()):
        lines.append(f"Of a device at most {most:,} attempts and steps of memory are drawn, evenly spaced in time.")
    lines.append("The solid part of a bar is the share of its reserved memory that it used.")
    unit = time_unit(max(bar.end for bar in bars))
    heights = [340 + min(_lanes(bars), 16) * (26 if _lanes(bars) <= 8 else 16) for bars in lanes.values()]
    plot = _rows(heights, heads)
    for number, (bars, budget) in enumerate(zip(lanes.values(), budgets, strict=True)):
        drawing = Drawing(plot, 2 * number + 1, unit, study.trial_names)
        drawing.draw(bars, pauses, most)
        drawing.draw_memory(thinned(memory_over_time(bars), most), budget)
    plot.update_xaxes(title=f"time since the first trial was placed, {unit[0]}", row=2 * len(lanes))
    named = set[str]()
    for trace in plot.data:  # of several devices, the first has a name in the legend
        trace.showlegend = trace.showlegend is not False and trace.name not in named
        named |= {trace.name} if trace.showlegend else set()
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


@dataclass(frozen=True)
class Drawing:
    """The two plots of a device: its attempts in a row, and their memory in the row below."""

    plot: Plot
    row: int  # from 1
    unit: tuple[str, int]  # of time, and its seconds
    names: Names  # of trials, by trial id

    def draw(self, bars: Sequence[Bar], pauses: Pauses, most: int) -> None:
        """Draws ``most`` attempts on their lanes, and where pauses were left out."""
        lanes, plot = _lanes(bars), self.plot
        axis = {"title": "trials", "range": [lanes - 0.4, -0.6], "showgrid": False, "showticklabels": False}
        plot.update_yaxes(**axis, row=self.row)
        plot.update_yaxes(title="GB", rangemode="tozero", nticks=5, row=self.row + 1)
        plot.update_xaxes(rangemode="tozero").update_yaxes(fixedrange=True)
        shown = thinned(bars, most)
        for status in get_args(Status):
            if ended_so := [bar for bar in shown if bar.status == status]:
                self._add_bars(status, ended_so, 0.84 if lanes <= 24 else 1.0)
        line = {"color": colour("muted"), "dash": "dot", "width": 1.5}
        for seconds, length in pauses:
            at = seconds / self.unit[1]
            for row in (self.row, self.row + 1):
                plot.add_vline(x=at, line=line, row=row, col=1)
            text = f"paused {duration(length)}"
            plot.add_annotation(x=at, y=0, yref="y domain", yanchor="top", text=text, row=self.row, col=1)

    def _add_bars(self, status: str, bars: Sequence[Bar], height: float) -> None:
        """Adds a pale bar for each attempt, and in it a solid one as high as the used share of its memory."""
        (word, seconds), full = self.unit, colour(status)
        shares = [min(1.0, (bar.used_gb or 0.0) / bar.reserved_gb) if bar.reserved_gb else 0.0 for bar in bars]
        common = {
            "row": self.row,
            "col": 1,
            "orientation": "h",
            "x": [round((bar.end - bar.start) / seconds, 4) for bar in bars],
            "base": [round(bar.start / seconds, 4) for bar in bars],
            "legendgroup": status,
            "name": status.replace("_", " "),
        }
        self.plot.add_bar(
            **common,
            y=[bar.lane for bar in bars],
            width=height,
            text=[plain(self.names[bar.trial_id]) for bar in bars],
            customdata=[[bar.trial_id, bar.attempt, round(bar.end / seconds, 2), _memory(bar)] for bar in bars],
            textposition="none",
            hovertemplate=f"%{{text}}, attempt %{{customdata[1]}}: {status}<br>%{{base:.2f}} to "
            f"%{{customdata[2]:.2f}} {word}<br>reserved %{{customdata[3]}}<extra></extra>",
            marker={"color": full + PALE, "line": {"color": full, "width": 1 if len(bars) <= 300 else 0}},
            showlegend=False,
        )
        self.plot.add_bar(
            **common,
            y=[round(bar.lane + height * (1 - share) / 2, 4) for bar, share in zip(bars, shares, strict=True)],
            width=[round(height * share, 4) for share in shares],
            hoverinfo="skip",
            marker={"color": full, "line": {"width": 0}},
        )

    def draw_memory(self, steps: Sequence[Step], budget_gb: float) -> None:
        """Adds the memory that attempts reserved and used over time, and the device's memory for trials."""
        place, accent = {"row": self.row + 1, "col": 1}, colour("accent")
        times = [round(at / self.unit[1], 4) for at, _, _ in steps]
        common = {"mode": "lines", "hovertemplate": "%{y:.2f} GB<extra>%{fullData.name}</extra>", **place}
        filled = {**common, "x": times, "fill": "tozeroy", "line": {"shape": "hv", "width": 1, "color": accent}}
        self.plot.add_scatter(**filled, y=[step[1] for step in steps], name="reserved", fillcolor=accent + PALE)
        self.plot.add_scatter(**filled, y=[step[2] for step in steps], name="used (peaks)", fillcolor=accent)
        if budget_gb and budget_gb < 4 * max(step[1] for step in steps):
            ends, budget, line = [times[0], times[-1]], [round(budget_gb, 4)] * 2, {"dash": "dash", "width": 1.5}
            self.plot.add_scatter(
                **common, x=ends, y=budget, name="for trials", line={**line, "color": colour("ink")}
            )
        elif budget_gb:  # it would flatten everything else
            text = f"{number_text(budget_gb)} GB for trials, far above this scale"
            corner = {"x": 1, "xanchor": "right", "xref": "x domain", "y": 1, "yanchor": "bottom", "yref": "y domain"}
            self.plot.add_annotation(text=text, **corner, **place)


def _lanes(bars: Sequence[Bar]) -> int:
    return 1 + max(bar.lane for bar in bars)


def _memory(bar: Bar) -> str:
    used = "peak not known" if bar.used_gb is None else f"used {number_text(bar.used_gb)} GB"
    return f"{number_text(bar.reserved_gb)} GB, {used}"


def _finding(bars: Sequence[Bar], budget_gb: float, pauses: Pauses) -> str:
    steps = memory_over_time(bars)
    reserved, used = max(step[1] for step in steps), max(step[2] for step in steps)
    of = f" of the device's {number_text(budget_gb)} GB" if budget_gb else ""
    took = duration(max(bar.end for bar in bars))
    text = f"{count_text(len(bars), 'attempt')} in {took}, up to {_lanes(bars)} at once. "
    text += f"At most {number_text(reserved)} GB{of} were reserved at a time and {number_text(used)} GB used"
    share = used_share(bars)
    text += f"; over time, {share:.0%} of what was reserved was used. " if share is not None else ". "
    retried = sum(bar.retried for bar in bars)
    short = sum(bar.status == "out_of_memory" for bar in bars)
    text += f"{count_text(retried, 'attempt')} after one that had failed. " if retried else ""
    text += f"{count_text(short, 'attempt')} ran out of memory. " if short else ""
    text += f"{count_text(len(pauses), 'pause')} in which nothing ran left out (dotted). " if pauses else ""
    return text.rstrip()


TRAINED = ("paused", "completed")
MOST_KEYS = 8  # the most hyperparameters
NAMED = 5  # the best trials, which are in the legend
KEY_HEIGHT = 190  # of each hyperparameter's plot, in CSS pixels


def schedules(study: RecordedStudy) -> Chart | None:
    """A line for each trial of a population: the values with which it was trained; None if it is none."""
    from plotly.subplots import make_subplots

    if not any(row.parent_checkpoint for row in study.attempts):
        return None
    changed = [
        key
        for key in dict.fromkeys(key for row in study.attempts for key in row.config)
        if len({value_key(row.config.get(key)) for row in study.attempts}) > 1
    ]
    if not changed:
        return Chart("Schedules", "No hyperparameter has changed.")
    shown = changed[:MOST_KEYS]
    plot = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.18 / len(shown))
    for place, best in enumerate(study.rows):
        rows = [row for row in study.attempts if row.trial_id == best.trial_id and row.status in TRAINED]
        ends = [row.epochs for row in rows]
        epochs = [epoch for ends_of in zip([0, *ends[:-1]], ends, strict=True) for epoch in ends_of] if ends else []
        for number, key in enumerate(shown, 1):
            values = [in_table(row.config.get(key)) for row in rows for _ in range(2)]
            look = ranked(place if place < NAMED else None, NAMED)
            plot.add_scatter(
                row=number,
                col=1,
                mode="lines",
                x=epochs,
                y=values,
                **{**look, "showlegend": look["showlegend"] and number == 1},
                name=plain(study.trial_names[best.trial_id]),
                legendgroup=best.trial_id,
                customdata=[[best.trial_id]] * len(epochs),
                hovertemplate="%{fullData.name}<br>epoch %{x}: %{y}<extra></extra>",
            )
    for number, key in enumerate(shown, 1):
        scale = study.record.scales.get(key)
        plot.update_yaxes(title=plain(key), type=scale if scale in ("linear", "log") else None, row=number, col=1)
    taken = sum(row.parent_checkpoint.partition("@")[0] not in ("", row.trial_id) for row in study.attempts)
    text = "The values with which each trial was trained. "
    text += f"{count_text(taken, 'time')} a trial took over the checkpoint of another."
    if len(changed) > MOST_KEYS:
        text += f" {MOST_KEYS} of {len(changed)} hyperparameters are drawn."
    styled = house_style(plot, KEY_HEIGHT * len(shown) + 60, showlegend=True)
    styled.update_xaxes(title="epoch", tickformat="d", showgrid=False, row=len(shown), col=1)
    return Chart("Schedules", text, styled)
