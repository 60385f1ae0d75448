"""What does not fit in configurations, data and teachers. Only a teacher's file needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.datasets.can import CanData
from tuner.errors import InputError
from tuner.trial import Config, Configuration
from tuner.workloads.kd_gat import SHARED
from tuner.workloads.kd_gat.graphs import check_sizes, graphs_of


def check(configurations: Sequence[Configuration], data: CanData) -> None:
    """Raises ``InputError`` if the configurations do not fit the data or their teachers.

    Reasons are several stages in one study, a missing attack, a split without attacks or without normal graphs, and a
    teacher that does not fit.
    """
    if len(stages := {str(configuration.values["stage"]) for configuration in configurations}) > 1:
        raise InputError(
            f"stages {' and '.join(sorted(stages))} in one study: their losses cannot be compared: run one for each"
        )
    for configuration in configurations:
        try:
            _check_one(configuration.values, data)
        except InputError as error:
            raise InputError(f"{configuration.name}: {error.text}") from error


def _check_one(config: Config, data: CanData) -> None:
    stage, held_out = str(config["stage"]), str(config["held_out"])
    if stage == "autoencoder":
        check_sizes(int(config["hidden_channels"]), int(config["latent_channels"]), int(config["heads"]))
    if held_out and held_out not in data.attacks[1:]:
        raise InputError(
            f"held_out {held_out!r}: {data.name} has no such attack: choose one of "
            f"{', '.join(data.attacks[1:]) or 'none, as it has no attacks'}"
        )
    _check_labels(data, stage, held_out)
    for key, needed in (("teacher_path", stage), ("scorer_path", "autoencoder")):
        if config[key]:
            _check_teacher(key, config, needed, data)


def _check_labels(data: CanData, stage: str, held_out: str) -> None:
    for part in ("train", "validation", "test"):
        labels = data.label[graphs_of(data, part, stage=stage, held_out=held_out)]
        if not (labels == 0).any():
            raise InputError(f"{data.name} has no normal graph for {part}: give it attack-free traffic, too")
        if stage == "classifier" and not labels.any():
            beside = f" but {held_out}, which is held out" if held_out and part != "test" else ""
            raise InputError(
                f"{data.name} has no graph with injected frames (flag T) for {part}{beside}: stage classifier needs "
                "labels: give recordings of attacks, or set stage to autoencoder (the mode of that name does)"
            )


def _check_teacher(key: str, config: Config, stage: str, data: CanData) -> None:
    """Loads the teacher once, so that faults of its file are found before anything is planned."""
    from tuner.workloads.kd_gat.model import load_teacher

    path, here = Path(str(config[key])), Path.cwd()
    shown = f"{key} {path.relative_to(here) if path.is_relative_to(here) else path}"
    try:
        trained_with, _ = load_teacher(str(path), stage, len(data.identifiers) + 1)
    except InputError as error:
        raise InputError(f"{shown}: {error.text}") from error
    for name in SHARED if key == "teacher_path" else ("held_out",):
        if trained_with[name] != config[name]:
            raise InputError(
                f"{shown}: it was trained with {name} {trained_with[name]!r}, and this configuration has "
                f"{config[name]!r}: both must have the same: give another"
            )
