"""The folder of a model that was trained again: its weights, and how it came about."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ExecutionError, InputError, option
from tuner.machine.atomic_files import replace_file
from tuner.records.training_record import TrainingRecord
from tuner.study.retraining.figures import versions, written_figures
from tuner.study.retraining.run import Run
from tuner.trial import Device
from tuner.workloads.lookup import classes_of

if TYPE_CHECKING:
    from tuner.training.endings import Fit


def make_folder(output: str | None, workload: str) -> Path:
    """Makes the folder that was asked for, or a new one under ``results/``."""
    base = Path(output or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload}-train")
    path, number = base, 1
    while True:
        try:
            path.mkdir(parents=True, exist_ok=output is not None)
            return path
        except FileExistsError as error:
            if output is not None:
                raise InputError(f"{option('output', str(path))}: it is no folder") from error
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        except OSError as error:
            raise InputError(
                f"{option('output', str(path))}: cannot be written: {error.strerror}; give another folder"
            ) from error


def about_it(
    command: str, run: Run, source: str, device: Device, fitted: Fit, broken: bool, began: float
) -> TrainingRecord:
    """What ``train.json`` holds."""
    past, trial = run.past, run.trial
    return TrainingRecord(
        command=command,
        status="interrupted" if broken else "completed",
        study=str(past.folder),
        trial=trial.trial_id,
        workload=trial.workload,
        classes=classes_of([past.workload]),
        name=trial.name,
        seed=trial.seed,
        config=trial.config,
        epochs=run.last_epoch,
        all_data=run.all_data,
        data=source,
        device=device.label,
        threads=run.threads,
        metrics=written_figures(fitted),
        study_metrics=past.metrics,
        versions=versions(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        duration_s=round(time.time() - began, 3),
    )


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by their names.

    Raises:
        ExecutionError: the disk is full, or the folder can no longer be written.
    """
    try:
        for name, content in files.items():
            replace_file(folder / name, content)
    except OSError as error:
        raise ExecutionError(f"{folder} can no longer be written: {error.strerror}") from error


def remove(folder: Path) -> None:
    """Removes an empty folder."""
    with suppress(OSError):
        os.rmdir(folder)
