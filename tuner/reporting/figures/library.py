"""The plotting library: plotly is imported here, and only when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot


def plotly_module(name: str) -> Any:
    """A module of plotly.

    Raises:
        InputError: plotly is not installed.
    """
    try:
        return import_module(f"plotly.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("plotly"):
            raise
        raise InputError("the package plotly is not installed: pip install 'tuner[report]'") from error


def empty_plot(layout: dict[str, object]) -> Plot:
    """A plot with this layout and nothing in it."""
    plot: Plot = plotly_module("graph_objects").Figure(layout=layout)
    return plot


def subplots(plot: Plot, **options: object) -> Plot:
    """The plot with a grid of subplots; ``options`` are those of ``plotly.subplots.make_subplots``."""
    whole: Plot = plotly_module("subplots").make_subplots(figure=plot, **options)
    return whole


def javascript() -> str:
    """The library that shows plots in a browser, 5 MB."""
    text: str = plotly_module("offline").get_plotlyjs()
    return text


def javascript_name() -> str:
    """The name of a file with that library; it has the version."""
    return f"plotly-{plotly_module('offline').get_plotlyjs_version()}.min.js"
