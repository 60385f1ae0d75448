"""The packages that users' code imports, found without running it."""

import ast
import inspect
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def installed(code: Iterable[object]) -> list[str]:
    """The installed packages that classes, functions and scripts import, also later, with the modules beside them.

    Other machines must have them, too.
    """
    names, there = set[str](), [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    for part in code:
        with suppress(OSError, TypeError, SyntaxError, ValueError):  # no file, as of a notebook's function
            file = part if isinstance(part, Path) else Path(inspect.getsourcefile(part) or "")  # type: ignore[arg-type]
            imported(ast.parse(file.read_bytes()), file.parent, names)
    found = set[str]()
    for name in names - {"tuner"}:
        with suppress(ImportError, ValueError):  # ValueError for a module without a specification
            if (spec := find_spec(name)) and (spec.origin or "").startswith(tuple(there)):
                found.add(name)
    return sorted(found)


def imported(tree: ast.Module, folder: Path, names: set[str]) -> set[str]:
    """The packages that a script and the modules in its folder import, found without running them."""
    packages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    new = packages - names
    names |= new
    for name in new:
        with suppress(OSError, SyntaxError, ValueError):  # no such module in the folder, or one that cannot be parsed
            imported(ast.parse((folder / f"{name}.py").read_bytes()), folder, names)
    return names
