"""Which graphs a configuration of KD-GAT uses, and whether data and teachers serve it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.datasets.can import CanData
from tuner.errors import InputError
from tuner.trial import Configuration
from tuner.workloads.base import Config

PARTS = ("train", "validation", "test")


def usable(data: CanData, graphs: NDArray[np.int64], *, stage: str, held_out: str = "") -> NDArray[np.int64]:
    """Those of some graphs that are trained on, or chosen by, in their order.

    Args:
        data: all graphs.
        graphs: indices of them.
        stage: an autoencoder learns normal graphs only.
        held_out: a kind of attack that is left out; empty for none.
    """
    keep = data.label[graphs] == 0 if stage == "autoencoder" else np.ones(len(graphs), bool)
    if held_out:
        keep &= data.attack[graphs] != data.attacks.index(held_out)
    kept: NDArray[np.int64] = graphs[keep]
    return kept


def tested(data: CanData, *, stage: str, held_out: str = "") -> NDArray[np.int64]:
    """The test's graphs: normal ones, and attacks; of these only the kind that was held out, if one was.

    Args:
        data: all graphs.
        stage: an autoencoder's loss is of normal graphs only.
        held_out: the kind of attack; empty for all.
    """
    if not held_out or stage == "autoencoder":
        return usable(data, data.test, stage=stage)
    kind = data.attack[data.test]
    chosen: NDArray[np.int64] = data.test[(kind == 0) | (kind == data.attacks.index(held_out))]
    return chosen


def check(configurations: Sequence[Configuration], data: CanData) -> None:
    """Refuses configurations that these data, or the teachers that they name, do not serve.

    Raises:
        InputError: several stages in one study, an attack that is not there, a part of the data without attacks
            or without normal graphs, a teacher that does not fit.
    """
    if len(stages := {str(each.values["stage"]) for each in configurations}) > 1:
        raise InputError(
            f"stages {' and '.join(sorted(stages))} in one study: their losses cannot be compared: run one for each"
        )
    for each in configurations:
        config = each.values
        _check_shape(each.name, config)
        _check_attacks(each.name, config, data)
        _check_labels(each.name, config, data)
        for key, stage in (("teacher_path", str(config["stage"])), ("scorer_path", "autoencoder")):
            if config[key]:
                _check_teacher(each.name, key, config, stage, data)


def _check_shape(name: str, config: Config) -> None:
    import torch

    from tuner.workloads.kd_gat.model import student

    try:
        with torch.device("meta"):
            student(config, 1)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _check_attacks(name: str, config: Config, data: CanData) -> None:
    held_out = config["held_out"]
    if held_out and held_out not in data.attacks[1:]:
        raise InputError(
            f"{name}: held_out {held_out!r}: {data.name} has no such attack: choose one of "
            f"{', '.join(data.attacks[1:]) or 'none, as it has none at all'}"
        )


def _check_labels(name: str, config: Config, data: CanData) -> None:
    stage, held_out = config["stage"], config["held_out"]
    for part in PARTS:
        graphs = getattr(data, part)
        chosen = tested(data, stage=stage, held_out=held_out) if part == "test" else None
        chosen = usable(data, graphs, stage=stage, held_out=held_out) if chosen is None else chosen
        labels = data.label[chosen]
        if not (labels == 0).any():
            raise InputError(f"{name}: {data.name} has no normal graph for {part}: give it attack-free traffic, too")
        if stage == "classifier" and not labels.any():
            beside = f" but {held_out}, which is held out" if held_out and part != "test" else ""
            raise InputError(
                f"{name}: {data.name} has no graph with injected frames (flag T) for {part}{beside}: stage "
                "classifier needs labels: give recordings of attacks, or --set stage=autoencoder"
            )


def _check_teacher(name: str, key: str, config: Config, stage: str, data: CanData) -> None:
    """Loads it once: files are read before anything is planned."""
    from tuner.workloads.kd_gat.model import load_teacher
    from tuner.workloads.kd_gat.workload import TASK

    path = config[key]
    try:
        found, _ = load_teacher(path, stage, len(data.identifiers) + 1)
    except InputError as error:
        raise InputError(f"{name}: {key} {_short(path)}: {error}") from error
    for task in TASK if key == "teacher_path" else ("held_out",):
        if found[task] != config[task]:
            raise InputError(
                f"{name}: {key} {_short(path)}: it was trained with {task} {found[task]!r}, this has "
                f"{config[task]!r}: it knows what is to be unknown, or the other way round: give another"
            )


def _short(path: Any) -> str:
    """A path as it is seen from here, where that is shorter."""
    whole, here = Path(path), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)
