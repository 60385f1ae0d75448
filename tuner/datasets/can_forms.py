"""The forms in which CAN recordings are published, as the rows of one table.

A form says what its rows look like. ``can_frames.py`` reads the rows of all forms alike.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import DataError

# The number of each word of a flag, in lower case. It is odd if the frame was injected; number // 2 is the same for
# words that a file may have together.
FLAGS: Mapping[str, int] = {
    **{"r": 0, "t": 1, "0": 2, "0.0": 2, "1": 3, "1.0": 3, "false": 4, "true": 5},
    **dict.fromkeys(("normal", "benign", "none", "attack_free"), 6),
    **dict.fromkeys(("attack", "malicious", "anomaly", "dos", "flooding"), 7),
    **dict.fromkeys(("fuzzing", "spoofing", "replay", "malfunction"), 7),
}
# What a column may be called, in lower-case letters and digits. The first name that is found counts.
NAMES: Mapping[str, Sequence[str]] = {
    "time": ("timestamp", "time", "timestamps", "ts", "abstime", "times", "seconds"),
    "identifier": ("arbitrationid", "canid", "id", "aid", "identifier", "messageid", "msgid", "idhex"),
    "length": ("dlc", "length", "len", "datalength", "datalen", "size"),
    "data": ("data", "datafield", "payload", "databytes", "bytes", "datahex", "message"),
    "flag": ("flag", "label", "class", "attack", "isattack", "tag", "target", "injected", "anomaly"),
}
BYTE = re.compile(r"(?:data|byte|databyte|payload|d|b)([0-8])")  # a column of a single byte
DELIMITERS = ",;\t"
MARKS = ' "()[]#\r\n'  # may stand around a field
HCRL_NAMES = ("Timestamp", "ID", "DLC", "Data", "Flag")

# Splits the end of a row into bytes and flag; an empty flag means that there is none.
Rest = Callable[[str], tuple[str, str]]


def _candump_log(rest: str) -> tuple[str, str]:
    """``candump -x`` adds a direction, which says nothing of attacks. Data sets of attacks add a flag."""
    data, _, flag = rest.rstrip().partition(" ")
    return data, "" if flag in ("R", "T") else flag


@dataclass(frozen=True)
class Form:
    """A form of recordings.

    ``pattern`` has a group for the ``identifier``, perhaps groups for ``time``, ``length`` and ``flag``, and the
    group ``rest`` from the bytes to the end. It is a pattern of RE2, which pyarrow uses, and of Python's ``re``.
    """

    name: str  # with what a row is
    pattern: str
    rest: Rest = lambda rest: (rest.strip(), "")  # bytes alone
    has_header: bool = False  # whether the first line has the columns' names


HCRL = "HCRL's CSV, whose rows are time,hex ID,DLC,bytes in hex,R or T"
SHOWN = r"[A-Za-z]\w*\s+(?P<identifier>\w+)\s+\[(?P<length>\d*)\](?P<rest>.*)$"
FORMS = (
    Form(
        "a candump log, whose rows are (seconds) interface ID#data",
        r"^\s*\((?P<time>[^)]*)\)\s+\S+\s+(?P<identifier>\w+)#(?P<rest>.*)$",
        _candump_log,
    ),
    Form(
        "candump's output, whose rows are (seconds) interface ID [DLC] bytes in hex",
        rf"^\s*\((?P<time>[^)]*)\)\s+{SHOWN}",
    ),
    Form("candump's output, whose rows are interface ID [DLC] bytes in hex", rf"^\s*{SHOWN}"),
    Form(
        "HCRL's text log, whose rows are Timestamp: seconds ID: hex 000 DLC: number bytes in hex",
        r"^\s*Timestamp:\s+(?P<time>\S+)\s+ID:\s+(?P<identifier>\S+)\s+\S+\s+DLC:\s+(?P<length>\S+)(?P<rest>.*)$",
    ),
)


def form_of(line: str, where: str) -> Form:
    """The form of a file with this first line. What is like no other form is taken for HCRL's CSV.

    Raises ``DataError``, beginning with ``where``, if the line has the names of columns that do not tell enough.
    """
    for form in FORMS:
        if re.match(form.pattern, line):
            return form
    delimiter = next((mark for mark in DELIMITERS if mark in line), None)
    columns = [column.strip(MARKS) for column in line.split(delimiter)]
    if not _is_header(columns, delimiter):
        names = HCRL_NAMES if next(filter(None, reversed(columns)), "").lower() in FLAGS else HCRL_NAMES[:-1]
        return Form(HCRL, *_table(names, delimiter))
    name = "a table with column names"
    try:
        return Form(f"{name}, whose rows are as its header says", *_table(columns, delimiter), has_header=True)
    except ValueError as error:
        shown = f"{', '.join(columns):.120}"
        raise DataError(f"{where}: read as {name}, {shown}, but {error}: rename or move the columns") from error


def named_columns(names: Sequence[str]) -> tuple[dict[str, int], list[int]]:
    """Which column is what, by the keys of ``NAMES``, and the columns of a single byte where none has all bytes.

    Raises ``ValueError`` if no column is recognised as the ID, or the bytes.
    """
    plain = [_plain(name) for name in names]
    matches = {key: [plain.index(name) for name in names if name in plain] for key, names in NAMES.items()}
    place = {key: indices[0] for key, indices in matches.items() if indices}
    single = [] if "data" in place else [index for index, name in enumerate(plain) if BYTE.fullmatch(name)]
    if "identifier" not in place or not ("data" in place or single):
        raise ValueError(f"no column is recognised as its {'bytes' if 'identifier' in place else 'ID'}")
    return place, single


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _is_header(columns: Sequence[str], delimiter: str | None) -> bool:
    """Whether a first line names columns: one names the ID, or there are at least three and none is a number."""
    if any(_plain(column) in NAMES["identifier"] for column in columns):
        return True
    words = all(re.fullmatch(r"[A-Za-z][\x20-\x7e]*", column) for column in columns)
    return delimiter is not None and len(columns) >= 3 and words


def _table(names: Sequence[str], delimiter: str | None) -> tuple[str, Rest]:
    """The pattern of a table's rows, and what splits the end of a row; ``None`` stands for blanks.

    Rows may have fewer fields than there are names, or empty ones, where they have fewer bytes.
    """
    place, single = named_columns(names)
    data = single[0] if single else place["data"]
    others = [place.get(key, 0) for key in ("time", "identifier", "length")]
    if max(others) > data or single != list(range(data, data + len(single))):
        raise ValueError("its bytes are not adjacent columns after its time, ID and DLC")
    behind = len(names) - data - max(1, len(single))
    flag = place.get("flag", -1) - (len(names) - behind)  # its place in what is behind; negative if it is not there
    groups = {index: f"(?P<{key}>" for key, index in place.items()}
    field, end = (f"[^{delimiter}]*", delimiter) if delimiter else (r"\S*", r"\s+")
    lead = end.join(f"{groups.get(index, '(?:')}{field})" for index in range(data))

    def rest(text: str) -> tuple[str, str]:
        marked = " " in text or '"' in text
        cells = [cell.strip(MARKS) for cell in text.split(delimiter)] if marked else text.split(delimiter)
        cells = [""] * (behind - len(cells)) + cells
        while flag >= 0 and len(cells) > behind and not cells[flag - behind]:
            cells.pop()  # it fills the row up
        data = " ".join(cells[: len(cells) - behind]).rstrip()
        return data, cells[flag - behind] if flag >= 0 else ""

    return f"^{lead}(?:{end}(?P<rest>.*)|$)", rest
