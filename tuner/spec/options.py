"""How an option is declared, and what is made of the declaration: checks, signatures, docstrings.

A class of ``Options`` has a field for each option of a command and of the public function of the same name. A field
is the only place where its name, type, default, bounds and description stand. ``tuner.cli.options`` makes the command
line of it, ``public`` the function that people call, and ``scripts/generate`` the types that editors and mypy see.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUndefined

from tuner.errors import InputError, ParameterError, in_python, spelled

WIDTH = 118  # of a docstring's lines
ALIKE = 0.75  # from 0 to 1, how much alike two spellings must be


def _path(given: str) -> str:
    if not given:
        raise PydanticCustomError("empty_path", "must not be empty: give a path, or leave it out")
    return given


PathText = Annotated[str, AfterValidator(_path)]
Texts = Annotated[Sequence[str], AfterValidator(tuple)]
SHOWN = {  # what callers see of types that convert what is given
    "PathText": "str | PathLike[str]",
    "Texts": "Sequence[str]",
    "Callbacks": "Sequence[Callable[[object], object]]",
    "Constraints": "str | Sequence[str]",
    "OptionTexts": "Mapping[str, object] | Sequence[str]",
    "Listed": "str | Sequence[str]",
    "Data": "str | Mapping[str, str] | object",
    "Columns": "str | Mapping[str, str] | None",
    "Time": "str | float | None",
    "Ranks": "str | int",
    "Memory": "float | Callable[[dict[str, Any]], float] | None",
    "EstimationMethod": "str",
    "Metrics": "str | Sequence[str]",
    "Score": "str",
    "Directions": "str | Sequence[str]",
}

WORDS = {  # ours for pydantic's
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
    "a valid number": "a number",
    "a valid integer": "a whole number",
    "a valid string": "a text",
    "a valid boolean": "True or False",
    "an instance of Sequence": "a text, or a list of texts",
    "'str' instances are not allowed as a Sequence value": "must be a list of texts",
}

T = TypeVar("T")
R = TypeVar("R")
Given = TypeVar("Given", bound="Options")


SHARES = "a trial's share of a device follows from its memory, which is estimated, or given by memory_gb"


@dataclass(frozen=True)
class Terminal:
    """How the command line shows an option; what it leaves out is made of the field."""

    metavar: str = ""  # what stands for the value in the help, such as ``GB``
    flag: str = ""  # the option's spelling, where it is not the field's name
    unset: str = ""  # what happens without the option, where the default is None or empty
    choices: tuple[str, ...] = ()  # what the value may be, where its type does not say that
    argument: bool = False  # it is an argument without a flag
    in_python: str = ""  # what Python takes besides, in a sentence
    hidden: bool = False  # it can be given in Python alone
    common: bool = False  # the short help of the program has it
    aliases: tuple[str, ...] = ()  # what other programs call it: understood, but shown nowhere


def field(
    default: T,
    doc: str,
    terminal: Terminal = Terminal(),
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> T:
    """A field of ``Options``."""
    extra = cast("dict[str, JsonValue]", {"terminal": terminal})
    return Field(default, description=doc, json_schema_extra=extra, ge=ge, gt=gt, le=le)


def required(doc: str) -> Any:
    """A field of ``Options`` that must be given."""
    return field(PydanticUndefined, doc)


class Options(BaseModel):
    """The options of a command: each is a field, checked as an object is made.

    A class that other classes are put together from is a group; the help of the command line shows the fields that it
    declares under its ``title``.

    Attributes:
        positional: the fields that Python takes by position as well, in this order.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False, defer_build=True
    )
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **values: object) -> None:
        """Checks every value."""
        fields = type(self).model_fields
        plain = {name: _plain(value, fields[name]) if name in fields else value for name, value in values.items()}
        try:
            super().__init__(**plain)
        except ValidationError as error:
            refused = [_refusal(one) for one in error.errors(include_url=False)]
            raise refused[0] if len(refused) == 1 else InputError("; ".join(one.text for one in refused)) from None

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """The options with these values; those that it has not are left out."""
        return cls(**{name: value for name, value in values.items() if name in cls.model_fields})

    def changed(self, **values: object) -> Self:
        """The same with other values, which count as given."""
        return type(self)(**{**self.given(), **values})

    def given(self) -> dict[str, object]:
        """The options that were given, if only with their defaults, and their values."""
        return {name: getattr(self, name) for name in self.names() if name in self.model_fields_set}

    def values(self) -> dict[str, object]:
        """Every option and its value, in their order."""
        return {name: getattr(self, name) for name in self.names()}

    def changes(self) -> dict[str, object]:
        """The options that have not their defaults, and their values."""
        return {name: value for name, value in self.values().items() if value != self.default(name)}

    @classmethod
    def names(cls) -> list[str]:
        """The options' names: group after group, each in the order of its declaration."""
        return list(cls.titles())

    @classmethod
    @functools.cache
    def titles(cls) -> dict[str, str]:
        """The title of each option's group, by the option's name."""
        return {
            name: str(group.model_config.get("title") or "Options")
            for group in cls.groups()
            for name in group.declared()
            if name in cls.model_fields
        }

    @classmethod
    def declared(cls) -> Mapping[str, str]:
        """What this class itself declares: types as they are written, by name."""
        return cast("Mapping[str, str]", vars(cls).get("__annotations__", {}))

    @classmethod
    def groups(cls) -> Iterator[type[Options]]:
        """The classes that this one is put together from, and then itself."""
        seen: dict[type[Options], None] = {}
        for base in cls.__bases__:
            if issubclass(base, Options):
                seen |= dict.fromkeys(base.groups())
        return iter([*seen, cls])

    @classmethod
    def default(cls, name: str) -> object:
        """An option's default; ``inspect.Parameter.empty`` where it must be given."""
        default = cls.model_fields[name].default
        return inspect.Parameter.empty if default is PydanticUndefined else default

    @classmethod
    def declared_type(cls, name: str) -> str:
        """An option's type as its declaration writes it."""
        return next(group.declared()[name] for group in reversed([*cls.groups()]) if name in group.declared())

    @classmethod
    def terminal(cls, name: str) -> Terminal:
        """How the command line shows an option."""
        extra = cls.model_fields[name].json_schema_extra
        return cast(Terminal, cast("Mapping[str, object]", extra)["terminal"])

    @classmethod
    def signature(cls) -> inspect.Signature:
        """The signature of the function that takes these options."""
        order = [*cls.positional, *(name for name in cls.names() if name not in cls.positional)]
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD
                    if name in cls.positional
                    else inspect.Parameter.KEYWORD_ONLY,
                    default=cls.default(name),
                    annotation=public_type(cls.declared_type(name)),
                )
                for name in order
            ]
        )

    @classmethod
    def arguments_text(cls) -> str:
        """The ``Args:`` of that function's docstring."""
        lines = ["Args:"]
        for name in cls.signature().parameters:
            terminal = cls.terminal(name)
            unset = f"By default {terminal.unset}." if terminal.unset else ""
            sentences = filter(None, [cls.model_fields[name].description, terminal.in_python, unset])
            text = spelled(f"{name}: {' '.join(sentences)}", in_python)
            lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="        ")
        return "\n".join(lines)


def _plain(value: object, info: FieldInfo) -> object:
    """What stands for a plain value, as that: a scalar of numpy, a path, 2.0 for 2, and 1 for True."""
    kinds = {info.annotation, *get_args(info.annotation)}
    if kinds & {bool, int, float} and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if kinds & {str, PathText} and isinstance(value, os.PathLike):
        return os.fspath(value)
    if int in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return bool(value) if bool in kinds and isinstance(value, int) and value in (0, 1) else value


def public_type(declared: str) -> str:
    """A field's type as a caller sees it."""
    for name, shown in SHOWN.items():
        declared = re.sub(rf"\b{name}\b", shown, declared)
    return declared


class Public(Protocol[Given, R]):
    """A public function: people give each option by its name; other code gives them all as one object, to ``of``."""

    of: Callable[[Given], R]

    def __call__(self, *args: object, **named: object) -> R:
        """Takes each option by its name."""


def public(options: type[Given]) -> Callable[[Callable[[Given], R]], Public[Given, R]]:
    """Makes a function of one ``Options`` object the public one that takes each option by its name.

    Its docstring has the options' ``Args:`` before ``Returns:`` or ``Raises:``.
    """

    def decorate(function: Callable[[Given], R]) -> Public[Given, R]:
        signature = options.signature()

        @functools.wraps(function)
        def called(*args: object, **named: object) -> R:
            if unknown := [name for name in named if name not in signature.parameters]:
                raise TypeError(f"{function.__name__}() {_unexpected(unknown, options)}")
            try:
                given = signature.bind(*args, **named).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(options(**given))

        returns = inspect.signature(function).return_annotation
        vars(called).update(of=function, __signature__=signature.replace(return_annotation=returns))
        called.__doc__ = docstring(function.__doc__ or "", options)
        called.__annotations__ = {}
        return cast("Public[Given, R]", called)

    return decorate


def _unexpected(unknown: Sequence[str], options: type[Options]) -> str:
    """Which arguments do not exist, and for each what was most likely meant."""
    names = {name: name for name in options.names()}
    for name in options.names():
        names |= {alias.lstrip("-").replace("-", "_"): name for alias in options.terminal(name).aliases}
    texts = []
    for name in unknown:
        close = difflib.get_close_matches(name, names, 1, ALIKE)
        hint = SHARES if name == "resources_per_trial" else f"did you mean {names[close[0]]}?" if close else ""
        texts.append(f"{name!r}: {hint}" if hint else repr(name))
    what = "an unexpected keyword argument" if len(texts) == 1 else "unexpected keyword arguments"
    return f"got {what} {'; '.join(texts)}"


def docstring(text: str, options: type[Options]) -> str:
    """A function's docstring with what it says of its options."""
    head, *rest = inspect.cleandoc(text).split("\n\n")
    place = next((number for number, part in enumerate(rest) if part.startswith(("Returns:", "Raises:"))), len(rest))
    return "\n\n".join([head, *rest[:place], options.arguments_text(), *rest[place:]])


def _refusal(error: ErrorDetails) -> InputError:
    """The error of a value that breaks its rule."""
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, InputError):
        return raised
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        return InputError(f"there is no option {name}")
    rule = error["msg"]
    for theirs, ours in WORDS.items():
        rule = rule.replace(theirs, ours)
    return ParameterError(name, error["input"], rule[:1].lower() + rule[1:])
