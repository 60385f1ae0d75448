"""The best model of a study, from the weights that it kept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError, one_line
from tuner.records.files import BEST, STUDY, TRAIN, best_name
from tuner.records.study_record import read_study
from tuner.records.training_record import read_training
from tuner.workloads.built_in import BUILT_IN
from tuner.workloads.lookup import WAS_OBJECT, Classes, find_workload
from tuner.workloads.protocols import restore

if TYPE_CHECKING:
    from torch import nn

    from tuner.workloads.lookup import WorkloadLike


def load_best(folder: str | Path, workload: WorkloadLike | None = None) -> nn.Module:
    """The best model of a study, ready to evaluate; on the CPU, in evaluation mode.

    Args:
        folder: the study's folder, or a file of weights that it has kept.
        workload: whose best model, where the study has those of several workloads, by its name; or your own, as
            "module:Class", an object or its class, where the study cannot say where that is.

    Raises:
        InputError: the folder holds no best weights of this workload, those of several and none was named, or weights
            that are not tuner's.
    """
    import torch

    by_name = workload is None or (isinstance(workload, str) and ":" not in workload)
    given = None if workload is None or by_name else find_workload(workload)
    name = given.name if given else None if workload is None else str(workload)
    path = _best_file(Path(folder), name)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if name not in (None, content["workload"]):
            raise InputError(f"{path} is of workload {content['workload']!r}, not {name!r}")
        known = {} if content["workload"] in BUILT_IN else _classes(path.parent)
        if given is None and known.get(content["workload"], "") is None:
            raise InputError(
                f"{path}: its workload {content['workload']} {WAS_OBJECT}: give it again: "
                f"tuner.load_best({str(folder)!r}, workload=…)"
            )
        found = given or find_workload(content["workload"], known)
        model = restore(found, content["config"], content["weights"])
    except InputError:  # it is a ValueError, too
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there: give the folder of a study with a completed trial") from error
    except pickle.UnpicklingError as error:  # its text tells how to load the file unsafely
        raise InputError(f"{path} cannot be loaded: it holds more than weights and plain values") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be loaded: {one_line(error)}") from error
    return model.eval().requires_grad_(False)


def _classes(folder: Path) -> Classes:
    """Where the user's own workloads are found, by what was written beside the weights."""
    if (folder / STUDY).exists():
        return read_study(folder).classes
    return read_training(folder).classes if (folder / TRAIN).exists() else {}


def _best_file(folder: Path, workload: str | None) -> Path:
    """The file that was given; else the weights of the only workload, or of one of several."""
    if folder.is_file():
        return folder
    several = {path.stem.partition("-")[2]: path for path in folder.glob(best_name("*"))}
    if not several:
        return folder / BEST
    if workload is None and len(several) == 1:
        return next(iter(several.values()))
    if workload not in several:
        asked = f"no best weights of {workload!r}" if workload else "the best weights of several workloads"
        raise InputError(f"{folder} holds {asked}: choose workload {' or '.join(map(repr, sorted(several)))}")
    return several[workload]
