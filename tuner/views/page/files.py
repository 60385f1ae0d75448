"""The page in a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tuner.journal import PARTIAL
from tuner.views.page.document import page_html
from tuner.views.page.study import PageStudy

REPORT = "report.html"


def write_page(study: PageStudy, file: Path) -> None:
    """Writes the page as a whole: readers see the old one or the new one. The disk is not waited for.

    Raises:
        OSError: it cannot be written; the old one is still there, and nothing else, also after Ctrl-C.
    """
    partial = file.with_name(file.name + PARTIAL)
    try:
        partial.write_text(page_html(study), encoding="utf-8", errors="replace")
        partial.replace(file)
    except BaseException:
        with suppress(OSError):  # another error is on its way
            partial.unlink(missing_ok=True)
        raise
