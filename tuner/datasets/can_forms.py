"""The forms in which CAN recordings are published, as the rows of one table.

A form says what its rows look like. ``can_frames.py`` reads the rows of all forms alike.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.datasets.texts import separator_of
from tuner.errors import DataError, option

# The number of each word of a flag, in lower case. It is odd if the frame was injected; number // 2 is the same for
# words that a file may have together.
FLAGS: Mapping[str, int] = {
    **{"r": 0, "t": 1, "0": 2, "0.0": 2, "1": 3, "1.0": 3, "false": 4, "true": 5},
    **dict.fromkeys(("normal", "benign", "none", "attack_free"), 6),
    **dict.fromkeys(("attack", "malicious", "anomaly", "dos", "flooding"), 7),
    **dict.fromkeys(("fuzzing", "spoofing", "replay", "malfunction"), 7),
}
NORMAL, BINARY, NO_LABEL = 6, range(2, 6), "none"
# What a column may be called, in lower-case letters and digits. The first name that is found counts.
NAMES: Mapping[str, Sequence[str]] = {
    "time": ("timestamp", "time", "timestamps", "ts", "abstime", "times", "seconds"),
    "identifier": ("arbitrationid", "canid", "id", "aid", "identifier", "messageid", "msgid", "idhex"),
    "length": ("dlc", "length", "len", "datalength", "datalen", "size"),
    "data": ("data", "datafield", "payload", "databytes", "bytes", "datahex", "message"),
    "flag": ("flag", "label", "class", "attack", "isattack", "tag", "target", "injected", "anomaly"),
}
BYTE = re.compile(r"(?:data|byte|databyte|payload|d|b)([0-8])")  # a column of a single byte
MARKS = ' "()[]#\r\n'  # may stand around a field
HCRL_NAMES = ("Timestamp", "ID", "DLC", "Data", "Flag")

# Splits the end of a row into bytes and flag; an empty flag means that there is none.
Rest = Callable[[str], tuple[str, str]]


class LabelColumn(NamedTuple):
    """What a user says of the flags of tables with names of columns."""

    column: str | None = None  # the column of the flags; ``NO_LABEL`` if no frame is an attack
    normal: str | None = None  # the value of normal frames

    def in_table(self, names: Sequence[str]) -> bool:
        """Whether this is the column of a table."""
        return self.column in names

    def flag(self, word: str) -> int:
        """The number of a value in lower case, as in ``FLAGS``, of which all but the normal ones are attacks."""
        if self.normal is not None:
            return NORMAL + (word != self.normal.lower())
        plain, number = _plain(self.column or ""), FLAGS.get(word, 1)
        says_normal = ("normal" in plain and "abnormal" not in plain) or "benign" in plain  # 1 is normal
        return NORMAL + (number % 2 ^ (says_normal and number in BINARY))


NOT_SAID = LabelColumn()


def _candump_log(rest: str) -> tuple[str, str]:
    """``candump -x`` adds a direction, which says nothing of attacks. Data sets of attacks add a flag."""
    data, _, flag = rest.rstrip().partition(" ")
    return data[2:] if data.startswith("#") else data, "" if flag in ("R", "T") else flag


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
    is_padded: bool = False  # whether rows may have more bytes than their length says
    most_bytes: int = 8  # of a frame
    left_out: Mapping[str, str] = field(default_factory=dict)  # patterns of lines that are no data frames
    unread: Sequence[str] = ()  # the columns that nothing is read of
    label: LabelColumn | None = None  # the user's, if its column is one of these


HCRL = "HCRL's CSV, whose rows are time,hex ID,DLC,bytes in hex,R or T"
# candump -x adds a direction and two letters, and -a the bytes as characters.
SHOWN = r"[A-Za-z]\w*\s+(?:[RT]X\s+\S\s+\S\s+)?(?P<identifier>\w+)\s+\[(?P<length>\d*)\](?P<rest>.*)$"
OF_SHOWN = {"remote": "remote request", "error": r"ERRORFRAME|\s[23][0-9A-F]{7}\s+\["}
FORMS = (
    Form(
        "a candump log, whose rows are (seconds) interface ID#data",
        r"^\s*\((?P<time>[^)]*)\)\s+\S+\s+(?P<identifier>\w+)#(?P<rest>.*)$",
        _candump_log,
        most_bytes=64,
        left_out={"remote": r"[^#]#R[0-9A-Fa-f]?(\s|$)", "error": r"\s[23][0-9A-Fa-f]{7}#"},
    ),
    *(
        Form(
            f"candump's output, whose rows are {time}interface ID [DLC] bytes in hex",
            rf"^\s*{pattern}{SHOWN}",
            lambda rest: (rest.partition("'")[0].strip(), ""),
            most_bytes=64,
            left_out=OF_SHOWN,
        )
        for time, pattern in (("(seconds) ", r"\((?P<time>[^)]*)\)\s+"), ("", ""))
    ),
    Form(
        "HCRL's text log, whose rows are Timestamp: seconds ID: hex 000 DLC: number bytes in hex",
        r"^\s*Timestamp:\s+(?P<time>\S+)\s+ID:\s+(?P<identifier>\S+)\s+\S+\s+DLC:\s+(?P<length>\S+)(?P<rest>.*)$",
    ),
)


def form_of(line: str, where: str, label: LabelColumn) -> Form:
    """The form of a file with this first line. What is like no other form is taken for HCRL's CSV.

    Raises ``DataError``, beginning with ``where``, if the line has the names of columns that do not tell enough.
    """
    for form in FORMS:
        if re.match(form.pattern, line):
            return form
    delimiter = separator_of(line) or None
    columns = [column.strip(MARKS) for column in line.split(delimiter)]
    if not _is_header(columns, delimiter):
        names = HCRL_NAMES if next(filter(None, reversed(columns)), "").lower() in FLAGS else HCRL_NAMES[:-1]
        return Form(HCRL, *_table(named_columns(names), len(names), delimiter))
    name = "a table with column names"
    try:
        known = named_columns(columns, label)
        pattern, rest = _table(known, len(columns), delimiter)
    except ValueError as error:
        shown = f"{', '.join(columns):.120}"
        remedy = "" if "label" in str(error) else ": rename or move the columns"
        raise DataError(f"{where}: read as {name}, {shown}, but {error}{remedy}") from error
    return Form(
        f"{name}, whose rows are as its header says",
        pattern,
        rest,
        True,
        bool(known.single),
        unread=known.unread,
        label=label if label.in_table(columns) else None,
    )


class Columns(NamedTuple):
    """Which column of a table is what."""

    place: Mapping[str, int]  # by the keys of ``NAMES``
    single: Sequence[int]  # the columns of a single byte where none has all bytes
    unread: Sequence[str]  # the names of the others


def named_columns(names: Sequence[str], label: LabelColumn = NOT_SAID) -> Columns:
    """Raises ``ValueError`` if no column is recognised as the ID, as the bytes, or as the flag where one may be."""
    plain = [_plain(name) for name in names]
    matches = {key: [plain.index(name) for name in names if name in plain] for key, names in NAMES.items()}
    place = {key: indices[0] for key, indices in matches.items() if indices}
    if label.column == NO_LABEL:
        place.pop("flag", None)
    elif label.in_table(names):
        place["flag"] = names.index(str(label.column))
    single = [] if "data" in place else [index for index, name in enumerate(plain) if BYTE.fullmatch(name)]
    if "identifier" not in place or not ("data" in place or single):
        missing = "bytes" if "identifier" in place else "ID"
        raise ValueError(f"no column is recognised as its {missing}")
    used = {names[index] for index in (*place.values(), *single)}
    others = [index for index, name in enumerate(names) if plain[index] and name not in used]
    behind = [names[index] for index in others if index > max(place.get("data", 0), *single, 0)]
    if behind and "flag" not in place and label.column != NO_LABEL:
        raise ValueError(
            f"no column is recognised as its label, and {', '.join(behind)} would not be read: give "
            f"{option('label', behind[-1])} if that says which frames are attacks, or {option('label', NO_LABEL)}"
        )
    return Columns(place, single, [names[index] for index in others])


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _is_header(columns: Sequence[str], delimiter: str | None) -> bool:
    """Whether a first line names columns: one names the ID, or there are at least three and none is a number."""
    if any(_plain(column) in NAMES["identifier"] for column in columns):
        return True
    words = all(re.fullmatch(r"[A-Za-z][\x20-\x7e]*", column) for column in columns)
    return delimiter is not None and len(columns) >= 3 and words


def _table(columns: Columns, count: int, delimiter: str | None) -> tuple[str, Rest]:
    """The pattern of a table's rows, and what splits the end of a row; ``None`` stands for blanks.

    Rows may have fewer fields than the ``count`` of names, or empty ones, where they have fewer bytes.
    """
    place, single, _ = columns
    data = single[0] if single else place["data"]
    others = [place.get(key, 0) for key in ("time", "identifier", "length")]
    if max(others) > data or single != list(range(data, data + len(single))):
        raise ValueError("its bytes are not adjacent columns after its time, ID and DLC")
    behind = count - data - max(1, len(single))
    flag = place.get("flag", -1) - (count - behind)  # its place in what is behind; negative if it is not there
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
