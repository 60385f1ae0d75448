"""The forms in which CAN recordings are published, as the rows of one table.

A form says where a row has its fields. ``can_frames.py`` reads the fields of all forms alike.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tuner.datasets.texts import separator_of
from tuner.errors import DataError, option

KINDS = ("dos", "flooding", "fuzzing", "spoofing", "replay", "malfunction")  # words that say which attack it is
# The number of each word of a flag, in lower case. It is odd if the frame was injected; number // 2 is the same for
# words that a file may have together.
FLAGS: Mapping[str, int] = {
    **{"r": 0, "t": 1, "0": 2, "0.0": 2, "1": 3, "1.0": 3, "false": 4, "true": 5},
    **dict.fromkeys(("normal", "benign", "none", "attack_free"), 6),
    **dict.fromkeys(("attack", "malicious", "anomaly", *KINDS), 7),
}
NORMAL, BINARY, NO_LABEL = 6, range(2, 6), "none"
# What a column may be called, in lower-case letters and digits. The first name that is found counts.
NAMES: Mapping[str, Sequence[str]] = {
    "time": ("timestamp", "time", "timestamps", "ts", "abstime", "times", "seconds"),
    "identifier": ("arbitrationid", "canid", "id", "aid", "identifier", "messageid", "msgid", "arbid", "idhex"),
    "length": ("dlc", "length", "len", "datalength", "datalen", "size"),
    "data": ("data", "datafield", "payload", "databytes", "bytes", "datahex", "message"),
    "flag": ("flag", "label", "class", "attack", "isattack", "tag", "target", "injected", "anomaly"),
}
BYTE = re.compile(r"(?:data|byte|databyte|payload|d|b)([0-8])")  # a column of a single byte
LARGEST_ID = 2**29 - 1  # of an extended frame
MOST_BYTES = 8
NO_BYTE = -1
NO_FLAG = -2  # even, like the numbers of normal frames
DECIMAL = r"\d+(?:\.0+)?"
MARKS = ' "()[]#\r\n'  # may stand around a field
HCRL_NAMES = ("Timestamp", "ID", "DLC", "Data", "Flag")
# The header of python-can's CSV, whose bytes are in base64.
PYTHON_CAN = "timestamp,arbitration_id,extended,remote,error,dlc,data"


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


def says_kind(word: str) -> bool:
    """Whether the flag of an attack, in lower case, says of which kind it is."""
    return word in KINDS or (word not in FLAGS and not word.replace(".", "").isdecimal())


class Columns(NamedTuple):
    """Which column of a table is what."""

    place: Mapping[str, int]  # by the keys of ``NAMES``
    single: Sequence[int]  # the columns of a single byte where none has all bytes
    unread: Sequence[str]  # the names of the others


NO_COLUMNS = Columns({}, (), ())


@dataclass(frozen=True)
class Form:
    """A form of recordings: a log, whose rows have a pattern, or a table.

    ``pattern`` has groups for ``identifier`` and ``data``, perhaps for ``time``, ``length`` and ``flag``. It is a
    pattern of RE2, which pyarrow uses, and of Python's ``re``.
    """

    name: str  # with what a row is
    pattern: str = ""
    most_bytes: int = 8  # of a frame
    left_out: Mapping[str, str] = field(default_factory=dict)  # patterns of lines that are no data frames
    columns: Columns = NO_COLUMNS
    width: int = 0  # the number of columns
    separator: str = ""  # between the fields of a table; empty for blanks
    has_header: bool = False  # whether the first line has the columns' names
    label: LabelColumn | None = None  # the user's, if its column is one of these


HCRL = "HCRL's CSV, whose rows are time,hex ID,DLC,bytes in hex,R or T"
# candump -x adds a direction and two letters, and -a the bytes as characters.
SHOWN = r"[A-Za-z]\w*\s+(?:[RT]X\s+\S\s+\S\s+)?(?P<identifier>\w+)\s+\[(?P<length>\d*)\](?P<data>[^']*)"
OF_SHOWN = {"remote": "remote request", "error": r"ERRORFRAME|\s[23][0-9A-F]{7}\s+\["}
FORMS = (
    Form(
        "a candump log, whose rows are (seconds) interface ID#data",
        # candump -x adds a direction, which says nothing of attacks. Data sets of attacks add a flag.
        r"^\s*\((?P<time>[^)]*)\)\s+\S+\s+(?P<identifier>\w+)#(?:#.)?(?P<data>\S*)(?: [RT]\s*$| (?P<flag>.*)|\s*$)",
        most_bytes=64,
        left_out={"remote": r"[^#]#R[0-9A-Fa-f]?(\s|$)", "error": r"\s[23][0-9A-Fa-f]{7}#"},
    ),
    *(
        Form(
            f"candump's output, whose rows are {time}interface ID [DLC] bytes in hex",
            rf"^\s*{pattern}{SHOWN}",
            most_bytes=64,
            left_out=OF_SHOWN,
        )
        for time, pattern in (("(seconds) ", r"\((?P<time>[^)]*)\)\s+"), ("", ""))
    ),
    Form(
        "HCRL's text log, whose rows are Timestamp: seconds ID: hex 000 DLC: number bytes in hex",
        # python-can shows its messages alike, with letters for the kind of frame and a text or a channel at the end.
        r"^\s*Timestamp:\s+(?P<time>\S+)\s+ID:\s+(?P<identifier>\S+)\s+\S.*?\s+DLC?:\s+(?P<length>\d+)"
        r"(?P<data>.*?)\s*(?:'.*')?\s*(?:Channel: .*)?$",
        most_bytes=64,
        left_out={"remote": r" [SX] [RT]x . R ", "error": r" [SX] [RT]x E "},
    ),
)


def form_of(line: str, where: str, label: LabelColumn) -> Form:
    """The form of a file with this first line. What is like no other form is taken for HCRL's CSV.

    Raises ``DataError``, beginning with ``where``, if the line has the names of columns that do not tell enough.
    """
    for form in FORMS:
        if re.match(form.pattern, line):
            return form
    separator = separator_of(line)
    columns = [column.strip(MARKS) for column in line.split(separator or None)]
    if not _is_header(columns, separator):
        names = HCRL_NAMES if next(filter(None, reversed(columns)), "").lower() in FLAGS else HCRL_NAMES[:-1]
        return Form(HCRL, columns=named_columns(names), width=len(names), separator=separator)
    name = "a table with column names"
    try:
        known = named_columns(columns, label)
    except ValueError as error:
        shown = f"{', '.join(columns):.120}"
        remedy = "" if "label" in str(error) else ": rename or move the columns"
        raise DataError(f"{where}: read as {name}, {shown}, but {error}{remedy}") from error
    return Form(
        f"{name}, whose rows are as its header says",
        columns=known,
        width=len(columns),
        separator=separator,
        has_header=True,
        label=label if label.in_table(columns) else None,
    )


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
    if len(single) > MOST_BYTES:
        raise ValueError(f"it has {len(single)} columns of a byte, more than {MOST_BYTES}")
    for index in (*place.values(), *single):
        if names.count(names[index]) > 1:
            raise ValueError(f"{names.count(names[index])} columns are called {names[index]!r}")
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


def _is_header(columns: Sequence[str], separator: str) -> bool:
    """Whether a first line names columns: one names the ID, or there are at least three and none is a number."""
    if any(_plain(column) in NAMES["identifier"] for column in columns):
        return True
    words = all(re.fullmatch(r"[A-Za-z][\x20-\x7e]*", column) for column in columns)
    return separator != "" and len(columns) >= 3 and words


# Single values: numbers, texts or bytes of parquet, and texts of a text file


def _text(value: object) -> str:
    return (value.decode("latin-1") if isinstance(value, bytes) else str(value)).strip(MARKS)


def _number(value: object, what: str, largest: int, *, decimal: bool = False) -> int:
    if isinstance(value, (int, float)):
        number = int(value) if value % 1 == 0 else -1
    else:
        text = _text(value)
        match = None if decimal else re.fullmatch("(?:0[xX])?([0-9a-fA-F]{1,8})", text)
        number = int(match[1], 16) if match else int(float(text)) if re.fullmatch(DECIMAL, text) else -1
    if not 0 <= number <= largest:
        known = f"decimal number up to {largest}" if decimal else f"hexadecimal number up to {largest:x}"
        raise ValueError(f"{what} {value!r:.40} is not a {known}")
    return number


identifier_value = partial(_number, what="ID", largest=LARGEST_ID)
dlc_value = partial(_number, what="DLC", largest=MOST_BYTES)


def byte_value(value: object, *, decimal: bool = False) -> int:
    """A byte from its own column; ``NO_BYTE`` if the cell is empty."""
    return NO_BYTE if value is None or value == "" else _number(value, "byte", 255, decimal=decimal)


def are_decimal(words: Collection[str]) -> bool:
    """Whether bytes with a column each are decimal: none has letters, and not all have the two digits of hex."""
    padded = any(len(word) == 2 and word[0] == "0" for word in words)
    lengths = {len(word) for word in words}
    return all(re.fullmatch(DECIMAL, word) for word in words) and (max(lengths) > 2 or (1 in lengths and not padded))


def flag_value(value: object, label: LabelColumn | None = None) -> tuple[int, str]:
    """The number of a flag, as in ``FLAGS``, and the flag in lower case."""
    word = _text(value).lower()
    if label and (word or label.normal is not None):
        return label.flag(word), word
    if word and word not in FLAGS:
        raise ValueError(f"flag {value!r:.40} is neither normal (R, 0, Normal) nor injected (T, 1, Attack)")
    return FLAGS.get(word, NO_FLAG), word


def bytes_of(value: object, most: int = MOST_BYTES) -> bytes:
    """A frame's bytes, of texts in two hexadecimal digits each, with a blank between any two or with none."""
    data = value
    if not isinstance(data, bytes):
        text = re.sub("0[xX]", "", str(value)) if "x" in str(value).lower() else str(value)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if len(text) != 2 * len(data) and len(text) != 3 * len(data) - 1:
            raise ValueError(f"bytes {text!r:.40} are not of two hexadecimal digits each")
    if len(data) > most:
        raise ValueError(f"{len(data)} bytes, more than {most}")
    return data
