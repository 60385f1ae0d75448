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
    "training": {"workloads", "checkpoints", "offload", "optimizers", "recompute"},
    "recompute": set(),
    "offload": set(),
    "memory": {"datasets", "devices", "offload", "workloads", "training", "peak", "caps"},
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
    "trackers": {"caps", "epochs", "study_folder"},
    "health": {"devices", "execution"},
    "shell": {"cli", "space", "studies", "study_folder", "workloads"},
    "study_folder": {"journal"},
    "browse": {"study_folder"},
    "noise": set(),
    "advice": {"noise", "placement", "settings"},
    "averages": {"browse", "noise", "studies", "study_folder", "workloads"},
    "studies": {"browse", "journal", "study_folder", "workloads"},
    "comparison": {"again", "api", "browse", "studies", "study_folder", "workloads"},
    "views": {
        "browse",
        "capacity",
        "comparison",
        "epochs",
        "journal",
        "noise",
        "study_folder",
        "placement",
        "retry",
        "forecast",
        "optimization",
        "sizing",
    },
    "search": {"space"},
    "live_search": {"epochs", "memory", "planning", "search", "settings", "space", "study_folder", "workloads"},
    "searching": {"live_search", "search", "selection", "settings", "space", "workloads"},
    "steering": {
        "epochs",
        "live_search",
        "memory",
        "planning",
        "recorder",
        "resume",
        "search",
        "study_folder",
        "workloads",
    },
    "settings": {"devices", "memory", "placement", "search", "study_folder", "retry"},
    "planning": {"memory", "placement", "settings", "workloads"},
    "auto_batch": {"memory", "placement", "planning", "settings", "sizing", "workloads"},
    "resume": {"study_folder", "retry", "workloads"},
    "recorder": {"epochs", "execution", "views", "study_folder", "retry", "trackers"},
    "study": {
        "advice",
        "again",
        "auto_batch",
        "browse",
        "devices",
        "memory",
        "placement",
        "planning",
        "execution",
        "journal",
        "study_folder",
        "resume",
        "retry",
        "trackers",
        "views",
        "workloads",
        "interrupts",
        "settings",
        "recorder",
        "epochs",
        "live_search",
        "steering",
    },
    "prerequisites": {"execution", "settings", "study", "study_folder", "views", "workloads"},
    "selection": {"space", "workloads"},
    "estimation": {
        "auto_batch",
        "devices",
        "memory",
        "placement",
        "study_folder",
        "selection",
        "settings",
        "sizing",
        "study",
        "workloads",
    },
    "capacity": {"memory", "placement", "planning", "settings", "workloads"},
    "forecast": {
        "auto_batch",
        "capacity",
        "devices",
        "memory",
        "placement",
        "planning",
        "journal",
        "study_folder",
        "selection",
        "settings",
        "workloads",
    },
    "again": {"selection", "study_folder", "workloads"},
    "weights": {"study_folder", "workloads"},
    "frame": {"noise", "study_folder", "views", "weights"},
    "api": {
        "again",
        "live_search",
        "search",
        "searching",
        "devices",
        "frame",
        "space",
        "memory",
        "placement",
        "prerequisites",
        "selection",
        "settings",
        "study",
        "workloads",
        "datasets",
        "study_folder",
        "resume",
        "retry",
    },
    "past_trial": {"journal", "noise", "resume", "study_folder", "selection", "workloads"},
    "retraining": {
        "again",
        "checkpoints",
        "caps",
        "devices",
        "execution",
        "interrupts",
        "journal",
        "past_trial",
        "planning",
        "views",
        "study_folder",
        "settings",
        "training",
        "workloads",
    },
    "editing": {"journal", "space"},
    "sizing": {
        "caps",
        "devices",
        "editing",
        "journal",
        "memory",
        "optimizers",
        "peak",
        "space",
        "training",
        "workloads",
    },
    "optimization": {"devices", "editing", "memory", "selection", "sizing", "workloads"},
    "optuna_export": {"epochs", "journal", "pages", "studies", "study_folder"},
    "options": {"selection", "shell"},
    "ray_tune": {"caps", "devices", "execution", "memory", "peak", "placement", "retry", "settings", "training"},
    "scaffold": set(),
    "serving": {"epochs", "study_folder", "views"},
    "pages": {"api", "journal", "serving", "studies", "study_folder", "views"},
    "cli": {
        "api",
        "capacity",
        "comparison",
        "estimation",
        "forecast",
        "health",
        "optimization",
        "optuna_export",
        "options",
        "pages",
        "scaffold",
        "shell",
        "study_folder",
        "views",
        "retraining",
        "sizing",
    },
    "__main__": {"cli"},
}
TRANSFORMER = "import tuner; tuner.estimate_gpu_memory_requirements(512, 384, 6, 6, 24, 512)"
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


@pytest.mark.parametrize(
    "code", ["import tuner", "import tuner; tuner.estimate_model_memory()", "import tuner.cli", TRANSFORMER]
)
def test_nothing_heavy_comes_through_the_door(code: str) -> None:
    heavy = "{'torch', 'torch_geometric', 'ray', 'pandas', 'numpy'} & set(sys.modules)"
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
