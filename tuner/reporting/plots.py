"""The figures of the page as plotly figures, for notebooks: what they show is what ``page/`` has found.

``page/charts.js`` draws the same data in the browser; the colours are those of ``page/page.css`` by day.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tuner.errors import InputError
from tuner.reporting.page.figure import Figure
from tuner.trial import Status

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Names = Mapping[str, str]
CAPTION_WIDTH = 110
PALE = 0.28
FEW_EPOCHS = 12  # up to so many have a tick each; plotly would divide them
BEST_COLOURS = ("best", "completed", "diverged", "out_of_memory", "pruned")  # of the best curves, in their order


def curves_plot(figure: Figure, names: Names) -> Plot:
    """Learning curves, the best emphasised.

    Args:
        figure: from ``learning_curves``.
        names: of the trials, by trial id; as in every plot.

    Raises:
        InputError: there is nothing to draw; as in every plot.
    """
    data, plot = _data(figure), _plot(figure)
    emphasised = [curve["id"] for curve in data["curves"] if curve["best"]]
    for curve in reversed(data["curves"]):
        best = curve["best"]
        colour = BEST_COLOURS[emphasised.index(curve["id"])] if best else "muted"
        plot.add_scatter(
            x=[epoch for epoch, _ in curve["points"]],
            y=[value for _, value in curve["points"]],
            name=escape(names.get(curve["id"], curve["id"])),
            mode="lines+markers" if best or len(curve["points"]) == 1 else "lines",
            line={"width": 2.4 if best else 1.1, "color": _colours()[colour]},
            opacity=1 if best else 0.42,
            showlegend=best,
        )
    pad = 0.05 * (data["high"] - data["low"] or 1)
    most = max(epoch for curve in data["curves"] for epoch, _ in curve["points"])
    plot.update_xaxes(title="epoch", tickformat="d", dtick=1 if most <= FEW_EPOCHS else None)
    plot.update_yaxes(title=data["metric"], range=[data["low"] - pad, data["high"] + pad])
    return plot.update_layout(legend={"traceorder": "reversed"})


def coordinates_plot(figure: Figure, names: Names) -> Plot:
    """Parallel coordinates; ``figure`` is from ``parallel_coordinates``. The stronger a line's colour, the better."""
    data, plot, colours = _data(figure), _plot(figure), _colours()
    axes, values = data["axes"], data["values"]
    order = sorted(range(len(values)), key=lambda row: values[row], reverse=True)
    for rank, row in enumerate(order):
        plot.add_scatter(
            x=list(range(len(axes))),
            y=[axis["places"][row] for axis in axes],
            mode="lines+markers",
            line={
                "color": colours[
                    "best" if rank == len(order) - 1 else "middle" if 2 * rank >= len(order) else "worst"
                ]
            },
            text=[f"{escape(names[data['ids'][row]])}<br>{data['metric']} {values[row]}"] * len(axes),
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )
    for number, axis in enumerate(axes):
        plot.add_vline(number, line={"color": colours["muted"], "width": 1}, layer="below")
        for place, text in axis["ticks"]:
            plot.add_annotation(
                x=number, y=place, text=escape(text), showarrow=False, xanchor="right", xshift=-6, bgcolor="white"
            )
    heads = [f"<b>{escape(axis['label'])}</b>" for axis in axes]
    plot.update_xaxes(tickvals=list(range(len(axes))), ticktext=heads, showgrid=False, range=[-0.3, len(axes) - 0.9])
    return plot.update_yaxes(visible=False, range=[-0.06, 1.06])


def metric_plot(whole: Figure, figures: Sequence[Figure], names: Names) -> Plot:
    """The metric against each hyperparameter, side by side.

    Args:
        whole: from ``parallel_coordinates``, which has the axes.
        figures: from ``against_each``.
        names: of the trials.
    """
    data = _data(whole)
    titles = [escape(figure.title) for figure in figures]
    plot = _plots(rows=1, cols=len(figures), subplot_titles=titles, shared_yaxes=True)
    level, hover = data["axes"][-1], "%{text}<extra></extra>"
    text = [f"{escape(names[each])}<br>{data['metric']} {value}" for each, value in zip(*_of(data), strict=True)]
    for column, figure in enumerate(figures, 1):
        its = _data(figure)
        axis, at = data["axes"][its["axis"]], {"row": 1, "col": column}
        points = {"x": axis["places"], "y": level["places"], "text": text, "hovertemplate": hover}
        plot.add_scatter(**points, mode="markers", marker={"color": _colours()["completed"], "size": 8}, **at)
        if trials := its["trials"]:
            x, y, ids, values = zip(*trials, strict=True)
            about = [f"{escape(names[each])}<br>{value}" for each, value in zip(ids, values, strict=True)]
            faint = {"color": _colours()["completed"], "size": 5, "opacity": 0.4}
            plot.add_scatter(x=x, y=y, text=about, hovertemplate=hover, mode="markers", marker=faint, **at)
        if medians := its["medians"]:
            x, y = zip(*medians, strict=True)
            plot.add_scatter(x=x, y=y, mode="lines", line={"color": _colours()["ink"]}, hoverinfo="skip", **at)
        plot.update_xaxes(**_ticks(axis), **at)
        plot.update_yaxes(**_ticks(level), **at)
    plot.update_yaxes(title=data["metric"], row=1, col=1)
    title = f"{data['metric']} against each hyperparameter"
    means = any(_data(figure)["trials"] for figure in figures)
    caption = "A point for each configuration, faint ones for its trials" if means else "A point for each trial"
    caption += "; lines join the medians of values with several."
    return _titled(plot, title, caption).update_layout(showlegend=False, height=380)


def estimates_plot(figure: Figure, names: Names) -> Plot:
    """The estimate of each trial's memory against its peak; ``figure`` is from ``estimate_against_peak``."""
    data, plot, colours = _data(figure), _plot(figure), _colours()
    estimated, peaks = data["estimated"], data["peak"]
    ends = [0.95 * min(*estimated, *peaks), 1.05 * max(*estimated, *peaks)]
    under = [peak > guess for guess, peak in zip(estimated, peaks, strict=True)]
    plot.add_scatter(x=ends, y=ends, mode="lines", line={"color": colours["muted"], "dash": "dash"}, hoverinfo="skip")
    plot.add_scatter(
        x=estimated,
        y=peaks,
        mode="markers",
        text=[escape(names[each]) for each in data["ids"]],
        hovertemplate="%{text}<br>estimated %{x} GB, peak %{y} GB<extra></extra>",
        marker={
            "size": 9,
            "color": [colours["out_of_memory" if each else "completed"] for each in under],
            "symbol": ["triangle-up" if each else "circle" for each in under],
        },
    )
    plot.update_xaxes(title="estimated, GB", range=ends)
    return plot.update_yaxes(title="measured peak, GB", range=ends).update_layout(showlegend=False)


def timeline_plot(figures: Sequence[Figure], names: Names) -> Plot:
    """For each device its attempts over time, and below them what they reserved and used.

    Args:
        figures: from ``timelines``, one for each device.
        names: of the trials.
    """
    drawn = [figure for figure in figures if figure.data is not None]
    if not drawn:
        raise InputError(f"nothing to draw: {figures[0].caption}")
    titles = [text for figure in drawn for text in (escape(figure.title), "")]
    rows = {"rows": 2 * len(drawn), "row_heights": [0.6, 0.4] * len(drawn), "vertical_spacing": 0.16 / len(drawn)}
    plot = _plots(**rows, cols=1, subplot_titles=titles, shared_xaxes="all")
    for number, figure in enumerate(drawn):
        data, row = _data(figure), 2 * number + 1
        _add_bars(plot, data, names, row)
        _add_memory(plot, data, row + 1)
        for at, _ in data["pauses"]:
            plot.add_vline(at, line={"color": _colours()["muted"], "dash": "dot"}, row=row, col=1)
        plot.update_yaxes(autorange="reversed", showticklabels=False, title="trials", row=row, col=1)
        plot.update_yaxes(title="GB", rangemode="tozero", row=row + 1, col=1)
        plot.update_xaxes(title=f"time since the first trial was placed, {data['unit']}", row=row + 1, col=1)
    height = sum(figure.height for figure in drawn) + 120
    captions = [f"{figure.title}: {figure.caption}" if len(drawn) > 1 else figure.caption for figure in figures]
    return _titled(plot, "Timeline", *captions).update_layout(barmode="overlay", height=height)


def _add_bars(plot: Plot, data: Mapping[str, Any], names: Names, row: int) -> None:
    """A pale bar for what an attempt reserved, and in it a solid one, as high as the share of it that was used."""
    for status in get_args(Status):
        places = [place for place, each in enumerate(data["statuses"]) if each == status]
        if not places:
            continue
        pick = {key: [data[key][place] for place in places] for key in ("lengths", "starts", "lane")}
        shares = [min(1.0, (data["used"][place] or 0.0) / (data["reserved"][place] or 1.0)) for place in places]
        common = {"orientation": "h", "x": pick["lengths"], "base": pick["starts"], "row": row, "col": 1}
        stripes = ["/" if data["attempts"][place] > 1 else "" for place in places]
        marker = {"color": _colours()[status], "pattern": {"shape": stripes}}
        plot.add_bar(
            **common,
            y=pick["lane"],
            width=0.84,
            opacity=PALE,
            marker=marker,
            text=[_about(data, place, names) for place in places],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )
        y = [lane + 0.42 * (1 - share) for lane, share in zip(pick["lane"], shares, strict=True)]
        widths = [0.84 * share for share in shares]
        first = row == 1
        name = status.replace("_", " ")
        plot.add_bar(**common, y=y, width=widths, marker=marker, hoverinfo="skip", name=name, showlegend=first)


def _about(data: Mapping[str, Any], place: int, names: Names) -> str:
    used, start = data["used"][place], data["starts"][place]
    return (
        f"{escape(names[data['ids'][place]])}, attempt {data['attempts'][place]}: {data['statuses'][place]}<br>"
        f"{start:.2f} to {start + data['lengths'][place]:.2f} {data['unit']}<br>"
        f"reserved {data['reserved'][place]:.2f} GB, {'peak not known' if used is None else f'used {used:.2f} GB'}"
    )


def _add_memory(plot: Plot, data: Mapping[str, Any], row: int) -> None:
    """What the running attempts reserved and used, from each change on."""
    times, reserved, used = zip(*data["memory"], strict=True)
    for name, values, opacity in (("reserved", reserved, 0.5), ("used (peaks)", used, 1.0)):
        plot.add_scatter(
            x=times,
            y=values,
            name=name,
            mode="lines",
            fill="tozeroy",
            opacity=opacity,
            line={"shape": "hv", "width": 1, "color": _colours()["accent"]},
            hovertemplate="%{y:.2f} GB",
            showlegend=row == 2,
            row=row,
            col=1,
        )


def _data(figure: Figure) -> Mapping[str, Any]:
    if figure.data is None:
        raise InputError(f"nothing to draw: {figure.caption}")
    return figure.data


def _of(data: Mapping[str, Any]) -> tuple[list[str], list[float]]:
    return data["ids"], data["values"]


def _ticks(axis: Mapping[str, Any]) -> dict[str, Any]:
    places, texts = zip(*axis["ticks"], strict=True)
    return {"tickvals": places, "ticktext": [escape(text) for text in texts], "range": [-0.06, 1.06]}


def _plot(figure: Figure) -> Plot:
    from plotly.graph_objects import Figure as Plot

    return _titled(Plot(), figure.title, figure.caption).update_layout(height=figure.height + 60)


def _plots(**options: Any) -> Plot:
    from plotly.subplots import make_subplots

    return make_subplots(**options)


def _titled(plot: Plot, title: str, *captions: str) -> Plot:
    lines = [line for caption in captions for line in textwrap.wrap(escape(caption), CAPTION_WIDTH)]
    text = f"{escape(title)}<br><sup>{'<br>'.join(lines)}</sup>"
    return plot.update_layout(
        title={"text": text, "y": 1, "yanchor": "top", "pad": {"t": 16}},
        margin={"t": 56 + 18 * len(lines), "r": 20, "b": 50},
        template="plotly_white",
        hovermode="closest",
    )


@cache
def _colours() -> Mapping[str, str]:
    """The page's colours by day."""
    css = (Path(__file__).parent / "page" / "page.css").read_text()
    return dict(re.findall(r"--(\w+): light-dark\((#\w+),", css))
