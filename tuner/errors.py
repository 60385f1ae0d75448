"""Errors that a user can fix, each told in one line: what was wrong, the value, the remedy.

TunerError                 anything that tuner refuses or gives up on, on purpose
├── InputError             an argument, a configuration or a path that cannot be used (exit code 2)
│   ├── ParameterError     one parameter has a value that breaks a rule
│   ├── DataError          a data file that cannot be read or understood
│   └── WorkloadError      a workload's method raises, or returns what cannot be used
└── ExecutionError         the machinery below the trials failed (Ray did not start, a disk is full)

A text names a parameter by ``option("max_workers", 2)``. It is spelled where it is shown: in a terminal as
``--max-workers 2``, and in Python as ``max_workers=2``. ``str`` of an error is Python's spelling.
"""

from __future__ import annotations

import difflib
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DISTRIBUTION = "packtuner"  # our name for pip; "tuner" is another project there
Spelling = Callable[[str, object], str]  # from a parameter and its value, or ``NOT_GIVEN``, to what a user writes
NOT_GIVEN = object()
# Characters that hardly any text of a user has: Unicode keeps them for private use.
_OPEN, _BETWEEN, _CLOSE = "\ue000", "\ue001", "\ue002"
_NAMED = re.compile(f"{_OPEN}([a-z_]+)(?:{_BETWEEN}([^{_CLOSE}]*))?{_CLOSE}")
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in messages
NO_REASON = "no reason was given"
OTHER_METHODS = "use the measured or the static method"  # for a workload whose step cannot be traced
# For a function's step, which cannot be measured either and has no formula.
NO_OTHER_METHOD = "give memory_gb, or leave estimate out, as the peaks of the first trials teach"


def option(parameter: str, value: object = NOT_GIVEN) -> str:
    """A parameter of a public function in a text that is shown to people, with its value if one is given.

    Only ``spelled`` makes it readable.
    """
    if value is NOT_GIVEN:
        return f"{_OPEN}{parameter}{_CLOSE}"
    return f"{_OPEN}{parameter}{_BETWEEN}{json.dumps(value, default=str)}{_CLOSE}"


def in_python(parameter: str, value: object = NOT_GIVEN) -> str:
    """A parameter as Python spells it: ``max_workers=2``."""
    if value is NOT_GIVEN:
        return parameter
    return f"{parameter}={value:g}" if isinstance(value, float) else f"{parameter}={value!r}"


def spelled(text: str, spelling: Spelling = in_python) -> str:
    """A text with its parameters as its reader writes them."""

    def replaced(match: re.Match[str]) -> str:
        try:
            return spelling(match[1], NOT_GIVEN if match[2] is None else json.loads(match[2]))
        except ValueError:  # another's text that happens to have these characters
            return match[0]

    return _NAMED.sub(replaced, text)


def one_line(error: object, most: int | None = None) -> str:
    """A text, such as another library's error, in one line of at most this many characters."""
    try:
        text = str(error)
    except Exception:  # an exception of somebody else's
        text = "an error without a text"
    return " ".join(text.split())[:most]


def printable(text: str, most: int | None = None) -> str:
    """A text without control characters, cut to ``most`` characters.

    Names and errors come from files of others: an escape in them could set a title, or hide what was printed before.
    """
    clean = text
    if not text.replace("\n", "").replace("\t", "").isprintable():  # a fast look at the whole text, which mostly is
        clean = "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)
    return clean if most is None or len(clean) <= most else f"{clean[: most - 1]}…"


def joined(*texts: str | None, by: str = "; ") -> str:
    """The texts that are not empty, in one."""
    return by.join(filter(None, texts))


def is_writable(text: str) -> bool:
    """Whether every file and database can hold a text: it has no character 0 and no bytes that are not UTF-8."""
    return not re.search("[\0\ud800-\udfff]", text)


def with_text(error: Exception) -> Exception:
    """An exception that can be sent to another process: itself, or one with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {one_line(error)}")
    return error


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6) -> str:
    """A question that names what is spelled like ``word``; where nothing is, the other hint."""
    close = difflib.get_close_matches(word, list(words), most, cutoff)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def not_installed(package: str, extra: str = "") -> str:
    """Says that an optional package is missing, with the command that installs it into this Python."""
    return f"the package {package} is not installed: {install_command(package, extra=extra)}"


def install_command(*packages: str, extra: str = "") -> str:
    """The command that installs optional packages into this Python.

    In a checkout it installs our extra, with the versions that we need; by default the extra has the packages' names.
    Elsewhere it installs the packages themselves, as pip does not know where tuner came from.
    """
    import shlex
    import shutil

    beside = Path(sys.executable).parent
    pip = ["pip"] if Path(shutil.which("pip") or "").parent == beside else [sys.executable, "-m", "pip"]
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        packages = ("-e", f"{checkout}[{extra or ','.join(packages)}]")
    return shlex.join([*pip, "install", *packages])


class TunerError(Exception):
    """Base of every error that tuner raises on purpose; its text is one line for the user."""

    exit_code = 1

    def __str__(self) -> str:
        return self.told()

    def told(self, spelling: Spelling = in_python) -> str:
        """The text for a reader: parameters as they spell them, and no control characters."""
        return printable(spelled(self.text, spelling)).replace("\n", "\\n")

    @property
    def text(self) -> str:
        """The raw text with marked parameters, for use in another error's text."""
        return Exception.__str__(self)

    def _render_traceback_(self) -> list[str]:
        """What IPython, and so a notebook, shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InputError(TunerError, ValueError):
    """What the user gave cannot be used. Nothing has been written when this is raised."""

    exit_code = 2


class ParameterError(InputError):
    """A parameter has a value that breaks a rule; the remedy is empty where the rule says what to do."""

    def __init__(self, parameter: str, value: object, rule: str, remedy: str = "") -> None:
        super().__init__(joined(option(parameter, value), rule, remedy, by=": "))
        self.parameter, self.value, self.rule, self.remedy = parameter, value, rule, remedy

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, object, str, str]]:
        return type(self), (self.parameter, self.value, self.rule, self.remedy)


def both_given(first: str, second: str, remedy: str = "leave one of them out") -> InputError:
    """The error of two parameters that exclude each other."""
    return InputError(f"{option(first)} and {option(second)} were both given: {remedy}")


class DataError(InputError):
    """A data set is missing, broken or of an unknown format; names the file and, if known, the line."""


class WorkloadError(InputError):
    """A workload's method raises, or returns what cannot be used: names the method and the remedy."""


class MissingMetric(WorkloadError):
    """A report lacks the metric that trials are compared by, as the reports of all other trials would."""


class ExecutionError(TunerError, RuntimeError):
    """The run itself cannot continue, through no fault of a trial."""


class DevicesLost(ExecutionError):
    """Every device of a study is lost, as with the head of its cluster. Its folder has all that was done."""


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty, without colours."""
    return [line.strip() for line in ANSI.sub("", text).splitlines() if line.strip()] or [NO_REASON]


def last_line(text: str) -> str:
    """The last line of a text: in a traceback, the one that names the error."""
    return lines_of(text)[-1]
