"""The page as an HTML file that works offline."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from tuner.machine.atomic_files import replacing
from tuner.reporting.figures.style import COLOURS, DARK, FONT
from tuner.reporting.page.parts import json_block
from tuner.reporting.page.sections import main_html
from tuner.reporting.study_view import StudyView

REPORT = "report.html"


def write_page(study: StudyView, file: Path) -> None:
    """Replaces the page as a whole. If an OSError is raised, the old page is still there."""
    check_replaceable(file)
    with replacing(file) as content:
        content.write(page_html(study).encode(errors="replace"))


def check_replaceable(file: Path) -> None:
    """Raises FileExistsError if the file exists and is not a page of tuner's."""
    if not file.exists():
        return
    start = _start().encode()
    if file.is_file():  # a pipe, for example, is not read
        with file.open("rb") as content:
            if content.read(len(start)) == start:
                return
    raise FileExistsError(errno.EEXIST, "it exists and is not a page of tuner report")


def page_html(study: StudyView, *, live: str = "") -> str:
    """The whole page: styles, scripts and content.

    ``live`` is the study's version for a page that asks its server for updates; empty for a file.
    """
    from plotly.offline import get_plotlyjs

    # The table can be used before plotly has been read.
    scripts = [_static("vendor/sortable.min.js") + _static("table.js"), get_plotlyjs(), _static("page.js")]
    return Template(_static("page.html")).substitute(
        policy=escape(_policy(scripts, bool(live))),
        title=escape(f"{study.name} · tuner"),
        style=_style(),
        dark=json_block("dark", json.dumps(DARK)),
        main=main_html(study),
        table=scripts[0],
        plotly=scripts[1],
        script=scripts[2],
        live=escape(live),
    )


def _start() -> str:
    """The beginning of every page, by which it is recognised."""
    return _static("page.html").partition("$")[0]


def _style() -> str:
    colours = "".join(f"--{name}: light-dark({light}, {dark}); " for name, (light, dark) in COLOURS.items())
    return f":root {{ {colours}}}\nbody {{ font-family: {FONT}; }}\n{_static('page.css')}"


def _policy(scripts: Sequence[str], live: bool) -> str:
    """The page's content security policy: only these scripts run, and nothing is loaded from other places."""
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _static(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
