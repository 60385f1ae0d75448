"""The packages that users' code imports, found without running it."""

import ast
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from tuner.workloads.pickling import search_path

MOST_FILES = 300  # beside a script or a function that are read: each takes milliseconds
OTHERS = ("site-packages", "dist-packages")
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))


def installed(code: Iterable[object]) -> list[str]:
    """Of what the code uses, the installed packages. Other machines must have them, too."""
    found = set[str]()
    for name in used(code) - {"tuner"}:
        with suppress(ImportError, ValueError):  # ValueError for a module without a specification
            if (spec := find_spec(name)) and (spec.origin or "").startswith(INSTALLED):
                found.add(name)
    return sorted(found)


def used(code: Iterable[object]) -> set[str]:
    """The packages and modules that code imports, also late, and what the modules beside it import."""
    names = set[str]()
    for tree, folder in _read(code):
        imported(tree, folder, names)
    return names


def on_this_machine(path: Path) -> Path:
    """A file of the study's machine: at its place, or below the current folder, to which its own was sent."""
    below = (Path(*path.parts[begin:]).absolute() for begin in range(1, len(path.parts)))
    return path if path.exists() else next(filter(Path.exists, below), path)


def _read(code: Iterable[object]) -> Iterator[tuple[ast.Module, Path]]:
    """The file of each class, function and script, and the folder from which it imports others."""
    for part in code:
        with suppress(OSError, TypeError):  # no file, as of a notebook's function
            file = part if isinstance(part, Path) else Path(inspect.getsourcefile(part) or "")  # type: ignore[arg-type]
            if tree := _parsed(file):
                folder = "" if isinstance(part, Path) else search_path(part)
                yield tree, Path(folder) if folder else Path(os.path.abspath(file)).parent


def _parsed(file: Path) -> ast.Module | None:
    """None for a file that cannot be read."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's code: who runs it hears them
        return ast.parse(file.read_bytes())
    return None


def _modules(folder: Path, name: str) -> Iterator[Path]:
    """The files of a module or a package in a folder, unless others' packages are there."""
    if name != "tuner" and folder.name not in OTHERS:
        with suppress(OSError):  # a folder is gone meanwhile
            yield from (file for file in (folder / f"{name}.py", *(folder / name).rglob("*.py")) if file.is_file())


def imported(tree: ast.Module, folder: Path, names: set[str]) -> set[str]:
    """The packages that a script and the modules in its folder import, found without running them."""
    trees, left = [tree], MOST_FILES
    while trees:
        packages = set()
        for node in ast.walk(trees.pop(0)):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                packages.add(node.module.partition(".")[0])
        new = sorted(packages - names)
        names.update(new)
        files = list(islice((file for name in new for file in _modules(folder, name)), left))
        left -= len(files)
        trees += filter(None, map(_parsed, files))
    return names
