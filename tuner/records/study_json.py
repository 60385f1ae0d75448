"""``study.json``: what a study is made of, and by what it was begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import InputError

STUDY = "study.json"
AUTO_BATCH = "auto_batch"  # in study.json: what each batch that was to be found came to, by trial id
# What its values are.
KINDS = {"classes": dict, "configurations": list, "metrics": dict, "plan": dict, "settings": dict, "seeds": int}
RESTORE = "restore it from a copy, or start a new study"


def read_study(path: Path, option: str = "--resume") -> dict[str, Any]:
    """What ``study.json`` says of a study.

    Args:
        path: the study's folder.
        option: by which the user named it, for messages.

    Raises:
        InputError: the folder is not there, or it is not a study's.
    """
    try:
        study = json.loads((path / STUDY).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        what = (
            f"holds no {STUDY}" if path.is_dir() else "is no folder" if path.exists() else "there is no such folder"
        )
        raise InputError(f"{option} {path}: {what}; give the folder of a study") from error
    except OSError as error:
        raise InputError(f"{option} {path}: {STUDY} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{option} {path}: {STUDY} is damaged ({error}); {RESTORE}") from error
    if not isinstance(study, dict) or "workload" not in study:
        raise InputError(f"{option} {path}: its {STUDY} is not tuner's; give the folder of a study")
    for key, kind in KINDS.items():
        if key in study and not isinstance(study[key], kind):
            raise InputError(f"{option} {path}: {STUDY} is damaged ({key} is {study[key]!r}); {RESTORE}")
    return study


def workloads(study: Mapping[str, Any]) -> list[str]:
    """The names of a study's workloads, of which ``study.json`` has a list only where there are several."""
    named = study["workload"]
    return [str(each) for each in named] if isinstance(named, list) else [str(named)]


def classes(study: Mapping[str, Any]) -> Mapping[str, str | None]:
    """Where a study's workloads are found that are not built in: ``module:Class`` by name, None for no module."""
    found: Mapping[str, str | None] = study.get("classes", {})
    return found
