"""Lists every text of tuner that a user may read, once, so that a reader can go through them in one sitting.

These are the texts of errors, notes, tables, helps and pages: every string of several words outside docstrings, and
the docstrings of commands and of public functions. ``{…}`` stands for what is inserted.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import tuner

PACKAGE = Path(tuner.__file__).parent
PUBLIC = {"cli", "api"}  # the rooms whose docstrings are read as help


def text_of(node: ast.expr) -> str:
    """A string constant, or an f-string with ``{…}`` for its values; empty for another node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{…}" for part in node.values)
    return ""


def docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of all docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines; parts of an f-string are not listed by themselves."""
    tree = ast.parse(path.read_text())
    skipped = set(map(id, docstrings(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and path.relative_to(PACKAGE).parts[0] in PUBLIC:
            yield node.lineno, f"{node.name}(): {ast.get_docstring(node) or ''}"
        if isinstance(node, ast.expr) and id(node) not in skipped and len(text_of(node).split()) > 1:
            yield node.lineno, text_of(node)


def main() -> None:
    """Prints the texts by module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="", help="a folder or module below tuner/; all by default")
    place = PACKAGE / parser.parse_args().folder
    seen = set[str]()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        listed = [(line, text) for line, text in sorted(texts(path)) if text not in seen]
        seen.update(text for _, text in listed)
        print(*[f"\n{path.relative_to(PACKAGE)}"] * bool(listed), *(f"{n:>4} {text}" for n, text in listed), sep="\n")


if __name__ == "__main__":
    main()
