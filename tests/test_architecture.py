"""The structure that docs/architecture.md promises, read off the imports themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tuner

ROOT = Path(tuner.__file__).parent
# What each room may import of tuner, beside itself and EVERYWHERE.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "trial": set(),
    "objective": set(),
    "hyperparameters": set(),
    "values": set(),
    "machine": set(),
    "datasets": {"machine"},
    "decisions": set(),
    "search": {"machine"},
    "workloads": {"datasets", "machine"},
    "training": {"machine", "workloads"},
    "estimation": {"datasets", "machine", "decisions", "training", "workloads"},
    "execution": {"machine", "decisions", "training", "workloads"},
    "records": {"machine", "workloads"},
    "health": {"execution", "machine"},
    "sizing": {"estimation", "machine", "records", "search", "training", "workloads"},
    "reporting": {"machine", "decisions", "records"},
    "spec": {"estimation", "machine", "decisions", "records", "search", "sizing", "workloads"},
    "integrations": {"estimation", "execution", "machine", "decisions", "records", "spec", "training"},
    "study": {
        *("estimation", "execution", "integrations", "machine", "decisions", "records", "reporting", "search"),
        *("sizing", "spec", "training", "workloads"),
    },
    "api": {
        *("datasets", "estimation", "execution", "machine", "decisions", "records", "reporting", "search", "sizing"),
        *("spec", "study", "workloads"),
    },
    "lightning": {"api", "workloads"},
    "optuna": {"decisions", "records", "spec", "study", "workloads"},
    "transformers": {"api", "workloads"},
    "cli": {"api", "health", "records", "reporting", "search", "sizing", "spec", "study", "workloads"},
    "__main__": {"cli", "machine"},
}
TRANSFORMER = "import tuner; tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512)"
EVERYWHERE = {"errors", "trial", "objective", "hyperparameters", "values"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in imports(path):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "tuner":
            names = [f"tuner.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("tuner.")}
    return rooms


@pytest.mark.parametrize("name", ALLOWED)
def test_a_room_imports_only_what_the_architecture_allows(name: str) -> None:
    allowed = ALLOWED[name] | EVERYWHERE | {name}
    others = {path: imported_rooms(path) - allowed for path in ROOT.rglob("*.py") if room(path) == name}
    assert {path: rooms for path, rooms in others.items() if rooms} == {}


def test_every_module_is_in_a_room() -> None:
    door = "__init__"  # every public name, lazily
    assert {room(path) for path in ROOT.rglob("*.py")} == {*ALLOWED, door}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imported_modules(name: str) -> set[str]:
    """Every module of tuner that a module names, also within its functions and for types alone."""
    found = set()
    for node in imports(MODULES[name]):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        else:
            found |= {alias.name for alias in node.names}
    return {module for module in found if module in MODULES and module != "tuner"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Python's own sorter names the circle; ``tuner/__init__.py`` is the door, which nothing within may use."""
    graph = {name: imported_modules(name) for name in MODULES if name != "tuner"}
    assert set(TopologicalSorter(graph).static_order()) == graph.keys()


def test_packages_import_nothing_when_one_of_their_modules_is_imported() -> None:
    packages = [name for name, path in MODULES.items() if path.name == "__init__.py" and name != "tuner"]
    assert [name for name in packages if imported_modules(name)] == []


def test_a_public_class_is_the_only_one_of_its_name() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert sorted(homes.pop("ReportCallback")) == ["tuner.lightning", "tuner.transformers"]  # users import either
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_the_documented_table_says_the_same() -> None:
    table = (ROOT.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w]+)(?:\.py|/)` \|.*\| ([^|]*)\|$", table, flags=re.MULTILINE)
    found = {name: set(re.findall(r"\w+", re.sub(r"\(.*?\)|nothing", "", rooms))) for name, rooms in rows}
    assert found == {name: rooms for name, rooms in ALLOWED.items() if name != "__main__"}


def test_no_room_comes_before_what_it_imports() -> None:
    before: set[str] = set()
    for name, allowed in ALLOWED.items():
        assert allowed <= before, name
        before |= {name}


@pytest.mark.parametrize(
    "code", ["import tuner", "import tuner; tuner.estimate_model_memory()", "import tuner.cli.main", TRANSFORMER]
)
def test_nothing_heavy_comes_through_the_door(code: str) -> None:
    heavy = "{'torch', 'torch_geometric', 'ray', 'pandas', 'numpy', 'optuna'} & set(sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print({heavy})"], capture_output=True, text=True
    )
    assert run.stdout == "set()\n"


def test_no_public_name_is_a_modules() -> None:
    """Importing a submodule sets an attribute of its name, which would then hide the public one."""
    assert set(tuner.__all__) & {path.stem for path in ROOT.iterdir()} == set()


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(tuner, name) is not None for name in tuner.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        tuner.optimise  # noqa: B018
