"""The plotting library: plotly is imported here, and only when it is needed."""

from __future__ import annotations

from importlib.util import find_spec

from tuner.errors import InputError, not_installed


def check_plotly() -> None:
    """Raises ``InputError`` if plotly is not installed."""
    if find_spec("plotly") is None:
        raise InputError(not_installed("plotly", extra="report"))


def javascript() -> str:
    """The library that shows plots in a browser, 5 MB."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def javascript_name() -> str:
    """The name of a file with that library; it has the version."""
    from plotly.offline import get_plotlyjs_version

    return f"plotly-{get_plotlyjs_version()}.min.js"
