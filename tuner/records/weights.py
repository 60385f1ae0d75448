"""Loads the best model of a study."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, one_line, printable
from tuner.machine.safe_files import regular
from tuner.records.files import BEST, STUDY, best_name
from tuner.records.recorded_study import open_study
from tuner.records.study_record import read_study
from tuner.values import decode
from tuner.workloads.base import BUILT_IN
from tuner.workloads.lookup import WAS_OBJECT, find_workload
from tuner.workloads.protocols import restore

if TYPE_CHECKING:
    from tuner.workloads.lookup import WorkloadLike

Content = Mapping[str, Any]  # of a file of weights


def load_best(folder: str | Path, workload: WorkloadLike | None = None) -> Any:
    """The best model of a study, on the CPU and in evaluation mode.

    Of a function or a script it is the checkpoint that the best trial reported with its best metrics: the state dict,
    or the path of a folder ``best`` with the files.

    Args:
        folder: the study's folder, or one of its files of weights.
        workload: the workload's name if the study has several. If the study does not know where your own workload is
            defined: "module:Class", an object or its class.

    Raises:
        InputError: the folder has no best weights of this workload, it has several workloads and none was named, or
            the weights are not from tuner.
    """
    import torch

    by_name = workload is None or (isinstance(workload, str) and ":" not in workload)
    given = None if workload is None or by_name else find_workload(workload)
    name = given.name if given else None if workload is None else str(workload)
    path = _best_file(Path(folder), name)
    try:
        content = torch.load(regular(path), map_location="cpu", weights_only=True)
        if name not in (None, content["workload"]):
            raise InputError(f"{path} is of workload {content['workload']!r}, not {name!r}")
        _warn_of_better(path, content)
        if content.get("program"):
            return _checkpoint(content, path)
        has_record = content["workload"] not in BUILT_IN and (path.parent / STUDY).exists()
        classes = read_study(path.parent).classes if has_record else {}
        if given is None and classes.get(content["workload"], "") is None:
            raise InputError(
                f"{path}: its workload {content['workload']} {WAS_OBJECT}: give it again: "
                f"tuner.load_best({str(folder)!r}, workload=…)"
            )
        resolved = given or find_workload(content["workload"], classes)
        config = {key: decode(value) for key, value in content["config"].items()}
        model = restore(resolved, config, content["weights"])
    except InputError:  # it is a ValueError, too
        raise
    except FileNotFoundError as error:
        study = open_study(path.parent) if (path.parent / STUDY).exists() else None
        for one in study.objectives if study else ():
            if name in (None, one) and study and study.of_workload(one) and not study.best(one):
                raise InputError(f"{path} does not exist: {study.no_best(one)}") from error
        programs = study.record.programs if study else ()
        why = "of a study with a completed trial" if not programs else "of a study whose trials report a checkpoint"
        raise InputError(f"{path} does not exist: give the folder {why}") from error
    except pickle.UnpicklingError as error:  # its text suggests loading the file unsafely
        raise InputError(f"{path} cannot be loaded: it holds more than weights and plain values") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, EOFError) as error:
        raise InputError(f"{path} cannot be loaded: {one_line(error)}") from error
    return model.eval().requires_grad_(False)


def _warn_of_better(path: Path, content: Content) -> None:
    """Warns if these are not the best trial's: its weights were lost, or further seeds made it the best."""
    with suppress(InputError):  # beside the weights there is no study
        study = open_study(path.parent)
        best = study.best(content["workload"]) if content["workload"] in study.objectives else None
        if best and (best.name, best.seed) != (content.get("name"), content.get("seed")):
            owner = f"{content.get('name')} (seed {content.get('seed')})"
            lost = f"those of the best trial, {best.name} (seed {best.seed}), were not kept"
            warnings.warn(printable(f"{path} has the weights of {owner}: {lost}"), stacklevel=4)


def whose(path: Path) -> tuple[str, int] | None:
    """The name and the seed of the trial that wrote a file of weights; None if it cannot be read."""
    import torch

    try:
        content = torch.load(regular(path), map_location="cpu", weights_only=True, mmap=True)
        return content["name"], content["seed"]
    except Exception:  # ``load_best`` says why
        return None


def _checkpoint(content: Content, path: Path) -> Content | Path:
    """A program's checkpoint; a folder's files are written beside the file that holds them."""
    if not content["files"]:
        weights: Content = content["weights"]
        return weights
    folder = path.with_suffix("")
    for name, part in content["files"].items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.parent.resolve() / folder.name):  # also where that is a link
            raise InputError(f"{path} cannot be loaded: it names the file {name!r}, which is outside of its folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(part.numpy().tobytes())
    return folder


def _best_file(folder: Path, workload: str | None) -> Path:
    """The file itself if it is one; else the file of this workload, or of the only one, in the folder."""
    if folder.is_file():
        return folder
    several = {path.stem.partition("-")[2]: path for path in folder.glob(best_name("*"))}
    if not several:
        return folder / BEST
    if workload is None and len(several) == 1:
        return next(iter(several.values()))
    if workload not in several:
        content = f"no best weights of {workload!r}" if workload else "the best weights of several workloads"
        raise InputError(f"{folder} holds {content}: choose workload {' or '.join(map(repr, sorted(several)))}")
    return several[workload]
