"""The structure that docs/architecture.md promises, read off the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(tuner.__file__).parent
# What each room may import of tuner, itself apart; every room may import errors and trial.
ALLOWED = {
    "errors": set(),
    "trial": set(),
    "devices": set(),
    "peak": set(),
    "space": set(),
    "datasets": set(),
    "workloads": {"datasets"},
    "checkpoints": {"caps"},
    "optimizers": set(),
    "training": {"workloads", "checkpoints", "optimizers"},
    "memory": {"devices", "workloads", "training", "peak", "caps"},
    "placement": set(),
    "retry": set(),
    "caps": set(),
    "interrupts": set(),
    "execution": {
        "devices",
        "interrupts",
        "workloads",
        "training",
        "placement",
        "retry",
        "peak",
        "caps",
        "checkpoints",
    },
    "journal": set(),
    "epochs": set(),
    "results": {"journal"},
    "views": {"epochs", "journal", "results", "placement", "retry", "forecast"},
    "settings": {"devices", "memory", "placement", "results", "retry"},
    "planning": {"memory", "placement", "settings", "workloads"},
    "resume": {"results", "retry", "workloads"},
    "recorder": {"epochs", "execution", "results", "retry", "views"},
    "study": {
        "devices",
        "memory",
        "placement",
        "planning",
        "execution",
        "journal",
        "results",
        "resume",
        "retry",
        "views",
        "workloads",
        "interrupts",
        "settings",
        "recorder",
    },
    "selection": {"space", "workloads"},
    "estimation": {"devices", "memory", "placement", "results", "selection", "settings", "study", "workloads"},
    "forecast": {
        "devices",
        "memory",
        "placement",
        "planning",
        "journal",
        "results",
        "selection",
        "settings",
        "workloads",
    },
    "api": {
        "devices",
        "space",
        "memory",
        "placement",
        "selection",
        "settings",
        "study",
        "workloads",
        "datasets",
        "results",
        "resume",
        "retry",
    },
    "sizing": {"caps", "devices", "memory", "peak", "training", "workloads"},
    "options": {"selection"},
    "serving": {"epochs", "results", "views"},
    "pages": {"api", "journal", "results", "serving", "views", "workloads"},
    "cli": {"api", "estimation", "forecast", "options", "pages", "results", "views"},
    "__main__": {"cli"},
}
EVERYWHERE = {"errors", "trial"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "tuner":
            names = [f"tuner.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("tuner.")}
    return rooms


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_the_architecture_allows(path: Path) -> None:
    if path == ROOT / "__init__.py":
        return  # the door: every public name, lazily
    assert imported_rooms(path) <= ALLOWED[room(path)] | EVERYWHERE | {room(path)}


@pytest.mark.parametrize("code", ["import tuner", "import tuner; tuner.estimate_model_memory()", "import tuner.cli"])
def test_nothing_heavy_comes_through_the_door(code: str) -> None:
    heavy = "{'torch', 'torch_geometric', 'ray', 'pandas', 'numpy'} & set(sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print({heavy})"], capture_output=True, text=True
    )
    assert run.stdout == "set()\n"


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(tuner, name) is not None for name in tuner.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        tuner.optimise  # noqa: B018
