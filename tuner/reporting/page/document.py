"""The page as an HTML file that works offline."""

import base64
import errno
import gzip
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from tuner.machine.safe_files import replacing
from tuner.records.row_queries import SHORT
from tuner.reporting.figures.chart import javascript, javascript_name
from tuner.reporting.figures.style import COLOURS, DARK, FONT
from tuner.reporting.page.parts import address, json_block
from tuner.values import GRAMMAR

REPORT = "report.html"
SCRIPTS = (("conditions.js", "table.js"), ("panel.js", "plots.js", "page.js"))  # before plotly, and after it
NAMES = {short: column for column, short in SHORT.items()}
RESULTS = "results"  # the name of a folder in which all studies share the plotting library


@dataclass(frozen=True)
class Page:
    """What a page shows."""

    title: str  # text
    main: str  # HTML


def write_page(page: Page, file: Path, library: Path | None = None) -> None:
    """Replaces the page as a whole. If an OSError is raised, the old page is still there.

    Args:
        page: the content.
        file: the page's file.
        library: the file of the plotting library, which is written if it is not there; None puts it into the page.
    """
    check_replaceable(file)
    if library:
        _write_library(library)
    beside = address(os.path.relpath(library, file.parent.resolve())) if library else ""
    with replacing(file) as content:
        content.write(page_html(page, library=beside).encode(errors="replace"))


def library_file(folder: Path, page: Path) -> Path:
    """The file of the plotting library for a page of the study in this folder.

    All studies in a folder with the name ``results`` share it. Elsewhere it is in the study's own folder, as nothing
    is written into folders that are not for studies. A folder is passed over if it cannot be written into, or if the
    file there is another user's; the last choice is beside the page.
    """
    folder, name = folder.resolve(), javascript_name()
    places = [*([folder.parent] if folder.parent.name == RESULTS else []), folder, page.parent.resolve()]
    usable = (place for place in places if os.access(place, os.W_OK) and _of_nobody_else(place / name))
    return next(usable, places[-1]) / name


def _of_nobody_else(file: Path) -> bool:
    """Whether the file is this user's or not there: its owner can change at any time what a page runs."""
    try:
        return file.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return True


def check_replaceable(file: Path) -> None:
    """Raises FileExistsError if the file exists and is not a page of tuner's."""
    if not file.exists():
        return
    start = _start().encode()
    if file.is_file():  # a pipe, for example, is not read
        with file.open("rb") as content:
            if content.read(len(start)) == start:
                return
    raise FileExistsError(errno.EEXIST, "it exists and is not a page of `tuner report`")


def page_html(page: Page, *, live: str = "", library: str | None = "") -> str:
    """The whole page: styles, scripts and content.

    Args:
        page: the content.
        live: the study's version for a page that asks its server for updates; empty for a file.
        library: the address of the plotting library as HTML; empty packs it into the page, None leaves it out.
    """
    # The table can be used before plotly has been read.
    table, script = ("".join(map(_static, names)) for names in SCRIPTS)
    # Only whoever writes the page knows this: no text in the page can contain a digest of the page.
    nonce = _digest(page.main + table + script)
    connect = "'self'" if live else "'none'"
    return Template(_static("page.html")).substitute(
        # Only the page's own scripts run, and nothing is loaded from other places.
        policy=f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'",
        title=escape(f"{page.title} · tuner"),
        style=_style(),
        constants=json_block("dark", json.dumps(DARK))
        + json_block("grammar", json.dumps({**GRAMMAR, "short": NAMES})),
        main=page.main,
        nonce=nonce,
        table=table,
        plotly=f'<script nonce="{nonce}" src="{library}"></script>' * bool(library),
        script=_packed(script, nonce) if library == "" else f'<script nonce="{nonce}">{script}</script>',
        live=escape(live),
    )


def inline_html(page: Page) -> str:
    """A page as a frame of a notebook's cell; without the plotting library where it has no plot."""
    content = page_html(page, library="" if 'class="plot"' in page.main else None)
    return (
        f'<iframe srcdoc="{escape(content)}" title="{escape(page.title)}" '
        'style="width:100%;height:760px;border:0"></iframe>'
    )


def _packed(script: str, nonce: str) -> str:
    """The plotting library, compressed to 1.9 MB, and the script that follows it; a loader starts both in turn."""
    waiting = "".join(
        f'<script type="text/plain" class="{name}">{text}</script>'
        for name, text in (("packed", _packed_library()), ("then", script))
    )
    return f'{waiting}<script nonce="{nonce}">{_static("unpack.js")}</script>'


@cache
def _packed_library() -> str:
    return base64.b64encode(gzip.compress(javascript().encode(), mtime=0)).decode()


def _write_library(file: Path) -> None:
    """Writes the plotting library, unless the file has this very content."""
    content = javascript().encode()
    if file.is_file() and not file.is_symlink() and file.read_bytes() == content:
        return
    temporary = file.with_name(f"{file.name}.{os.getpid()}")  # another study may be writing it as well
    with replacing(temporary) as partial:
        partial.write(content)
    temporary.replace(file)


def _start() -> str:
    """The beginning of every page, by which it is recognised."""
    return _static("page.html").partition("$")[0]


def _style() -> str:
    colours = "".join(f"--{name}: light-dark({light}, {dark}); " for name, (light, dark) in COLOURS.items())
    return f":root {{ {colours}}}\nbody {{ font-family: {FONT}; }}\n{_static('page.css')}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode(errors="replace")).digest()).decode()


def _static(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
