"""Pieces of HTML that several parts of the page are made of; every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def section(title: str, name: str, content: str) -> str:
    """A part of the page under a heading; ``name`` is the heading's id, ``content`` HTML."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{content}</section>'


def facts(pairs: Iterable[tuple[str, str]], *, kind: str = "", big: bool = False) -> str:
    """What is known, each with its name.

    Args:
        pairs: names and texts.
        kind: a further CSS class.
        big: in large type.
    """
    tag = '<dd class="big">' if big else "<dd>"
    listed = "".join(f"<div><dt>{escape(key)}</dt>{tag}{escape(text)}</dd></div>" for key, text in pairs)
    return f'<dl class="{f"facts {kind}".strip()}">{listed}</dl>'


def command(label: str, text: str) -> str:
    """A command with a button that copies it; nothing where there is none."""
    if not text:
        return ""
    return (
        f'<div class="command"><span class="label">{escape(label)}</span><code tabindex="0" role="group" '
        f'aria-label="{escape(label)}">{escape(text)}</code>'
        f'<button type="button" class="copy" aria-label="Copy: {escape(label)}">Copy</button></div>'
    )


def table_box(label: str, table: str) -> str:
    """A table in a box of its own that scrolls, also by the keyboard; ``label`` names it to a screen reader."""
    return f'<div class="scroll table" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
