"""Pieces of HTML that the page's sections share. They escape all texts."""

import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from tuner.reporting.figures.chart import Chart


def section(title: str, name: str, content: str) -> str:
    """A section with a heading; ``name`` is the heading's id, ``content`` is HTML."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{content}</section>'


def facts(pairs: Iterable[tuple[str, str]], *, kind: str = "", big: bool = False) -> str:
    """A list of names and texts; ``kind`` is another CSS class, ``big`` means large type."""
    tag = '<dd class="big">' if big else "<dd>"
    listed = "".join(f"<div><dt>{escape(key)}</dt>{tag}{escape(text)}</dd></div>" for key, text in pairs)
    return f'<dl class="{f"facts {kind}".strip()}">{listed}</dl>'


def command(label: str, text: str) -> str:
    """A command with a button that copies it; empty if there is no command."""
    if not text:
        return ""
    return (
        f'<div class="command"><span class="label">{escape(label)}</span><code tabindex="0" role="group" '
        f'aria-label="{escape(label)}">{escape(text)}</code>'
        f'<button type="button" class="copy" aria-label="Copy: {escape(label)}">Copy</button></div>'
    )


def figure(chart: Chart) -> str:
    """A chart's HTML, with its plotly figure as JSON; page.js shows it."""
    heading = f"<h3>{escape(chart.title)}</h3>"
    caption = "".join(f"<p>{escape(line)}</p>" for line in chart.caption.splitlines())
    if chart.plot is None:
        return f'<div class="figure empty">{heading}{caption}</div>'
    narrow = f"min-width:{chart.minimum_width}px;" if chart.minimum_width else ""
    size = f"{narrow}height:{chart.plot.layout.height}px"
    label = escape(f"{chart.title}: {chart.caption}")
    scroll = ' tabindex="0" role="group" aria-label="Plot, can be scrolled sideways"' if narrow else ""
    return (
        f'<figure class="figure">{heading}<figcaption>{caption}</figcaption><div class="scroll"{scroll}>'
        f'<div class="plot" role="img" aria-label="{label}" style="{size}"></div>'
        f"{json_block('drawn', chart.plot.to_json(validate=False))}</div></figure>"
    )


def pair(charts: Iterable[Chart]) -> str:
    """Charts side by side, where the page is wide enough."""
    return f'<div class="pair">{"".join(map(figure, charts))}</div>'


def address(path: str) -> str:
    """A relative path as the address of a link, also where its bytes are not valid text."""
    return escape(quote(os.fsencode(Path(path).as_posix())))


def compact(content: object) -> str:
    """JSON without spaces."""
    return json.dumps(content, separators=(",", ":"))


def in_text(value: object) -> str:
    """An option's value as text."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def json_block(name: str, text: str) -> str:
    """JSON in a page. ``<`` is escaped, so that no text can end the block."""
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" class="{escape(name)}">{escaped}</script>'
