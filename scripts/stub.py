"""The types of the public functions, for editors and mypy: ``tuner/__init__.pyi``, made from the specification."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

HEAD = '''# Made by scripts/generate from the specification in tuner/spec; do not edit.
"""Parallel hyperparameter tuning that gives every trial the memory it needs, and no more."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload
'''

# Of functions that return one of two types, the option without which the first comes back, and with which the second.
DECIDED_BY = {"plan": "gpu"}


def stub(modules: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    """The text of the stub."""
    home = {name: module for module, own in modules.items() for name in own}
    found = {name: getattr(importlib.import_module(module), name) for name, module in home.items()}
    made = {name: found[name] for name in names if hasattr(found[name], "__signature__")}
    others = [f"from {home[name]} import {name} as {name}" for name in names if name not in made]
    functions = [_function(name, function) for name, function in made.items()]
    imports = sorted({line for function in made.values() for line in _imports(function)})
    listed = "".join(f'    "{name}",\n' for name in names)
    parts = [HEAD, "\n".join([*imports, *others]), f"__all__ = [\n{listed}]\n__version__: str\n", *functions]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _function(name: str, function: Callable[..., object]) -> str:
    """A function's types and docstring; an overload for each type that it returns, where an option decides that."""
    signature = inspect.signature(function)
    text = textwrap.indent(f'"""{inspect.cleandoc(function.__doc__ or "")}\n"""', "    ")
    if name not in DECIDED_BY:
        return f"{_head(name, signature)}\n{text}"
    decisive = signature.parameters[DECIDED_BY[name]]
    without, given = str(signature.return_annotation).split(" | ")
    absent = decisive.replace(annotation="None")
    present = decisive.replace(
        annotation=str(decisive.annotation).removesuffix(" | None"), default=inspect.Parameter.empty
    )
    first = _head(name, _with(signature, absent, without))
    second = _head(name, _with(signature, present, given))
    return f"@overload\n{first}\n{text}\n\n@overload\n{second} ..."


def _with(signature: inspect.Signature, parameter: inspect.Parameter, returns: str) -> inspect.Signature:
    parameters = {**signature.parameters, parameter.name: parameter}
    return signature.replace(parameters=list(parameters.values()), return_annotation=returns)


def _head(name: str, signature: inspect.Signature) -> str:
    lines, keyword_only = [f"def {name}("], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    return "\n".join([*lines, f") -> {signature.return_annotation}:"])


def _imports(function: Callable[..., object]) -> list[str]:
    """Imports of the types in a function's signature, as its module and those of its options have them."""
    signature = inspect.signature(function)
    texts = [signature.return_annotation, *(parameter.annotation for parameter in signature.parameters.values())]
    words = {word for text in texts for word in re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", str(text))}
    own = ["groups", "memory_groups", "settings", "commands"]
    modules = [function.__module__, *(f"tuner.spec.{name}" for name in own)]
    texts_of = {module: inspect.getsource(importlib.import_module(module)) for module in modules}
    sources = "\n".join(texts_of.values())
    lines = []
    for word in sorted(words):
        if word.startswith("pd."):
            lines.append("import pandas as pd")
        elif found := re.search(
            rf"^ *from (tuner[\w.]*) import \(?[^)\n]*?\b(?:(\w+) as )?{word}\b", sources, re.MULTILINE
        ):
            lines.append(f"from {found[1]} import {found[2] or word} as {word}")
        elif declared := [
            module
            for module, source in texts_of.items()
            if re.search(rf"^ *(?:class )?{word}\b *[=:(]", source, re.MULTILINE)
        ]:
            lines.append(f"from {declared[0]} import {word} as {word}")
    return lines
