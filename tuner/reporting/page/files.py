"""The page in a file."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from tuner.records.journal import PARTIAL
from tuner.reporting.page.document import page_html, page_start
from tuner.reporting.study_view import StudyView

REPORT = "report.html"


def write_page(study: StudyView, file: Path) -> None:
    """Writes the page as a whole: readers see the old one or the new one. The disk is not waited for.

    Raises:
        OSError: it cannot be written; what was there is still there, and nothing else, also after Ctrl-C.
    """
    check_replaceable(file)
    partial = file.with_name(file.name + PARTIAL)
    try:
        partial.write_text(page_html(study), encoding="utf-8", errors="replace")
        partial.replace(file)
    except BaseException:
        with suppress(OSError):  # another error is on its way
            partial.unlink(missing_ok=True)
        raise


def check_replaceable(file: Path) -> None:
    """Refuses a file that is there and is no page of ours, wherever it is: a study's own files, somebody's notes.

    Raises:
        OSError: it is such a file, or cannot be read.
    """
    if not file.exists():
        return
    start = page_start().encode()
    if file.is_file():  # anything else, such as a pipe, is not even read
        with file.open("rb") as content:
            if content.read(len(start)) == start:
                return
    raise FileExistsError(errno.EEXIST, "it is there, and is no page of tune report")
