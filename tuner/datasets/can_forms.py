"""The forms in which CAN recordings are published: how each is known by its first line, and where a row has what.

Forms differ in separators and in the order of fields alone. So ``can_frames.py`` reads the rows of all of them alike,
by the layout that it has from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import DataError

Words = tuple[tuple[str, ...], tuple[str, ...]]  # of normal frames, and of injected ones

# The words of a flag, whatever their capitals. A file has those of one line.
FLAGS: Sequence[Words] = (
    (("R",), ("T",)),
    (("0", "0.0"), ("1", "1.0")),
    (("False",), ("True",)),
    (
        ("Normal", "Benign", "None", "attack_free"),
        ("Attack", "Malicious", "Anomaly", "DoS", "Flooding", "Fuzzing", "Spoofing", "Replay", "Malfunction"),
    ),
)
DIRECTIONS: Words = (("R", "T"), ())  # of ``candump -x``: received and sent
DELIMITERS = ",;\t"
MARKS = '()[]#"'  # stand between fields as blanks do
# What a column may be called, without capitals and all but letters and digits; the first that is found counts.
NAMES: Mapping[str, Sequence[str]] = {
    "time": ("timestamp", "time", "timestamps", "ts", "abstime", "times", "seconds"),
    "identifier": ("arbitrationid", "canid", "id", "aid", "identifier", "messageid", "msgid", "idhex"),
    "length": ("dlc", "length", "len", "datalength", "datalen", "size"),
    "data": ("data", "datafield", "payload", "databytes", "bytes", "datahex", "message"),
    "flag": ("flag", "label", "class", "attack", "isattack", "tag", "target", "injected", "anomaly"),
}
BYTE = re.compile(r"(?:data|byte|databyte|payload|d|b)([0-8])")  # a column of a single byte


@dataclass(frozen=True)
class Layout:
    """Where a row has what, in fields counted from 0."""

    identifier: int
    data: int  # the first byte, or all bytes in one field
    time: int | None = None  # None where rows are only known to be in order of time
    length: int | None = None  # the DLC; None where a row has as many bytes as it shows
    flag: int | None = None  # before the data; None if there is none
    flag_behind: int | None = None  # behind the data, in fields counted from their end; None if there is none
    behind: int = 0  # the number of fields behind the data
    packed: bool = False  # whether a field may have all bytes of a row
    words: Words = FLAGS[0]  # the flag's


@dataclass(frozen=True)
class Form:
    """A form of recordings."""

    name: str
    row: str  # what a row is
    known: Callable[[str], object]  # whether a file is of this form, by its first line
    layout: Callable[[str, str], Layout]  # from its first line and its first row; may raise ``ValueError``
    has_header: bool = False  # whether the first line has the columns' names


def form_of(line: str) -> Form:
    """The form of a file with this first line. What is like no other form is taken for HCRL's CSV."""
    return next(form for form in FORMS if form.known(line))


def layout_of(form: Form, line: str, row: str, where: str) -> Layout:
    """Where the rows of a file have what, by its first line and its first row, which may be the same.

    Raises ``DataError`` if the columns' names do not tell.
    """
    try:
        return form.layout(line, row)
    except ValueError as error:
        names = ", ".join(_columns(line))
        shown = names if len(names) <= 120 else names[:120] + "…"
        raise DataError(f"{where}: read as {form.name}, {shown}, but {error}: rename or move the columns") from error


def words_of(flag: str) -> Words | None:
    """The words of flags of which this is one; None if it is no flag."""
    return next((words for words in FLAGS if is_flag(flag, words)), None)


def is_flag(word: str, words: Words) -> bool:
    """Whether a word is one of these."""
    return any(word.lower() == each.lower() for kind in words for each in kind)


def fields_of(line: str) -> list[str]:
    """A row's fields. Blanks beside a delimiter and double ones do not count; marks are blanks."""
    line = re.sub(f"[ {re.escape(MARKS)}]+", " ", line)
    line = re.sub(f" ?([{DELIMITERS}]) ?", r"\1", line).strip(" ")
    return re.split(f"[ {DELIMITERS}]", line) if line else []


def _columns(line: str) -> list[str]:
    parts = re.split(f"[{DELIMITERS}]", line) if re.search(f"[{DELIMITERS}]", line) else line.split()
    return [part.strip(' "') for part in parts]


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def named_columns(names: Sequence[str]) -> tuple[dict[str, int | None], list[int]]:
    """Which column is what, by the keys of ``NAMES``, and the columns of a single byte where none has all bytes.

    Raises ``ValueError`` if no column is known to be the ID, or the bytes.
    """
    plain = [_plain(each) for each in names]
    place = {key: next((plain.index(name) for name in known if name in plain), None) for key, known in NAMES.items()}
    single = [index for index, name in enumerate(plain) if BYTE.fullmatch(name)] if place["data"] is None else []
    for key, found in (("ID", place["identifier"] is not None), ("bytes", place["data"] is not None or single)):
        if not found:
            raise ValueError(f"no column is known to be its {key}")
    return place, single


def _is_header(line: str) -> bool:
    """Whether these are names: one is that of an ID, or there are three with delimiters and none is a number."""
    columns = _columns(line)
    if any(_plain(each) in NAMES["identifier"] for each in columns):
        return True
    apart = re.search(f"[{DELIMITERS}]", line) is not None
    return apart and len(columns) >= 3 and all(re.fullmatch(r"[A-Za-z][\x20-\x7e]*", each) for each in columns)


def _by_names(line: str, row: str) -> Layout:
    names = _columns(line)
    place, bytes_at = named_columns(names)
    whole, identifier = place["data"], place["identifier"]
    assert identifier is not None
    data = bytes_at[0] if whole is None else whole
    for field in ("time", "identifier", "length"):
        if (place[field] or 0) > data:
            raise ValueError(f"{names[place[field] or 0]!r} stands behind the bytes, of which a row may have fewer")
    if bytes_at and bytes_at != list(range(data, data + len(bytes_at))):
        raise ValueError("the columns of its bytes do not stand side by side")
    behind = len(names) - data - max(1, len(bytes_at))
    layout = Layout(identifier, data, place["time"], place["length"], behind=behind, packed=whole is not None)
    flag, fields = place["flag"], fields_of(row)
    if flag is None:
        return layout
    if flag < data:
        words = words_of(fields[flag]) if flag < len(fields) else None
        return replace(layout, flag=flag, words=words or FLAGS[0])
    # Where no empty fields fill the row up, it is as far from the end as its name is.
    likely = [*fields[data:][flag - len(names) :][:1], *fields[data:]]
    words = next(filter(None, map(words_of, likely)), None)
    return replace(layout, flag_behind=flag - (len(names) - behind), words=words or FLAGS[0])


def _of_csv(line: str, row: str) -> Layout:
    """The first row decides whether rows have a flag."""
    filled = [each for each in fields_of(row)[3:] if each] or [""]
    layout, words = Layout(1, 3, time=0, length=2, packed=len(filled[0]) > 2), words_of(filled[-1])
    return replace(layout, flag_behind=0, behind=1, words=words) if words else layout


def _of_candump_log(line: str, row: str) -> Layout:
    """``candump -x`` adds a direction, which says nothing of attacks; data sets of attacks add a flag."""
    layout, last = Layout(2, 3, time=0, packed=True), row.split()[-1]
    words = DIRECTIONS if is_flag(last, DIRECTIONS) else words_of(last)
    return replace(layout, flag_behind=0, behind=1, words=words) if words else layout


def _of_candump_screen(line: str, row: str) -> Layout:
    timed = line.lstrip().startswith("(")
    return Layout(2, 4, time=0, length=3) if timed else Layout(1, 3, length=2)


FORMS = (
    Form(
        "a candump log",
        "(seconds) interface ID#data",
        re.compile(r"\s*\([^)]*\)\s+\S+\s+\w+#").match,
        _of_candump_log,
    ),
    Form(
        "what candump shows",
        "interface ID [DLC] bytes in hex, with or without (seconds) before it",
        re.compile(r"\s*(\([^)]*\)\s+)?[A-Za-z]\w*\s+\w+\s+\[\d+\]").match,
        _of_candump_screen,
    ),
    Form(
        "HCRL's text log",
        "Timestamp: seconds ID: hex 000 DLC: number bytes in hex",
        re.compile(r"\s*Timestamp:\s+\S+\s+ID:").match,
        lambda line, row: Layout(3, 7, time=1, length=6),
    ),
    Form("a table with column names", "what its first line says", _is_header, _by_names, has_header=True),
    Form("HCRL's CSV", "time,hex ID,DLC,bytes in hex,R or T", lambda line: True, _of_csv),
)
